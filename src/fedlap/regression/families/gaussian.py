"""Numbers: linear regression."""

import numpy as np
from scipy.special import ndtr

from fedlap.regression.families.base import Family


class GaussianFamily(Family):
    """
    y ~ N(f, φ)        loss ½(y − f)²        curvature 1        mean f

    φ is the residual sum of squares over N − P. The log-likelihood is that at the φ which makes it largest.
    """

    outcome = "number"
    link = "identity"
    has_scale = True
    expected = "a finite number"

    def check(self, y: np.ndarray) -> np.ndarray:
        return ~np.isfinite(y)

    def loss(self, y: np.ndarray, f: np.ndarray) -> np.ndarray:
        return (y - f) ** 2 / 2

    def slope(self, y: np.ndarray, f: np.ndarray) -> np.ndarray:
        return f - y

    def curvature(self, y: np.ndarray, f: np.ndarray) -> np.ndarray:
        return np.ones_like(f)

    def mean(self, f: np.ndarray) -> np.ndarray:
        return f

    def variance(self, f: np.ndarray) -> np.ndarray:
        return np.ones_like(f)

    def cumulative(self, y: np.ndarray, f: np.ndarray, scale: float) -> np.ndarray:
        return ndtr((y - f) / np.sqrt(scale))

    def deviance(self, y: np.ndarray, f: np.ndarray) -> np.ndarray:
        return (y - f) ** 2

    def log_likelihood(self, loss: float, constant: float, rows: float, scale: float) -> float:
        return -rows / 2 * (np.log(2 * np.pi * 2 * loss / rows) + 1)
