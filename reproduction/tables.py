"""Tables 1 to 5: what each entry measures, ours in the ways of choosing, and the printed number."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from fedlap.errors import unknown
from fedlap.experiments.summary import LAST, finals, value
from reproduction.rows import ALGORITHMS, PAPER, STANDARD, WAYS, PaperRow


def mean_accuracy(curve, round):
    """Per cent, the mean over the three rounds up to this one."""
    return 100 * value(curve, int(round))[0]


def maximum_accuracy(curve, round):
    """Per cent, the best of the three rounds up to this one."""
    window = curve.accuracy[: int(round)][-LAST:]
    return np.nan if not window or None in window else 100 * max(window)


def rounds_to_accuracy(curve, target):
    """The first round at or above this many per cent; infinite if it never comes."""
    reached = [i for i, a in enumerate(curve.accuracy, start=1) if a is not None and 100 * a >= float(target)]
    return reached[0] if reached else np.inf


def nll(curve, round):
    """The mean over the three rounds up to this one."""
    return value(curve, int(round))[1]


class TableKind(NamedTuple):
    title: str
    head: str  # of the column of rounds or accuracies
    measure: object
    digits: int
    point: float  # a difference that is small whatever the spread: one accuracy point; half a printed digit of an NLL
    key: str = "{}"  # how a line names its round or accuracy

    def printed_with(self, digits):
        return self._replace(digits=digits, point=self.point * 10 ** (self.digits - digits))


KINDS = {
    "1": TableKind("Average accuracy (%)", "round", mean_accuracy, 1, 1.0),
    "2": TableKind("Maximum accuracy (%)", "round", maximum_accuracy, 1, 1.0),
    "3": TableKind("Rounds to an accuracy", "accuracy (%)", rounds_to_accuracy, 0, 0.0),
    "4": TableKind("Average accuracy (%), UCI Credit homogeneous", "round", mean_accuracy, 1, 1.0),
    "5": TableKind("Negative log-likelihood", "round", nll, 2, 0.005),
    "two-points": TableKind(
        "FedLap-Func with two memory points per class and client",
        "number",
        mean_accuracy,
        1,
        1.0,
        "average at round {}",
    ),
    "standard": TableKind("Standard inputs and activations, accuracy (%)", "round", mean_accuracy, 1, 1.0),
}
# The paper's appendix has the three numbers of Tables 1, 2 and 3 for two memory points, so they share a table here.
OF_TWO_POINTS = {
    "mean": KINDS["two-points"],
    "maximum": KINDS["two-points"]._replace(measure=maximum_accuracy, key="maximum at round {}"),
    "rounds": KINDS["3"]._replace(key="rounds to {} %"),
}


ROUNDING = 1e-9  # a difference of binary fractions is not quite that of the decimal ones


class Spread(NamedTuple):
    """Mean and population standard deviation over the seeds that ran."""

    mean: float  # infinite: of rounds to an accuracy that not every seed reached
    deviation: float | None  # one seed has none, nor has infinity
    seeds: int
    diverged: int = 0  # of these seeds, before they came so far; then there is no mean


@dataclass(frozen=True)
class Entry:
    """One cell of a table."""

    row: PaperRow
    kind: TableKind
    at: str  # the round, or the accuracy
    algorithm: str
    published: tuple[float, float] | None
    ours: dict[str, Spread | None]  # by the way of choosing

    @property
    def key(self):
        return self.kind.key.format(self.at)

    def difference(self, way):
        ours = self.ours[way]
        return None if ours is None or ours.diverged or self.published is None else ours.mean - self.published[0]

    def verdict(self, way: str) -> str | None:
        """ "within" two published deviations, "near" if within a point, else "above", "below" or "diverged"."""
        ours, difference = self.ours[way], self.difference(way)
        if difference is None or self.published is None:
            return "diverged" if self.published and ours and ours.diverged else None
        if abs(difference) <= 2 * self.published[1] + ROUNDING:
            return "within"
        if abs(difference) <= self.kind.point + ROUNDING:
            return "near"
        return "above" if difference > 0 else "below"


def entries(paper, number, row=None):
    """All entries of one table, in the paper's order; of one row if it is named."""
    if number not in KINDS:
        raise unknown("table", number, KINDS)
    found = []
    printed_rows = {name: lines for name, lines in _printed(paper, number).items() if row in (None, name)}
    rows = {name: paper.row(name) for name in printed_rows}
    algorithms = [name for name in ALGORITHMS if any(name in of.sweep.algorithms for of in rows.values())]
    for name, lines in printed_rows.items():
        of = rows[name]
        for kind, at, printed in lines:
            for algorithm in algorithms:
                ours = {way: spread(of.runs(algorithm, way), kind.measure, at) for way in WAYS}
                found.append(Entry(of, kind, at, algorithm, printed.get(algorithm), ours))
    return found


