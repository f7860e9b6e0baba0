"""Calibration on rows held back: what a site says of them once, of the last model, and what all of them come to.

A site says its Brier score and two histograms. Neighbouring bins are merged until each cell is over `minimum_rows` rows
at least, as every sum of a site is; empty ones too, or they would say where the last row is. Of two classes both must
be so many in a cell, as each is a count by itself; a site that has fewer says nothing of its ranking.

reliability   cells of the top probability, of BINS bins: rows, confidence, how many are right
ranking       cells of the probability of class 1, of RANKS bins: rows of either class

Sites merge differently. The ECE is over the bins that no site has merged across, and so never above the one over all
BINS bins, but for rounding. Of the AUC it is known which of two rows is first where their cells do not overlap; where
they do, a pair counts as half, and `auc_bound` is half the share of such pairs: the AUC of the rows is no further away.
"""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from fedlap.engines.scores import BINS, Reliability, calibration_error
from fedlap.errors import DataError

RANKS = 100  # bins of the probability of class 1
DECIMALS = 2  # of a mean that is said


class Calibrated(NamedTuple):
    """What a site says of the rows that it holds back, in sums over cells; nothing, if it reports on none."""

    brier: float = 0.0
    reliability: tuple[tuple[int, int, float, int], ...] = ()  # the bin it ends with, from 1; rows, confidence, right
    ranking: tuple[tuple[int, int, int], ...] = ()  # the bin it ends with; rows of class 0, rows of class 1


class PooledCalibration(NamedTuple):
    """What all sites together come to; None where it is not known."""

    brier: float | None = None
    ece: float | None = None
    ece_bins: int | None = None  # that are left of BINS with some rows in them
    auc: float | None = None
    auc_bound: float | None = None  # the AUC of the rows is no further away
    auc_rows: int | None = None
    reliability: list[list[float]] | None = None  # cells: from, to, rows, confidence, right


# At a site ------------------------------------------------------------------------------------------------------------


def calibrated(probabilities: np.ndarray, labels: np.ndarray, least: int) -> Calibrated:
    """What a site says of its rows, in cells of `least` rows or more."""
    p, classes = np.asarray(probabilities, np.float64), probabilities.shape[1]
    confidence, right = p.max(1), p.argmax(1) == labels
    brier = float(((p - np.eye(classes)[labels]) ** 2).sum(1).mean())
    reliability = [
        (end, int(rows), float(round(sure / rows, DECIMALS) * rows), int(good))
        for end, rows, sure, good in merged(_bins(confidence, BINS, [np.ones(len(p)), confidence, right]), least, [0])
    ]
    ranking = []
    if classes == 2:
        of_classes = _bins(p[:, 1], RANKS, [labels == 0, labels == 1])
        ranking = [(end, int(zeros), int(ones)) for end, zeros, ones in merged(of_classes, least, [0, 1])]
    return Calibrated(round(brier, DECIMALS) * len(p), tuple(reliability), tuple(ranking))


def _bins(values: np.ndarray, count: int, sums: Sequence[np.ndarray]) -> np.ndarray:
    """Sums over the rows of each of `count` bins of one width, which have their upper ends in them: [count, sums]."""
    place = np.clip(np.ceil(count * values) - 1, 0, count - 1).astype(int)
    return np.stack([np.bincount(place, each, minlength=count) for each in sums], 1)


def merged(bins: np.ndarray, least: int, counts: Sequence[int]) -> list[tuple[Any, ...]]:
    """Cells of neighbouring bins, (last bin, sums), in each of which all these columns come to `least`.

    What is left at the end goes to the last cell; where all together are fewer, there is none.
    """
    cells, open_cell = [], np.zeros(bins.shape[1])
    for end, each in enumerate(bins, start=1):
        open_cell = open_cell + each
        if all(open_cell[column] >= least for column in counts):
            cells.append([end, *open_cell])
            open_cell = np.zeros(bins.shape[1])
    if cells:
        cells[-1] = [len(bins), *(np.array(cells[-1][1:]) + open_cell)]
    return [tuple(cell) for cell in cells]


# At the server --------------------------------------------------------------------------------------------------------


