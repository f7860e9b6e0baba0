"""From a checked file to the model's inputs: what each site tells about its numbers, and what is made of it.

A site tells, of its training rows, how many there are and for each number column the count, the sum and the sum of
squares of the values that are there. The server adds these up; the means and deviations of all members' rows together
go back to every site, which fills in, standardises and codes its own rows.
"""

import math
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np

from fedlap.errors import DataError
from fedlap.study.table.columns import LARGEST, Column
from fedlap.study.table.requirements import Requirements
from fedlap.study.table.table import Checked

# Below this fraction of the mean square a variance is rounding: the column is constant.
NEGLIGIBLE = 1e-13
ROUNDING = 1e-9  # of a sum over rows, in parts of its largest term times their number
# A site pads its row numbers to as many as the largest member has, and a solver without minibatches computes over as
# many rows: one member's false number of rows must not exhaust the others' memory.
MOST_NUMBERS = 2**29  # of one member's rows
BESIDE_INPUTS = 16  # numbers that a row takes in the lists of rows and of minibatches


class Statistics(NamedTuple):
    """Of one member's training rows; arrays hold one value for each number column, in the study's order."""

    rows: np.ndarray  # []
    counts: np.ndarray  # of the values that are there
    sum: np.ndarray
    sum_of_squares: np.ndarray


class Pooled(NamedTuple):
    """Of all members' training rows together; arrays hold one value for each number column, in the study's order."""

    rows: np.ndarray  # []
    counts: np.ndarray
    means: np.ndarray
    deviations: np.ndarray  # of the population; 1 where the column is constant


def numbers(study: Requirements) -> list[Column]:
    """The number columns, in order."""
    return [column for column in study.columns if column.kind == "number"]


def features(study: Requirements) -> tuple[str, ...]:
    """The names of the model's inputs: each number, and each category but the first, which is all others being 0."""
    names = []
    for column in study.columns:
        names += (
            [column.name]
            if column.kind == "number"
            else [f"{column.name}={category}" for category in column.categories[1:]]
        )
    return tuple(names)


def most_rows(features: int) -> int:
    """How many rows a member may train on, however many members there are."""
    return MOST_NUMBERS // (features + BESIDE_INPUTS)


def statistics(study: Requirements, train: Checked) -> Statistics:
    """What a site sends before the first round: sums are rounded once, so that the order of rows cannot matter."""
    present = [_present(train.values[column.name]) for column in numbers(study)]
    made = Statistics(
        rows=np.array(len(train), np.float64),
        counts=np.array([len(values) for values in present], np.float64),
        sum=np.array([math.fsum(values) for values in present], np.float64),
        sum_of_squares=np.array([math.fsum(values * values) for values in present], np.float64),
    )
    check_statistics(study, train.path.name, made)
    return made


def check_statistics(study: Requirements, source: str, given: Statistics) -> None:
    """DataError unless they can be those of a site that may join; the site asks itself, the server asks again."""
    columns = numbers(study)
    for name, array in given._asdict().items():
        shape = () if name == "rows" else (len(columns),)
        if array.shape != shape or array.dtype != np.float64 or not np.isfinite(array).all():
            raise DataError(f"{source}: statistics {name!r} of shape {array.shape}; expected finite float64 of {shape}")
    rows, counts, sums, squares = given
    if rows < study.minimum_rows or rows % 1:
        raise DataError(f"{source}: {rows:g} training rows; expected at least {study.minimum_rows} (minimum_rows)")
    most = most_rows(len(features(study)))
    if rows > most:
        raise DataError(f"{source}: {rows:g} training rows; expected at most {most}, with this many inputs")
    for column, count, total, square in zip(columns, counts, sums, squares, strict=True):
        where = f"{source}, column {column.name}"
        if count % 1 or not 0 <= count <= rows:
            raise DataError(f"{where}: {count:g} values in {rows:g} rows; expected at most one a row")
        if column.missing != "mean" and count != rows:
            raise DataError(f"{where}: {count:g} values in {rows:g} rows; expected one a row, as none may be missing")
        if 0 < count < study.minimum_rows:
            raise DataError(
                f"{where}: {count:g} of {rows:g} training rows have a value; expected none or at least "
                f"{study.minimum_rows} (minimum_rows): a sum over so few would tell about single patients"
            )
        _check_sums(where, column, count, total, square)


