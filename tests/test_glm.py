"""Generalised linear models over sites against statsmodels on the pooled rows, and bad input."""

import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm
import statsmodels.formula.api as smf
from statsmodels.stats.meta_analysis import combine_effects

import fedlap
from cohorts import drawn_hospitals
from fedlap.errors import ConfigError, DataError

FAMILIES = {
    "gaussian": sm.families.Gaussian(),
    "binomial": sm.families.Binomial(),
    "poisson": sm.families.Poisson(),
    "gamma": sm.families.Gamma(sm.families.links.Log()),
}
OUTCOMES = {"gaussian": "pressure", "binomial": "ill", "poisson": "visits", "gamma": "cost"}
RIGHT = "age + C(sex) + smoker"


def pooled(sites):
    return pd.concat(sites.values(), ignore_index=True)


def by_name(theirs):
    """statsmodels' numbers under formulaic's names, which put columns in another order."""
    return pd.Series(np.asarray(theirs), index=[name.replace("C(sex)[T.", "C(sex)[T.") for name in theirs.index])


@pytest.fixture(scope="module")
def sites():
    return drawn_hospitals(np.random.default_rng(0), [150, 40, 7, 1])


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("extra", [{}, {"weights": "copies"}, {"offset": "shift"}])
def test_as_statsmodels_on_pooled_rows(name, extra, sites):
    formula, rows = f"{OUTCOMES[name]} ~ {RIGHT}", pooled(sites)
    ours = fedlap.glm(formula, sites, family=name, **extra)
    options = {"freq_weights": rows["copies"]} if "weights" in extra else {}
    options |= {"offset": rows["shift"]} if "offset" in extra else {}
    theirs = smf.glm(formula, rows, family=FAMILIES[name], **options).fit(tol=1e-14, maxiter=200)
    assert ours.converged and ours.rounds <= 8
    for a, b in [(ours.params, theirs.params), (ours.bse, theirs.bse)]:
        np.testing.assert_allclose(a, by_name(b)[a.index], rtol=1e-6)
    names = list(ours.params.index)
    theirs_covariance = theirs.cov_params().loc[names, names]
    np.testing.assert_allclose(
        ours.cov_params(), theirs_covariance, rtol=1e-5, atol=1e-9 * theirs_covariance.abs().max().max()
    )
    for each in ("llf", "aic", "deviance", "null_deviance", "scale", "pearson_chi2", "df_resid"):
        np.testing.assert_allclose(getattr(ours, each), getattr(theirs, each), rtol=1e-8, err_msg=each)
    if "weights" not in extra:
        assert ours.nobs == theirs.nobs
    if name != "gaussian":
        np.testing.assert_allclose(ours.pvalues, by_name(theirs.pvalues)[names], rtol=1e-5)
        np.testing.assert_allclose(ours.conf_int(0.1), theirs.conf_int(0.1).loc[names], rtol=1e-6)


def test_a_linear_regression_is_ordinary_least_squares(sites):
    ours = fedlap.glm(f"pressure ~ {RIGHT}", sites, family="gaussian")
    theirs = smf.ols(f"pressure ~ {RIGHT}", pooled(sites)).fit()
    names = list(ours.params.index)
    for each in ("params", "bse", "pvalues", "tvalues"):
        np.testing.assert_allclose(getattr(ours, each), getattr(theirs, each)[names], rtol=1e-6, err_msg=each)
    np.testing.assert_allclose(ours.conf_int(), theirs.conf_int().loc[names], rtol=1e-6)
    np.testing.assert_allclose([ours.llf, ours.scale, ours.bic], [theirs.llf, theirs.scale, theirs.bic], rtol=1e-8)
    assert ours.rounds == 2  # a quadratic loss is its own expansion


def test_negative_binomial_with_its_dispersion(sites):
    ours = fedlap.glm(f"claims ~ {RIGHT}", sites, family="negative_binomial")
    x = smf.glm(f"claims ~ {RIGHT}", pooled(sites), family=sm.families.Poisson())
    names = list(ours.params.index[:-1])
    places = [x.exog_names.index(name) for name in names]
    start = np.r_[ours.params.to_numpy()[:-1], ours.params["alpha"]]
    theirs = sm.NegativeBinomial(x.endog, x.exog[:, places]).fit(start_params=start, disp=0, gtol=1e-10, maxiter=500)
    np.testing.assert_allclose(ours.params, theirs.params, rtol=1e-6)
    np.testing.assert_allclose(ours.bse, theirs.bse, rtol=1e-6)
    np.testing.assert_allclose(ours.llf, theirs.llf, rtol=1e-8)
    assert ours.rounds <= 8


