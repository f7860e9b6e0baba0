"""The Cox partial likelihood of a site: against textbook formulas, lifelines and statsmodels."""

import tracemalloc

import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm
from hypothesis import given, settings
from hypothesis import strategies as st
from lifelines import CoxPHFitter
from lifelines.datasets import load_gbsg2, load_lung, load_rossi
from numpy.testing import assert_allclose, assert_array_equal

import cox_oracle
from fedlap.errors import ConfigError, DataError
from fedlap.regression import cox, running
from fedlap.regression.cox import Survival

TIES = ("efron", "breslow")
TO_THE_END = {"precision": 1e-20, "r_precision": 0.0}  # lifelines would stop at about the sixth digit


def drawn(seed, rows, times=6, strata=1, width=3):
    """Rows with many tied times: the arguments of `Survival.of` and of the oracle."""
    rng = np.random.default_rng(seed)
    return {
        "x": rng.standard_normal((rows, width)) * np.linspace(1, 3, width) + 10,
        "duration": rng.integers(0, times, rows).astype(float),
        "event": rng.integers(0, 2, rows),
        "weights": rng.uniform(0.5, 3, rows),
        "offset": rng.standard_normal(rows),
        "strata": rng.integers(0, strata, rows),
    }


def assert_like_the_oracle(data, w, ties, rtol=1e-10):
    site, wanted = Survival.of(**data, ties=ties), cox_oracle.expand(w, **data, ties=ties)
    for found, whole in zip((site.loss(w), *site.expand(w)), (wanted[0], *wanted), strict=True):
        assert_allclose(found, whole, rtol=rtol, atol=rtol * max(1, np.abs(whole).max()))


def fitted(sites):
    """Newton's method on the sum of the sites' losses: coefficients, and the expansion there."""
    w = np.zeros(sites[0].x.shape[1])
    for _ in range(30):
        parts = [site.expand(w) for site in sites]
        loss, gradient, hessian = (sum(each) for each in zip(*parts, strict=True))
        step = np.linalg.solve(hessian, gradient)
        while not sum(site.loss(w - step) for site in sites) <= loss + 1e-9 * abs(loss):
            step /= 2
        w = w - step
    return w, loss, hessian


def split(frame, duration, event, site, weights=None):
    """One `Survival` for each site of a table, and the names of the covariates."""
    names = [name for name in frame if name not in (duration, event, site, weights)]
    sites = [
        Survival.of(rows[names], rows[duration], rows[event], None if weights is None else rows[weights])
        for _, rows in frame.groupby(site)
    ]
    return sites, names


def rossi():
    return load_rossi(), "week", "arrest", "race"


def gbsg2():
    frame = load_gbsg2()
    frame["horTh"] = (frame["horTh"] == "yes") * 1.0
    frame["menostat"] = (frame["menostat"] == "Post") * 1.0
    return frame, "time", "cens", "tgrade"


def lung():
    frame = load_lung().drop(columns=["meal.cal", "wt.loss"]).dropna()
    frame["inst"] = frame["inst"].astype(int)  # 18 hospitals, some of them with two patients
    return frame, "time", "status", "inst"


BUNDLED = {"rossi": rossi, "gbsg2": gbsg2, "lung": lung}


# The likelihood itself ------------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 40), st.integers(1, 12), st.integers(1, 4), st.sampled_from(TIES))
def test_loss_gradient_and_hessian_are_those_of_the_textbook(seed, rows, times, strata, ties):
    data = drawn(seed, rows, times, strata)
    assert_like_the_oracle(data, np.random.default_rng(seed).standard_normal(3), ties)


@pytest.mark.parametrize("ties", TIES)
def test_many_rows_in_small_blocks(ties, monkeypatch):
    """Sums go on over blocks of rows and over groups of groups, and begin anew with each stratum."""
    for block in (7, 40, 10**6):
        for module in (cox, running):
            monkeypatch.setattr(module, "BLOCK_ROWS", block)
        assert_like_the_oracle(drawn(1, 700, times=400, strata=3), np.array([0.3, -0.2, 0.1]), ties)