def tables_of(paper, row):
    """The tables in which a row stands."""
    return [number for number in KINDS if row in _printed(paper, number)]


def _printed(paper, number):
    """{row: [(kind, round or accuracy, {algorithm: [mean, deviation]})]}; for the standard inputs nothing was."""
    kind = KINDS[number]
    if number == "two-points":
        return {
            f"{name}-two-points": [
                (kind, at, {"fedlap_func": printed})
                for part, kind in OF_TWO_POINTS.items()
                for at, printed in of[part].items()
            ]
            for name, of in paper.published.get(number, {}).items()
        }
    if number == "standard":
        rounds = {**paper.published.get("table1", {}), **paper.published.get("table4", {})}
        names = [name for name in rounds if STANDARD + name in paper.names]
        return {STANDARD + name: [(kind, at, {}) for at in rounds[name]] for name in names}
    printed = dict(paper.published.get(f"table{number}", {}))
    for name, row in paper.published["rows"].items():
        whole = printed.get(row.get("part_of"), {})
        lines = {at: whole[at] for at in row.get("rounds", []) if at in whole}
        if lines:
            printed[name] = lines
    return {
        name: [(_as_printed(paper, kind, name), *line) for line in lines.items()] for name, lines in printed.items()
    }


def _as_printed(paper, kind, row):
    digits = paper.published["rows"].get(row, {}).get("nll_digits")
    return kind.printed_with(digits) if digits is not None and kind.measure is nll else kind


class Nearest(NamedTuple):
    """The setting whose line comes nearest to the printed one, over all its rounds."""

    setting: dict
    runs: list
    values: list[Spread]
    inside: bool  # every round within two published deviations or a point


def nearest(line):
    """Tells a different choice of setting from a different method: does the printed line lie in the paper's grid?

    Of the entries of one row and algorithm. A setting that was not trained on all rows is looked at in the search.
    """
    row, algorithm, best = line[0].row, line[0].algorithm, None
    for setting in row.settings(algorithm, PAPER):
        searched = [each for each in row.candidates if each.algorithm == algorithm and each.setting == setting]
        runs = finals(row.candidates, algorithm, setting) or searched
        spreads = [spread(runs, entry.kind.measure, entry.at) for entry in line]
        values = [ours for ours in spreads if ours is not None and not ours.diverged]
        if len(values) < len(line):
            continue
        worst = max(
            abs(ours.mean - entry.published[0]) / max(2 * entry.published[1], entry.kind.point)
            for ours, entry in zip(values, line, strict=True)
        )
        if best is None or worst < best[0]:
            best = worst, Nearest(setting, runs, values, worst <= 1 + ROUNDING)
    return best and best[1]


def spread(runs, measure, key):
    """None if nothing ran, or a run never came so far."""
    values = [measure(run.curves["test"], key) for run in runs]
    lost = sum(run.diverged and bool(np.isnan(value)) for run, value in zip(runs, values, strict=True))
    if lost:
        return Spread(np.nan, None, len(values), lost)
    too_short = any(len(run.curves["test"].nll) < int(float(key)) for run in runs) and measure is not rounds_to_accuracy
    if not values or too_short or np.isnan(values).any():
        return None
    deviation = float(np.std(values)) if len(values) > 1 and np.isfinite(values).all() else None
    return Spread(float(np.mean(values)), deviation, len(values))