def test_multinomial(sites):
    ours = fedlap.glm(f"ward ~ {RIGHT}", sites, family="multinomial")
    rows = pooled(sites)
    x = smf.ols(f"age ~ {RIGHT}", rows)
    names = ours.params.index.get_level_values(1).unique()
    levels = sorted(rows["ward"].unique())
    codes = rows["ward"].map(levels.index).to_numpy()
    theirs = sm.MNLogit(codes, x.exog[:, [x.exog_names.index(n) for n in names]]).fit(
        disp=0, method="newton", maxiter=100
    )
    np.testing.assert_allclose(ours.params.to_numpy().reshape(len(levels) - 1, -1).T, theirs.params, rtol=1e-6)
    np.testing.assert_allclose(ours.bse.to_numpy().reshape(len(levels) - 1, -1).T, theirs.bse, rtol=1e-6)
    np.testing.assert_allclose(ours.llf, theirs.llf, rtol=1e-8)
    assert list(ours.params.index.get_level_values(0).unique()) == levels[1:]
    predicted = ours.predict(rows)
    np.testing.assert_allclose(predicted, theirs.predict(), rtol=1e-6)
    assert list(predicted.columns) == levels


def test_successes_of_trials(sites):
    ours = fedlap.glm(f"cured ~ {RIGHT}", sites, family="binomial", trials="treated")
    rows = pooled(sites)
    x = smf.ols(f"age ~ {RIGHT}", rows)
    names = list(ours.params.index)
    counts = np.c_[rows["cured"], rows["treated"] - rows["cured"]]
    theirs = sm.GLM(counts, x.exog[:, [x.exog_names.index(n) for n in names]], family=sm.families.Binomial()).fit(
        tol=1e-14
    )
    np.testing.assert_allclose(ours.params, theirs.params, rtol=1e-6)
    np.testing.assert_allclose(ours.bse, theirs.bse, rtol=1e-6)
    np.testing.assert_allclose([ours.llf, ours.deviance], [theirs.llf, theirs.deviance], rtol=1e-8)
    with pytest.raises(ConfigError, match="takes trials for rows"):
        ours.robust("rows")


def test_an_exposure_is_the_logarithm_of_an_offset(sites):
    ours = fedlap.glm(f"visits ~ {RIGHT}", sites, family="poisson", exposure="years")
    theirs = smf.glm(f"visits ~ {RIGHT}", pooled(sites), family=sm.families.Poisson(), exposure=pooled(sites)["years"])
    np.testing.assert_allclose(ours.params, theirs.fit(tol=1e-14).params[ours.params.index], rtol=1e-6)


def test_one_frame_with_a_column_of_sites_is_the_same(sites):
    named = pd.concat([frame.assign(hospital=name) for name, frame in sites.items()])
    apart, together = fedlap.glm(f"ill ~ {RIGHT}", sites), fedlap.glm(f"ill ~ {RIGHT}", named, site="hospital")
    np.testing.assert_allclose(apart.params, together.params, rtol=1e-12)
    assert set(apart.regression.rows) == set(together.regression.rows)


