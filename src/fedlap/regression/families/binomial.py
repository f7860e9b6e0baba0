"""Yes or no, or so many of so many: logistic regression with one logit."""

import numpy as np
from scipy.special import expit, gammaln, xlogy

from fedlap.regression.families.base import Family


class BinomialFamily(Family):
    """
    y ~ Bernoulli(p), p = 1/(1 + e^−f)        loss log(1 + e^f) − y f        curvature p(1 − p)        mean p

    A proportion of several trials counts as often as there were trials.
    """

    link = "logit"
    ratio = "odds ratio"
    expected = "0, 1 or a proportion between them"

    def check(self, y: np.ndarray) -> np.ndarray:
        return ~((y >= 0) & (y <= 1))

    def loss(self, y: np.ndarray, f: np.ndarray) -> np.ndarray:
        return np.logaddexp(0, f) - y * f

    def slope(self, y: np.ndarray, f: np.ndarray) -> np.ndarray:
        return expit(f) - y

    def curvature(self, y: np.ndarray, f: np.ndarray) -> np.ndarray:
        return expit(f) * expit(-f)

    def higher(self, f: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        curvature = expit(f) * expit(-f)
        return curvature * (expit(-f) - expit(f)), curvature * (1 - 6 * curvature)

    def mean(self, f: np.ndarray) -> np.ndarray:
        return expit(f)

    def variance(self, f: np.ndarray) -> np.ndarray:
        return expit(f) * expit(-f)

    def deviance(self, y: np.ndarray, f: np.ndarray) -> np.ndarray:
        return 2 * (self.loss(y, f) + xlogy(y, y) + xlogy(1 - y, 1 - y))

    def constant(self, y: np.ndarray, trials: np.ndarray) -> np.ndarray:
        successes = y * trials
        return gammaln(trials + 1) - gammaln(successes + 1) - gammaln(trials - successes + 1)
