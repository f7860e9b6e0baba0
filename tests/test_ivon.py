"""IVON: the paper's steps again in NumPy and in its own letters, exact Gaussians, and precisions that stay positive."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedlap
import oracle
from closeness import flat
from drawn import Squared, federation, points, trajectory
from fedlap.algebra.gaussian import LogGaussian, expected_log_site, kl
from fedlap.algebra.precision import Diagonal
from fedlap.algebra.vector import Vector
from fedlap.algorithms.base import Client
from fedlap.solvers import Problem
from methods import simulation

SIZE, ROWS, BATCH = 3, 8, 2
TAU, RHO = 0.4, 1.7
RNG = np.random.default_rng(0)
X, TARGETS = RNG.normal(size=(ROWS, SIZE)), RNG.normal(size=ROWS)
W_G, S_G = RNG.normal(size=SIZE), RNG.uniform(1, 3, size=SIZE)
DUAL, CURVATURE = RNG.normal(size=SIZE), RNG.uniform(0.1, 0.5, size=SIZE)  # v_k and V_k
DRAWS = RNG.normal(size=(4, SIZE))  # ε, of each of an epoch's steps
SIGMA = np.sqrt(SIZE) * np.concatenate([np.eye(SIZE), -np.eye(SIZE)])  # mean 0 and covariance I: exact for quadratics


def gradient(w, rows):
    """Of the mean of log cosh(xᵀw − y) over some rows."""
    return np.tanh(X[rows] @ w - TARGETS[rows]) @ X[rows] / len(rows)


def log_cosh(residual):
    return jnp.logaddexp(residual, -residual)


def client(loss, draws, round=0):
    fields = {"n": jnp.asarray(1.0 * ROWS), "round": jnp.asarray(round), "loss": loss}
    return Client(*[None] * len(Client._fields))._replace(
        **fields, noise=lambda samples, like: Vector(jnp.asarray(draws)[-samples:])
    )


def problem(penalty=log_cosh, samples=1, draws=DRAWS[:, None], round=0, steps=4):
    """BayesADMM's argmin over one client's Gaussian, on batches of two of its rows; `draws` has those of each step."""
    x, targets = jnp.asarray(X), jnp.asarray(TARGETS)
    loss = lambda rows: lambda w: ROWS * penalty(x[rows] @ w.tree - targets[rows]).mean()
    rows = jnp.arange(ROWS).reshape(-1, BATCH) if len(draws) > 1 else jnp.arange(ROWS)[None]

    def objective(q, k):
        site = expected_log_site(q, Vector(jnp.asarray(DUAL)), Diagonal(Vector(jnp.asarray(CURVATURE))))
        divergence = kl(q, Vector(jnp.asarray(W_G)), Diagonal(Vector(jnp.asarray(S_G))))
        return q.expect(k.loss, k.noise(samples, q.m)) + TAU * (site + RHO * divergence)

    minibatch = lambda rows, step: client(loss(rows), jnp.asarray(draws)[step % len(draws)], round)
    start = LogGaussian.of(Vector(jnp.asarray(W_G + 0.1)), Diagonal(Vector(jnp.asarray(S_G))))
    repeated = jnp.tile(rows, (-(-steps // len(rows)), 1))
    return Problem(objective, start, client(loss(jnp.arange(ROWS)), draws[0], round), minibatch, repeated, steps)


def numpy_ivon(solver, round, memory=None):
    """One epoch from q_g on, in IVON's letters: λ = N/(τρ), s = S_g/λ, and h, which is zero where q is q_g."""
    lam = ROWS / (TAU * RHO)
    s, dv, dV = S_G / lam, TAU * DUAL / ROWS, TAU * CURVATURE / ROWS
    b1, b2 = solver.momentum, solver.decay
    m, h = W_G + 0.1, np.full(SIZE, solver.hessian if round == 0 else 0.0)
    g, t = memory or (np.zeros(SIZE), 0)
    rate = solver.learning_rate * (1 if solver.cosine is None else (1 + np.cos(np.pi * round / solver.cosine)) / 2)
    for epsilon, rows in zip(DRAWS, np.arange(ROWS).reshape(-1, BATCH), strict=True):
        theta = m + epsilon / np.sqrt(lam * (h + s))
        found = gradient(theta, rows)
        guess = lam * (h + s) * (theta - m) * found - dV
        g, t = b1 * g + (1 - b1) * found, t + 1
        h = b2 * h + (1 - b2) * guess + (1 - b2) ** 2 * (h - guess) ** 2 / (h + s) / 2
        m = m - rate * (g / (1 - b1**t) + dv - dV * m + s * (m - W_G)) / (h + s)
    return m, lam * (h + s), (g, t)


