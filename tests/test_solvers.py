"""Solvers: closed forms where there are some, NumPy's Adam, and what an objective's scale must not change."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedlap
import oracle
from closeness import distance, flat
from drawn import THREE, Squared, federation, points, trajectory
from fedlap.algebra.vector import Vector
from fedlap.algorithms.base import Client
from fedlap.solvers import Problem
from fedlap.solvers.loop import pick, repeat
from methods import after, simulation


def quadratic(seed=0, size=5, condition=100.0):
    """½xᵀAx − bᵀx and its minimiser."""
    rng = np.random.default_rng(seed)
    Q = np.linalg.qr(rng.normal(size=(size, size)))[0]
    A, b = Q @ np.diag(np.geomspace(1, condition, size)) @ Q.T, rng.normal(size=size)
    function = lambda v: v.flat @ jnp.asarray(A) @ v.flat / 2 - jnp.asarray(b) @ v.flat
    return function, np.linalg.solve(A, b)


def ones(size=5):
    return Vector((jnp.ones(size - 2), jnp.ones(2)))


def pooled_loss(delta, seed=1):
    """Regularised logistic regression on all of a federation, as a mean, and its minimiser by the oracle."""
    clients = points(federation(seed))
    optimum, _ = oracle.pooled(oracle.softmax, clients, delta)
    x, t = (jnp.concatenate([jnp.asarray(getattr(data, name)) for data in clients]) for name in ("x", "targets"))

    def function(v):
        outputs = x @ v.tree.T
        return ((jax.nn.logsumexp(outputs, axis=1) - (t * outputs).sum(1)).sum() + delta / 2 * v @ v) / len(x)

    return function, optimum


def solving(function):
    """A compiled `solve` that serves all numbers of a solver."""
    return jax.jit(lambda solver, start: solver.solve(function, start))


# Newton and L-BFGS.


def test_newton_solves_a_quadratic_in_one_step():
    function, minimiser = quadratic(condition=1e6)
    found = solving(function)(fedlap.newton(steps=1), ones())
    assert distance(found.flat, minimiser) < 1e-9
    assert jax.tree.structure(found) == jax.tree.structure(ones())


@pytest.mark.parametrize("delta", [1e-4, 1.0])
def test_newton_minimises_to_rounding(delta):
    """From near and from so far away that whole steps would not do."""
    function, minimiser = pooled_loss(delta)
    solve = solving(function)
    for start in (0.0, 30.0):
        far = Vector(start * jnp.asarray(np.random.default_rng(0).normal(size=(3, 2))))
        found = solve(fedlap.newton(), far)
        assert distance(found.flat, minimiser) < 1e-10


def test_newton_stays_where_it_starts():
    """A minimiser is its own minimiser, to the last bits: a run at its stationary point does not wander."""
    function, _ = pooled_loss(1.0)
    solve = solving(function)
    first = solve(fedlap.newton(), Vector(jnp.zeros((3, 2))))
    again = solve(fedlap.newton(), first)
    assert distance(again.flat, first.flat) < 1e-14


@pytest.mark.parametrize("start", [0.0, 10.0])
def test_newton_does_not_stop_where_large_terms_cancel(start):
    """A dual and a prox may be a thousand each and their sum nearly zero, whose rounding is that of the thousand."""
    function = lambda v: (1e3 + jnp.log(jnp.cosh(v.tree - 3)).sum() + ((v.tree - 3) ** 2).sum() / 2) - 1e3
    found = solving(function)(fedlap.newton(), Vector(jnp.full(4, start)))
    np.testing.assert_allclose(found.tree, 3, rtol=1e-12)


def test_newton_finds_the_minimum_of_badly_scaled_columns():
    """A weight whose curvature is 1e-14 of another's is not one that the data leave open."""
    curvatures = jnp.array([1e12, 1.0, 1e-2])
    function = lambda v: (curvatures * (v.tree - 3) ** 2 / 2 + jnp.log(jnp.cosh(v.tree - 3)) * curvatures).sum()
    found = solving(function)(fedlap.newton(), Vector(jnp.zeros(3)))
    np.testing.assert_allclose(found.tree, 3, rtol=1e-12)


def test_newton_does_not_move_where_the_function_is_constant():
    """Softmax outputs are determined up to a constant, so without a regulariser the Hessian is singular."""
    function, _ = pooled_loss(0.0)
    start = Vector(jnp.asarray(np.random.default_rng(0).normal(size=(3, 2))))
    found = solving(function)(fedlap.newton(), start)
    np.testing.assert_allclose(found.tree.sum(0), start.tree.sum(0), atol=1e-10)
    gradient = jax.jit(jax.grad(function))(found)
    assert np.abs(gradient.tree).max() < 1e-13


