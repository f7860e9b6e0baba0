"""What a site can say about its rows: the loss at a point, with its slope and curvature there."""

from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

from fedlap.regression.families.base import Family


class Expansion(NamedTuple):
    """A loss up to second order around a point."""

    loss: float  # a negative log-likelihood
    gradient: np.ndarray  # [P]
    hessian: np.ndarray  # [P, P]


class Loss(Protocol):
    """A function of the weights that has an optimum. Everything is float64."""

    def loss(self, w: np.ndarray) -> float:
        """The loss at a point; infinite or NaN where it has no value, which a line search steps back from."""
        ...

    def expand(self, w: np.ndarray) -> Expansion:
        """The loss, its gradient and its Hessian at a point."""
        ...


class Objective(Loss, Protocol):
    """The negative log-likelihood of one site's rows, as a function of the weights."""

    def meat(self, w: np.ndarray) -> np.ndarray:
        """The sum over rows of their score times itself: what a robust covariance has in its middle."""
        ...


class Closing(NamedTuple):
    """What a site says once the weights are found, as sums over its rows."""

    pearson: float
    deviance: float
    information: np.ndarray  # empty of a family with a shape


BLOCK = 8192  # rows: what is made of them for a Hessian stays in the processor's cache


@dataclass(frozen=True, eq=False)
class LinearObjective:
    """The loss of a family on rows: each predictor of a row is linear in the weights.

    w has the weights of the first predictor, then of the second and so on; a shape is one weight.
    """

    family: Family
    x: np.ndarray  # [n, P]
    y: np.ndarray  # [n]
    weights: np.ndarray  # [n], how often each row counts
    offset: np.ndarray  # [n], a part of the first predictor with no weight

    def loss(self, w: np.ndarray) -> float:
        with np.errstate(over="ignore", invalid="ignore"):  # a line search steps back from there
            return float(self.weights @ self.family.loss(self.y, self.predict(w)))

    def predict(self, w: np.ndarray) -> np.ndarray:
        """The predictors of every row: [n], or [J, n] of a family that has J."""
        by_row, shapes = self._parts(w)
        f = by_row @ self.x.T
        f[0] += self.offset
        if len(shapes):
            f = np.concatenate([f, np.broadcast_to(shapes[:, None], (len(shapes), len(self.y)))])
        return f if self.family.several else f[0]

    def expand(self, w: np.ndarray) -> Expansion:
        with np.errstate(over="ignore", invalid="ignore"):
            f = self.predict(w)
            loss = float(self.weights @ self.family.loss(self.y, f))
            slope = np.atleast_2d(self.family.slope(self.y, f) * self.weights)
            curvature = self.family.curvature(self.y, f) * self.weights
        return Expansion(loss, self._collect(slope), self._square(curvature))

    def information(self, w: np.ndarray) -> np.ndarray:
        """The Hessian that is expected at a point: of a canonical link it is the Hessian."""
        return self._square(self.family.information(self.predict(w)) * self.weights)

    def meat(self, w: np.ndarray) -> np.ndarray:
        slope = np.atleast_2d(self.family.slope(self.y, self.predict(w)))
        return self._square(slope[:, None] * slope[None] * self.weights)

    def row_curvatures(self, w: np.ndarray) -> np.ndarray:
        """How much each row counts in the Hessian, [n], but for that of a shape."""
        with np.errstate(over="ignore", invalid="ignore"):
            curvature = np.abs(self.family.curvature(self.y, self.predict(w)) * self.weights)
        own = self.family.predictors - self.family.shapes
        return curvature if curvature.ndim == 1 else np.trace(curvature[:own, :own])

    def closing(self, w: np.ndarray) -> Closing:
        """The closing sums of the rows."""
        f, family = self.predict(w), self.family
        pearson = np.nan
        if not family.unordered:
            pearson = float(self.weights @ ((self.y - family.mean(f)) ** 2 / family.variance(f)))
        deviance = float(self.weights @ family.deviance(self.y, f))
        return Closing(pearson, deviance, self.information(w) if not family.shapes else np.zeros(0))

    def _parts(self, w: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        shapes = self.family.shapes
        own = len(w) - shapes
        return w[:own].reshape(self.family.predictors - shapes, -1), w[own:]

    def _designs(self) -> list[np.ndarray]:
        """What each predictor is linear in."""
        shapes = self.family.shapes
        return [self.x] * (self.family.predictors - shapes) + [np.ones((len(self.y), 1))] * shapes

    def _collect(self, slope: np.ndarray) -> np.ndarray:
        return np.concatenate([part.T @ slope[j] for j, part in enumerate(self._designs())])

    def _square(self, curvature: np.ndarray) -> np.ndarray:
        """The sum over rows of xxᵀ times the curvature, predictor by predictor."""
        curvature = curvature if curvature.ndim == 3 else curvature[None, None]
        designs = self._designs()
        return np.block(
            [[product(a, curvature[i, j], b) for j, b in enumerate(designs)] for i, a in enumerate(designs)]
        )


def product(a: np.ndarray, weights: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Aᵀ diag(weights) B, some rows at a time."""
    total = np.zeros((a.shape[1], b.shape[1]))
    for start in range(0, len(weights), BLOCK):
        rows = slice(start, start + BLOCK)
        total += a[rows].T @ (b[rows] * weights[rows, None])
    return total
