"""Counts that vary more than Poisson's: negative binomial regression, its dispersion estimated."""

import numpy as np
from scipy.special import betainc, gammaln, polygamma, psi, xlogy

from fedlap.regression.families.base import Family


class NegativeBinomialFamily(Family):
    """
    y ~ NB with mean μ = e^f, variance μ + α μ²        loss (y + r) log(r + μ) − r log r − y f − log Γ(y + r)/Γ(r)

    r = 1/α, and a = log α is a weight as the others, the same for all rows: f is [2, n], (f, a).
    """

    outcome = "count"
    link = "log"
    ratio = "rate ratio"
    shapes = 1
    expected = "a count, 0 or above"

    def __init__(self, levels: int = 2) -> None:
        self.predictors = 2

    def check(self, y: np.ndarray) -> np.ndarray:
        return ~((y >= 0) & np.isfinite(y))

    def loss(self, y: np.ndarray, f: np.ndarray) -> np.ndarray:
        mean, r = np.exp(f[0]), np.exp(-f[1])
        return y * np.log(r + mean) + r * np.log1p(mean / r) - y * f[0] - gammaln(y + r) + gammaln(r)

    def slope(self, y: np.ndarray, f: np.ndarray) -> np.ndarray:
        mean, r = np.exp(f[0]), np.exp(-f[1])
        return np.stack([r * (mean - y) / (r + mean), -r * self._by_r(y, mean, r)])

    def curvature(self, y: np.ndarray, f: np.ndarray) -> np.ndarray:
        mean, r = np.exp(f[0]), np.exp(-f[1])
        own = mean * r * (r + y) / (r + mean) ** 2
        mixed = -r * mean * (mean - y) / (r + mean) ** 2
        twice = 1 / (r + mean) + (mean - y) / (r + mean) ** 2 - 1 / r - polygamma(1, y + r) + polygamma(1, r)
        shape = r * self._by_r(y, mean, r) + r**2 * twice
        return np.stack([np.stack([own, mixed]), np.stack([mixed, shape])])

    def _by_r(self, y: np.ndarray, mean: np.ndarray, r: np.ndarray) -> np.ndarray:
        """The derivative of the loss with respect to r."""
        return np.log1p(mean / r) + (y - mean) / (r + mean) - psi(y + r) + psi(r)

    def mean(self, f: np.ndarray) -> np.ndarray:
        return np.exp(f[0])

    def variance(self, f: np.ndarray) -> np.ndarray:
        return np.exp(f[0]) + np.exp(2 * f[0] + f[1])

    def cumulative(self, y: np.ndarray, f: np.ndarray, scale: float) -> np.ndarray:
        r = np.exp(-f[1])
        return betainc(r, y + 1, r / (r + np.exp(f[0])))

    def deviance(self, y: np.ndarray, f: np.ndarray) -> np.ndarray:
        mean, r = np.exp(f[0]), np.exp(-f[1])
        return 2 * (xlogy(y, y / mean) - (y + r) * np.log((y + r) / (mean + r)))

    def constant(self, y: np.ndarray, trials: np.ndarray) -> np.ndarray:
        return -gammaln(y + 1)
