"""Estimators in scikit-learn's hands: its own checks, the pooled answer, and sites that find their way through."""

import inspect
import pickle
import subprocess
import sys

import jax
import numpy as np
import pytest
from scipy import optimize, stats
from scipy.special import expit
from sklearn import config_context
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LinearRegression, LogisticRegression, Ridge
from sklearn.model_selection import GridSearchCV, GroupKFold, cross_val_score, cross_validate
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

import fedlap
from fedlap.engines import sequential, streamed
from fedlap.errors import ConfigError, DataError
from fedlap.estimators import FedLapClassifier, FedLapRegressor
from fedlap.machine import threads

rng = np.random.default_rng(0)
SITES = np.repeat(["north", "coast", "city"], (40, 15, 35))
X = rng.normal(size=(90, 3)) + 0.5 * (SITES == "coast")[:, None]
SCORE = X @ np.array([1.0, -2.0, 0.5]) + rng.normal(size=90)
ILL = np.where(SCORE > 0, "well", "ill")
GRADE = np.digitize(SCORE, [-1, 1])
Y = 3.0 + SCORE
ONES = np.column_stack([X, np.ones(90)])


@parametrize_with_checks([FedLapClassifier(), FedLapRegressor()])
def test_scikit_learn_finds_nothing_wrong(estimator, check):
    """All of its checks, with no exception: rows are padded and a site alone needs no vmap, lest each compiles anew."""
    check(estimator)


# Classification -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("delta", [0.5, 20.0])
def test_two_classes_are_the_pooled_logistic_regression(delta):
    """A coefficient of the log-odds has twice the variance of a weight; an intercept is the weight of a one."""
    found = FedLapClassifier(delta=delta).fit(X, ILL, sites=SITES)
    pooled = LogisticRegression(C=2 / delta, fit_intercept=False, tol=1e-12, max_iter=1000).fit(ONES, ILL)
    np.testing.assert_allclose(np.append(found.coef_, found.intercept_), pooled.coef_[0], rtol=1e-5, atol=1e-7)
    assert found.classes_.tolist() == ["ill", "well"] and found.sites_.tolist() == ["city", "coast", "north"]
    assert (found.predict(X) == pooled.predict(ONES)).all() and 1 < found.n_iter_ < 10
    assert found.history_.classes == ("ill", "well")
    p = expit(np.where(ILL == "well", 1, -1) * (ONES @ pooled.coef_[0]))
    assert found.history_.watched["train"].nll[-1] == pytest.approx(-np.log(p).mean(), rel=1e-6)


def test_several_classes_are_the_pooled_multinomial_regression():
    found = FedLapClassifier(delta=2.0).fit(X, GRADE)
    pooled = LogisticRegression(C=1 / 2, fit_intercept=False, tol=1e-12, max_iter=1000).fit(ONES, GRADE)
    weights = np.column_stack([found.coef_, found.intercept_])
    np.testing.assert_allclose(weights - weights.mean(0), pooled.coef_, rtol=1e-5, atol=1e-6)


def test_probabilities_are_averages_over_the_posterior():
    """MacKay's: the log-odds are N(m, s²) with the covariance of the pooled posterior, by dense algebra."""
    found = FedLapClassifier(delta=0.5).fit(X, ILL, sites=SITES)
    p = expit(X @ found.coef_[0] + found.intercept_)
    covariance = np.linalg.inv(0.25 * np.eye(4) + ONES.T @ (ONES * (p * (1 - p))[:, None]))
    for rows in (X, 5 * X):
        ones = np.column_stack([rows, np.ones(90)])
        margin = rows @ found.coef_[0] + found.intercept_
        kappa = 1 / np.sqrt(1 + np.pi / 8 * np.einsum("ij,jk,ik->i", ones, covariance, ones))
        averaged = found.set_params(posterior=True).predict_proba(rows)[:, 1]
        point = found.set_params(posterior=False).predict_proba(rows)[:, 1]
        np.testing.assert_allclose(averaged, expit(kappa * margin), rtol=1e-6)
        np.testing.assert_allclose(point, expit(margin), rtol=1e-9)
        assert (np.abs(averaged - 0.5) < np.abs(point - 0.5)).all()


