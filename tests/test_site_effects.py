"""Intercepts of sites: fixed as with indicators on pooled rows, random as in statsmodels or a slow pooled oracle."""

import warnings

import numpy as np
import pytest
from scipy.special import expit

from fedlap.errors import ConfigError, DataError
from fedlap.regression import glm as glm_module
from fedlap.regression.effects import GaussianIntercept, LaplaceIntercept, with_fixed
from fedlap.regression.families import FAMILIES
from fedlap.regression.families import family as family_of
from fedlap.regression.glm import fit_rows, glm
from fedlap.regression.mixed import fit_mixed
from fedlap.regression.objective import LinearObjective
from fedlap.regression.prior import EvidencePrior, normal
from intercepts import DESIGN, NAMES, DrawnDesign, Pooled, by_site, drawn, optimum, pooled_loss, slopes
from regressions import site_rows

sm = pytest.importorskip("statsmodels.api")
SIZES = {
    "three sites": [20, 9, 30],
    "unbalanced": [1, 40, 3, 12, 60, 2, 7],
    "many, some of one row": [1, 2, 5, 9] * 10,
}
HARD = [
    ("binomial", [20, 9, 30], 4.0, 3),
    ("binomial", [1, 2, 5, 9] * 6, 4.0, 11),
    ("poisson", [200, 50, 100], 0.0, 8),
    ("poisson", [1, 2, 5, 9] * 6, 2.0, 3),
]


def mixed(family, rows, prior=None, design=DESIGN):
    return fit_mixed(family_of(family), design, by_site(rows), prior)


def off(found, wanted):
    """The largest relative error."""
    return np.abs(np.asarray(found) / np.asarray(wanted) - 1).max()


def by_statsmodels(rows):
    """MixedLM, from several starts: the likeliest."""
    model = sm.MixedLM(rows.y - rows.offset, rows.x, groups=rows.site)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fits = [model.fit(reml=False, method=[method], gtol=1e-9, maxiter=500) for method in ("bfgs", "cg", "powell")]
    return max(fits, key=lambda fit: fit.llf)


# Derivatives ----------------------------------------------------------------------------------------------------------


def objective(family):
    rng = np.random.default_rng(3)
    y = {"gaussian": rng.normal(size=12), "binomial": rng.integers(0, 2, 12), "poisson": rng.poisson(3, 12)}[family]
    x = np.c_[np.ones(12), rng.normal(size=(12, 2))]
    return LinearObjective(family_of(family), x, y.astype(float), rng.integers(1, 4, 12) * 1.0, rng.normal(size=12))


@pytest.mark.parametrize("log_tau", [-3.0, -0.5, 1.0])
@pytest.mark.parametrize("family", ["gaussian", "binomial", "poisson"])
def test_derivatives_are_those_of_the_loss(family, log_tau):
    rows = objective(family)
    site = GaussianIntercept(rows) if family == "gaussian" else LaplaceIntercept(rows)
    w = np.array([0.3, -0.2, 0.5, log_tau] + ([-0.4] if family == "gaussian" else []))
    there, sizes = site.expand(w), np.full(len(w), 1e-3)
    assert there.loss == site.loss(w)
    np.testing.assert_allclose(there.gradient, slopes(site.loss, w, sizes), rtol=1e-7, atol=1e-8)
    by_gradient = slopes(lambda w: site.expand(w).gradient, w, sizes)
    np.testing.assert_allclose(there.hessian, by_gradient, rtol=1e-7, atol=1e-8)