@pytest.mark.parametrize("keep", [True, False], ids=["keep", "reset"])
def test_steps_are_those_of_the_paper(keep):
    """Two rounds: what begins anew, what is kept, the Hessian of round 1 and the rate's descent."""
    solver = fedlap.ivon(learning_rate=0.3, momentum=0.8, decay=0.7, hessian=0.2, cosine=3, keep=keep)
    state, memory = solver.init(problem().start), None
    for round in range(2):
        found, state = jax.jit(lambda state, round=round: solver.minimise(problem(round=round), state))(state)
        m, S, memory = numpy_ivon(solver, round, memory if keep else None)
        np.testing.assert_allclose(found.m.tree, m, rtol=1e-11)
        np.testing.assert_allclose(found.S.d.tree, S, rtol=1e-11)
    if keep:
        np.testing.assert_allclose(state.g.tree, memory[0], rtol=1e-11)
        assert state.t == memory[1] == 8
    else:
        assert state == ()


def test_it_ends_at_the_exact_gaussian_of_a_quadratic():
    """(A/τ − V + ρS_g) m = b/τ − v + ρS_g w_g and S = S_g + (diag A/τ − V)/ρ, with all rows and exact expectations."""
    solver = fedlap.ivon(learning_rate=0.2, momentum=0.5, decay=0.9)
    half = problem(lambda residual: residual**2 / 2, samples=2 * SIZE, draws=SIGMA[None], steps=2000)
    found, _ = jax.jit(lambda: solver.minimise(half, ()))()
    A, b = X.T @ X, X.T @ TARGETS
    curvature = A / TAU + np.diag(RHO * S_G - CURVATURE)
    np.testing.assert_allclose(found.m.tree, np.linalg.solve(curvature, b / TAU - DUAL + RHO * S_G * W_G), rtol=1e-10)
    np.testing.assert_allclose(found.S.d.tree, S_G + (np.diag(A) / TAU - CURVATURE) / RHO, rtol=1e-10)


@pytest.mark.parametrize("decay", [0.0, 0.9])
def test_a_precision_stays_positive_where_a_loss_is_concave(decay):
    """However low the curvature that a draw shows, one step leaves at least half of a precision."""
    for size in (1, 30):
        steep = problem(lambda residual: -1e3 * residual**2, draws=size * DRAWS[:, None], steps=1)
        found, _ = fedlap.ivon(decay=decay, hessian=0.0).minimise(steep, ())
        assert (np.asarray(found.S.d.tree) >= S_G * (0.5 - 1e-12)).all()


@pytest.mark.parametrize("name", ["fedlap", "fedlap_cov"])
def test_weights_alone_are_no_gaussian(name):
    with pytest.raises(
        fedlap.ConfigError, match=r"ivon fits a Gaussian, .* expected pvi, or bayes_admm with samples=1"
    ):
        simulation(name, solver=fedlap.ivon()).init()


def test_pvi_with_ivon_comes_near_the_exact_posterior():
    """One draw a step, on quadratics that are separable; what is left is the noise of the last draws."""
    drawn, delta = federation(3, diagonal=True), 1.0
    solver = fedlap.ivon(epochs=1000, batch=12, learning_rate=0.02, decay=0.99)
    _, states = trajectory(fedlap.PVI(delta=delta, rho=1.0, samples=1), drawn, 6, solver=solver, likelihood=Squared())
    mean, hessian = oracle.pooled(oracle.squared, points(drawn), delta)
    found = [np.mean([flat(getattr(state.server, name)) for state in states[2:]], axis=0) for name in ("w", "S")]
    assert np.abs((found[0] - mean) * np.sqrt(np.diag(hessian))).max() < 0.1
    assert np.abs(found[1] / np.diag(hessian) - 1).max() < 0.1