def read_calibrated(member: str, facts: dict, rows: int) -> Calibrated:
    """What a member says of so many rows; DataError if it cannot be."""
    given = facts.get("calibration")
    if not isinstance(given, dict) or given.keys() != set(Calibrated._fields):
        raise DataError(f"{member}: its calibration is not {', '.join(Calibrated._fields)}")
    brier, reliability, ranking = (given[name] for name in Calibrated._fields)
    if type(brier) not in (int, float) or not 0 <= brier <= 2 * rows:
        raise DataError(f"{member}: a Brier score of {brier!r:.20} on {rows} held-back rows; none can be")
    kinds = {"reliability": (int, int, float, int), "ranking": (int, int, int)}
    for name, cells, bins in (("reliability", reliability, BINS), ("ranking", ranking, RANKS)):
        if (
            not isinstance(cells, (list, tuple))
            or len(cells) > bins
            or not all(_is_cell(cell, kinds[name]) for cell in cells)
        ):
            raise DataError(f"{member}: its {name} is no list of cells")
        ends = [cell[0] for cell in cells]
        if ends != sorted(set(ends)) or (ends and (ends[0] < 1 or ends[-1] != bins)):
            raise DataError(f"{member}: the cells of its {name} end at {ends}; expected them up to {bins}, one by one")
    counted = sum(cell[1] for cell in reliability)
    if counted != rows:
        raise DataError(f"{member}: a reliability of {counted} rows; it holds back {rows}")
    for low, (end, count, confidence, right) in zip([0, *(cell[0] for cell in reliability)], reliability, strict=False):
        within = (low / BINS - 0.01) * count <= confidence <= (end / BINS + 0.01) * count  # it is rounded
        if not within or right > count or not count:
            raise DataError(f"{member}: {right} right of {count} rows, a confidence of {confidence:g}; that cannot be")
    ranked = sum(zeros + ones for _, zeros, ones in ranking)
    if ranked not in (0, rows):
        raise DataError(f"{member}: a ranking of {ranked} rows; it holds back {rows}")
    cells = [tuple(map(tuple, each)) for each in (reliability, ranking)]
    return Calibrated(float(brier), *cells)


def _is_cell(cell: Any, kinds: tuple[type, ...]) -> bool:
    whole = isinstance(cell, (list, tuple)) and len(cell) == len(kinds)
    return whole and all(type(each) in (int, kind) and 0 <= each < 1e15 for each, kind in zip(cell, kinds, strict=True))


def calibration(reports: Iterable[Calibrated]) -> PooledCalibration:
    """What several members' cells come to."""
    reports = [each for each in reports if each.reliability]
    if not reports:
        return PooledCalibration()
    ends = sorted(set.intersection(*({cell[0] for cell in each.reliability} for each in reports)))
    sums = np.zeros((len(ends), 3))
    for end, *cell in (cell for each in reports for cell in each.reliability):
        sums[np.searchsorted(ends, end)] += cell
    rows, confidence, right = sums.T
    cells = [
        [low / BINS, end / BINS, int(count), float(sure), int(good)]
        for low, end, count, sure, good in zip([0, *ends[:-1]], ends, rows, confidence, right, strict=True)
        if count
    ]
    ece = float(calibration_error(Reliability(rows, confidence, right)))
    brier = sum(each.brier for each in reports) / rows.sum()
    return PooledCalibration(float(brier), ece, len(cells), *area(reports), cells)


def area(reports: Iterable[Calibrated]) -> tuple[float, float, int] | tuple[None, None, None]:
    """The AUC of rows that are known to lie in cells, its bound, and how many they are; None of no such rows."""
    cells = []
    for each in reports:
        starts = [0, *(cell[0] for cell in each.ranking)]
        cells += [(start, *cell) for start, cell in zip(starts, each.ranking, strict=False)]
    if not cells:
        return None, None, None
    start, end, zeros, ones = np.array(cells, np.float64).T
    pairs = ones[:, None] * zeros
    above, below = start[:, None] >= end, end[:, None] <= start
    unknown = (pairs * ~(above | below)).sum() / pairs.sum() / 2
    return float((pairs * above).sum() / pairs.sum() + unknown), float(unknown), int((zeros + ones).sum())