@pytest.mark.parametrize("family", ["gaussian", "binomial", "poisson"])
def test_a_hessian_is_the_schur_complement_over_the_effect(family):
    """But for the curvature of Laplace's determinant, which for a gaussian outcome has no part in the coefficients."""
    rows, log_tau, log_phi = objective(family), -0.3, 0.4
    phi = np.exp(log_phi) if family == "gaussian" else 1.0
    site = GaussianIntercept(rows) if family == "gaussian" else LaplaceIntercept(rows)
    full = lambda w: np.array([*w, log_tau] + ([log_phi] if family == "gaussian" else []))
    w = np.array([0.3, -0.2, 0.5])
    f = rows.predict(w) + site.effect(full(w)).mode
    joint = np.c_[rows.x, np.ones(12)]
    hessian = joint.T @ (joint * (rows.weights * rows.family.curvature(rows.y, f) / phi)[:, None])
    hessian[-1, -1] += np.exp(-2 * log_tau)
    schur = hessian[:-1, :-1] - np.outer(hessian[:-1, -1], hessian[-1, :-1]) / hessian[-1, -1]

    def determinant(w):
        f = rows.predict(w) + site.effect(full(w)).mode
        return np.log(rows.weights @ rows.family.curvature(rows.y, f) + np.exp(-2 * log_tau)) / 2

    sizes = np.full(3, 3e-3)
    bending = slopes(lambda w: slopes(determinant, w, sizes), w, sizes) if family != "gaussian" else 0.0
    np.testing.assert_allclose(site.expand(full(w)).hessian[:3, :3], schur + bending, rtol=1e-6)


# Random ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("spread", [0.4, 1.0, 20.0])
@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
def test_gaussian_random_intercepts_are_those_of_statsmodels(sizes, spread):
    rows = drawn("gaussian", sizes, spread, seed=2)
    fit, wanted = mixed("gaussian", rows), by_statsmodels(rows)
    print(f"{len(sizes)} sites, spread {spread}: {fit.rounds} rounds, tau2 {fit.site_variance:.6g}")
    assert fit.converged and fit.rounds <= 15
    assert off(fit.params, wanted.fe_params) < 1e-5
    assert off(fit.bse, wanted.bse_fe) < 1e-5
    assert off(fit.site_variance, wanted.cov_re[0, 0]) < 1e-5
    assert off(fit.scale, wanted.scale) < 1e-5
    assert off(fit.llf, wanted.llf) < 1e-9
    assert off([fit.aic, fit.bic], [wanted.aic, wanted.bic]) < 1e-9
    effects = [wanted.random_effects[k].iloc[0] for k in range(len(sizes))]
    spreads = [np.sqrt(wanted.random_effects_cov[k].iloc[0, 0]) for k in range(len(sizes))]
    assert off(fit.site_effects, effects) < 1e-4
    assert off(fit.site_effects_se, spreads) < 1e-5
    assert list(fit.site_effects.index) == list(by_site(rows))


@pytest.mark.parametrize("sizes", [SIZES["three sites"], SIZES["unbalanced"]], ids=["three sites", "unbalanced"])
@pytest.mark.parametrize(("family", "trials"), [("binomial", 1), ("binomial", 5), ("poisson", 1)])
def test_other_random_intercepts_are_those_of_a_pooled_oracle(family, sizes, trials):
    rows = drawn(family, sizes, 0.9, seed=1, trials=trials)
    fit = mixed(family, rows)
    print(f"{family}, {len(sizes)} sites: {fit.rounds} rounds, tau2 {fit.site_variance:.6g}")
    assert fit.converged and fit.rounds <= 15
    start = np.array([-1.2, 0.03, 0.6, np.log(0.9)])
    found, hessian = optimum(lambda at: pooled_loss(family, rows, at), start, np.array([1e-2, 2e-4, 1e-2, 1e-2]))
    errors = np.sqrt(np.diag(np.linalg.inv(hessian)))
    assert off(fit.params, found[:3]) < 1e-6
    assert off(fit.site_variance, np.exp(2 * found[3])) < 1e-6
    assert off(fit.bse, errors[:3]) < 1e-6
    assert off(fit.site_variance_se, 2 * np.exp(2 * found[3]) * errors[3]) < 1e-6
    assert off(fit.llf, -pooled_loss(family, rows, found)) < 1e-10


def test_a_prior_is_one_of_the_coefficients_of_standardised_columns():
    rows = drawn("binomial", SIZES["unbalanced"], 0.9, seed=1)
    fit = mixed("binomial", rows, prior=normal(0.3))
    wide = lambda at: ((at[1:3] * rows.x[:, 1:].std(0)) ** 2).sum() / (2 * 0.3**2)
    start = np.array([-1.2, 0.03, 0.6, np.log(0.9)])
    sizes = np.array([1e-2, 2e-4, 1e-2, 1e-2])
    found, _ = optimum(lambda at: pooled_loss("binomial", rows, at) + wide(at), start, sizes)
    assert off(fit.params, found[:3]) < 1e-6
    assert off(fit.site_variance, np.exp(2 * found[3])) < 1e-6


