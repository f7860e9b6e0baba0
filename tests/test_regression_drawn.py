"""Regressions on federations that are drawn: the pooled answer, or an error that is right. Never a silent one."""

import numpy as np
import pytest
import statsmodels.api as sm
from scipy.optimize import linprog

import fedlap
from fedlap.errors import DataError

FAMILIES = {
    "gaussian": sm.families.Gaussian(),
    "binomial": sm.families.Binomial(),
    "poisson": sm.families.Poisson(),
    "gamma": sm.families.Gamma(sm.families.links.Log()),
}
PROBLEMS = 300


def problem(seed):
    """A family, sites of columns of all scales, and their levels; many sites have one class, or lack a level."""
    rng = np.random.default_rng(seed)
    name = list(FAMILIES)[seed % 4]
    columns = int(rng.integers(1, 5))
    scales = 10.0 ** rng.integers(-6, 7, columns)
    shifts = scales * rng.normal(0, 3, columns)
    slopes = rng.normal(0, 0.7, columns)
    levels = ["a", "b", "c"][: int(rng.integers(2, 4))]
    sites = {}
    for k in range(int(rng.integers(2, 51))):
        rows = int(rng.choice([1, 2, 5, 20, 80, 500], p=[0.15, 0.15, 0.25, 0.25, 0.15, 0.05]))
        x = rng.normal(size=(rows, columns))
        here = rng.choice(levels, int(rng.integers(1, len(levels) + 1)), replace=False)  # the levels of this site
        level = rng.choice(here, rows)
        f = x @ slopes + 0.5 * (level == "b") + rng.normal(0, 1)
        outcome = {
            "gaussian": lambda f=f: 1e3 * (f + rng.normal(size=len(f))),
            "binomial": lambda f=f: (rng.random(len(f)) < 1 / (1 + np.exp(-f))).astype(float),
            "poisson": lambda f=f: rng.poisson(np.exp(np.minimum(f, 8))).astype(float),
            "gamma": lambda f=f: rng.gamma(2, np.exp(f) / 2) + 1e-9,
        }[name]()
        frame = {f"x{j}": shifts[j] + scales[j] * x[:, j] for j in range(columns)}
        sites[f"site {k}"] = {**frame, "level": level, "y": outcome}
    return name, sites, columns


def pooled(sites, columns):
    """The pooled rows as a matrix with standardised columns, and the factors that were divided out."""
    join = lambda key: np.concatenate([frame[key] for frame in sites.values()])
    x = np.stack([join(f"x{j}") for j in range(columns)], 1)
    mean, spread = x.mean(0), x.std(0)
    level = join("level")
    indicators = [(level == each).astype(float) for each in sorted(set(level))[1:]]
    return np.column_stack([np.ones(len(x)), (x - mean) / spread, *indicators]), join("y"), mean, spread


def separated(x, y, name):
    """Whether some direction of the weights lowers the loss for ever: a linear program, with no statistics in it."""
    if name == "binomial":
        rows, free = (2 * y - 1)[:, None] * x, np.zeros(0)
        equal = None
    else:  # Poisson: only rows without a count may be pushed down, the others must stay
        rows, equal = -x[y == 0], x[y > 0]
        free = np.zeros(len(equal))
        if not len(rows):
            return False
    found = linprog(
        -rows.sum(0),
        A_ub=-rows,
        b_ub=np.zeros(len(rows)),
        A_eq=equal,
        b_eq=free if equal is not None else None,
        bounds=[(-1, 1)] * x.shape[1],
    )
    return -found.fun > 1e-7


@pytest.mark.parametrize("tens", range(PROBLEMS // 10))
def test_the_pooled_answer_or_an_error_that_is_right(tens):
    for seed in range(10 * tens, 10 * tens + 10):
        name, sites, columns = problem(seed)
        x, y, _, spread = pooled(sites, columns)
        formula = "y ~ " + " + ".join(
            [f"x{j}" for j in range(columns)] + (["level"] if x.shape[1] > columns + 1 else [])
        )
        try:
            fit = fedlap.glm(formula, sites, family=name)
        except DataError as error:
            few = len(y) < x.shape[1] + (name in ("gaussian", "gamma"))
            dependent = np.linalg.matrix_rank(x) < x.shape[1]
            assert few or dependent or (name in ("binomial", "poisson") and separated(x, y, name)), (seed, error)
            continue
        assert fit.converged and fit.rounds <= 8, (seed, fit.rounds)
        theirs = sm.GLM(y, x, family=FAMILIES[name]).fit(tol=1e-14, maxiter=300)
        slopes, errors = theirs.params[1 : columns + 1] / spread, theirs.bse[1 : columns + 1] / spread
        names = [f"x{j}" for j in range(columns)]
        np.testing.assert_allclose(fit.params[names], slopes, rtol=1e-6, atol=1e-6 * errors.max(), err_msg=str(seed))
        np.testing.assert_allclose(fit.bse[names], errors, rtol=1e-6, err_msg=str(seed))
        np.testing.assert_allclose(fit.llf, theirs.llf, rtol=1e-8, atol=1e-8, err_msg=str(seed))


def test_most_problems_have_an_answer_and_few_rounds():
    rounds, refused = [], 0
    for seed in range(60):
        name, sites, columns = problem(seed)
        formula = "y ~ " + " + ".join(f"x{j}" for j in range(columns))
        try:
            rounds.append(fedlap.glm(formula, sites, family=name).rounds)
        except DataError:
            refused += 1
    assert refused < 6 and np.mean(np.array(rounds) <= 8) > 0.9, (refused, rounds)
