"""Regressions on published data sets, divided into uneven sites, against statsmodels and lifelines on all rows."""

import tempfile
from itertools import combinations
from math import comb
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm
from lifelines import CoxPHFitter
from lifelines.datasets import load_gbsg2, load_lung, load_rossi
from sklearn.datasets import load_diabetes

import fedlap
from fedlap.regression.rounds import Belief, maximise
from fedlap.study.agreement.example import example_files


def divided(frame, sites=5):
    """Sites of very different sizes: half of the rows, a quarter of them, and so on, in the order they stand in."""
    cuts = [int(len(frame) * (1 - 0.5**k)) for k in range(1, sites)]
    parts = np.split(np.arange(len(frame)), cuts)
    return {f"site {k}": frame.iloc[part].reset_index(drop=True) for k, part in enumerate(parts) if len(part)}


def plain(name):
    return name.replace(" ", "_").replace(".", "_")


def data(name):
    """Outcome, columns with a constant, and trials if there are any."""
    loaded = getattr(sm.datasets, name).load_pandas()
    return loaded.endog, sm.add_constant(loaded.exog, prepend=True)


def compare(ours, theirs, columns, llf=True):
    np.testing.assert_allclose(ours.params[columns], theirs.params[: len(columns)], rtol=1e-6)
    np.testing.assert_allclose(ours.bse[columns], theirs.bse[: len(columns)], rtol=1e-6)
    if llf:
        np.testing.assert_allclose(ours.llf, theirs.llf, rtol=1e-8)
    assert ours.converged and ours.rounds <= 8


def fitted(y, x, family, **options):
    columns = [plain(each) for each in x.columns[1:]]
    frame = x.iloc[:, 1:].set_axis(columns, axis=1).assign(outcome=np.asarray(y))
    frame = frame.assign(**options.pop("more", {}))
    return fedlap.glm("outcome ~ " + " + ".join(columns), divided(frame), family=family, **options), [
        "Intercept",
        *columns,
    ]


@pytest.mark.parametrize(
    "name, family, theirs",
    [
        ("longley", "gaussian", sm.families.Gaussian()),
        ("stackloss", "gaussian", sm.families.Gaussian()),
        ("spector", "binomial", sm.families.Binomial()),
        ("randhie", "poisson", sm.families.Poisson()),
        ("cpunish", "poisson", sm.families.Poisson()),
        ("scotland", "gamma", sm.families.Gamma(sm.families.links.Log())),
    ],
)
def test_the_data_sets_of_statsmodels(name, family, theirs):
    y, x = data(name)
    ours, columns = fitted(y, x, family)
    compare(ours, sm.GLM(np.asarray(y), np.asarray(x), family=theirs).fit(tol=1e-14, maxiter=200), columns)


def test_successes_of_trials_in_californian_schools():
    y, x = data("star98")
    trials = np.asarray(y.sum(axis=1))
    ours, columns = fitted(y.iloc[:, 0], x, "binomial", trials="trials", more={"trials": trials})
    compare(ours, sm.GLM(np.asarray(y), np.asarray(x), family=sm.families.Binomial()).fit(tol=1e-14), columns)


def test_visits_to_a_doctor_vary_more_than_poissons():
    y, x = data("randhie")
    ours, columns = fitted(y, x, "negative_binomial")
    start = ours.params.to_numpy()
    theirs = sm.NegativeBinomial(np.asarray(y), np.asarray(x)).fit(start_params=start, disp=0, gtol=1e-10, maxiter=200)
    compare(ours, theirs, [*columns, "alpha"])


def test_parties_of_american_voters():
    y, x = data("anes96")
    ours, columns = fitted(y.astype(int), x, "multinomial")
    theirs = sm.MNLogit(np.asarray(y), np.asarray(x)).fit(disp=0, method="newton", maxiter=100)
    shape = (theirs.params.shape[1], len(columns))
    np.testing.assert_allclose(ours.params.to_numpy().reshape(shape).T, theirs.params, rtol=1e-6)
    np.testing.assert_allclose(ours.bse.to_numpy().reshape(shape).T, theirs.bse, rtol=1e-6)
    np.testing.assert_allclose(ours.llf, theirs.llf, rtol=1e-8)
    assert ours.rounds <= 8


def test_diabetes_of_scikit_learn():
    loaded = load_diabetes(as_frame=True)
    ours, columns = fitted(loaded.target, sm.add_constant(loaded.data, prepend=True), "gaussian")
    compare(ours, sm.OLS(np.asarray(loaded.target), np.asarray(sm.add_constant(loaded.data))).fit(), columns)


FORMULA = "diagnosis ~ age + sex + chest_pain + resting_blood_pressure + maximum_heart_rate + exercise_angina"


@pytest.fixture(scope="module")
def hospitals():
    """The four bundled hospitals, as they would keep their files."""
    with tempfile.TemporaryDirectory() as folder:
        return {name: pd.read_csv(path) for name, path in example_files(Path(folder) / "data").items()}