def test_newton_goes_down_where_the_function_bends_downwards():
    function = lambda v: jnp.cos(v.tree).sum()
    found = solving(function)(fedlap.newton(), Vector(jnp.asarray([0.3, -0.4])))
    np.testing.assert_allclose(np.cos(found.tree), -1, atol=1e-12)


def test_newton_ends_for_all_clients_at_once():
    """Comparisons of nearly equal numbers must not be compiled twice: under vmap the two copies may disagree for ever.

    A run that has reached its stationary point asks for nothing but such comparisons.
    """
    for seed in range(4):
        _, states = trajectory(fedlap.FedProx(alpha=0.5), federation(seed), 40)
        assert np.isfinite(flat(states[-1].server.w)).all()


def test_newton_refuses_models_whose_hessian_would_not_fit():
    with pytest.raises(fedlap.ConfigError, match=r"2,001 weights and takes at most 2,000; use adam or lbfgs"):
        fedlap.newton().solve(lambda v: v @ v, Vector(jnp.zeros(2001)))


def test_lbfgs_minimises_to_its_tolerance_and_within_its_steps():
    function, minimiser = pooled_loss(1.0)
    solve, start = solving(function), Vector(jnp.zeros((3, 2)))
    rough, fine = (distance(solve(fedlap.lbfgs(tolerance=t), start).flat, minimiser) for t in (1e-2, 1e-10))
    assert fine < 1e-8 < 1e-6 < rough < 1e-1
    assert distance(solve(fedlap.lbfgs(steps=1), start).flat, minimiser) > 1e-1


def test_lbfgs_on_clients_is_newton_to_its_tolerance():
    drawn, method = federation(1), fedlap.FedLap(delta=1.5, rho=0.3)
    _, exact = trajectory(method, drawn, 3)
    _, close = trajectory(method, drawn, 3, solver=fedlap.lbfgs(tolerance=1e-9))
    assert distance(flat(close[-1].server.w), flat(exact[-1].server.w)) < 1e-6


# Descent, the server's.


def test_descent_stops_early_and_near_the_minimiser():
    function, minimiser = pooled_loss(1.0)
    solve, start = solving(function), Vector(jnp.zeros((3, 2)))
    optimum = Vector(jnp.asarray(minimiser.reshape(3, 2)))
    gap = lambda v: float((function(v) - function(optimum)) / (function(start) - function(optimum)))
    run = lambda **options: solve(fedlap.descent(learning_rate=1e-2, **options), start)
    found = run()
    assert 0 <= gap(found) < 1e-2
    # All it ever does is done after a fifth of its steps, and not after a fiftieth.
    assert np.array_equal(run(steps=1000).flat, found.flat)
    assert gap(run(steps=100)) > gap(found)
    assert gap(run(tolerance=1e-7)) < 1e-6 < gap(run(tolerance=0.3))


def test_descent_takes_no_more_than_its_steps():
    """Adam's first steps are its learning rate long, so as many steps are at most so far."""
    function, _ = quadratic()
    for steps in (0, 1, 7):
        found = solving(function)(fedlap.descent(steps=steps, learning_rate=1e-4), ones())
        moved = np.abs(found.flat - 1).max()
        assert 0.9e-4 * steps <= moved <= 1.1e-4 * steps


def test_descent_without_a_tolerance_takes_all_its_steps():
    """Also where Adam goes round the minimiser, and a hundred steps gain nothing."""
    found = lambda **options: solving(lambda v: jnp.abs(v.flat - 0.5).sum())(
        fedlap.descent(steps=750, learning_rate=0.1, **options), ones()
    )
    all_of_them, _ = numpy_adam(lambda w, _: np.sign(w - 0.5), np.ones(5), range(750), 0.1)
    np.testing.assert_allclose(found(tolerance=0.0).flat, all_of_them, rtol=1e-10)
    assert np.abs(found().flat - all_of_them).max() > 1e-4


def test_descent_takes_back_steps_that_lost():
    """A rate of 10 goes far past a minimiser at a distance of 0.001, and is not as near again after a hundred steps."""
    start, far = Vector(jnp.full(3, 1.001)), {"steps": 100, "learning_rate": 10.0}
    solve = solving(lambda v: (v - 1) @ (v - 1))
    np.testing.assert_array_equal(solve(fedlap.descent(**far), start).flat, start.flat)
    assert np.abs(solve(fedlap.descent(**far, tolerance=0.0), start).flat - 1).min() > 0.01