@pytest.mark.parametrize(
    ("scale", "origin"),
    [
        (np.full(3, 1e6), np.full(3, 1e8)),
        (np.full(3, 1e12), np.zeros(3)),
        (np.array([1.0, 1e6, 1e12]), np.array([3.0, 1e8, 2e12])),
    ],
)
def test_columns_on_a_huge_scale_have_the_posterior_of_the_same_columns_in_other_units(scale, origin):
    """By dense algebra of the log-odds X b + c: w = b/scale and c − Σ w·origin have the prior N(0, 2/δ)."""
    rows, wells = X * scale + origin, ILL == "well"
    found = FedLapClassifier().fit(rows, ILL)
    of_weights = np.diag([*1 / scale, 1.0])
    of_weights[3, :3] = -origin / scale
    prior = 0.5 * of_weights.T @ of_weights
    b = np.zeros(4)
    for _ in range(50):
        p = expit(ONES @ b)
        S = ONES.T @ (ONES * (p * (1 - p))[:, None]) + prior
        b = b + np.linalg.solve(S, ONES.T @ (wells - p) - prior @ b)
    np.testing.assert_allclose(np.append(found.coef_, found.intercept_), of_weights @ b, rtol=1e-8)
    kappa = 1 / np.sqrt(1 + np.pi / 8 * np.einsum("ij,jk,ik->i", ONES, np.linalg.inv(S), ONES))
    np.testing.assert_allclose(found.predict_proba(rows)[:, 1], expit(kappa * (ONES @ b)), rtol=1e-8)


def test_an_algorithm_without_a_posterior_says_so():
    with pytest.raises(ConfigError, match="fedavg has no posterior to average over; use posterior=False"):
        FedLapClassifier(algorithm="fedavg").fit(X, ILL)


def test_whose_rows_they_are_makes_no_difference():
    apart, together = FedLapClassifier().fit(X, ILL, sites=SITES), FedLapClassifier().fit(X, ILL)
    np.testing.assert_allclose(apart.coef_, together.coef_, rtol=1e-8)
    np.testing.assert_allclose(apart.predict_proba(X), together.predict_proba(X), rtol=1e-8)
    assert together.sites_.tolist() == ["all"]


def test_numbers_are_double_whatever_the_switch_of_jax_says():
    """In every thread; and the switch is left as it was."""
    found = FedLapClassifier().fit(X, ILL)
    with jax.enable_x64(False):
        again = FedLapClassifier().fit(X, ILL)
        assert np.array_equal(again.coef_, found.coef_)
        assert np.array_equal(again.predict_proba(X), found.predict_proba(X))
        assert jax.dtypes.canonicalize_dtype(float) == "float32"
    assert jax.dtypes.canonicalize_dtype(float) == "float64"


def test_clients_in_threads_compute_in_the_precision_of_who_asks():
    """A plain thread would have that of the process; engines have none of these."""
    for precise, expected in [(False, "float32"), (True, "float64")]:
        with jax.enable_x64(precise), threads(1) as one:
            assert one.submit(lambda: jax.dtypes.canonicalize_dtype(float)).result() == expected
    for engine in (sequential, streamed):
        assert "ThreadPoolExecutor" not in inspect.getsource(engine)


def test_networks_are_trained_in_the_precision_of_their_rows():
    network = FedLapClassifier(model=fedlap.mlp(hidden=(5,)), solver=fedlap.adam(epochs=1), rounds=2)
    found = network.fit(X.astype(np.float32), ILL, sites=SITES)
    assert found.history_.final.w.dtype == np.float32 and found.history_.precision.ndim == 1
    assert not hasattr(found, "coef_") and found.n_iter_ == 2
    assert found.predict_proba(X).sum(1) == pytest.approx(np.ones(90), abs=1e-6)
    again = clone(network).fit(X.astype(np.float32), ILL, sites=SITES)
    assert np.array_equal(pickle.loads(pickle.dumps(again)).predict_proba(X), found.predict_proba(X))


def test_a_fit_with_another_model_forgets_the_coefficients():
    found = FedLapClassifier().fit(X, ILL)
    found.set_params(model=fedlap.mlp(hidden=(5,)), solver=fedlap.adam(epochs=1), rounds=1)
    found.fit(X.astype(np.float32), ILL, sites=SITES)
    assert not hasattr(found, "coef_") and not hasattr(found, "intercept_")


def test_evidence_that_has_no_maximum_is_told():
    rng = np.random.default_rng(0)
    with pytest.warns(UserWarning, match="by the evidence the weights would be best at zero"):
        FedLapClassifier(delta="evidence").fit(rng.normal(size=(60, 2)), rng.integers(0, 2, 60))