# Sites ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FAMILIES)
def test_without_a_site_is_the_fit_of_the_others(name, sites):
    whole = fedlap.glm(f"{OUTCOMES[name]} ~ {RIGHT}", sites, family=name)
    for gone in list(sites)[:3]:
        left = whole.without(gone)
        rest = fedlap.glm(f"{OUTCOMES[name]} ~ {RIGHT}", {k: v for k, v in sites.items() if k != gone}, family=name)
        np.testing.assert_allclose(left.params, rest.params, rtol=1e-8, atol=1e-8)
        np.testing.assert_allclose(left.bse, rest.bse, rtol=1e-8)
        np.testing.assert_allclose([left.llf, left.nobs], [rest.llf, rest.nobs], rtol=1e-10)
        # To take a factor out of a quadratic loss is exact: the first round only proves it.
        assert left.rounds == 1 if name == "gaussian" else left.rounds <= rest.rounds
    with pytest.raises(ConfigError, match="no site is named 'nowhere'"):
        whole.without("nowhere")


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # statsmodels', at such a variance
def test_meta_analysis_and_heterogeneity_are_those_of_the_sites_estimates():
    many = drawn_hospitals(np.random.default_rng(14), [120, 80, 150, 60])
    many["south"]["age"] = 120 - many["south"]["age"]  # so that sites differ
    fit, differ = fedlap.glm(f"ill ~ {RIGHT}", many), set()
    for name in fit.params.index:
        rows = fit.sites.xs(name, level="coefficient")
        theirs = combine_effects(rows["estimate"].to_numpy(), rows["se"].to_numpy() ** 2, method_re="dl")
        ours, spread = fit.meta.loc[name], fit.heterogeneity.loc[name]
        table = theirs.summary_frame()
        np.testing.assert_allclose(ours["fixed"], table.loc["fixed effect", "eff"], rtol=1e-10)
        np.testing.assert_allclose(ours["fixed_se"], table.loc["fixed effect", "sd_eff"], rtol=1e-10)
        # statsmodels goes on with a variance below 0; everybody else, and the paper of the two, with none.
        row = "random effect" if theirs.tau2 > 0 else "fixed effect"
        differ.add(theirs.tau2 > 0)
        np.testing.assert_allclose(ours["random"], table.loc[row, "eff"], rtol=1e-10)
        np.testing.assert_allclose(ours["random_se"], table.loc[row, "sd_eff"], rtol=1e-10)
        np.testing.assert_allclose(spread["Q"], theirs.q, rtol=1e-10)
        np.testing.assert_allclose(spread["p"], theirs.test_homogeneity().pvalue, rtol=1e-10)
        np.testing.assert_allclose([spread["I2"], spread["tau2"]], [max(theirs.i2, 0), max(theirs.tau2, 0)], atol=1e-10)
    assert len(differ) == 2  # coefficients of both kinds
    np.testing.assert_allclose(fit.sites["weight"].groupby("coefficient").sum(), 1)


def test_a_sites_estimate_is_near_its_own_fit():
    many = drawn_hospitals(np.random.default_rng(4), [4000, 3000])
    fit = fedlap.glm(f"ill ~ {RIGHT}", many)
    for name, frame in many.items():
        alone = fedlap.glm(f"ill ~ {RIGHT}", {name: frame})
        apart = (fit.sites.loc[name, "estimate"] - alone.params[fit.params.index]) / alone.bse[fit.params.index]
        assert np.abs(apart).max() < 0.05


def test_what_a_site_knows_nothing_of_is_not_a_number(sites):
    """The site of one row, and that of seven."""
    fit = fedlap.glm(f"ill ~ {RIGHT}", sites)
    smallest = list(sites)[-1]
    assert fit.sites.loc[smallest].isna().to_numpy()[:, 0].any()
    assert np.isfinite(fit.meta).to_numpy().all()


@pytest.mark.parametrize("name", FAMILIES)
def test_robust_errors_are_statsmodels_sandwiches(name):
    many = drawn_hospitals(np.random.default_rng(5), [60, 50, 40, 45, 30, 70])
    rows = pooled(many)
    groups = np.repeat(np.arange(6), [len(each) for each in many.values()])
    fit = fedlap.glm(f"{OUTCOMES[name]} ~ {RIGHT}", many, family=name)
    model = smf.glm(f"{OUTCOMES[name]} ~ {RIGHT}", rows, family=FAMILIES[name])
    white = model.fit(tol=1e-14, cov_type="HC0")
    cluster = model.fit(tol=1e-14, cov_type="cluster", cov_kwds={"groups": groups})
    np.testing.assert_allclose(fit.robust("rows").bse, white.bse[fit.params.index], rtol=1e-6)
    np.testing.assert_allclose(fit.robust("sites").bse, cluster.bse[fit.params.index], rtol=1e-6)
    assert fit.robust("rows").covariance_kind == "robust, rows"
    with pytest.raises(ConfigError, match='expected "rows" or "sites"'):
        fit.robust("columns")