def test_descent_leaves_a_minimiser_alone():
    found = solving(lambda v: (v - 1) @ (v - 1))(fedlap.descent(), ones())
    np.testing.assert_array_equal(found.flat, 1)


# Adam.


def numpy_adam(gradient, w, batches, learning_rate, clip=None, moments=None):
    """Kingma and Ba, algorithm 1, with the norm of the gradient clipped."""
    m, s, t = moments or (np.zeros_like(w), np.zeros_like(w), 0)
    for batch in batches:
        g = gradient(w, batch)
        if clip is not None:
            g = g * min(1, clip / np.linalg.norm(g))
        t += 1
        m, s = 0.9 * m + 0.1 * g, 0.999 * s + 0.001 * g**2
        w = w - learning_rate * (m / (1 - 0.9**t)) / (np.sqrt(s / (1 - 0.999**t)) + 1e-8)
    return w, (m, s, t)


def mean_gradient(drawn, w, rows):
    """∇ of the mean loss over some rows of the pool."""
    data = oracle.labelled(drawn.inputs[rows], drawn.labels[rows], drawn.classes)
    return oracle.softmax.gradient(data, w) / data.n


@pytest.mark.parametrize("keep", [True, False], ids=["keep", "reset"])
@pytest.mark.parametrize("clip", [None, 0.4])
def test_adam_is_kingma_and_bas_on_the_planned_minibatches(keep, clip):
    """FedAvg of two rounds again in NumPy: minibatches, their short ends, bias correction and what is kept."""
    drawn = federation(4, overlap=True)
    solver = fedlap.adam(epochs=1, batch=6, learning_rate=0.05, keep=keep, clip=clip)
    run = simulation("fedavg", drawn, keep=keep, solver=solver)
    state, w_g, kept, lengths = run.init(), np.zeros(THREE.weights), [None] * 3, set()
    for round in range(2):
        plan, w = run.plan(round), []
        for k in range(3):
            batches = [rows[rows >= 0] for rows in plan.batches.rows[k][: plan.batches.steps[k]]]
            lengths |= {len(batch) for batch in batches}
            found, moments = numpy_adam(partial(mean_gradient, drawn), w_g, batches, 0.05, clip, kept[k])
            w.append(found)
            kept[k] = moments if keep else None
        w_g = drawn.sizes @ np.stack(w) / drawn.sizes.sum()
        state = run.step(state)
        assert distance(flat(state.server.w), w_g) < 1e-11
    assert len(lengths) > 1, "no batch is short; take another draw"


@pytest.mark.parametrize("clip", [None, 0.05])
def test_clipping_does_not_depend_on_how_the_objective_is_scaled(clip):
    """FedLap states its objective on the sum and eq. (18) on the mean: the same problem, and the same steps."""

    def steps(factor, mean_loss):
        n = jnp.asarray(8.0)
        targets = jnp.asarray(np.random.default_rng(0).normal(size=(8, 3)))
        loss = lambda rows: lambda v: n * ((v.tree - targets[rows]) ** 2).sum(1).mean() / 2
        whole = Client(*[None] * len(Client._fields))._replace(n=n, loss=loss(jnp.arange(8)))
        minibatch = lambda rows, step: whole._replace(loss=loss(rows))
        objective = lambda v, k: factor(n) * (k.loss(v) + 0.3 * v @ v)
        rows = jnp.asarray(np.random.default_rng(1).permutation(8).reshape(4, 2))
        problem = Problem(objective, Vector(jnp.ones(3)), whole, minibatch, rows, 4, mean_loss)
        found, _ = jax.jit(lambda: fedlap.adam(learning_rate=0.1, clip=clip).minimise(problem, ()))()
        mean = lambda w, batch: (w - np.asarray(targets)[batch].mean(0)) + 0.6 * w / 8
        wanted, _ = numpy_adam(mean, np.ones(3), np.asarray(rows), 0.1, clip)
        return np.asarray(found.tree), wanted

    (on_sum, wanted), (on_mean, _) = steps(lambda n: 1.0, False), steps(lambda n: 1 / n, True)
    np.testing.assert_allclose(on_sum, on_mean, rtol=1e-12)
    np.testing.assert_allclose(on_sum, wanted, rtol=1e-10)


