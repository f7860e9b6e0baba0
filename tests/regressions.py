"""Fits of regressions over sites, for tests: rows drawn from each family, and the designs that sites would make."""

from types import SimpleNamespace as Names

import numpy as np

from fedlap.regression.design import SiteRows
from fedlap.regression.families import family
from fedlap.regression.glm import GlmModel
from fedlap.regression.model import fit_here
from fedlap.regression.prior import as_prior

FAMILIES = ("binomial", "gaussian", "poisson", "gamma", "negative_binomial", "multinomial")
DRAWS = {
    "binomial": lambda rng, f: rng.random(len(f)) < 1 / (1 + np.exp(-f)),
    "gaussian": lambda rng, f: 100 + 10 * f + 5 * rng.normal(size=len(f)),
    "poisson": lambda rng, f: rng.poisson(np.exp(f)),
    "gamma": lambda rng, f: rng.gamma(2, np.exp(f) / 2),
    "negative_binomial": lambda rng, f: rng.negative_binomial(2, 2 / (2 + np.exp(f))),
    "multinomial": lambda rng, f: (f > 0.5).astype(int) + (rng.normal(size=len(f)) > 0),
}


def inputs(name, sites=(60, 120, 90, 30), columns=3, seed=0, names=None, levels=("low", "middle", "high")):
    """What `fit_here` takes: a model, and the rows of every site."""
    rng = np.random.default_rng(seed)
    names = names or ["Intercept", *(f"x{j}" for j in range(1, columns + 1))]
    slopes = np.resize([0.8, -0.5, 0.0, 0.3], len(names) - 1)
    rows = {}
    for place, count in enumerate(sites):
        x = np.column_stack([np.ones(count), rng.normal(size=(count, len(names) - 1))])
        y = DRAWS[name](rng, x[:, 1:] @ slopes + 0.2 * rng.normal()).astype(float)
        rows[f"site {place + 1}"] = site_rows(x, y, names)
    design = Names(names=names, classes=tuple(levels), formula=f"y ~ {' + '.join(names[1:])}")
    return GlmModel(family(name, len(levels)), design, as_prior(None)), rows


def site_rows(x, y, names, weights=None, trials=None, offset=None):
    """The rows of a site as a design makes them."""
    return SiteRows(x, y, offset, weights, trials, None, None, np.arange(len(x)), 0, tuple(names))


def copied(model, rows):
    """The same inputs with rows of their own: a fit standardises the columns that it is given in place."""
    return model, {name: part.take(np.arange(len(part.x))) for name, part in rows.items()}


def fitted(name, **options):
    """A fit of a family."""
    return fit_here(*inputs(name, **options))