@pytest.mark.parametrize("ties", TIES)
def test_gradient_and_hessian_are_slopes(ties):
    site, w, step = Survival.of(**drawn(3, 80, strata=2), ties=ties), np.array([0.2, -0.1, 0.3]), 1e-5
    moves = step * np.eye(3)
    gradient = [(site.loss(w + move) - site.loss(w - move)) / (2 * step) for move in moves]
    hessian = [(site.expand(w + move).gradient - site.expand(w - move).gradient) / (2 * step) for move in moves]
    assert_allclose(site.expand(w).gradient, gradient, rtol=1e-7, atol=1e-7)
    assert_allclose(site.expand(w).hessian, hessian, rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("ties", TIES)
def test_risks_beyond_all_numbers(ties):
    """exp(f) would be infinite for some and 0 for whole risk sets, but every part of the loss has a value."""
    data = drawn(4, 60, times=15, strata=2)
    data["x"] = data["x"] * [1e6, 1.0, 1e-3]
    data["x"][:, 1] += 1e7
    w = np.array([0.02, 1.0, -300.0])
    predictor = data["x"] @ w
    assert np.ptp(predictor) > 1e4
    assert_like_the_oracle(data, w, ties)
    assert np.isfinite(Survival.of(**data, ties=ties).residual_scores(w)).all()


@pytest.mark.parametrize("ties", TIES)
def test_means_and_other_strata_of_any_size_cost_no_digits(ties):
    data, w = drawn(13, 60, strata=3), np.array([0.1, 0.2, -0.3])
    data["x"] = np.round(8 * data["x"]) / 8  # eighths: the sums below are exact
    moved = data | {"x": data["x"] + 2.0**30 * (1 + data["strata"][:, None])}
    found = Survival.of(**moved, ties=ties).expand(w)
    for part, whole in zip(found, cox_oracle.expand(w, **data, ties=ties), strict=True):
        assert_allclose(part, whole, rtol=1e-10)
    data["event"][:] = 1  # so that a stratum begins with an occasion
    scaled = data | {"x": data["x"] * np.where(data["strata"] == 1, 1e12, 1.0)[:, None]}
    chosen = data["strata"] != 1
    scores = Survival.of(**scaled, ties=ties).residual_scores(w)[chosen]
    assert_allclose(scores, Survival.of(**data, ties=ties).residual_scores(w)[chosen], rtol=1e-9, atol=1e-12)


def test_a_last_event_of_very_low_risk():
    """Its risk set is itself alone, however much larger all other risks are."""
    data = {"x": np.array([[0.0], [1.0], [-1e6]]), "duration": [1.0, 2.0, 3.0], "event": [0, 0, 1]}
    assert Survival.of(**data).loss(np.ones(1)) == 0
    assert_array_equal(Survival.of(**data).expand(np.ones(1)).gradient, [0])


def test_a_point_without_value_is_infinite():
    site = Survival.of(**drawn(5, 20))
    for w in (np.full(3, np.nan), np.full(3, 1e308)):
        assert site.loss(w) == np.inf and site.expand(w).loss == np.inf
        assert np.isnan(site.expand(w).hessian).all()
        for method in (site.residual_scores, site.baseline, site.concordant):
            with pytest.raises(DataError, match=r"row \d+: its risk at these coefficients is no number"):
                method(w)


def test_strata_are_sites_of_their_own():
    data, w = drawn(6, 50, strata=4), np.array([0.1, 0.2, -0.3])
    parts = []
    for code in range(4):
        chosen = data["strata"] == code
        parts.append(Survival.of(**{name: column[chosen] for name, column in data.items()}).expand(w))
    for whole, part in zip(Survival.of(**data).expand(w), zip(*parts, strict=True), strict=True):
        assert_allclose(whole, sum(part), rtol=1e-11)


def test_the_order_of_rows_makes_no_difference():
    data, w = drawn(7, 60, strata=2), np.array([0.1, 0.2, -0.3])
    order = np.random.default_rng(0).permutation(60)
    moved = Survival.of(**{name: column[order] for name, column in data.items()})
    site = Survival.of(**data)
    assert_allclose(moved.expand(w).hessian, site.expand(w).hessian, rtol=1e-11)
    assert_allclose(moved.residual_scores(w), site.residual_scores(w)[order], rtol=1e-9, atol=1e-12)
    assert moved.concordant(w) == site.concordant(w)


def test_breslow_takes_a_weight_for_repeated_rows():
    data, w = drawn(8, 40), np.array([0.1, 0.2, -0.3])
    data["weights"] = np.random.default_rng(0).integers(1, 4, 40)
    repeated = {name: np.repeat(column, data["weights"], axis=0) for name, column in data.items()} | {"weights": None}
    for once, often in zip(
        Survival.of(**data, ties="breslow").expand(w), Survival.of(**repeated, ties="breslow").expand(w), strict=True
    ):
        assert_allclose(once, often, rtol=1e-11)


@pytest.mark.parametrize("ties", TIES)
def test_sites_of_few_rows_or_no_events(ties):
    w = np.array([0.5, -1.0, 2.0])
    for rows, event, times in ((1, 1, 1), (1, 0, 1), (5, 0, 3), (6, 1, 1)):
        data = drawn(9, rows, times) | {"event": np.full(rows, event)}
        assert_like_the_oracle(data, w, ties)
        site = Survival.of(**data, ties=ties)
        assert site.residual_scores(w).shape == (rows, 3)
        assert site.concordant(w) == (0, 0, 0)
        assert len(site.baseline(w).times) == event
        if not event:
            assert site.loss(w) == 0 and not site.expand(w).hessian.any() and not site.residual_scores(w).any()


def test_memory_is_little_more_than_the_rows(monkeypatch):
    """What is [rows, P] exists for a block of rows at a time."""
    for module in (cox, running):
        monkeypatch.setattr(module, "BLOCK_ROWS", 2**10)
    rows, width = 50_000, 60
    rng = np.random.default_rng(0)
    site = Survival.of(rng.standard_normal((rows, width)), rng.exponential(size=rows), rng.integers(0, 2, rows))
    tracemalloc.start()
    site.expand(np.zeros(width))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < site.x.nbytes


# Other libraries ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", BUNDLED)
def test_sites_together_are_lifelines_stratified_by_site(name):
    frame, duration, event, site = BUNDLED[name]()
    sites, names = split(frame, duration, event, site)
    model = CoxPHFitter().fit(frame, duration, event, strata=[site], fit_options=TO_THE_END)
    w, loss, hessian = fitted(sites)
    assert_allclose(w, model.params_[names], rtol=1e-6, atol=1e-9)
    assert_allclose(np.sqrt(np.diag(np.linalg.inv(hessian))), model.standard_errors_[names], rtol=1e-6)
    assert_allclose(-loss, model.log_likelihood_, rtol=1e-8)
    concordant, tied, comparable = np.sum([site.concordant(w) for site in sites], axis=0)
    assert_allclose((concordant + tied / 2) / comparable, model.concordance_index_, rtol=1e-12)


@pytest.mark.parametrize("name", BUNDLED)
def test_the_baseline_is_that_of_lifelines(name):
    """At the mean of all rows, where lifelines has it."""
    frame, duration, event, site = BUNDLED[name]()
    sites, names = split(frame, duration, event, site)
    model = CoxPHFitter().fit(frame, duration, event, strata=[site])
    w, middle = model.params_[names].to_numpy(), frame[names].mean().to_numpy()
    for (code, _), each in zip(frame.groupby(site), sites, strict=True):
        found = each.baseline(w, at=middle)
        wanted = model.baseline_cumulative_hazard_[code].loc[found.times]
        assert_allclose(found.hazard, wanted, rtol=1e-9)
        assert_allclose(found.survival, model.baseline_survival_[code].loc[found.times], rtol=1e-9)
    codes = 10 * np.unique(frame[site], return_inverse=True)[1] + 5
    whole = Survival.of(frame[names], frame[duration], frame[event], strata=codes)
    apart = [each.baseline(w) for each in sites]
    assert_allclose(whole.baseline(w).hazard, np.concatenate([each.hazard for each in apart]), rtol=1e-9)
    assert_array_equal(whole.baseline(w).stratum, np.repeat(np.unique(codes), [len(each.times) for each in apart]))


@settings(max_examples=8, deadline=None)
@given(st.integers(0, 10**6))
def test_drawn_sites_with_weights_and_many_ties_are_those_of_lifelines(seed):
    data = drawn(seed, 90, times=8, strata=3, width=2)
    frame = pd.DataFrame(data["x"], columns=["a", "b"]).assign(
        time=data["duration"] + 1, event=data["event"], site=data["strata"], count=np.ceil(data["weights"])
    )
    sites, names = split(frame, "time", "event", "site", "count")
    model = CoxPHFitter().fit(frame, "time", "event", strata=["site"], weights_col="count", fit_options=TO_THE_END)
    w, loss, hessian = fitted(sites)
    assert_allclose(w, model.params_[names], rtol=1e-6, atol=1e-9)
    assert_allclose(np.sqrt(np.diag(np.linalg.inv(hessian))), model.standard_errors_[names], rtol=1e-6)
    assert_allclose(-loss, model.log_likelihood_, rtol=1e-8)
    concordant, tied, comparable = np.sum([site.concordant(w) for site in sites], axis=0)
    assert_allclose((concordant + tied / 2) / comparable, model.concordance_index_, rtol=1e-12)


@pytest.mark.parametrize("ties", TIES)
def test_strata_and_offset_are_those_of_statsmodels(ties):
    frame, duration, event, site = gbsg2()
    names = ["age", "horTh", "tsize"]
    x, strata = frame[names].to_numpy(float), frame[site].factorize()[0]
    offset = frame["pnodes"].to_numpy() / 20
    fit = sm.PHReg(frame[duration], x, status=frame[event], strata=strata, offset=offset, ties=ties).fit()
    data = {"x": x, "duration": frame[duration], "event": frame[event], "strata": strata, "offset": offset}
    w, loss, hessian = fitted([Survival.of(**data, ties=ties)])
    assert_allclose(w, fit.params, rtol=1e-6)
    assert_allclose(np.sqrt(np.diag(np.linalg.inv(hessian))), fit.bse, rtol=1e-6)
    assert_allclose(-loss, fit.llf, rtol=1e-8)


# Rows one by one ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ties", TIES)
def test_a_residual_score_is_what_a_little_more_weight_would_add(ties):
    """Also where times are tied: the slope of the score in the weight of a row, by differences of the oracle."""
    data, w, step = drawn(10, 30, times=5, strata=2), np.array([0.2, -0.1, 0.3]), 1e-5
    scores = Survival.of(**data, ties=ties).residual_scores(w)
    for row, weight in enumerate(data["weights"]):
        nudged = []
        for sign in (1, -1):
            weights = data["weights"].copy()
            weights[row] += sign * step
            nudged.append(-cox_oracle.expand(w, **(data | {"weights": weights}), ties=ties)[1])
        assert_allclose(scores[row], weight * (nudged[0] - nudged[1]) / (2 * step), rtol=1e-6, atol=1e-7)
    assert_allclose(scores.sum(0), -Survival.of(**data, ties=ties).expand(w).gradient, rtol=1e-9, atol=1e-11)


def test_robust_standard_errors_are_those_of_lifelines():
    """Without tied times: with them, those of lifelines depend on the order of rows."""
    frame, duration, event, site = rossi()
    rng = np.random.default_rng(0)
    frame = frame.assign(week=frame[duration] + rng.uniform(0, 0.5, len(frame)), weight=rng.integers(1, 4, len(frame)))
    sites, names = split(frame, duration, event, site, "weight")
    model = CoxPHFitter().fit(
        frame, duration, event, strata=[site], weights_col="weight", robust=True, fit_options=TO_THE_END
    )
    w, _, hessian = fitted(sites)
    scores = np.concatenate([each.residual_scores(w) for each in sites])
    shifts = np.linalg.solve(hessian, scores.T)
    assert_allclose(np.sqrt((shifts**2).sum(1)), model.standard_errors_[names], rtol=1e-6)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 60), st.integers(1, 20), st.integers(1, 3))
