"""A surer posterior for predictions: closed forms, and the number that held-out rows choose."""

import jax.numpy as jnp
import numpy as np
import pytest

import fedlap
from drawn import FOUR, federation
from fedlap.errors import ConfigError
from fedlap.run.narrowing import least

NEW = np.random.default_rng(1).normal(size=(40, FOUR.features))
LABELS = np.random.default_rng(2).integers(0, 2, 40)


def run(algorithm, model=None, solver=None):
    model, solver = model or fedlap.logistic(bias=True), solver or fedlap.newton()
    return fedlap.simulate(algorithm, federation(4, FOUR, overlap=True), model, solver=solver, rounds=2)


@pytest.fixture(scope="module", params=["diagonal", "full"])
def history(request):
    return run(fedlap.FedLapCov(delta=1.0, covariance=request.param))


def test_a_stronger_prior_is_what_the_outputs_spread_by(history):
    """J (S + νI)⁻¹ Jᵀ of the logistic model, written out; w stays."""
    S = history.precision if history.precision.ndim == 2 else np.diag(history.precision)
    found = history.narrowed(3.0)
    covariance = np.linalg.inv(S + 3.0 * np.eye(len(S)))
    for x, spread in zip(NEW[:3], found.predictive(NEW[:3]).covariance, strict=True):
        J = np.concatenate([np.eye(2), np.kron(np.eye(2), x)], axis=1)  # biases, then rows
        np.testing.assert_allclose(spread, J @ covariance @ J.T, rtol=1e-9)
    np.testing.assert_array_equal(found.final.w, history.final.w)
    np.testing.assert_array_equal(found.final.S, history.final.S)


def test_by_nothing_it_is_itself_and_by_everything_the_point(history):
    averaged = lambda by: history.narrowed(by).predict(NEW, posterior=True)
    np.testing.assert_allclose(averaged(0), history.predict(NEW, posterior=True), rtol=1e-12)
    np.testing.assert_allclose(averaged(1e12), history.predict(NEW), atol=1e-9)


def test_twice_narrowed_is_narrowed_by_both(history):
    twice, once = history.narrowed(1.0).narrowed(2.5), history.narrowed(3.5)
    np.testing.assert_allclose(twice.precision, once.precision, rtol=1e-12)
    assert twice.narrowing == once.narrowing == 3.5
    assert history.narrowing == 0


def test_held_out_rows_choose_the_least_loss(history):
    """Against every number of a fine grid: what is chosen loses to none by more than its own grid is coarse."""
    losses = {by: history.narrowed(by).evaluate(NEW, LABELS, posterior=True).nll for by in (0, *np.logspace(-3, 6, 37))}
    chosen = history.calibrated(NEW, LABELS)
    found = chosen.evaluate(NEW, LABELS, posterior=True).nll
    spread = max(losses.values()) - min(losses.values())
    assert found <= losses[0]
    assert found - min(losses.values()) < 0.05 * spread


def test_the_search_ends_between_decades():
    valley = lambda at: lambda by: (np.log10(by + 1e-9) - at) ** 2
    assert least(valley(1.6)) == pytest.approx(10**1.5)
    assert least(valley(2.1)) == pytest.approx(100)
    assert least(lambda by: by) == 0
    with pytest.raises(ConfigError, match="not finite"):
        least(lambda by: np.nan)


def test_a_network_with_a_kronecker_basis_is_narrowed_alike():
    """A basis that is orthonormal leaves νI as it is."""
    history = run(fedlap.FedLapKron(delta=1.0), fedlap.mlp((3,)), fedlap.adam(epochs=1, batch=4))
    dense = np.asarray(history.fit.precision.full.matrix) + 2 * np.eye(len(history.final.w))
    np.testing.assert_allclose(history.narrowed(2.0).fit.precision.full.matrix, dense, atol=1e-10)


def test_it_is_kept_when_saved(history, tmp_path):
    history.narrowed(3.0).save(tmp_path / "model")
    loaded = fedlap.load(tmp_path / "model")
    assert loaded.narrowing == 3
    expected = history.narrowed(3.0).predict(NEW, posterior=True)
    np.testing.assert_allclose(loaded.predict(NEW, posterior=True), expected, rtol=1e-9)


@pytest.mark.parametrize("by", [-1.0, np.nan, np.inf, "much", None, jnp.ones(2)])
def test_what_is_no_amount_is_refused(history, by):
    with pytest.raises(ConfigError, match=r"by is .*expected a number, 0 or above"):
        history.narrowed(by)


def test_a_method_without_a_precision_says_so():
    with pytest.raises(ConfigError, match="no posterior"):
        run(fedlap.FedAvg(), solver=fedlap.adam(epochs=1, batch=4)).narrowed(1.0)
