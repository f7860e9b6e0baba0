"""Columns on one scale: means and spreads of the pooled rows from what sites say, and the way back to the user's units.

Rounds run on standardised columns, so that years and micrograms are the same to them. Every site says how many rows
it has, the columns' means and their centred products; these add up exactly, without the rounding of raw squares.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from fedlap.errors import DataError

CONSTANT = 1e-10  # a spread below so much of a column's size is rounding
DEPENDENT = 1e-11  # an eigenvalue of the correlations below so much of the largest says that a column is superfluous


class Moments(NamedTuple):
    """The number of rows, the columns' means, and the products of their distances from these."""

    rows: float
    mean: np.ndarray  # [P]
    products: np.ndarray  # [P, P]


class Scale(NamedTuple):
    """What is taken off each column, and what it is divided by."""

    shift: np.ndarray
    spread: np.ndarray
    intercept: int | None  # the column of ones

    def apply(self, x: np.ndarray) -> np.ndarray:
        """Standardise the columns of a site, in place."""
        x -= self.shift
        x /= self.spread
        return x

    @property
    def back(self) -> np.ndarray:
        """The matrix that makes coefficients in the user's units of those of standardised columns."""
        back = np.diag(1 / self.spread)
        if self.intercept is not None:
            back[self.intercept] -= self.shift / self.spread
        return back


def moments(x: np.ndarray, weights: np.ndarray) -> Moments:
    """The moments of a site's columns, each row as often as it counts."""
    rows = weights.sum()
    mean = weights @ x / rows
    centred = x - mean
    return Moments(rows, mean, centred.T @ (centred * weights[:, None]))


def pooled(parts: Iterable[Moments]) -> Moments:
    """The moments of all rows, from those of the sites."""
    rows, mean, products = 0.0, np.zeros(1), np.zeros((1, 1))
    for part in parts:
        total = rows + part.rows
        distance = part.mean - mean
        products = products + part.products + np.outer(distance, distance) * (rows * part.rows / total)
        mean = mean + distance * (part.rows / total)
        rows = total
    return Moments(rows, mean, products)


def standardise(total: Moments, names: Sequence[str], centred: bool = False) -> Scale:
    """The scale of all rows; an error that names the columns if some say nothing that the others do not.

    Columns are centred if there is a column of ones to make up for it, or `centred` says that the loss does not care.
    """
    size = len(names)
    spread = np.sqrt(np.diag(total.products) / total.rows)
    constant = spread <= CONSTANT * np.abs(total.mean)
    ones = [j for j in np.flatnonzero(constant) if total.mean[j] == 1]
    intercept = int(ones[0]) if ones else None
    for j in map(int, np.flatnonzero(constant)):
        if j != intercept:
            same = f"is {total.mean[j]:g} in every row of every site"
            beside = "" if intercept is None else f", as good as {names[intercept]}"
            raise DataError(f"column {names[j]} {same}{beside}; leave it out of the formula")
    if intercept is None and not centred:
        shift = np.zeros(size)
        squares = total.products + total.rows * np.outer(total.mean, total.mean)
    else:
        shift, squares = total.mean.copy(), total.products.copy()
        if intercept is not None:
            shift[intercept], squares[intercept, intercept] = 0, total.rows
    spread = np.sqrt(np.diag(squares) / total.rows)
    values, vectors = np.linalg.eigh(squares / total.rows / np.outer(spread, spread))
    if values[0] < DEPENDENT * values[-1]:
        part = np.abs(vectors[:, 0])
        involved = [names[j] for j in map(int, np.flatnonzero(part > 1e-3 * part.max()))]
        raise DataError(
            f"columns {', '.join(involved)} say the same: one is a sum of multiples of the others, so no coefficient "
            "of them is determined; leave one out of the formula"
        )
    return Scale(shift, spread, intercept)