@pytest.mark.parametrize(("family", "sizes", "spread", "seed"), HARD)
def test_rounds_that_have_to_step_back_end_at_the_optimum(family, sizes, spread, seed):
    """Steps to where exponentials overflow, and flat places on the way; warnings would be errors here."""
    fit = mixed(family, drawn(family, sizes, spread, seed=seed))
    at = fit.optimum.w
    score = sum(slopes(site.loss, at, np.full(len(at), 1e-3)) for site in fit.regression.sites.values())
    print(f"{family}, {len(sizes)} sites: {fit.rounds} rounds, {fit.plain.rounds} of them without effects")
    assert fit.converged and np.linalg.eigvalsh(fit.optimum.S)[0] > 0
    assert np.abs(score).max() < 1e-6 * max(1, abs(fit.llf))


def test_a_spread_beyond_the_approximation_is_noted():
    """Sites whose outcome never varies make their spread seem endless."""
    rows = drawn("binomial", [10] * 6, 1.0)
    assert "poor" in str(mixed("binomial", rows._replace(y=(rows.site % 2).astype(float))).summary())
    assert "poor" not in str(mixed("binomial", rows).summary())


# No variance ----------------------------------------------------------------------------------------------------------


def alike(family):
    """Rows whose sites differ less than chance would make them: every site has the same."""
    one = drawn(family, [25], 0.0, seed=4)
    rows = Pooled(*(np.concatenate([part] * 4) for part in one))
    return rows._replace(site=np.repeat(np.arange(4), 25))


@pytest.mark.parametrize("family", ["gaussian", "binomial", "poisson"])
def test_sites_that_do_not_differ_have_no_variance(family):
    rows = alike(family)
    fit, plain = mixed(family, rows), fit_rows(family_of(family), DESIGN, by_site(rows), None)
    assert fit.converged and fit.rounds <= 15
    assert fit.site_variance == 0 and np.isnan(fit.site_variance_se)
    assert (fit.site_effects == 0).all() and (fit.site_effects_se == 0).all()
    shrunk = np.sqrt(plain.df_resid / plain.nobs) if family == "gaussian" else 1.0  # the variance is the likeliest one
    assert off(fit.params, plain.params) < 1e-8
    assert off(fit.bse, shrunk * plain.bse) < 1e-8
    assert off(fit.llf, plain.llf) < 1e-10
    assert "on its boundary" in str(fit.summary())
    assert fit.without("b").site_variance == 0


def test_a_prior_at_the_boundary_is_a_prior_of_the_fit_without_effects():
    rows = alike("gaussian")
    fit = mixed("gaussian", rows, prior=normal(0.5))
    unit, y = rows.y.std(), rows.y - rows.offset
    centred = (rows.x[:, 1:] - rows.x[:, 1:].mean(0)) / rows.x[:, 1:].std(0)
    x = np.c_[np.ones(len(y)), centred]
    wanted = np.linalg.solve(x.T @ x / fit.scale + np.diag([0, 1, 1]) / (0.5 * unit) ** 2, x.T @ y / fit.scale)
    assert fit.site_variance == 0 and fit.converged
    assert off(fit.params.to_numpy()[1:], wanted[1:] / rows.x[:, 1:].std(0)) < 1e-8
    assert off(fit.scale, ((y - x @ wanted) ** 2).mean()) < 1e-8


# What a fit says besides ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", ["gaussian", "binomial", "poisson"])
def test_without_a_site_is_the_fit_of_the_others(family):
    rows = drawn(family, SIZES["unbalanced"], 0.9, seed=1)
    others = rows.site != 3
    fit = mixed(family, rows).without("d")
    wanted = mixed(family, Pooled(*(part[others] for part in rows)))
    assert off(fit.params, wanted.params) < 1e-7
    assert fit.site_variance == pytest.approx(wanted.site_variance, rel=1e-7)
    assert fit.llf == pytest.approx(wanted.llf, rel=1e-9)
    assert list(fit.site_effects.index) == ["a", "b", "c", "e", "f", "g"]