def test_shapley_values_share_the_gain_and_are_near_those_of_retraining():
    """16 coalitions, each fitted anew from nothing with the same weak prior around the null model."""
    from itertools import combinations
    from math import comb

    from fedlap.regression.rounds import Belief, maximise

    many = drawn_hospitals(np.random.default_rng(6), [200, 170, 30, 85])
    fit = fedlap.glm(f"ill ~ {RIGHT}", many)
    ours, null = fit.shapley(), fit.regression.null_optimum()
    belief = Belief(null.w, np.eye(len(null.w)) / 2.5**2)

    def gain(members):
        if not members:
            return 0.0
        w = maximise({name: fit.regression.sites[name] for name in members}, belief).w
        return sum(null.losses.values()) - sum(each.loss(w) for each in fit.regression.sites.values())

    names, retrained = list(many), {}
    for name in names:
        others = [each for each in names if each != name]
        retrained[name] = sum(
            (gain((*group, name)) - gain(group)) / (4 * comb(3, size))
            for size in range(4)
            for group in combinations(others, size)
        )
    np.testing.assert_allclose(ours.sum(), fit.llf - fit.llnull, rtol=1e-3)
    np.testing.assert_allclose(ours, pd.Series(retrained)[ours.index], atol=1e-6 * ours.sum())
    solved = fit.shapley(refresh=False)  # one linear solve a coalition: near, where sites know enough by themselves
    assert np.abs(solved - ours).max() < 0.1 * ours.sum()


# Priors --------------------------------------------------------------------------------------------------------------


def test_a_normal_prior_is_the_posterior_mode(sites):
    """scikit-learn's penalty is that of a normal prior, on columns that are standardised."""
    from sklearn.linear_model import LogisticRegression

    fit = fedlap.glm(f"ill ~ {RIGHT}", sites, prior=fedlap.normal(sd=0.5))
    rows = pooled(sites)
    x = smf.ols(f"age ~ {RIGHT}", rows)
    columns = x.exog[:, [x.exog_names.index(name) for name in fit.params.index]][:, 1:]
    spread = columns.std(0)
    model = LogisticRegression(C=0.25, solver="newton-cholesky", tol=1e-12).fit(
        (columns - columns.mean(0)) / spread, rows["ill"]
    )
    np.testing.assert_allclose(fit.params.to_numpy()[1:] * spread, model.coef_[0], rtol=1e-5)
    assert (fit.bse < fedlap.glm(f"ill ~ {RIGHT}", sites).bse).all()


@pytest.mark.parametrize("name", ["binomial", "gaussian"])
def test_the_evidence_chooses_the_same_prior_wherever_it_starts(name, sites, monkeypatch):
    from fedlap.regression import glm

    formula, found = f"{OUTCOMES[name]} ~ {RIGHT}", []
    start = glm.evidence
    for factor in (1.0, 1e-3, 1e3):
        monkeypatch.setattr(glm, "evidence", lambda *args, factor=factor: start(*args[:-1], args[-1] * factor))
        fit = fedlap.glm(formula, sites, family=name, prior="evidence")
        found.append(fit.regression.prior.precision[1, 1] / fit.dispersion)
    np.testing.assert_allclose(found, found[0], rtol=1e-6)
    # It is MacKay's fixed point: δ = γ/‖w‖², γ = P − δ tr S⁻¹.
    penalised = ~fit.regression.null
    covariance = fit.dispersion * np.linalg.inv(fit.optimum.S)[np.ix_(penalised, penalised)]
    effective = penalised.sum() - found[0] * np.trace(covariance)
    np.testing.assert_allclose(found[0], effective / (fit.optimum.w[penalised] ** 2).sum(), rtol=1e-6)


def test_a_prior_that_is_none(sites):
    with pytest.raises(ConfigError, match=r"expected None, \"evidence\", or fedlap.normal"):
        fedlap.glm(f"ill ~ {RIGHT}", sites, prior=1.0)
    with pytest.raises(ConfigError, match="sd is 0"):
        fedlap.normal(sd=0)


# Bad input -----------------------------------------------------------------------------------------------------------