def test_rounds_that_were_too_few_are_told():
    with pytest.warns(ConvergenceWarning, match="in round 1 weights still move by .*; give more rounds"):
        FedLapClassifier(rounds=1).fit(X, ILL, sites=SITES)
    assert FedLapClassifier(rounds=1, tol=None).fit(X, ILL, sites=SITES).n_iter_ == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"algorithm": "fedlap_kov"}, "unknown algorithm 'fedlap_kov'; did you mean 'fedlap_cov'"),
        ({"algorithm": "fedavg", "delta": 2.0}, "delta is 2.0, and fedavg has none; leave it out"),
        ({"algorithm": fedlap.FedAvg(), "delta": 2.0}, "delta is 2.0 beside FedAvg.*; expected it in the algorithm"),
        ({"model": "logit"}, "unknown model 'logit'"),
        ({"solver": "newtn"}, "unknown solver 'newtn'; did you mean 'newton'"),
        ({"delta": -1.0}, "delta is -1.0; expected"),
        ({"rounds": 0}, "rounds is 0; expected"),
        ({"covariance": "block"}, "covariance is 'block'; expected"),
        ({"tol": "x"}, "tol is 'x'; expected a number, 0 or above, or None"),
        ({"tol": -1.0}, "tol is -1.0; expected a number, 0 or above"),
        ({"tol": np.nan}, "tol is nan; expected a number"),
        ({"posterior": "no"}, "posterior is 'no'; expected True or False"),
    ],
)
def test_settings_that_cannot_be_are_errors(options, message):
    with pytest.raises(ConfigError, match=message):
        FedLapClassifier(**options).fit(X, ILL)


@pytest.mark.parametrize("estimator", [FedLapClassifier(), FedLapRegressor()])
@pytest.mark.parametrize(
    ("sites", "message"),
    [
        (SITES[:5], r"sites has shape \(5,\); expected one site for each of the 90 rows"),
        (np.where(np.arange(90) == 7, None, SITES), "sites, row 7: the site is None; expected a name"),
        (np.where(np.arange(90) == 3, np.nan, 1.0), "sites, row 3: the site is nan; expected a name"),
        (np.zeros(90, "M8[D]"), "sites are of type datetime64"),
    ],
)
def test_sites_that_cannot_be_are_errors(estimator, sites, message):
    with pytest.raises(DataError, match=message):
        estimator.fit(X, GRADE, sites=sites)


# In scikit-learn's tools ----------------------------------------------------------------------------------------------


def test_whole_hospitals_are_held_out():
    with config_context(enable_metadata_routing=True):
        estimator = FedLapClassifier().set_fit_request(sites=True)
        found = cross_validate(
            estimator, X, ILL, cv=GroupKFold(3), params={"sites": SITES, "groups": SITES}, return_estimator=True
        )
        scores = cross_val_score(estimator, X, ILL, cv=GroupKFold(3), params={"sites": SITES, "groups": SITES})
    held_out = [set(SITES) - set(fold.sites_.tolist()) for fold in found["estimator"]]
    assert sorted(map(tuple, held_out)) == [("city",), ("coast",), ("north",)]
    assert np.array_equal(scores, found["test_score"]) and scores.min() > 0.6


def test_sites_go_through_a_search_and_a_pipeline():
    with config_context(enable_metadata_routing=True):
        steps = make_pipeline(StandardScaler(), FedLapClassifier().set_fit_request(sites=True))
        search = GridSearchCV(steps, {"fedlapclassifier__delta": [0.1, 1.0, 1000.0]}, scoring="neg_log_loss", cv=3)
        search.fit(X, ILL, sites=SITES)
    best = search.best_estimator_[-1]
    assert best.sites_.tolist() == ["city", "coast", "north"] and best.delta in (0.1, 1.0)


def test_without_a_request_for_sites_scikit_learn_refuses_them():
    with config_context(enable_metadata_routing=True), pytest.raises(ValueError, match="sites"):
        make_pipeline(StandardScaler(), FedLapRegressor()).fit(X, Y, sites=SITES)


def test_scikit_learn_is_asked_for_where_it_is_missing():
    code = "import sys; sys.modules['sklearn'] = None; import fedlap.estimators"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert 'pip install "fedlap[sklearn]"' in result.stderr


# Regression -----------------------------------------------------------------------------------------------------------


