"""One of several unordered levels: multinomial logistic regression."""

import numpy as np
from scipy.special import logsumexp, softmax

from fedlap.regression.families.base import Family


class MultinomialFamily(Family):
    """
    y ~ softmax(0, f_1, …, f_J)        loss log(1 + Σ e^f_j) − f_y        curvature diag(p) − ppᵀ        mean p

    Level 0 is the reference; every other level has coefficients of its own.
    """

    link = "softmax"
    ratio = "odds ratio"
    unordered = True

    def __init__(self, levels: int = 2) -> None:
        self.predictors = levels - 1
        self.expected = f"the number of a level, 0 to {levels - 1}"

    def check(self, y: np.ndarray) -> np.ndarray:
        return ~((y >= 0) & (y <= self.predictors) & (y == np.floor(y)))

    def _chosen(self, y: np.ndarray) -> np.ndarray:
        return np.arange(1, self.predictors + 1)[:, None] == y

    def _complete(self, f: np.ndarray) -> np.ndarray:
        return np.concatenate([np.zeros((1, f.shape[1])), f])

    def loss(self, y: np.ndarray, f: np.ndarray) -> np.ndarray:
        return logsumexp(self._complete(f), axis=0) - (self._chosen(y) * f).sum(0)

    def slope(self, y: np.ndarray, f: np.ndarray) -> np.ndarray:
        return self.mean(f)[1:] - self._chosen(y)

    def curvature(self, y: np.ndarray, f: np.ndarray) -> np.ndarray:
        p = self.mean(f)[1:]
        return p[:, None] * (np.eye(self.predictors)[:, :, None] - p[None])

    def mean(self, f: np.ndarray) -> np.ndarray:
        return softmax(self._complete(f), axis=0)

    def variance(self, f: np.ndarray) -> np.ndarray:
        return self.mean(f) * (1 - self.mean(f))

    def deviance(self, y: np.ndarray, f: np.ndarray) -> np.ndarray:
        return 2 * self.loss(y, f)