def test_separation_names_the_columns():
    many = drawn_hospitals(np.random.default_rng(7), [60, 50])
    for frame in many.values():
        frame["marker"] = (frame["ill"] + 0.1).astype(float)
    with pytest.raises(DataError, match=r"coefficients of .*marker.* no finite estimate.*separation.*normal\(sd=2.5\)"):
        fedlap.glm("ill ~ age + marker", many)
    fit = fedlap.glm("ill ~ age + marker", many, prior=fedlap.normal(sd=2.5))
    assert fit.converged and np.isfinite(fit.bse).all()


def test_a_category_with_one_outcome_is_named():
    many = drawn_hospitals(np.random.default_rng(8), [60, 50])
    for frame in many.values():
        frame["town"] = np.where(frame.index % 3 == 0, "east", "west")
        frame.loc[frame["town"] == "east", "visits"] = 0
    with pytest.raises(DataError, match=r"Intercept, C\(town\)\[T.west\]|C\(town\)"):
        fedlap.glm("visits ~ age + C(town)", many, family="poisson")


def test_columns_that_say_the_same_are_named():
    many = drawn_hospitals(np.random.default_rng(9), [60, 50])
    for frame in many.values():
        frame["months"] = 12 * frame["age"] + 1
        frame["unit"] = 3.0
    with pytest.raises(DataError, match="columns age, months say the same"):
        fedlap.glm("ill ~ age + smoker + months", many)
    with pytest.raises(DataError, match="column unit is 3 in every row of every site, as good as Intercept"):
        fedlap.glm("ill ~ age + unit", many)


def test_more_coefficients_than_rows():
    few = drawn_hospitals(np.random.default_rng(10), [2, 1])
    with pytest.raises(DataError, match="3 complete rows at all sites together, and 4 coefficients"):
        fedlap.glm(f"pressure ~ {RIGHT}", few, family="gaussian")


def test_counts_that_vary_no_more_than_poissons():
    rng = np.random.default_rng(11)
    many = {name: pd.DataFrame({"y": np.tile([0.0, 1.0], 40), "x": rng.normal(size=80)}) for name in "ab"}
    with pytest.raises(DataError, match=r"alpha goes to 0.*use family poisson"):
        fedlap.glm("y ~ x", many, family="negative_binomial")


def test_a_fit_that_does_not_converge_says_so(sites, monkeypatch):
    monkeypatch.setattr("fedlap.regression.rounds.LIMIT", 2)
    with pytest.warns(fedlap.DivergedWarning, match=r"not converged after 2 rounds: Newton's decrement is .*prior"):
        fit = fedlap.glm(f"ill ~ {RIGHT}", sites)
    assert not fit.converged and "NOT CONVERGED" in str(fit.summary())


def test_ratios_are_of_coefficients_alone(sites):
    fit = fedlap.glm(f"claims ~ {RIGHT}", sites, family="negative_binomial")
    assert list(fit.exp.index) == list(fit.params.index[:-1])
    np.testing.assert_allclose(fit.exp["rate ratio"], np.exp(fit.params[:-1]))


def test_a_step_that_was_taken_back_is_told():
    """Sites of one class each, and nothing but an intercept to fit."""
    ones = {"a": 0, "b": 0, "c": 98, "d": 100}
    fit = fedlap.glm("y ~ 1", {name: {"y": (np.arange(100) < count).astype(int)} for name, count in ones.items()})
    assert "the pooled loss rose, and the step was taken back" in str(fit.summary())


def test_a_misspelt_keyword(sites):
    with pytest.raises(ConfigError, match="did you mean 'family'"):
        fedlap.glm(f"ill ~ {RIGHT}", sites, famly="poisson")


def test_jax_is_left_alone(sites):
    """float64 whatever its flag says, and the flag stays."""
    import jax

    before = jax.config.jax_enable_x64
    fit = fedlap.glm(f"ill ~ {RIGHT}", sites)
    assert fit.params.dtype == np.float64 and jax.config.jax_enable_x64 == before


def test_the_summary_says_what_was_fitted(sites):
    text = str(fedlap.glm(f"ill ~ {RIGHT}", sites).summary())
    for part in ("ill ~ age + C(sex) + smoker", "logit", "Newton's decrement", "C(sex)[T.", "P>|z|", "north 150"):
        assert part in text, part
