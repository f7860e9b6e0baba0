"""Positive numbers with a long tail, such as costs and stays: Gamma regression."""

import numpy as np
from scipy.special import gammainc, gammaln

from fedlap.regression.families.base import Family


class GammaFamily(Family):
    """
    y ~ Gamma with mean μ = e^f, variance φ μ²        loss y e^−f + f        curvature y e^−f        mean e^f

    φ is Pearson's sum over N − P. Standard errors are from the expected curvature, which is 1.
    """

    outcome = "number"
    link = "log"
    ratio = "ratio of means"
    has_scale = True
    expected = "a number above 0"

    def check(self, y: np.ndarray) -> np.ndarray:
        return ~((y > 0) & np.isfinite(y))

    def loss(self, y: np.ndarray, f: np.ndarray) -> np.ndarray:
        return y * np.exp(-f) + f

    def slope(self, y: np.ndarray, f: np.ndarray) -> np.ndarray:
        return 1 - y * np.exp(-f)

    def curvature(self, y: np.ndarray, f: np.ndarray) -> np.ndarray:
        return y * np.exp(-f)

    def information(self, f: np.ndarray) -> np.ndarray:
        return np.ones_like(f)

    def mean(self, f: np.ndarray) -> np.ndarray:
        return np.exp(f)

    def variance(self, f: np.ndarray) -> np.ndarray:
        return np.exp(2 * f)

    def cumulative(self, y: np.ndarray, f: np.ndarray, scale: float) -> np.ndarray:
        return gammainc(1 / scale, y * np.exp(-f) / scale)

    def deviance(self, y: np.ndarray, f: np.ndarray) -> np.ndarray:
        return 2 * (self.loss(y, f) - 1 - np.log(y))

    def constant(self, y: np.ndarray, trials: np.ndarray) -> np.ndarray:
        return np.log(y)

    def log_likelihood(self, loss: float, constant: float, rows: float, scale: float) -> float:
        k = 1 / scale
        return (k - 1) * constant - k * loss + rows * (k * np.log(k) - gammaln(k))