@pytest.mark.parametrize("family", ["gaussian", "binomial", "poisson"])
def test_sites_are_compared_at_the_variance_of_all(family):
    """An estimate is one step of Newton's from the coefficients of all, with the variances held."""
    rows = drawn(family, [40, 30, 50], 0.5, seed=5)
    fit = mixed(family, rows)
    w, site = fit.optimum.w, fit.regression.sites["b"]
    there, size = site.expand(w), len(NAMES)
    step = -np.linalg.solve(there.hessian[:size, :size], there.gradient[:size])
    assert off(fit.sites.loc["b", "estimate"], fit.params + fit.regression.back[:, :size] @ step) < 1e-8
    assert list(fit.heterogeneity.index) == NAMES and (fit.heterogeneity["df"] == 2).all()
    assert off(fit.shapley().sum(), fit.llf - fit.llnull) < 0.05
    text = str(fit.summary())
    assert "random site intercepts" in text and "site variance" in text


def test_the_null_model_has_random_intercepts_too():
    rows = drawn("gaussian", SIZES["unbalanced"], 1.0, seed=2)
    wanted = by_statsmodels(rows._replace(x=rows.x[:, :1]))
    assert off(mixed("gaussian", rows).llnull, wanted.llf) < 1e-8


def test_robust_errors_are_over_sites():
    rows = drawn("poisson", SIZES["unbalanced"], 0.9, seed=1)
    fit = mixed("poisson", rows)
    scores = np.stack([site.expand(fit.optimum.w).gradient for site in fit.regression.sites.values()])
    inverse = np.linalg.inv(sum(site.expand(fit.optimum.w).hessian for site in fit.regression.sites.values()))
    groups, count = len(scores), len(rows.y)
    middle = inverse @ scores.T @ scores @ inverse * groups / (groups - 1) * (count - 1) / (count - 3)
    back = fit.regression.back
    assert off(fit.robust("sites").bse, np.sqrt(np.diag(back @ middle @ back.T))) < 1e-8
    with pytest.raises(ConfigError, match="not independent"):
        fit.robust("rows")


def test_what_a_mixed_fit_has_not_is_said():
    fit = mixed("poisson", drawn("poisson", [10, 20, 30], 0.9, seed=1))
    for name in ("deviance", "null_deviance", "pearson_chi2"):
        with pytest.raises(ConfigError, match="with random site effects there is no"):
            getattr(fit, name)
    two = mixed("poisson", drawn("poisson", [10, 20], 0.9, seed=1))
    with pytest.raises(ConfigError, match="without a one site is left"):
        two.without("a")


# Errors ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", [name for name in FAMILIES if name not in ("gaussian", "binomial", "poisson")])
def test_a_family_without_random_intercepts_says_so(family):
    with pytest.raises(ConfigError, match="expected a family gaussian, binomial or poisson"):
        mixed(family, drawn("poisson", [10, 10], 1.0))


def test_rows_that_determine_no_variance_are_an_error():
    single = drawn("gaussian", [1] * 12, 1.0)
    with pytest.raises(DataError, match="every site has one row"):
        mixed("gaussian", single)
    with pytest.raises(DataError, match="a is the only site"):
        mixed("binomial", drawn("binomial", [30], 1.0))
    rows = drawn("gaussian", [10, 12, 9], 1.0)
    exact = rows._replace(y=rows.x @ [1, 0.2, 3] + rows.offset + 5 * rows.site)
    with pytest.raises(DataError, match="exactly"):
        mixed("gaussian", exact)
    with pytest.raises(DataError, match="exactly"):
        mixed("gaussian", exact._replace(y=rows.x @ [1, 0.2, 3] + rows.offset))
    rows = drawn("binomial", [10] * 6, 1.0)
    with pytest.raises(ConfigError, match="evidence"):
        mixed("binomial", rows, prior=EvidencePrior())


# Fixed ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", ["gaussian", "binomial", "poisson"])
def test_fixed_effects_are_those_of_indicators_on_pooled_rows(family):
    rows = drawn(family, [40, 25, 60, 30], 0.8, seed=6)
    design, parts = with_fixed(DESIGN, by_site(rows), None)
    fit = fit_rows(family_of(family), design, parts, None)
    x = np.c_[rows.x, rows.site[:, None] == [1, 2, 3]]
    kind = {"gaussian": sm.families.Gaussian, "binomial": sm.families.Binomial, "poisson": sm.families.Poisson}[family]
    wanted = sm.GLM(rows.y, x, kind(), offset=rows.offset).fit(tol=1e-14)
    assert list(fit.params.index) == [*NAMES, "site[T.b]", "site[T.c]", "site[T.d]"]
    assert off(fit.params, wanted.params) < 1e-6
    assert off(fit.bse, wanted.bse) < 1e-6
    assert off(fit.llf, wanted.llf) < 1e-9
    print(f"{family}, fixed: {fit.rounds} rounds")
    assert fit.converged and fit.rounds <= 15
    assert "site[T.d]" in str(fit.summary())
    assert np.isnan(fit.sites.loc[("b", "site[T.b]"), "weight"])


