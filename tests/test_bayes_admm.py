"""BayesADMM: what it reduces to, where it ends whatever its steps, and one round on quadratics."""

import numpy as np
import pytest

import fedlap
import oracle
from closeness import assert_same, dense, distance, flat
from drawn import GUARDED, THREE, PlainNewton, SigmaPoints, Squared, federation, points, trajectory
from oracle import softmax, squared

DELTA = 1.3
EVERY_DRAW = 2 * THREE.weights  # of SigmaPoints
ROUNDING = 1e-12


ALL = [[0, 1, 2]] * 8


def follows(rounds, method, **options):
    """Whether a method is, round by round, what the oracle says, to rounding."""
    for state, wanted in zip(trajectory(method, federation(3), len(ALL), **options)[1][1:], rounds, strict=True):
        assert_same(flat(state.server.w), wanted.w, ROUNDING)
        assert_same(dense(state.server.S), wanted.S, ROUNDING)
        assert_same(flat(state.clients.factor.v), wanted.v, ROUNDING)
        assert_same(dense(state.clients.factor.V), wanted.V, ROUNDING)


def test_with_the_delta_method_and_alpha_1_it_is_fedlap_cov():
    rounds = oracle.fedlap_cov(softmax, points(federation(3)), ALL, DELTA, 0.3, "full")
    follows(rounds, fedlap.BayesADMM(delta=DELTA, alpha=1.0, gamma=0.3, covariance="full"))


def test_with_draws_and_alpha_1_it_is_pvi():
    """γ = 1/K; and with other steps what its own equations say."""
    clients, exact = points(federation(3)), {"solver": SigmaPoints(), "likelihood": Squared()}
    method = fedlap.BayesADMM(delta=DELTA, alpha=1.0, gamma=1 / 3, samples=EVERY_DRAW)
    follows(oracle.pvi(squared, clients, ALL, DELTA, 1 / 3), method, **exact)
    steps = {"rho": 1.3, "gamma": 0.4, "tau": 0.8, "alpha": 0.6, "samples": EVERY_DRAW}
    follows(oracle.bayes_admm(squared, clients, ALL, DELTA, **steps), fedlap.BayesADMM(delta=DELTA, **steps), **exact)


def test_alpha_does_not_matter_where_gamma_rho_K_is_1():
    """γρ Σ_k (q_k − q_g) is then mean_k q_k − q_g: what the factors gain is what the average gains."""
    clients, steps = points(federation(3)), {"rho": 1.6, "gamma": 1 / 4.8, "tau": 0.7, "covariance": "full"}
    whole, small = (list(oracle.bayes_admm(softmax, clients, ALL, DELTA, alpha=alpha, **steps)) for alpha in (1.0, 0.2))
    for one, other in zip(whole, small, strict=True):
        assert_same(other.w, one.w, ROUNDING)
        assert_same(other.S, one.S, ROUNDING)


STEPS = [(1.0, 1.0, 0.4), (1.0, 0.5, 0.9), (2.0, 1.0, 1 / 7), (0.7, 0.4, 0.3)]  # ρ, γ, α


def posterior(loss, drawn, tau):
    """argmin Σ_k ℓ_k/τ + ½δ‖w‖², and the Hessian there."""
    w, hessian = oracle.pooled(loss, points(drawn), tau * DELTA)
    return w, hessian / tau


@pytest.mark.parametrize("tau", [1.0, 0.5])
def test_its_fixed_point_is_the_pooled_answer_whatever_its_steps(tau):
    """Logistic, with full covariances: Laplace's posterior of ℓ/τ, mean and precision."""
    drawn = federation(3)
    mean, precision = posterior(softmax, drawn, tau)
    for rho, gamma, alpha in STEPS:
        method = fedlap.BayesADMM(delta=DELTA, rho=rho, gamma=gamma, alpha=alpha, tau=tau, covariance="full")
        _, states = trajectory(method, drawn, 150, **GUARDED)
        assert_same(flat(states[-1].server.w), mean)
        assert_same(dense(states[-1].server.S), precision)


