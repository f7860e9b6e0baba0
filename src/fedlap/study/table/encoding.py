"""From a checked file to the model's inputs: what each site tells about its numbers, and what is made of it.

A site tells, of its training rows, how many there are and for each number column the count, the sum and the sum of
squares of the values that are there. The server adds these up; the means and deviations of all members' rows together
go back to every site, which fills in, standardises and codes its own rows.
"""

import math
from typing import NamedTuple

import numpy as np

from fedlap.errors import DataError
from fedlap.study.table.cells import LARGEST

# Below this fraction of the mean square a variance is rounding: the column is constant.
NEGLIGIBLE = 1e-13
# A site pads its row numbers to as many as the largest member has, and a solver without minibatches computes over as
# many rows: one member's false number of rows must not exhaust the others' memory.
MOST_NUMBERS = 2**29  # of one member's rows
BESIDE_INPUTS = 16  # numbers that a row takes in the lists of rows and of minibatches


class Pooled(NamedTuple):
    """Of all members' training rows together; arrays hold one value for each number column, in the study's order."""

    rows: np.ndarray  # []
    counts: np.ndarray
    means: np.ndarray
    deviations: np.ndarray  # of the population; 1 where the column is constant


def numbers(study):
    """The number columns, in order."""
    return [column for column in study.columns if column.kind == "number"]


def features(study) -> tuple[str, ...]:
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


def statistics(study, train) -> dict[str, np.ndarray]:
    """What a site sends before the first round: sums are rounded once, so that the order of rows cannot matter."""
    present = [_present(train.values[column.name]) for column in numbers(study)]
    return checked_statistics(
        study,
        train.path.name,
        {
            "rows": np.array(len(train), np.float64),
            "count": np.array([len(values) for values in present], np.float64),
            "sum": np.array([math.fsum(values) for values in present], np.float64),
            "sum_of_squares": np.array([math.fsum(values * values) for values in present], np.float64),
        },
    )


def checked_statistics(study, who, given) -> dict[str, np.ndarray]:
    """The statistics, if they can be those of a site that may join; the site asks itself, the server asks again."""
    columns = [column.name for column in numbers(study)]
    shapes = {"rows": (), "count": (len(columns),), "sum": (len(columns),), "sum_of_squares": (len(columns),)}
    if set(given) != set(shapes):
        raise DataError(f"{who}: statistics named {sorted(given)}; expected {sorted(shapes)}")
    for name, shape in shapes.items():
        array = given[name]
        if array.shape != shape or array.dtype != np.float64 or not np.isfinite(array).all():
            raise DataError(f"{who}: statistics {name!r} of shape {array.shape}; expected finite float64 of {shape}")
    rows, counts, sums, squares = (given[name] for name in shapes)
    if rows < study.minimum_rows or rows % 1:
        raise DataError(f"{who}: {rows:g} training rows; expected at least {study.minimum_rows} (minimum_rows)")
    most = most_rows(len(features(study)))
    if rows > most:
        raise DataError(f"{who}: {rows:g} training rows; expected at most {most}, with this many inputs")
    for column, count, total, square in zip(columns, counts, sums, squares, strict=True):
        if count % 1 or not 0 <= count <= rows:
            raise DataError(f"{who}, column {column}: {count:g} values in {rows:g} rows; expected at most one a row")
        if 0 < count < study.minimum_rows:
            raise DataError(
                f"{who}, column {column}: {count:g} of {rows:g} training rows have a value; expected none or at least "
                f"{study.minimum_rows} (minimum_rows): a sum over so few would tell about single patients"
            )
        possible = abs(total) <= count * LARGEST and square <= count * LARGEST**2
        if not possible or total * total > count * square * (1 + 1e-9):
            raise DataError(f"{who}, column {column}: no numbers have sum {total:g} and sum of squares {square:g}")
    return given


def warnings(study, train) -> list[str]:
    """In words, which categories and classes so few training rows have that contributions may tell of single patients.

    They are no reason to refuse: what a category's few rows tell is the member's to judge, and so is merging it.
    """
    groups = [(c.name, c.categories, train.values[c.name]) for c in study.columns if c.kind == "category"]
    groups.append((study.target.name, study.target.classes, train.labels))
    few = []
    for name, choices, places in groups:
        counts = np.bincount(places, minlength=len(choices))
        few += [
            f"  {name} = {choice}: {count}"
            for choice, count in zip(choices, counts, strict=True)
            if 0 < count < study.minimum_rows
        ]
    if not few:
        return []
    return [
        f"warning: of the {len(train)} rows to train on, fewer than {study.minimum_rows} (minimum_rows) have",
        *few,
        "What is sent every round may tell about single ones of these patients. If that must not be, all members",
        "must agree to merge such categories in the study file, or this one must not take part.",
    ]


def pool(given) -> Pooled:
    """The members' statistics added up; each sum is rounded once."""
    totals = {name: _total([one[name] for one in given]) for name in ("rows", "count", "sum", "sum_of_squares")}
    counts = totals["count"]
    divisors = np.maximum(counts, 1)  # a column that nobody recorded has mean 0
    means, squares = totals["sum"] / divisors, totals["sum_of_squares"] / divisors
    variances = squares - means * means
    constant = variances <= NEGLIGIBLE * squares
    deviations = np.sqrt(np.where(constant, 1.0, variances))
    return Pooled(totals["rows"], counts, means, deviations)


def encode(study, checked, pooled) -> tuple[np.ndarray, np.ndarray | None]:
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