def test_without_an_intercept_every_site_has_an_indicator():
    rows = drawn("binomial", [40, 25, 60], 0.8, seed=6)
    less = DrawnDesign(NAMES[1:])
    design, parts = with_fixed(less, by_site(rows._replace(x=rows.x[:, 1:])), None)
    fit = fit_rows(family_of("binomial"), design, parts, None)
    x = np.c_[rows.x[:, 1:], rows.site[:, None] == [0, 1, 2]]
    wanted = sm.GLM(rows.y, x, sm.families.Binomial(), offset=rows.offset).fit(tol=1e-14)
    assert list(fit.params.index) == [*NAMES[1:], "site[a]", "site[b]", "site[c]"]
    assert off(fit.params, wanted.params) < 1e-6 and off(fit.bse, wanted.bse) < 1e-6


def test_a_prediction_has_the_effect_of_its_site_if_that_is_fixed():
    class Formula(DrawnDesign):
        def matrix(self, new, outcome=True, where=""):
            return site_rows(np.c_[np.ones(3), new["age"], new["dose"]], None, NAMES)

    rows = drawn("binomial", [40, 25, 60], 0.8, seed=6)
    new = {"age": np.array([40.0, 50, 60]), "dose": np.zeros(3), "hospital": np.array(["a", "b", "c"])}
    design, parts = with_fixed(Formula(NAMES), by_site(rows), "hospital")
    fit = fit_rows(family_of("binomial"), design, parts, None)
    value = fit.params.to_numpy()
    wanted = expit(value[0] + value[1] * new["age"] + [0, value[3], value[4]])
    assert off(fit.predict(new)["mean"], wanted) < 1e-12
    with pytest.raises(DataError, match=r"row 2: no site of the fit is named 'A'; did you mean 'a'\?"):
        fit.predict(new | {"hospital": np.array(["a", "b", "A"])})
    with pytest.raises(DataError, match="no column 'hospital'"):
        fit.predict({name: new[name] for name in ("age", "dose")})
    unnamed, parts = with_fixed(Formula(NAMES), by_site(rows), None)
    with pytest.raises(ConfigError, match="needs the site of every row"):
        fit_rows(family_of("binomial"), unnamed, parts, None).predict(new)
    random = mixed("gaussian", drawn("gaussian", [40, 25, 60], 0.8, seed=6), design=Formula(NAMES))
    value = random.params.to_numpy()
    assert off(random.predict(new)["mean"], value[0] + value[1] * new["age"]) < 1e-12


def test_fixed_effects_need_two_sites_and_columns_of_their_own():
    rows = drawn("binomial", [20, 20], 1.0)
    with pytest.raises(DataError, match="a is the only site"):
        with_fixed(DESIGN, by_site(drawn("binomial", [20], 1.0)), None)
    with pytest.raises(ConfigError, match=r"has a column site\[T.b\] already"):
        with_fixed(DrawnDesign([*NAMES[:2], "site[T.b]"]), by_site(rows), None)


def test_glm_has_all_three(monkeypatch):
    rows = drawn("binomial", [40, 25, 60], 0.8, seed=6)
    monkeypatch.setattr(glm_module, "designs", lambda *_, **__: (DESIGN, by_site(rows)))
    fits = {name: glm("", {}, site_effects=name) for name in ("none", "fixed", "random")}
    assert [len(fit.params) for fit in fits.values()] == [3, 5, 3]
    assert off(fits["random"].params, mixed("binomial", rows).params) < 1e-12
    assert off(glm("", {}).params, fits["none"].params) < 1e-12
    with pytest.raises(ConfigError, match="did you mean 'random'"):
        glm("", {}, site_effects="randm")