def test_the_scale_of_a_problem_is_one_over_the_weight_of_its_data():
    whole = Client(*[None] * len(Client._fields))._replace(n=jnp.asarray(8.0), loss=lambda v: 8.0 * (v.tree**2).sum())
    start = Vector(jnp.ones(3))
    for objective, mean_loss, scale in (
        (lambda v, k: k.loss(v) + v @ v, False, 1 / 8),
        (lambda v, k: k.loss(v) / k.n, True, 1.0),
        (lambda v, k: jnp.mean(jnp.stack([k.loss(v), k.loss(2 * v)])) + 3.0, False, 1 / 8),
    ):
        problem = Problem(objective, start, whole, None, None, 0, mean_loss)
        np.testing.assert_allclose(problem.scale, scale, rtol=1e-12)
        np.testing.assert_allclose(problem.full_batch(start), scale * objective(start, whole), rtol=1e-12)


@given(n=st.integers(1, 30), batch=st.integers(1, 12), epochs=st.integers(1, 4), seed=st.integers(0, 9))
def test_an_epoch_visits_every_example_once(n, batch, epochs, seed):
    solver = fedlap.adam(epochs=epochs, batch=batch)
    rows = 100 + np.arange(n, dtype=np.int32)
    steps = solver.step_count(n)
    assert steps == epochs * int(np.ceil(n / batch))
    out = np.full((steps, batch), -1, np.int32)
    solver.schedule(np.random.default_rng(seed), rows, out)
    for epoch in np.split(out, epochs):
        flat_rows = epoch.reshape(-1)
        np.testing.assert_array_equal(np.sort(flat_rows[:n]), rows)
        assert (flat_rows[n:] == -1).all()  # the last batch is short, and all its real rows come first


def test_epochs_and_rounds_have_their_own_order():
    run = simulation("fedavg", solver=fedlap.adam(epochs=2, batch=6))
    first, second = (run.plan(round).batches.rows for round in (0, 1))
    assert not np.array_equal(first, second)
    longest = int(np.argmax(run.federation.sizes))
    epochs = first[longest].reshape(2, -1)
    assert sorted(epochs[0]) == sorted(epochs[1]) and not np.array_equal(epochs[0], epochs[1])
    np.testing.assert_array_equal(run.plan(0).batches.rows, first)


def test_a_minibatch_is_an_unbiased_estimate_of_the_sum():
    """With one batch an epoch, Adam sees the whole loss: FedLap's objective on the sum, at the scale of the mean."""
    drawn, delta = federation(4, overlap=True), 0.7
    run = simulation("fedlap", drawn, solver=fedlap.adam(epochs=1, batch=12, learning_rate=0.05))
    state = after(run, 1)
    for k, data in enumerate(points(drawn)):
        gradient = lambda w, _: (oracle.softmax.gradient(data, w) + delta * w) / data.n  # noqa: B023
        w_k, _ = numpy_adam(gradient, np.zeros(THREE.weights), [None], 0.05)
        assert distance(flat(state.clients.factor.v)[k], 0.4 * w_k) < 1e-11


def test_all_solvers_find_the_same_minimiser():
    """Adam with whole batches and many steps, on quadratic losses: within its learning rate of Newton."""
    drawn, method = federation(3, diagonal=True), fedlap.FedLap(delta=1.5, rho=0.3)
    _, exact = trajectory(method, drawn, 1, likelihood=Squared())
    slow = fedlap.adam(epochs=3000, batch=12, learning_rate=1e-3)
    _, found = trajectory(method, drawn, 1, likelihood=Squared(), solver=slow)
    assert distance(flat(found[-1].clients.factor.v), flat(exact[-1].clients.factor.v)) < 1e-3


# Steps.


def test_a_client_takes_its_own_steps_beside_longer_ones():
    """What passes goes on until the longest is done; here it counts the steps."""

    def added(numbers, steps):
        step = lambda i, kept, passing: (kept + pick(numbers, i) * passing, passing + 1)
        return repeat(steps, step, jnp.zeros(()), jnp.ones(()))

    numbers, steps = np.random.default_rng(0).normal(size=(3, 4, 7)), np.arange(12).reshape(3, 4) % 8
    counted = np.arange(1, 8) * (np.arange(7) < steps[..., None])
    expected = (numbers * counted).sum(-1)
    np.testing.assert_allclose(jax.vmap(jax.vmap(added))(numbers, steps), expected, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(added(jnp.asarray(numbers[2, 3]), 3), expected[2, 3], rtol=1e-12)


def test_a_row_is_picked_by_one_counter_or_by_many():
    rows, places = jnp.arange(24).reshape(2, 3, 4), jnp.array([2, 0])
    np.testing.assert_array_equal(jax.vmap(pick, (0, None))(rows, places[0]), rows[:, 2])
    np.testing.assert_array_equal(jax.vmap(pick)(rows, places), rows[jnp.arange(2), places])
    np.testing.assert_array_equal(jax.vmap(pick, (None, 0))(rows, jnp.array([1, 0])), rows[::-1])
