"""Regression of a number over sites as scikit-learn does it."""

from typing import Any, Self

import numpy as np
from scipy.linalg import cho_factor, cho_solve
from scipy.optimize import brentq
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.utils.validation import check_is_fitted, validate_data

from fedlap.checks import is_number
from fedlap.data.validation import listing
from fedlap.errors import ConfigError, DataError
from fedlap.estimators.sites import places_of
from fedlap.regression import standard

WIDEST = np.log(1e10)  # how far from what the rows know the evidence may take δ, either way


class FedLapRegressor(RegressorMixin, BaseEstimator):
    """Bayesian linear regression over sites, each of which keeps its rows and sends sums over them, once.

    y ~ N(xᵀw + b, φ),   w ~ N(0, φ/δ),   b without a prior

    Of centred rows a site's factor is V_k = X_kᵀX_k, v_k = X_kᵀy_k. The loss is a quadratic, so that one round of
    FedLap-Cov with full covariances is the end of it: w_g = S_g⁻¹ Σ_k v_k, S_g = δI + Σ_k V_k are what the pooled rows
    would have given, as `sklearn.linear_model.Ridge(alpha=delta)` does. Everything is computed in float64.

    For standard errors, p-values, counts and site effects there is `fedlap.glm`.

    Args:
        delta: how strong the prior is, 0 or above: with 0 it is least squares; "evidence" for what makes the rows most
            likely, which asks for columns of one scale.

    Attributes:
        coef_, intercept_: w and b.
        covariance_: the covariance of w, then b.
        noise_: φ, the squared residuals over the rows less what was fitted.
        delta_: δ, given or chosen.
        sites_: the names of the sites.
        n_iter_: how many rounds there were: one.
        n_features_in_, feature_names_in_: as everywhere in scikit-learn.
    """

    def __init__(self, *, delta: float | str = 1.0) -> None:
        self.delta = delta

    def fit(self, X: Any, y: Any, sites: Any = None) -> Self:
        """Fit rows X with outcomes y; `sites` has the site of each row, and without it there is a single one."""
        if self.delta != "evidence" and not (is_number(self.delta) and self.delta >= 0):
            raise ConfigError(f'delta is {self.delta!r}; expected a number, 0 or above, or "evidence"')
        X, y = validate_data(self, X, y, dtype=np.float64, y_numeric=True, ensure_min_samples=2)
        if y.dtype.kind not in "buif":
            raise DataError(f"y holds {y[0]!r}; expected numbers. FedLapClassifier is for labels")
        places = places_of(sites, len(X))
        sent = [standard.moments(np.column_stack([X[at], y[at]]), np.ones(len(at))) for at in places.values()]
        _, mean, products = standard.pooled(sent)
        V, v, square = products[:-1, :-1], products[:-1, -1], float(products[-1, -1])
        delta = _most_likely(V, v, square, len(X)) if self.delta == "evidence" else float(self.delta)
        if delta == 0:
            _check_determined(V, mean[:-1], list(getattr(self, "feature_names_in_", range(X.shape[1]))))
        inverse = _inverse(V + delta * np.eye(len(V)))
        w = inverse @ v
        fitted = 1 + len(V) - delta * np.trace(inverse)
        if not len(X) > fitted * (1 + 1e-9):
            raise DataError(f"{len(X)} rows and {fitted:.0f} coefficients; expected more rows, or a delta above 0")
        self.coef_, self.intercept_ = w, float(mean[-1] - mean[:-1] @ w)
        self.noise_ = max(square - v @ w - delta * (w @ w), 0.0) / (len(X) - fitted)
        self.delta_ = delta
        centred = np.eye(len(mean))  # from weights of centred columns, and the mean of y, to w and b
        centred[-1, :-1] = -mean[:-1]
        precise = np.zeros_like(products)
        precise[:-1, :-1], precise[-1, -1] = inverse, 1 / len(X)
        self.covariance_ = self.noise_ * centred @ precise @ centred.T
        self.sites_ = np.array(list(places))
        self.n_iter_ = 1
        return self

    def predict(self, X: Any, return_std: bool = False) -> Any:
        """The mean of y; with `return_std` also its standard deviation, of noise and of doubt about the weights."""
        check_is_fitted(self)
        X = validate_data(self, X, dtype=np.float64, reset=False)
        mean = X @ self.coef_ + self.intercept_
        if not return_std:
            return mean
        rows = np.column_stack([X, np.ones(len(X))])
        doubt = np.einsum("ij,jk,ik->i", rows, self.covariance_, rows)
        return mean, np.sqrt(self.noise_ + np.maximum(doubt, 0))


def _inverse(S: np.ndarray) -> np.ndarray:
    """S⁻¹ of a positive definite matrix, in whatever units its rows are."""
    scale = 1 / np.sqrt(np.diag(S))
    return scale[:, None] * cho_solve(cho_factor(scale[:, None] * S * scale), np.diag(scale))


def _check_determined(V: np.ndarray, mean: np.ndarray, names: list) -> None:
    """Raise a DataError that names the columns unless the rows determine every coefficient."""
    spread = np.sqrt(np.diag(V))
    constant = spread <= standard.CONSTANT * np.abs(mean)
    if constant.any():
        same = listing([names[j] for j in np.flatnonzero(constant)])
        raise DataError(f"constant in all rows: columns {same}; leave them out, or give a delta above 0")
    values, vectors = np.linalg.eigh(V / np.outer(spread, spread))
    if values[0] < standard.DEPENDENT * values[-1]:
        part = np.abs(vectors[:, 0])
        involved = listing([names[j] for j in np.flatnonzero(part > 1e-3 * part.max())])
        raise DataError(
            f"columns {involved} say the same, or rows are too few to tell; leave one out, or give a delta above 0"
        )


def _most_likely(V: np.ndarray, v: np.ndarray, square: float, rows: int) -> float:
    """δ at which the rows are most likely, with w and b integrated out and the noise at its own best.

    log p(y | δ) = ½ log|δ S⁻¹| − ½(N − 1) log φ,   φ = (yᵀy − vᵀw)/(N − 1),   which is stationary at MacKay's
    γ = δ‖w‖²/φ,   γ = P − δ tr S⁻¹
    """
    known, axes = np.linalg.eigh(V)
    known, aim = np.maximum(known, 0), axes.T @ v
    aim[known <= len(V) * np.finfo(float).eps * known[-1]] = 0
    if not (aim.any() and square > 0):
        return float(np.exp(WIDEST) * max(known[-1], 1.0))  # the columns explain nothing

    def noise(delta: float) -> float:
        return float(max(square - aim**2 @ (1 / (known + delta)), np.finfo(float).eps * square) / (rows - 1))

    def gain(log: float) -> float:
        delta = np.exp(log)
        return float(np.log(delta / (known + delta)).sum() - (rows - 1) * np.log(noise(delta)))

    def slope(log: float) -> float:
        delta = np.exp(log)
        return float((known / (known + delta)).sum() - delta * ((aim / (known + delta)) ** 2).sum() / noise(delta))

    grid = np.log(known[-1]) + np.linspace(-WIDEST, WIDEST, 93)
    best = int(np.argmax([gain(log) for log in grid]))
    if best in (0, len(grid) - 1):
        return float(np.exp(grid[best]))
    log: Any = brentq(slope, grid[best - 1], grid[best + 1], xtol=1e-12)
    return float(np.exp(log))
