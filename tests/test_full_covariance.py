"""FedLap-Cov with full covariances as a federated Newton method, on problems that are hard on numbers."""

import contextlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedlap
import pooling
from fedlap.algebra.precision import Full, Shifted
from fedlap.algebra.symmetric import rounding, silent, solve
from fedlap.algebra.vector import Vector

FEDERATIONS = 15  # of each kind, with four deltas each: 300 problems
ROUNDS = 20
UNIT = 8192.0
# Of separable data the last bits decide which are lost.
KINDS = [
    pytest.param(kind, marks=pytest.mark.usual_compiler) if kind == "separable" else kind for kind in pooling.KINDS
]
PRECISIONS = {"float32": ("predictions", 1e-3), "float64": ("weights", 1e-8)}


def in_precision(name):
    return jax.enable_x64(False) if name == "float32" else contextlib.nullcontext()


@pytest.mark.parametrize("kind", KINDS)
def test_drawn_problems_end_at_the_pooled_optimum_or_say_that_they_do_not(kind, record_property):
    """In both precisions, one after the other: the optima are the same, and to find them takes its time."""
    for precision, (goal, tolerance) in PRECISIONS.items():
        rounds, lost = [], 0
        with in_precision(precision):
            for problem in pooling.problems(kind, FEDERATIONS):
                history, weights = pooling.federated(problem, ROUNDS)
                settled = pooling.settled(getattr(pooling.Errors.of(problem, weights), goal), tolerance)
                if settled is None:
                    lost += 1
                    assert history.diverged, (precision, problem.federation.name, problem.delta)
                else:
                    rounds.append(settled)
        record_property(f"{precision}: rounds, median and most", (float(np.median(rounds)), max(rounds)))
        # Separable data leave weights of several hundred to a δ of 1e-8, where undamped Newton steps may go in circles.
        assert lost <= (2 if kind == "separable" else 0), precision


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize(
    ("units", "sizes", "delta"),
    [
        ((1.0, 1.0, 1.0), (30_000, 30_000), 1e-3),
        ((1.0, 1.0, 1.0), (150, 150), 1e-6),
        ((1.0, 5e3, 0.1), (150, 150), 1.0),
        ((1.0, 1e3, 1e5), (3,) * 50, 1e-6),
    ],
    ids=["many rows", "a small prior", "clinical units", "many tiny sites"],
)
def test_the_cases_that_were_not_a_number(units, sizes, delta, precision):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(sum(sizes), 3)) * units
    y = (x @ (1.5 / np.array(units)) + rng.logistic(size=len(x)) > 0).astype(int)
    parts = np.split(np.arange(len(x)), np.cumsum(sizes)[:-1])
    clients = [(x[rows], y[rows]) for rows in parts]
    federation = fedlap.Federation.from_arrays(clients=clients, test=(x[:50], y[:50]), classes=2)
    problem = pooling.Problem(federation, delta, bias=False)
    goal, tolerance = PRECISIONS[precision]
    with in_precision(precision):
        _, weights = pooling.federated(problem, 12)
    assert getattr(pooling.Errors.of(problem, weights), goal)[-1] < tolerance


@pytest.mark.parametrize("precision", PRECISIONS)
def test_three_classes_and_columns_that_say_the_same_have_the_optimum_of_least_norm(precision):
    """What the data leave open the prior decides: logits add up to zero, and twins in other units share as δ says."""
    rng = np.random.default_rng(1)
    x = rng.normal(size=(120, 3))
    x = np.column_stack([x, UNIT * x[:, 0]])  # the same feature once more, in another unit
    y = (x[:, :3] @ rng.normal(size=(3, 3)) + rng.gumbel(size=(120, 3))).argmax(1)
    federation = fedlap.Federation.from_arrays(
        clients=[(x[:60], y[:60]), (x[60:90], y[60:90])], test=(x[90:], y[90:]), classes=3
    )
    with in_precision(precision):
        history = fedlap.simulate(
            fedlap.FedLapCov(delta=1e-6, covariance="full", rho=1.0),
            federation,
            fedlap.logistic(),
            solver=fedlap.newton(),
            rounds=12,
        )
    W = np.float64(history.weights["1.weight"])
    digits = 1e-4 if precision == "float32" else 1e-9
    large = np.abs(W[:, :3]).max()
    assert np.abs(W.sum(0) * [1, 1, 1, UNIT]).max() < digits * large
    # Of w_0 x + w_3 UNIT x with the least w_0² + w_3², w_0 is w_3 / UNIT.
    assert np.abs(W[:, 0] - W[:, 3] / UNIT).max() < digits * np.abs(UNIT * W[:, 3]).max()


# The equations by themselves.