def _check_sums(where: str, column: Column, count: float, total: float, square: float) -> None:
    """DataError unless so many numbers in the column's range can have this sum and this sum of squares."""
    low, high = max(column.minimum, -LARGEST), min(column.maximum, LARGEST)
    largest = max(abs(low), abs(high))
    if not abs(total - count * (low + high) / 2) <= count * ((high - low) / 2 + ROUNDING * largest):
        raise DataError(f"{where}: no {count:g} numbers from {low:g} to {high:g} have the sum {total:g}")
    # Σ(x − low)(high − x) is not below zero either; without a range, no square is larger than the largest.
    ranged = math.isfinite(column.minimum) and math.isfinite(column.maximum)
    most = (low + high) * total - count * low * high if ranged else count * LARGEST**2
    if square > most + count * ROUNDING * largest**2 or total * total > count * square * (1 + 1e-9):
        raise DataError(f"{where}: no numbers have sum {total:g} and sum of squares {square:g}")


def warnings(study: Requirements, train: Checked) -> list[str]:
    """In words, which categories and classes so few training rows have that contributions may tell of single patients.

    They are no reason to refuse: what a category's few rows tell is the member's to judge, and so is merging it.
    """
    target = Column(study.target.name, "category", categories=study.target.classes)
    values = {**train.values, target.name: train.known_labels()}
    return rare((*study.columns, target), values, study.minimum_rows, "rows to train on")


def rare(columns: Iterable[Column], values: Mapping[str, np.ndarray], minimum: int, rows: str) -> list[str]:
    """A warning of the categories that some rows have, but fewer than the minimum; no lines without any."""
    few, count = [], 0
    for column in columns:
        if column.kind == "category":
            count = len(values[column.name])
            counts = np.bincount(values[column.name], minlength=len(column.categories))
            few += [
                f"  {column.name} = {category}: {found}"
                for category, found in zip(column.categories, counts, strict=True)
                if 0 < found < minimum
            ]
    if not few:
        return []
    return [
        f"warning: of the {count} {rows}, fewer than {minimum} (minimum_rows) have",
        *few,
        "What is sent every round may tell about single ones of these patients. If that must not be, all members",
        "must agree to merge such categories in the study file, or this one must not take part.",
    ]


def pool(given: Iterable[Statistics]) -> Pooled:
    """The members' statistics added up, and what follows from the sums; each is rounded once."""
    rows, counts, sums, sums_of_squares = (_total(arrays) for arrays in zip(*given, strict=True))
    divisors = np.maximum(counts, 1)  # a column that nobody recorded has mean 0
    means, squares = sums / divisors, sums_of_squares / divisors
    variances = squares - means * means
    constant = variances <= NEGLIGIBLE * squares
    deviations = np.sqrt(np.where(constant, 1.0, variances))
    return Pooled(np.asarray(rows), counts, means, deviations)


def encode(study: Requirements, checked: Checked, pooled: Pooled) -> tuple[np.ndarray, np.ndarray | None]:
    """The model's inputs, float32 [rows, features], and the labels."""
    inputs = np.empty((len(checked), len(features(study))), np.float32)
    place, number = 0, 0
    for column in study.columns:
        values = checked.values[column.name]
        if column.kind == "number":
            filled = np.where(np.isnan(values), pooled.means[number], values)
            inputs[:, place] = (filled - pooled.means[number]) / pooled.deviations[number]
            place, number = place + 1, number + 1
        else:
            width = len(column.categories) - 1
            inputs[:, place : place + width] = values[:, None] == np.arange(1, width + 1)
            place += width
    return inputs, checked.labels


def _present(values):
    return values[~np.isnan(values)]


def _total(arrays):
    stacked = np.stack(arrays)
    return np.apply_along_axis(math.fsum, 0, stacked) if stacked[0].size else stacked[0]