@pytest.mark.parametrize("alpha", [0.5, 1.0, 0.2])
def test_quadratics_take_one_round(alpha):
    """ρ = 1/K, for which α is 1/2 unless given, and γ = 1: whatever α is, the average of q_k and p_0 Π t_k are one."""
    drawn = federation(3)
    method = fedlap.BayesADMM(delta=DELTA, rho=1 / 3, gamma=1.0, tau=0.7, alpha=alpha, covariance="full")
    mean, precision = posterior(squared, drawn, 0.7)
    for state in trajectory(method, drawn, 3, likelihood=Squared())[1][1:]:
        assert_same(flat(state.server.w), mean, 1e-11)
        assert_same(dense(state.server.S), precision, 1e-11)


def test_the_precision_ahead_lacks_nothing_from_the_first_round_on():
    """S_g lags, by its own damping, and by ρ; on quadratics what it moves to is known at once."""
    drawn = federation(3)
    _, precision = posterior(squared, drawn, 0.7)
    for rho, gamma, alpha in STEPS:
        method = fedlap.BayesADMM(delta=DELTA, rho=rho, gamma=gamma, alpha=alpha, tau=0.7, covariance="full")
        run, states = trajectory(method, drawn, 3, likelihood=Squared())
        for state in states[1:]:
            assert_same(dense(run.algorithm.precision_ahead(state.server)), precision, 1e-11)
        assert distance(dense(states[1].server.S), precision) > 0.05


@pytest.mark.parametrize("options", [{"participation": 2}, {"hyper": {"gamma": fedlap.by_share}}])
def test_where_clients_have_come_unequally_far_the_precision_is_the_one_it_has(options):
    """The server knows a sum of what they have said: divided by what they have reached on average, it would be more
    than all of them will ever say, if the larger have said more."""
    options = dict(options)
    method = fedlap.BayesADMM(delta=DELTA, covariance="full", **options.pop("hyper", {}))
    drawn = federation(3, sizes=[12, 4, 2])
    run, states = trajectory(method, drawn, 3, likelihood=Squared(), **options)
    for state in states[1:]:
        assert_same(dense(run.algorithm.precision_ahead(state.server)), dense(state.server.S), 1e-15)
    if "participation" not in options:
        S, reached = dense(states[1].server.S), float(states[1].server.reached)
        _, whole = posterior(squared, drawn, 1.0)
        assert np.linalg.eigvalsh(whole - S).min() > 0
        assert np.trace((S - DELTA * np.eye(len(S))) / reached) > 1.2 * np.trace(whole - DELTA * np.eye(len(S)))


def test_who_leaves_is_divided_out_where_the_model_is_a_product():
    """With α = 1, and at once; other α keep q_k of a round before, which know of who has left."""
    drawn = federation(3)
    exact = {"solver": PlainNewton(), "likelihood": Squared(), "rounds": 1, "on_divergence": "ignore"}
    run = lambda **steps: fedlap.simulate(
        fedlap.BayesADMM(delta=DELTA, covariance="full", gamma=1.0, **steps), drawn, fedlap.logistic(), **exact
    )
    left = run(alpha=1.0).without("client-1", rounds=0)
    mean, precision = posterior(squared, drawn.without("client-1"), 1.0)
    assert_same(flat(left.final.w), mean, 1e-11)
    assert_same(left.final.S.reshape(precision.shape), precision, 1e-11)
    with pytest.raises(fedlap.ConfigError, match=r"BayesADMM\(.*keeps a part of what it knew .* BayesADMM\(alpha=1\)"):
        run().without("client-1")


def test_draws_are_of_a_diagonal():
    with pytest.raises(fedlap.ConfigError, match='fitted by draws has a diagonal covariance; expected "diagonal"'):
        trajectory(fedlap.BayesADMM(delta=1.0, covariance="full", samples=1), federation(3), 1)
