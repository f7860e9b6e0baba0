"""The five scores, and what there is of them when a model has no finite outputs."""

from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest

import fedlap
import scored
from drawn import THREE, federation
from fedlap.algebra.vector import Vector
from fedlap.engines.evaluate import CHUNK, evaluate
from fedlap.engines.scores import metrics_of

ROWS = 2 * CHUNK + 203  # two whole chunks and a part of a third


@pytest.fixture(scope="module")
def task():
    return fedlap.Simulation.of(fedlap.FedAvg(), federation(), fedlap.logistic()).setup.task


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(0)
    W, inputs = rng.normal(size=(3, 2)), rng.normal(size=(ROWS, 2))
    return W, inputs, rng.integers(3, size=ROWS)


@pytest.fixture(scope="module")
def two_classes(rows):
    """A task, its weights, inputs that come up several times, and labels."""
    W, inputs, labels = rows
    shape = replace(THREE, classes=2)
    task = fedlap.Simulation.of(fedlap.FedAvg(), federation(shape=shape), fedlap.logistic()).setup.task
    return task, W[:2], inputs.round(1), labels % 2


def weights(W):
    return Vector(({}, {"weight": jnp.asarray(W)}))


def by_hand(W, inputs, labels):
    powers = np.exp(inputs @ W.T)
    return scored.scores(powers / powers.sum(1, keepdims=True), labels)


@pytest.mark.parametrize("count", [None, ROWS - 400, 7])
def test_every_row_counts_once_and_padding_never(task, rows, count):
    W, inputs, labels = rows
    found = evaluate(task, weights(W), inputs, labels, count)
    np.testing.assert_allclose(found, by_hand(W, inputs[:count], labels[:count]), rtol=1e-12)


@pytest.mark.parametrize("count", [None, ROWS - 400])
def test_two_classes_have_an_area_under_the_curve(two_classes, count):
    task, W, inputs, labels = two_classes
    found = evaluate(task, weights(W), inputs, labels, count)
    np.testing.assert_allclose(found, by_hand(W, inputs[:count], labels[:count]), rtol=1e-10)
    assert 0 < found.auc < 1


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_model_without_finite_outputs_has_no_accuracy(task, rows, bad):
    """The argmax of such outputs is class 0, so that a diverged run would score as often as class 0 comes up."""
    W, inputs, labels = rows
    found = evaluate(task, weights(np.where(np.eye(3, 2) == 1, bad, W)), inputs, labels)
    assert np.isnan(found).all()


TIED = np.array([0.1, 0.4, 0.4, 0.35, 0.8, 0.4, 0.8, 1.0])  # p_1, among them 0.4 three times, of either class
OF_TIED = np.array([0, 0, 1, 1, 1, 0, 0, 1])


def test_the_area_under_the_curve_is_exact_with_ties_and_padding():
    """Of 16 pairs, a row of each class, 9 are in order and 3 tied."""
    p = np.stack([1 - TIED, TIED], 1)
    assert scored.scores(p, OF_TIED)[4] == pytest.approx(10.5 / 16, abs=1e-15)
    np.testing.assert_allclose(metrics_of(p, OF_TIED), scored.scores(p, OF_TIED), rtol=1e-12)
    padded = np.concatenate([p, p[:3]]), np.concatenate([OF_TIED, 1 - OF_TIED[:3]])
    np.testing.assert_allclose(metrics_of(*padded, 8), scored.scores(p, OF_TIED), rtol=1e-12)


def test_probabilities_that_are_none_have_no_scores_and_a_label_ruled_out_an_infinite_loss():
    p = np.stack([1 - TIED, TIED], 1)
    assert np.isnan(metrics_of(np.where(np.eye(8, 2) == 1, np.nan, p), OF_TIED)).all()
    found = metrics_of(p, np.where(TIED == 1, 0, OF_TIED))
    assert found.nll == np.inf and np.isfinite(np.delete(found, 1)).all()
    assert np.isnan(metrics_of(p, np.ones(8, int)).auc)  # nobody to compare with


def test_rows_that_are_surer_than_single_precision_can_say_keep_their_order():
    """Of p_1 = 1 − 1e-9 and 1 − 1e-8 nothing but p_0 tells which is more."""
    surest, sure = np.float32([1e-9, 1]), np.float32([1e-8, 1])
    assert metrics_of(np.stack([surest, sure]), np.array([1, 0])).auc == 1
    assert metrics_of(np.stack([surest, sure]), np.array([0, 1])).auc == 0


def test_a_run_that_diverged_reports_no_accuracy():
    solver = fedlap.adam(epochs=5, batch=4, learning_rate=1e308)
    history = fedlap.simulate(
        fedlap.FedAvg(), federation(), fedlap.logistic(), solver=solver, rounds=2, on_divergence="ignore"
    )
    assert history.diverged and np.isnan(history.accuracy).all()
