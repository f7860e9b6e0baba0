"""Meta-analysis of sites: what their factors say one by one, how far they differ, and what pooling estimates gives."""

from typing import NamedTuple

import numpy as np
from scipy.stats import chi2

from fedlap.regression.rounds import SiteFactor

UNSEEN = 1e-9  # an eigenvalue below so much of the largest belongs to a direction of which a site's rows say nothing


class Estimates(NamedTuple):
    """The estimates of sites, [K, P], and their variances; NaN where a site's rows say nothing of a coefficient."""

    value: np.ndarray
    variance: np.ndarray


class Heterogeneity(NamedTuple):
    """How far sites differ, coefficient by coefficient, beyond what chance would do."""

    Q: np.ndarray  # Cochran's
    df: np.ndarray
    p: np.ndarray
    I2: np.ndarray  # the share of their spread that is not chance
    tau2: np.ndarray  # the variance between sites, DerSimonian and Laird's


class Combined(NamedTuple):
    """Estimates of all sites as one, and their variances: as if all had one effect, and as if each had its own."""

    fixed: np.ndarray
    fixed_variance: np.ndarray
    random: np.ndarray
    random_variance: np.ndarray


def estimate(factor: SiteFactor, w: np.ndarray, back: np.ndarray, scale: float) -> tuple[np.ndarray, np.ndarray]:
    """How far a site's own estimate V_k⁻¹v_k is from w, in the units of `back`, and its variances.

    Of a singular V_k only what its rows determine: the other coefficients are NaN.
    """
    values, vectors = np.linalg.eigh(factor.V)
    seen = values > UNSEEN * max(values[-1], UNSEEN)
    inverse = vectors[:, seen] / values[seen] @ vectors[:, seen].T
    moved = back @ inverse @ (factor.v - factor.V @ w)
    variance = scale * np.einsum("ij,jk,ik->i", back, inverse, back)
    blind = np.abs(back @ vectors[:, ~seen]).sum(1) > 1e-6 * np.abs(back).sum(1)
    return np.where(blind, np.nan, moved), np.where(blind, np.nan, variance)


def heterogeneity(sites: Estimates) -> Heterogeneity:
    """Cochran's Q and what follows from it; a coefficient that fewer than two sites have says nothing of it."""
    precision = 1 / sites.variance
    df = np.isfinite(precision).sum(0) - 1
    several = df > 0
    with np.errstate(divide="ignore", invalid="ignore"):
        mean = np.nansum(precision * sites.value, 0) / np.nansum(precision, 0)
        Q = np.nansum(precision * (sites.value - mean) ** 2, 0)
        I2 = np.where(several, np.where(df < Q, 1 - df / Q, 0), np.nan)
        weight = np.nansum(precision, 0) - np.nansum(precision**2, 0) / np.nansum(precision, 0)
        tau2 = np.where(several, np.maximum(Q - df, 0) / weight, np.nan)
    return Heterogeneity(np.where(several, Q, np.nan), df, np.where(several, chi2.sf(Q, df), np.nan), I2, tau2)


def combine(sites: Estimates) -> Combined:
    """The weighted means of the sites' estimates: by their precisions, and by these with the spread between sites."""

    def mean(variance: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        total = np.nansum(1 / variance, 0)
        with np.errstate(divide="ignore", invalid="ignore"):  # a coefficient that no site has alone
            return np.nansum(sites.value / variance, 0) / total, 1 / total

    tau2 = np.nan_to_num(heterogeneity(sites).tau2)
    return Combined(*mean(sites.variance), *mean(sites.variance + tau2))
