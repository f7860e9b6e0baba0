"""Where a new outcome of a regression lies: statsmodels for numbers, sums over a fine grid for counts and costs."""

import numpy as np
import pandas as pd
import pytest
import statsmodels.formula.api as smf
from scipy import stats

import fedlap
from cohorts import drawn_hospitals
from fedlap.errors import ConfigError

RIGHT = "age + C(sex) + smoker"
NEW = slice(0, 12)


@pytest.fixture(scope="module")
def sites():
    return drawn_hospitals(np.random.default_rng(0), [150, 40, 7, 1])


@pytest.fixture(scope="module")
def rows(sites):
    return pd.concat(sites.values(), ignore_index=True)


def test_numbers_are_as_in_ordinary_least_squares(sites, rows):
    ours = fedlap.glm(f"pressure ~ {RIGHT}", sites, family="gaussian").predict(rows[NEW], 0.9, observation=True)
    theirs = smf.ols(f"pressure ~ {RIGHT}", rows).fit().get_prediction(rows[NEW]).summary_frame(alpha=0.1)
    np.testing.assert_allclose(ours, theirs[list(ours.columns)], rtol=1e-6)
    assert list(ours.columns) == ["mean", "mean_ci_lower", "mean_ci_upper", "obs_ci_lower", "obs_ci_upper"]


def distribution(family, fit):
    """The outcome given log-means, by SciPy."""
    if family == "poisson":
        return lambda f: stats.poisson(np.exp(f))
    if family == "gamma":
        return lambda f: stats.gamma(1 / fit.scale, scale=np.exp(f) * fit.scale)
    r = 1 / fit.params["alpha"]
    return lambda f: stats.nbinom(r, r / (r + np.exp(f)))


@pytest.mark.parametrize(
    ("family", "outcome"), [("poisson", "visits"), ("negative_binomial", "claims"), ("gamma", "cost")]
)
def test_a_new_outcome_has_the_quantiles_of_the_mixture(family, outcome, sites, rows):
    fit = fedlap.glm(f"{outcome} ~ {RIGHT}", sites, family=family)
    found = fit.predict(rows[NEW], 0.9, observation=True)
    f = np.log(found["mean"].to_numpy())
    error = (np.log(found["mean_ci_upper"].to_numpy()) - f) / stats.norm.isf(0.05)
    z = np.linspace(-8, 8, 4001)
    mass = np.exp(-(z**2) / 2) / np.exp(-(z**2) / 2).sum()
    given = distribution(family, fit)
    below = lambda y: np.array([mass @ given(a + b * z).cdf(c) for a, b, c in zip(f, error, y, strict=True)])
    for column, share in (("obs_ci_lower", 0.05), ("obs_ci_upper", 0.95)):
        y = found[column].to_numpy()
        if family == "gamma":
            np.testing.assert_allclose(below(y), share, rtol=1e-8)
        else:
            assert (y == np.floor(y)).all() and (y >= 0).all()
            assert (below(y) >= share).all() and (below(y - 1) < share).all()


def test_what_has_no_interval_of_a_new_outcome_says_so(sites, rows):
    fit = fedlap.glm(f"ill ~ {RIGHT}", sites, family="binomial")
    with pytest.raises(ConfigError, match="a new outcome with the logit link is yes or no, not a number"):
        fit.predict(rows[NEW], 0.9, observation=True)
    with pytest.raises(ConfigError, match=r"expected its share too, such as interval=0\.95"):
        fit.predict(rows[NEW], observation=True)
    random = fedlap.glm("pressure ~ age", sites, family="gaussian", site_effects="random")
    with pytest.raises(ConfigError, match="depends on the effect of its site"):
        random.predict(rows[NEW], 0.9, observation=True)