def test_pairs_are_those_counted_one_by_one(seed, rows, times, strata):
    data = drawn(seed, rows, times, strata, width=1)
    risk = np.random.default_rng(seed).integers(0, 5, rows).astype(float)
    data |= {"x": np.zeros((rows, 1)), "offset": risk}
    found = Survival.of(**data).concordant(np.zeros(1))
    assert found == cox_oracle.pairs(risk, data["duration"], data["event"], data["strata"])


# What cannot be used --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("duration", -1.0, "duration, row 3: -1.0; expected a number, 0 or above"),
        ("duration", np.nan, "duration, row 3: nan; expected a number, 0 or above"),
        ("duration", None, "duration, row 3: None; expected a number, 0 or above"),
        ("event", 2, "event, row 3: 2.0; expected 1, or 0 where the row is censored"),
        ("event", "yes", "event, row 3: 'yes'; expected 1, or 0 where the row is censored"),
        ("weights", 0, "weights, row 3: 0.0; expected a number above 0"),
        ("offset", np.inf, "offset, row 3: inf; expected a finite number"),
        ("strata", 0.5, "strata, row 3: 0.5; expected a whole number"),
    ],
)
def test_a_row_that_cannot_be_used_is_named(name, value, message):
    data = drawn(11, 6)
    column = data[name].tolist()
    column[3] = value
    with pytest.raises(DataError) as caught:
        Survival.of(**(data | {name: np.array(column, object if value in (None, "yes") else float)}))
    assert str(caught.value) == message


def test_other_mistakes_are_named():
    data = drawn(12, 6)
    with pytest.raises(DataError, match="weights has shape \\(5,\\) but x has 6 rows"):
        Survival.of(**(data | {"weights": np.ones(5)}))
    data["x"][4, 1] = np.nan
    with pytest.raises(DataError, match="x, row 4, column 1: input is nan"):
        Survival.of(**data)
    with pytest.raises(DataError, match="x has no rows"):
        Survival.of(np.zeros((0, 2)), [], [])
    with pytest.raises(ConfigError, match="unknown ties 'efrom'; did you mean 'efron'"):
        Survival.of(**drawn(12, 6), ties="efrom")