def draw(size, rank, scales, seed=0):
    """A matrix of that rank in those units, and a point that is not in its null space."""
    rng = np.random.default_rng(seed)
    root = rng.normal(size=(size, rank)) * np.asarray(scales)[:, None]
    return root @ root.T, rng.normal(size=size) / scales


def test_a_regular_system_has_its_solution_whatever_the_units():
    V, w = draw(5, 5, [1e-5, 1.0, 1e5, 1e2, 1e-2])
    found = np.asarray(solve(jnp.asarray(V), 1e-8, jnp.asarray(V @ w + 1e-8 * w), jnp.zeros(5)))
    np.testing.assert_allclose(found, w, rtol=1e-8)


def test_silent_directions_are_found_one_by_one():
    V, _ = draw(3, 3, [1e-5, 1.0, 1e5])
    twice = np.block([[V, -V], [-V, V]])  # as two logits: only differences are known
    null, pivots = silent(jnp.asarray(twice))
    columns = np.asarray(null)[:, np.abs(null).sum(0) > 0]
    assert columns.shape[1] == 3 and np.abs(pivots).max() < 1e-14
    np.testing.assert_array_equal((columns != 0).sum(0), 2)
    np.testing.assert_allclose(columns[:3] / columns[:3].sum(0), columns[3:] / columns[3:].sum(0), rtol=1e-10)


@pytest.mark.parametrize("near", [0.0, 3.0])
def test_where_the_data_are_silent_the_prior_alone_decides(near):
    """Exactly, for a δ that a matrix with V in it could not hold."""
    units = np.array([1e-3, 1.0, 1e3])
    A, x = draw(3, 3, units)
    V, v = np.block([[A, -A], [-A, A]]), np.concatenate([2 * A @ x, -2 * A @ x])
    begin = near * np.concatenate([x, x])
    found = np.asarray(solve(jnp.asarray(V), 1e-14, jnp.asarray(v), jnp.asarray(begin)))
    np.testing.assert_allclose(found, np.concatenate([x, -x]), rtol=1e-7)


def test_what_v_says_where_the_data_are_silent_is_heard():
    """With no curvature at all, as in FedLap, w_g is Σ v_k / δ."""
    v = Vector({"w": jnp.asarray([3.0, -2.0])})
    S = Shifted(Full(jnp.zeros((2, 2))), 0.5)
    np.testing.assert_allclose(S.solve(v).flat, [6.0, -4.0], rtol=1e-14)
    S = Shifted(Full(jnp.asarray([[4.0, 0.0], [0.0, 0.0]])), 1e-9)
    np.testing.assert_allclose(S.solve(v).flat, [3 / (4 + 1e-9), -2e9], rtol=1e-12)


def test_a_matrix_that_is_not_positive_has_no_solution():
    assert np.isnan(solve(jnp.asarray([[1.0, 2.0], [2.0, 1.0]]), 0.0, jnp.ones(2), jnp.zeros(2))).all()


def test_a_rare_category_beside_frequent_ones_does_not_make_a_matrix_negative():
    """One-hot columns beside a constant: what is left of a rare one is then less than the sweeps' errors."""
    counts, delta = np.array([0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 9.0]), 1e-3
    V = np.diag([counts.sum(), *counts])
    V[0, 1:] = V[1:, 0] = counts
    V, w = V.astype(np.float32), np.linspace(-1, 1, 8, dtype=np.float32)
    assert silent(jnp.asarray(V)).pivots.min() < -rounding(V)
    assert np.linalg.eigvalsh(V.astype(float))[0] + delta > delta / 2
    found = solve(jnp.asarray(V), jnp.float32(delta), jnp.asarray(V @ w + delta * w), jnp.zeros(8, np.float32))
    np.testing.assert_allclose(V @ found, V @ w, atol=1e-3)


def test_a_small_prior_beside_large_curvature_is_not_lost():
    with in_precision("float32"):
        S = 1e-6 + Full(jnp.asarray([[1e6, -1e6], [-1e6, 1e6]], jnp.float32))
        w = Vector({"w": jnp.asarray([1.0, 1.0], jnp.float32)})
        np.testing.assert_allclose((S @ w).flat, [1e-6, 1e-6], rtol=1e-6)
        np.testing.assert_allclose(((S - S.V) @ w).flat, [1e-6, 1e-6], rtol=1e-6)


def test_a_matrix_too_large_is_refused_with_its_size():
    federation = fedlap.Federation.from_arrays(
        clients=[(np.ones((2, 45_000)), [0, 1])] * 2, test=(np.ones((1, 45_000)), [0])
    )
    with pytest.raises(
        fedlap.ConfigError,
        match=r'covariance="full" of 90,000 weights is a matrix for each of 2 clients, 129.6 GB in all, .*"diagonal"',
    ):
        fedlap.simulate(fedlap.FedLapCov(delta=1.0, covariance="full"), federation, fedlap.logistic(), rounds=1)
