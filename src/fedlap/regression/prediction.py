"""Predictions for new rows, from the parameters of a generalised linear model and their covariance."""

from typing import Any, NamedTuple

import numpy as np
from scipy import stats

from fedlap.errors import ConfigError
from fedlap.regression.design import Design, SiteRows
from fedlap.regression.families.base import Family
from fedlap.regression.tables import frame


class Prediction(NamedTuple):
    """What a prediction needs to know of a fit."""

    family: Family
    design: Design
    parameters: np.ndarray
    covariance: np.ndarray
    degrees: float  # of freedom, of the parameters' distribution

    def of(self, rows: SiteRows, interval: float | None = None) -> Any:
        """The outcome that is expected for rows; with `interval`, also where its expectation lies so surely."""
        predictors, columns = self.family.predictors - self.family.shapes, rows.x.shape[1]
        own = predictors * columns
        f = rows.x @ self.parameters[:own].reshape(predictors, columns).T
        f[:, 0] += 0 if rows.offset is None else rows.offset
        if self.family.unordered:
            if interval is not None:
                raise ConfigError("an interval of several probabilities at once is not to be had; leave it out")
            return frame(self.family.mean(f.T).T, rows.kept, self.design.classes)
        shapes = np.log(self.parameters[own : own + self.family.shapes])
        shapes = np.broadcast_to(shapes[:, None], (self.family.shapes, len(f)))
        mean = lambda f: self.family.mean(np.concatenate([f[None], shapes]) if len(shapes) else f)
        columns_of = {"mean": mean(f[:, 0])}
        if interval is not None:
            if not 0 < interval < 1:
                raise ConfigError(f"interval is {interval!r}; expected a share between 0 and 1, such as 0.95")
            error = np.sqrt(np.einsum("ij,jk,ik->i", rows.x, self.covariance[:own, :own], rows.x))
            reach = stats.t.isf((1 - interval) / 2, self.degrees) * error
            columns_of |= {"mean_ci_lower": mean(f[:, 0] - reach), "mean_ci_upper": mean(f[:, 0] + reach)}
        return frame(columns_of, rows.kept, list(columns_of))
