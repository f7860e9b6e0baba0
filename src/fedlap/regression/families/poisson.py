"""Counts, and rates with an exposure: Poisson regression."""

import numpy as np
from scipy.special import gammaln, pdtr, xlogy

from fedlap.regression.families.base import Family


class PoissonFamily(Family):
    """
    y ~ Poisson(μ), μ = e^f        loss e^f − y f        curvature e^f        mean e^f
    """

    outcome = "count"
    link = "log"
    ratio = "rate ratio"
    expected = "a count, 0 or above"

    def check(self, y: np.ndarray) -> np.ndarray:
        return ~((y >= 0) & np.isfinite(y))

    def loss(self, y: np.ndarray, f: np.ndarray) -> np.ndarray:
        return np.exp(f) - y * f

    def slope(self, y: np.ndarray, f: np.ndarray) -> np.ndarray:
        return np.exp(f) - y

    def curvature(self, y: np.ndarray, f: np.ndarray) -> np.ndarray:
        return np.exp(f)

    def higher(self, f: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return np.exp(f), np.exp(f)

    def mean(self, f: np.ndarray) -> np.ndarray:
        return np.exp(f)

    def variance(self, f: np.ndarray) -> np.ndarray:
        return np.exp(f)

    def cumulative(self, y: np.ndarray, f: np.ndarray, scale: float) -> np.ndarray:
        return pdtr(y, np.exp(f))

    def deviance(self, y: np.ndarray, f: np.ndarray) -> np.ndarray:
        return 2 * (self.loss(y, f) + xlogy(y, y) - y)

    def constant(self, y: np.ndarray, trials: np.ndarray) -> np.ndarray:
        return -gammaln(y + 1)
