"""Predictions for new rows, from the parameters of a generalised linear model and their covariance.

The linear predictor of a row is f ~ N(xᵀw, xᵀΣx), or t-distributed where the outcome is Gaussian. The mean's interval
is that of f; a new outcome's is of the mixture ∫ P(y | f) p(f) df, by quadrature, and of a Gaussian exactly.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from scipy import stats

from fedlap.errors import ConfigError
from fedlap.regression.design import Design, SiteRows
from fedlap.regression.families.base import Family
from fedlap.regression.tables import frame

NODES = 40  # of the quadrature over f
HALVINGS = 60  # of a search for a quantile: to the last bit of a double


class Prediction(NamedTuple):
    """What a prediction needs to know of a fit."""

    family: Family
    design: Design
    parameters: np.ndarray
    covariance: np.ndarray
    degrees: float  # of freedom, of the parameters' distribution
    scale: float | None = None  # the dispersion of the outcome; None where it is not known

    def of(self, rows: SiteRows, interval: float | None = None, observation: bool = False) -> Any:
        """The outcome that is expected for rows; with `interval`, also where its expectation lies so surely.

        With `observation`, further where a new outcome itself lies so surely. A negative binomial's dispersion is
        taken as it was estimated.
        """
        if observation and interval is None:
            raise ConfigError("observation asks for an interval; expected its share too, such as interval=0.95")
        predictors, columns = self.family.predictors - self.family.shapes, rows.x.shape[1]
        own = predictors * columns
        f = rows.x @ self.parameters[:own].reshape(predictors, columns).T
        f[:, 0] += 0 if rows.offset is None else rows.offset
        if self.family.unordered:
            if interval is not None:
                raise ConfigError("an interval of several probabilities at once is not to be had; leave it out")
            return frame(self.family.mean(f.T).T, rows.kept, self.design.classes)
        shapes = np.log(self.parameters[own : own + self.family.shapes])[:, None]
        whole = lambda f: np.concatenate([f[None], np.broadcast_to(shapes, (len(shapes), len(f)))])
        complete = whole if len(shapes) else lambda f: f
        mean = lambda f: self.family.mean(complete(f))
        columns_of = {"mean": mean(f[:, 0])}
        if interval is not None:
            if not 0 < interval < 1:
                raise ConfigError(f"interval is {interval!r}; expected a share between 0 and 1, such as 0.95")
            error = np.sqrt(np.einsum("ij,jk,ik->i", rows.x, self.covariance[:own, :own], rows.x))
            reach = stats.t.isf((1 - interval) / 2, self.degrees) * error
            columns_of |= {"mean_ci_lower": mean(f[:, 0] - reach), "mean_ci_upper": mean(f[:, 0] + reach)}
            if observation:
                lower, upper = self._new_outcome(f[:, 0], error, (1 - interval) / 2, complete)
                columns_of |= {"obs_ci_lower": lower, "obs_ci_upper": upper}
        return frame(columns_of, rows.kept, list(columns_of))

    def _new_outcome(
        self, f: np.ndarray, error: np.ndarray, tail: float, complete: Callable[[np.ndarray], np.ndarray]
    ) -> tuple[np.ndarray, np.ndarray]:
        """The two quantiles of a new outcome, of rows with this predictor and its standard error."""
        family, scale = self.family, self.scale
        if not family.outcome:
            raise ConfigError(f"a new outcome with the {family.link} link is yes or no, not a number; leave it out")
        if scale is None:
            raise ConfigError("where a new outcome lies is not known of this fit; leave observation out")
        if family.link == "identity":
            reach = stats.t.isf(tail, self.degrees) * np.sqrt(scale + error**2)
            return f - reach, f + reach
        points, weights = np.polynomial.hermite_e.hermegauss(NODES)
        weights = weights / weights.sum()

        def below(y: np.ndarray) -> np.ndarray:
            nodes = zip(points, weights, strict=True)
            return np.sum([w * family.cumulative(y, complete(f + z * error), scale) for z, w in nodes], axis=0)

        quantile = lambda share: _quantile(below, np.exp(f), share, family.outcome == "count")
        return quantile(tail), quantile(1 - tail)


def _quantile(below: Callable[[np.ndarray], np.ndarray], near: np.ndarray, share: float, count: bool) -> np.ndarray:
    """The least y ≥ 0 that the outcome is not above with this probability, row by row; of counts a whole number."""
    low, high = np.full_like(near, -1.0 if count else 0.0), np.ceil(near) + 1
    while (short := below(high) < share).any():
        low, high = np.where(short, high, low), np.where(short, 2 * high, high)
    for _ in range(HALVINGS):  # low stays too little, high enough
        middle = np.floor((low + high) / 2) if count else (low + high) / 2
        enough = (below(np.maximum(middle, 0)) >= share) & (middle > low)
        low, high = np.where(enough, low, middle), np.where(enough, middle, high)
    return high
