"""FedLap-Func's server in fewer weights: the same minimiser; where there is no such form, the same problem."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedlap
from closeness import distance
from drawn import trajectory
from fedlap.algebra.hyperparameters import hyperparameters
from fedlap.algebra.precision import Diagonal
from fedlap.algebra.quadratic import linear, square
from fedlap.algebra.soft_labels import Distilled, weigh
from fedlap.algebra.vector import Vector
from fedlap.engines import parties
from fedlap.models import likelihood
from fedlap.models.narrow import narrow, orthonormal
from fedlap.models.network import Activation, Dense, Network

NETWORK = fedlap.mlp(hidden=(4,), activation="tanh")
TASK = parties.Task(NETWORK, likelihood.categorical, fedlap.GaussNewton())
WEIGHTS = 4 * 6 + 4 + 2 * 4 + 2


def problem(posterior=None):
    """Three points of 2 × 3 numbers, the last twice the first, and a start far from the minimum."""
    rng = np.random.default_rng(0)
    inputs = jnp.asarray(rng.normal(size=(3, 2, 3)))
    inputs = inputs.at[2].set(2 * inputs[0])
    y = weigh(jnp.asarray([3.0, 1.0, 2.0]), jnp.asarray(rng.dirichlet((1, 1), 3)))
    start = Vector(NETWORK.init(jax.random.key(0), inputs, 2))
    start, m, v = (start.like(jnp.asarray(rng.normal(size=WEIGHTS))) for _ in range(3))
    posterior = posterior or 0.3 * square(around=m) + linear(v)
    return inputs, Distilled(0.7, parties.distillation(TASK, inputs), y, posterior), start


def test_the_narrow_problem_has_the_minimiser_of_the_whole():
    """To rounding, with inputs that depend on each other and a quadratic whose slope is not zero at its centre."""
    inputs, function, start = problem()
    sizes = []

    def solve(function, start):
        sizes.append(start.size)
        return fedlap.newton().solve(function, start)

    whole = jax.jit(lambda: solve(function, start))()
    found = jax.jit(lambda: parties._narrow_argmin(TASK, inputs, function, start, solve))()
    assert sizes == [WEIGHTS, WEIGHTS - 4 * 3]
    assert np.abs(jax.jit(jax.grad(function))(whole).flat).max() < 1e-10
    assert distance(found.flat, whole.flat) < 1e-8
    assert distance(start.flat, whole.flat) > 1e-1


def test_a_narrow_network_says_what_the_whole_one_says():
    inputs, _, start = problem()
    seen = narrow(NETWORK, inputs)
    np.testing.assert_allclose(
        NETWORK.apply(seen.inside(start.tree), seen.inputs), NETWORK.apply(start.tree, inputs), rtol=1e-12
    )
    np.testing.assert_allclose(Vector(seen.whole(seen.inside(start.tree), start.tree)).flat, start.flat, rtol=1e-12)


def test_orthonormal_rows_span_what_was_given():
    """Nearly dependent rows, one twice another, and one of zeros; against NumPy's singular values."""
    rng = np.random.default_rng(0)
    given = rng.normal(size=(6, 40))
    given[1] = given[0] + 1e-7 * given[1]
    given[3], given[4] = 2 * given[0], 0
    basis = np.asarray(orthonormal(jnp.asarray(given)))
    real = np.abs(basis).sum(1) > 0
    assert real.tolist() == [True, True, True, False, False, True]
    np.testing.assert_allclose(basis[real] @ basis[real].T, np.eye(4), atol=1e-14)
    span = np.linalg.svd(given, full_matrices=False)[2][:4]
    np.testing.assert_allclose(basis[real].T @ basis[real], span.T @ span, atol=1e-7)
    np.testing.assert_allclose(given @ basis.T @ basis, given, atol=1e-13)


def test_the_basis_asks_no_library_of_threads():
    """Those of LAPACK wait for each other on cores that others need: a second for what takes a millisecond."""
    inputs, *_ = problem()
    program = jax.jit(lambda rows: narrow(NETWORK, rows)).lower(inputs).as_text()
    assert "custom_call" not in program


IMAGES = jnp.ones((2, 12, 12, 1))


