"""Rows of sites that differ by their intercepts, and a slow oracle of what pooled rows say of them."""

from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import brentq, minimize
from scipy.stats import binom, poisson

from fedlap.regression.design import SiteRows
from regressions import site_rows

NAMES = ["Intercept", "age", "dose"]


class DrawnDesign(NamedTuple):
    """What sites would have agreed on."""

    names: list[str]
    classes: tuple[int, ...] = (0, 1)
    formula: str = "outcome ~ age + dose"


class Pooled(NamedTuple):
    """All rows as one table."""

    x: np.ndarray
    y: np.ndarray
    site: np.ndarray
    trials: np.ndarray
    offset: np.ndarray


DESIGN = DrawnDesign(NAMES)


def drawn(family: str, sizes: Any, spread: float, seed: int = 0, trials: int = 1) -> Pooled:
    """Rows of sites of these sizes, whose intercepts have this standard deviation."""
    rng = np.random.default_rng(seed)
    site = np.repeat(np.arange(len(sizes)), sizes)
    count = len(site)
    x = np.c_[np.ones(count), rng.normal(50, 10, count), rng.normal(size=count)]
    offset = rng.normal(scale=0.2, size=count)
    f = x @ [-1.2, 0.03, 0.6] + offset + spread * rng.normal(size=len(sizes))[site]
    many = np.full(count, float(trials))
    outcome = {
        "gaussian": lambda: 100 * (f + rng.normal(size=count)),
        "binomial": lambda: rng.binomial(trials, 1 / (1 + np.exp(-f))) / trials,
        "poisson": lambda: rng.poisson(np.exp(f)),
    }
    offset = 100 * offset if family == "gaussian" else offset
    return Pooled(x, outcome[family]().astype(float), site, many, offset)


def by_site(rows: Pooled) -> dict[str, SiteRows]:
    """The designs of the sites, named a, b, c and so on; beyond z by two letters."""
    parts = {}
    for k in np.unique(rows.site):
        own = rows.site == k
        name = chr(97 + k) if k < 26 else f"z{chr(97 + k - 26)}"
        trials, offset = rows.trials[own], rows.offset[own]
        parts[name] = site_rows(rows.x[own], rows.y[own] * trials, NAMES, trials=trials, offset=offset)
    return parts


# The oracle: each site's integral by Laplace's approximation, its mode by bisection, the optimum by finite differences


def pooled_loss(family: str, rows: Pooled, params: np.ndarray) -> float:
    """Minus the log-likelihood of coefficients and log τ."""
    fixed = rows.x @ params[:-1] + rows.offset
    return sum(site_loss(family, rows, fixed, rows.site == k, params[-1]) for k in np.unique(rows.site))


def site_loss(family: str, rows: Pooled, fixed: np.ndarray, own: np.ndarray, log_tau: float) -> float:
    """The part of one site."""
    f, y, n, variance = fixed[own], (rows.y * rows.trials)[own], rows.trials[own], np.exp(2 * log_tau)
    mean = (lambda b: n / (1 + np.exp(-f - b))) if family == "binomial" else (lambda b: np.exp(f + b))
    b = brentq(lambda b: (mean(b) - y).sum() + b / variance, -60, 60, xtol=1e-15, rtol=1e-15)
    mu = mean(b)
    logp = binom.logpmf(y, n, mu / n) if family == "binomial" else poisson.logpmf(y, mu)
    bend = (mu * (1 - mu / n) if family == "binomial" else mu).sum()
    return b**2 / (2 * variance) + log_tau + np.log(bend + 1 / variance) / 2 - logp.sum()


def slopes(loss: Any, at: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """The gradient, or the Jacobian, by central differences of fourth order."""
    found = []
    for step in np.diag(sizes):
        ends = (loss(at + reach * step) for reach in (-2, -1, 1, 2))
        found.append(np.dot([1, -8, 8, -1], [np.asarray(end) for end in ends]) / 12)
    return np.stack([each / size for each, size in zip(found, sizes, strict=True)])


def optimum(loss: Any, start: np.ndarray, sizes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Where a loss is least, and its Hessian there; `sizes` are steps that change it little."""
    scaled, options = lambda u: loss(start + u * sizes), {"maxfev": 800}
    rough = minimize(scaled, np.zeros(len(start)), method="Nelder-Mead", options=options)
    at = start + rough.x * sizes
    gradient = lambda at: slopes(loss, at, sizes)
    for _ in range(8):
        hessian = slopes(gradient, at, sizes)
        step = np.linalg.solve(hessian, gradient(at))
        at = at - step
        if np.abs(step / sizes).max() < 1e-7:
            break
    return at, slopes(gradient, at, sizes)
