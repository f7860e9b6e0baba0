"""Accuracy and NLL, and what there is of them when a model has no finite outputs."""

import jax.numpy as jnp
import numpy as np
import pytest

import fedlap
from drawn import federation
from fedlap.algebra.vector import Vector
from fedlap.engines.evaluate import CHUNK, evaluate

ROWS = 2 * CHUNK + 203  # two whole chunks and a part of a third


@pytest.fixture(scope="module")
def task():
    return fedlap.Simulation.of(fedlap.FedAvg(), federation(), fedlap.logistic()).setup.task


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(0)
    W, inputs = rng.normal(size=(3, 2)), rng.normal(size=(ROWS, 2))
    return W, inputs, rng.integers(3, size=ROWS)


def weights(W):
    return Vector(({}, {"weight": jnp.asarray(W)}))


def by_hand(W, inputs, labels):
    outputs = inputs @ W.T
    nll = np.log(np.exp(outputs).sum(1)) - outputs[np.arange(len(labels)), labels]
    return np.mean(outputs.argmax(1) == labels), nll.mean()


@pytest.mark.parametrize("count", [None, ROWS - 400, 7])
def test_every_row_counts_once_and_padding_never(task, rows, count):
    W, inputs, labels = rows
    found = evaluate(task, weights(W), inputs, labels, count)
    np.testing.assert_allclose(found, by_hand(W, inputs[:count], labels[:count]), rtol=1e-12)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_model_without_finite_outputs_has_no_accuracy(task, rows, bad):
    """The argmax of such outputs is class 0, so that a diverged run would score as often as class 0 comes up."""
    W, inputs, labels = rows
    found = evaluate(task, weights(np.where(np.eye(3, 2) == 1, bad, W)), inputs, labels)
    assert np.isnan(found.accuracy) and not np.isfinite(found.nll)


def test_a_run_that_diverged_reports_no_accuracy():
    solver = fedlap.adam(epochs=5, batch=4, learning_rate=1e308)
    history = fedlap.simulate(
        fedlap.FedAvg(), federation(), fedlap.logistic(), solver=solver, rounds=2, on_divergence="ignore"
    )
    assert history.diverged and np.isnan(history.accuracy).all()
