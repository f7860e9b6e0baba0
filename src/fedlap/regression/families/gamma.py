"""Positive numbers with a long tail, such as costs and stays: Gamma regression."""

import numpy as np
from scipy.special import gammaln

from fedlap.regression.families.base import Family


class GammaFamily(Family):
    """
    y ~ Gamma with mean μ = e^f, variance φ μ²        loss y e^−f + f        curvature y e^−f        mean e^f

    φ is Pearson's sum over N − P. Standard errors are from the expected curvature, which is 1.
    """

    link = "log"
    ratio = "ratio of means"
    has_scale = True
    expected = "a number above 0"

    def check(self, y):
        return ~((y > 0) & np.isfinite(y))

    def loss(self, y, f):
        return y * np.exp(-f) + f

    def slope(self, y, f):
        return 1 - y * np.exp(-f)

    def curvature(self, y, f):
        return y * np.exp(-f)

    def information(self, f):
        return np.ones_like(f)

    def mean(self, f):
        return np.exp(f)

    def variance(self, f):
        return np.exp(2 * f)

    def deviance(self, y, f):
        return 2 * (self.loss(y, f) - 1 - np.log(y))

    def constant(self, y, trials):
        return np.log(y)

    def log_likelihood(self, loss, constant, rows, scale):
        k = 1 / scale
        return (k - 1) * constant - k * loss + rows * (k * np.log(k) - gammaln(k))
