"""What a statistician must know of the answer: its order, its prior, its intercept, and where its Hessian is taken."""

import jax
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

import fedlap
from closeness import distance
from drawn import FOUR, SigmaPoints, Squared, federation, points
from fedlap.algorithms import ALGORITHMS
from oracle import pooled, softmax
from reproduction.experiments import hessian_point

DELTA = 0.8


def fitted(drawn, model):
    """The pooled optimum and its precision, found without pooling."""
    method = fedlap.FedLapCov(delta=DELTA, rho=1.0, covariance="full")
    return fedlap.simulate(method, drawn, model, solver=fedlap.newton(), rounds=12)


def one_logit(x, y, penalty):
    """argmin_β Σ log(1 + exp(−(2y − 1) xᵀβ)) + ½ Σ_j penalty_j β_j² by Newton's method, and its Hessian there."""
    beta = np.zeros(x.shape[1])
    for _ in range(50):
        p = 1 / (1 + np.exp(-x @ beta))
        hessian = (x.T * (p * (1 - p))) @ x + np.diag(penalty)
        beta = beta - np.linalg.solve(hessian, x.T @ (p - y) + penalty * beta)
    return beta, hessian


def pooled_rows(drawn):
    rows = np.concatenate(drawn.rows)
    return drawn.inputs[rows], drawn.labels[rows]


@pytest.mark.parametrize("model", [fedlap.logistic(bias=True), fedlap.mlp(hidden=(3,))], ids=["logistic", "mlp"])
def test_flat_weights_are_in_the_order_of_ravel_pytree(model):
    drawn = federation(1)
    history = fedlap.simulate(fedlap.FedLap(delta=1.0), drawn, model, rounds=1)
    shapes = model.init(jax.random.key(0), drawn.inputs[:1], drawn.classes)
    weights = ravel_pytree(shapes)[1](history.final.w)
    outputs = np.exp(model.apply(weights, drawn.test_inputs))
    np.testing.assert_allclose(history.predict(drawn.test_inputs), outputs / outputs.sum(1, keepdims=True), rtol=1e-12)


def test_of_a_logistic_model_intercepts_come_first_then_the_weights_class_by_class():
    drawn = federation(1, FOUR)
    history = fitted(drawn, fedlap.logistic(bias=True))
    intercepts, W = history.final.w[:2], history.final.w[2:].reshape(2, 3)
    outputs = np.exp(drawn.test_inputs @ W.T + intercepts)
    np.testing.assert_allclose(history.predict(drawn.test_inputs), outputs / outputs.sum(1, keepdims=True), rtol=1e-12)


def test_two_logits_halve_the_prior_precision_of_the_log_odds():
    """β = w_1 − w_0 of w_0, w_1 ~ N(0, I/δ) is N(0, 2I/δ): one logit with penalty ½(δ/2)‖β‖², mean and precision.

    At the optimum w_1 = −w_0 = β/2, so ½δ(‖w_0‖² + ‖w_1‖²) = ¼δ‖β‖².
    """
    drawn = federation(1, FOUR)
    final = fitted(drawn, fedlap.logistic()).final
    W, contrast = final.w.reshape(2, 3), np.hstack([-np.eye(3), np.eye(3)])
    beta, hessian = one_logit(*pooled_rows(drawn), np.full(3, DELTA / 2))
    assert distance(W[1] - W[0], beta) < 1e-9
    assert distance(W[1], beta / 2) < 1e-9
    assert distance(contrast @ np.linalg.inv(final.S) @ contrast.T, np.linalg.inv(hessian)) < 1e-8
    assert distance(one_logit(*pooled_rows(drawn), np.full(3, DELTA))[0], beta) > 0.05


def test_the_intercept_is_penalised_as_any_weight():
    drawn = federation(1, FOUR)
    final = fitted(drawn, fedlap.logistic(bias=True)).final
    intercepts, W = final.w[:2], final.w[2:].reshape(2, 3)
    found = np.append(W[1] - W[0], intercepts[1] - intercepts[0])
    x, y = pooled_rows(drawn)
    with_ones = np.column_stack([x, np.ones(len(x))])
    assert distance(found, one_logit(with_ones, y, np.full(4, DELTA / 2))[0]) < 1e-9
    assert distance(found, one_logit(with_ones, y, np.array([DELTA / 2] * 3 + [0.0]))[0]) > 0.05


def test_the_hessian_is_at_the_new_point_in_both_lines():
    """With v_k's at w_k and V_k's at w_g, as one may read the appendix, eight rounds get less far: 4.8 times here."""
    drawn = federation(1, FOUR)
    optimum, _ = pooled(softmax, points(drawn), DELTA)

    def far(method):
        algorithm = method(delta=DELTA, rho=fedlap.evenly, covariance="full")
        history = fedlap.simulate(algorithm, drawn, fedlap.logistic(), solver=fedlap.newton(), rounds=8)
        return distance(history.final.w, optimum)

    assert far(hessian_point.Mixed) > 4 * far(fedlap.FedLapCov)


@pytest.mark.parametrize("name", ["fedlap_cov", "fedlap_cov_func", "pvi"])
@pytest.mark.parametrize("rounds", [1, 3])
def test_the_precision_of_the_method_lags_and_that_of_the_history_does_not(name, rounds):
    """With a constant curvature S_g − δI is 1 − (1 − ρ)^R of what it tends to: 0.27 of ten clients in three rounds."""
    count, drawn = 10, np.random.default_rng(0)
    clients = [(drawn.normal(size=(6, 3)), drawn.integers(2, size=6)) for _ in range(count)]
    federation = fedlap.Federation.from_arrays(clients=clients, test=clients[0], classes=2)
    extra = {"pvi": {"samples": 12}, "fedlap_cov_func": {"tau": 0.0}}.get(name, {})
    history = fedlap.simulate(
        ALGORITHMS[name](delta=DELTA, **extra),
        federation,
        fedlap.logistic(),
        likelihood=Squared(),
        solver=SigmaPoints() if name == "pvi" else fedlap.newton(),
        rounds=rounds,
    )
    squares = np.concatenate([x for x, _ in clients]) ** 2
    curvature = np.tile(squares.sum(0), 2)
    part = 1 - (1 - 1 / count) ** rounds
    np.testing.assert_allclose(history.final.S, DELTA + part * curvature, rtol=1e-9)
    np.testing.assert_allclose(history.precision, DELTA + curvature, rtol=1e-9)


def test_a_client_that_was_never_drawn_adds_nothing_to_the_precision():
    x = np.random.default_rng(0).normal(size=(3, 5, 2))
    federation = fedlap.Federation.from_arrays(
        clients=[(each, [0, 1, 0, 1, 1]) for each in x], test=(x[0], [0] * 5), classes=2
    )
    run = fedlap.Simulation.of(
        fedlap.FedLapCov(delta=DELTA), federation, fedlap.logistic(), likelihood=Squared(), participation=1
    )
    state = run.step(run.init())
    (drawn,) = np.flatnonzero(run.plan(0).drawn)
    found = np.asarray(run.algorithm.precision_ahead(state.server))
    np.testing.assert_allclose(found, DELTA + np.tile((x[drawn] ** 2).sum(0), 2), rtol=1e-9)


def test_with_full_steps_both_precisions_are_the_same():
    history = fitted(federation(0, FOUR), fedlap.logistic())
    np.testing.assert_allclose(history.precision, history.final.S, rtol=1e-12)