def posterior(x, y, delta):
    """Mean, noise and covariance of (w, b) in one dense solve: the intercept is a column without a prior."""
    ones = np.column_stack([x, np.ones(len(x))])
    prior = delta * np.diag([*np.ones(x.shape[1]), 0.0])
    inverse = np.linalg.inv(ones.T @ ones + prior)
    w = inverse @ ones.T @ y
    noise = ((y - ones @ w) ** 2).sum() / (len(x) - np.trace(inverse @ ones.T @ ones))
    return w, noise, noise * inverse


@pytest.mark.parametrize("delta", [0.0, 1.0, 300.0])
def test_a_regression_is_that_of_the_pooled_rows(delta):
    found = FedLapRegressor(delta=delta).fit(X, Y, sites=SITES)
    w, noise, covariance = posterior(X, Y, delta)
    np.testing.assert_allclose(np.append(found.coef_, found.intercept_), w, rtol=1e-10)
    np.testing.assert_allclose(found.noise_, noise, rtol=1e-10)
    np.testing.assert_allclose(found.covariance_, covariance, rtol=1e-9, atol=1e-14)
    other = Ridge(alpha=delta).fit(X, Y) if delta else LinearRegression().fit(X, Y)
    np.testing.assert_allclose(found.predict(X), other.predict(X), rtol=1e-9)
    mean, deviation = found.predict(X, return_std=True)
    assert np.array_equal(mean, found.predict(X))
    np.testing.assert_allclose(deviation**2, noise + np.einsum("ij,jk,ik->i", ONES, covariance, ONES), rtol=1e-9)


def test_the_evidence_chooses_what_makes_the_rows_most_likely():
    """y without its mean is normal with covariance φ(I + XXᵀ/δ) on what is orthogonal to a constant."""
    found = FedLapRegressor(delta="evidence").fit(X, Y, sites=SITES)
    basis = np.linalg.svd(np.ones((1, 90)))[2][1:]

    def unlikely(logs):
        delta, noise = np.exp(logs)
        x = basis @ X
        return -stats.multivariate_normal(cov=noise * (np.eye(89) + x @ x.T / delta)).logpdf(basis @ Y)

    best = optimize.minimize(unlikely, [0.0, 0.0], method="Nelder-Mead", options={"xatol": 1e-6, "fatol": 1e-12})
    np.testing.assert_allclose([found.delta_, found.noise_], np.exp(best.x), rtol=1e-4)
    given = FedLapRegressor(delta=found.delta_).fit(X, Y)
    np.testing.assert_allclose(given.coef_, found.coef_, rtol=1e-10)


def test_columns_of_any_units_and_more_of_them_than_rows():
    units = np.array([1e-5, 1.0, 1e5])
    found, plain = FedLapRegressor(delta=0.0).fit(X * units, Y), FedLapRegressor(delta=0.0).fit(X, Y)
    np.testing.assert_allclose(found.coef_ * units, plain.coef_, rtol=1e-8)
    wide = rng.normal(size=(20, 50))
    np.testing.assert_allclose(
        FedLapRegressor().fit(wide, Y[:20]).predict(wide), Ridge().fit(wide, Y[:20]).predict(wide), rtol=1e-8
    )
    noise = FedLapRegressor(delta="evidence").fit(wide, np.full(20, 4.0))
    assert noise.predict(wide, return_std=True)[0] == pytest.approx(np.full(20, 4.0)) and noise.noise_ == 0


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (np.column_stack([X, X[:, 0] + X[:, 1]]), "columns 0, 1, 3 say the same, or rows are too few to tell"),
        (ONES, "constant in all rows: columns 3; leave them out, or give a delta above 0"),
    ],
)
def test_least_squares_need_columns_that_say_something(x, message):
    with pytest.raises(DataError, match=message):
        FedLapRegressor(delta=0.0).fit(x, Y)
    FedLapRegressor().fit(x, Y)


@pytest.mark.parametrize("delta", [-1.0, "evidnce", None, np.nan])
def test_a_prior_that_is_none_is_refused(delta):
    with pytest.raises(ConfigError, match='expected a number, 0 or above, or "evidence"'):
        FedLapRegressor(delta=delta).fit(X, Y)


def test_labels_are_no_numbers():
    with pytest.raises(DataError, match=r"y holds .*'ill'.*; expected numbers. FedLapClassifier is for labels"):
        FedLapRegressor().fit(X, np.full(len(X), "ill"))