@pytest.mark.parametrize(
    ("model", "inputs"),
    [
        (fedlap.acar_cnn(), IMAGES),
        (Network((Activation("tanh"), Dense())), IMAGES[:, 0, :, 0]),
        (fedlap.Model(lambda key, inputs: (), NETWORK.apply), IMAGES),
        (NETWORK, jnp.ones((6, 2, 3))),
        (NETWORK, jnp.ones((0, 2, 3))),
    ],
    ids=["convolution", "no dense layer first", "layers unknown", "no fewer inputs than numbers", "no memory"],
)
def test_other_models_and_memories_stay_whole(model, inputs):
    assert narrow(model, inputs) is None


def test_a_quadratic_that_is_not_isotropic_stays_whole():
    """That of FedLap-Cov-Func; the function is handed on as it is."""
    _, _, start = problem()
    inputs, function, start = problem(square(Diagonal(start.times(start)), around=start))
    handed = parties._narrow_argmin(TASK, inputs, function, start, lambda *given: given)
    assert handed[0] is function and handed[1] is start


@hyperparameters
class NarrowNewton:
    """Newton's method, as exact in a few weights as in all."""

    narrow = True

    def solve(self, function, start):
        return fedlap.newton().solve(function, start)


def test_a_run_is_the_same_with_a_solver_that_likes_few_weights():
    rng = np.random.default_rng(1)
    clients = [(rng.normal(size=(n, 7)), np.arange(n) % 2) for n in (4, 3)]
    drawn = fedlap.Federation.from_arrays(clients=clients, test=clients[0])
    run = lambda solver: trajectory(fedlap.FedLapFunc(delta=1.5, tau=0.8), drawn, 2, server_solver=solver)[1][-1].server
    few, all_of_them = run(NarrowNewton()), run(fedlap.newton())
    assert distance(few.w.flat, all_of_them.w.flat) < 1e-10
    assert distance(few.w.flat, few.m.flat) > 1e-3


def test_annealed_comes_near_a_minimiser_and_stays_where_it_would_only_lose():
    centre = Vector((jnp.linspace(-0.2, 0.2, 3), jnp.zeros(2)))
    function, start = lambda v: (v - centre) @ (v - centre), Vector((jnp.zeros(3), jnp.zeros(2)))
    assert distance(fedlap.annealed(steps=200, turns=1).solve(function, start).flat, centre.flat) < 1e-3
    assert fedlap.annealed(steps=1, learning_rate=0.1, turns=1).solve(function, start).flat == pytest.approx(
        [-0.1, 0, 0.1, 0, 0]
    )
    far = fedlap.annealed(steps=2, learning_rate=50.0).solve(function, start)
    np.testing.assert_array_equal(far.flat, start.flat)
    np.testing.assert_array_equal(fedlap.annealed().solve(function, centre).flat, centre.flat)


def turn(gradient, v, steps, rate):
    """Adam with a second moment of 0.9, in NumPy; its rate falls to zero."""
    m, s = np.zeros_like(v), np.zeros_like(v)
    for i in range(steps):
        g = gradient(v)
        m, s = 0.9 * m + 0.1 * g, 0.9 * s + 0.1 * g**2
        v = v - rate * (1 - i / steps) * (m / (1 - 0.9 ** (i + 1))) / (np.sqrt(s / (1 - 0.9 ** (i + 1))) + 1e-8)
    return v


@pytest.mark.parametrize(("tolerance", "turns", "taken"), [(1.0, 25, 1), (0.6, 25, 2), (0.2, 25, 5), (0.0, 4, 4)])
def test_annealed_takes_turns_until_one_gains_little(tolerance, turns, taken):
    """Far from a minimiser, where a turn goes a few tenths; each begins anew."""
    scale, rate = np.array([1.0, 10.0, 100.0]), 1e-2
    value, v, values = lambda v: (scale * v**2).sum(), np.full(3, 2.0), []
    for _ in range(turns):
        values.append(value(v))
        v = turn(lambda v: 2 * scale * v, v, 20, rate)
        if values[-1] - value(v) <= tolerance * (values[0] - value(v)):
            break
    assert len(values) == taken
    solver = fedlap.annealed(steps=20, learning_rate=rate, tolerance=tolerance, turns=turns)
    found = jax.jit(lambda v: solver.solve(lambda v: (scale * v.flat**2).sum(), v))(Vector((jnp.full(3, 2.0),)))
    np.testing.assert_allclose(found.flat, v, rtol=1e-6, atol=1e-9)