def test_the_four_bundled_hospitals(hospitals):
    ours = fedlap.glm(FORMULA, hospitals, success="ill")
    rows = pd.concat(hospitals.values(), ignore_index=True)
    rows["ill"] = (rows["diagnosis"] == "ill").astype(int)
    theirs = sm.GLM.from_formula(FORMULA.replace("diagnosis", "ill"), rows, family=sm.families.Binomial()).fit(
        tol=1e-14
    )
    np.testing.assert_allclose(ours.params, theirs.params[ours.params.index], rtol=1e-6)
    np.testing.assert_allclose(ours.bse, theirs.bse[ours.params.index], rtol=1e-6)
    np.testing.assert_allclose([ours.llf, ours.nobs], [theirs.llf, theirs.nobs], rtol=1e-8)
    assert ours.rounds <= 6


def test_each_hospital_can_leave(hospitals):
    whole = fedlap.glm(FORMULA, hospitals, success="ill")
    for gone in hospitals:
        rest = fedlap.glm(FORMULA, {name: each for name, each in hospitals.items() if name != gone}, success="ill")
        left = whole.without(gone)
        np.testing.assert_allclose(left.params, rest.params, rtol=1e-8, atol=1e-8)
        np.testing.assert_allclose(left.bse, rest.bse, rtol=1e-8)
        assert left.rounds < rest.rounds + 1


def test_the_hospitals_shares_are_those_of_retraining_all_coalitions(hospitals):
    """Each of the 16 is fitted from nothing, with the same weak prior around the null model."""
    fit = fedlap.glm(FORMULA, hospitals, success="ill")
    null, names = fit.regression.null_optimum(), list(hospitals)
    belief = Belief(null.w, np.eye(len(null.w)) / 2.5**2)
    gains = {(): 0.0}
    for size in range(1, 5):
        for members in combinations(names, size):
            w = maximise({name: fit.regression.sites[name] for name in members}, belief).w
            losses = sum(each.loss(w) for each in fit.regression.sites.values())
            gains[members] = sum(null.losses.values()) - losses
    ours = fit.shapley()
    for name in names:
        wanted = 0.0
        for size in range(4):
            for others in combinations([each for each in names if each != name], size):
                joined = tuple(each for each in names if each in others or each == name)
                wanted += (gains[joined] - gains[others]) / (4 * comb(3, size))
        assert ours[name] == pytest.approx(wanted, rel=0.05, abs=1e-3 * ours.sum())
    assert ours["switzerland"] < 0 < ours["hungarian"]  # where nearly all are ill, little is to be learnt alone


def test_the_evidence_of_the_hospitals_does_not_depend_on_where_it_starts(hospitals, monkeypatch):
    from fedlap.regression import prior

    found, whole = [], prior.evidence
    for start in (1.0, 1e-3, 1e3):
        monkeypatch.setattr("fedlap.regression.glm.evidence", lambda *args, start=start: whole(*args[:-1], start))
        fit = fedlap.glm(FORMULA, hospitals, success="ill", prior="evidence")
        found.append(fit.regression.prior.precision[1, 1])
    np.testing.assert_allclose(found, found[0], rtol=1e-6)


@pytest.mark.parametrize(
    "load, site, duration, event, columns",
    [
        (load_rossi, "race", "week", "arrest", ["fin", "age", "wexp", "mar", "paro", "prio"]),
        (load_gbsg2, "menostat", "time", "cens", ["age", "tsize", "pnodes", "progrec", "estrec"]),
        (load_lung, "inst", "time", "status", ["age", "sex", "ph.karno"]),
    ],
)
def test_cox_regressions_of_lifelines(load, site, duration, event, columns):
    rows = load().dropna(subset=[site, duration, event, *columns]).rename(columns=plain)
    columns = [plain(each) for each in columns]
    ours = fedlap.cox(" + ".join(columns), rows, site=site, duration=duration, event=event)
    fitter = CoxPHFitter()
    theirs = fitter.fit(
        rows[[site, duration, event, *columns]], duration, event, strata=[site], fit_options={"precision": 1e-14}
    )
    np.testing.assert_allclose(ours.params, theirs.params_[ours.params.index], rtol=1e-6)
    np.testing.assert_allclose(ours.bse, theirs.standard_errors_[ours.params.index], rtol=1e-6)
    np.testing.assert_allclose(ours.llf, theirs.log_likelihood_, rtol=1e-8)
    np.testing.assert_allclose(ours.concordance, theirs.concordance_index_, rtol=1e-10)
    assert ours.rounds <= 8
    first = str(rows[site].iloc[0]).removesuffix(".0")
    assert (np.diff(ours.baseline(first)["survival"]) <= 0).all()
    left = ours.without(first)
    rest = fedlap.cox(
        " + ".join(columns), rows[rows[site] != rows[site].iloc[0]], site=site, duration=duration, event=event
    )
    np.testing.assert_allclose(left.params, rest.params, rtol=1e-8, atol=1e-8)
