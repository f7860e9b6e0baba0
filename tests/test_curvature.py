"""Curvature against dense references from the definition."""

from dataclasses import dataclass
from functools import cache, partial

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

from fedlap.models import curvature
from fedlap.models.curvature import ExactHessian, Examples, GaussNewton
from fedlap.models.likelihood import categorical
from fedlap.models.model import Model, as_model
from fedlap.models.network import Activation, Convolution, Dense, Flatten, MaxPool, Network, logistic, mlp, zenke_cnn

KEY = jax.random.key(0)
CLASSES = 3
POOL = 12
ROWS = jnp.array([3, 7, 1, 11, 5, 0, 0])
WEIGHTS = jnp.array([1.0, 2.0, 0.5, 1.0, 3.0, 9.0, 9.0])
COUNT = 5


class Perceptron(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.Dense(CLASSES)(nn.tanh(nn.Dense(4)(x)))


def cnn():
    first = Convolution(3, 3, padding=1), Activation("relu"), MaxPool()
    second = Convolution(4, 2, bias=False), Activation("tanh")
    return Network((*first, *second, Flatten(), Dense(5), Activation("sigmoid"), Dense()))


MODELS = {
    "logistic": (logistic(), (4,)),
    "logistic with bias": (logistic(bias=True), (4,)),
    "relu": (mlp((6, 5), "relu"), (2, 3)),
    "sigmoid": (mlp((6, 5), "sigmoid"), (2, 3)),
    "tanh": (mlp((6, 5), "tanh"), (2, 3)),
    "convolutional": (cnn(), (6, 7, 2)),
    "flax": (as_model(Perceptron()), (4,)),
}


@pytest.fixture(params=MODELS)
def problem(request):
    """A model, its weights away from zero, a pool of inputs and labels."""
    return make(request.param)


@cache
def make(name):
    model, shape = MODELS[name]
    inputs = jax.random.normal(jax.random.key(1), (POOL, *shape))
    params = model.init(jax.random.key(2), inputs, CLASSES)
    flat, unravel = ravel_pytree(params)
    params = unravel(flat + 0.3 * jax.random.normal(jax.random.key(3), flat.shape))
    return model, params, inputs, jnp.arange(POOL) % CLASSES


@pytest.fixture(params=[1, 2], ids=["chunks of one", "chunks of two"])
def chunks(request, monkeypatch):
    """Chunks smaller than the data, of which the last is not always full."""
    monkeypatch.setattr(curvature, "layer_chunk", lambda *_: request.param)
    monkeypatch.setattr(curvature, "example_chunk", lambda *_: request.param)


def softmax_hessian(f):
    p = jax.nn.softmax(f)
    return jax.vmap(jnp.diag)(p) - p[:, :, None] * p[:, None, :]


@partial(jax.jit, static_argnames=("model", "hessian"))
def dense(model, params, inputs, rows, weights, hessian=softmax_hessian):
    """Σ_i ω_i JᵢᵀΛᵢJᵢ with every Jacobian written out."""
    flat, unravel = ravel_pytree(params)
    outputs = lambda flat: model.apply(unravel(flat), inputs[rows])
    jacobian = jax.jacobian(outputs)(flat)
    return jnp.einsum("n,nap,nab,nbq->pq", weights, jacobian, hessian(outputs(flat)), jacobian)


def flat(tree):
    return ravel_pytree(tree)[0]


def of(structure, problem, method=None, likelihood=categorical, rows=ROWS, weights=WEIGHTS, count=COUNT, key=KEY):
    model, params, inputs, labels = problem
    function = getattr(method or GaussNewton(), structure)
    compiled = jax.jit(lambda *given: function(model, likelihood, *given))
    found = compiled(params, Examples(inputs, labels, rows, weights, count, key))
    return flat(found) if structure == "diagonal" else found


def reference(problem):
    model, params, inputs, _ = problem
    return dense(model, params, inputs, ROWS[:COUNT], WEIGHTS[:COUNT])


def assert_both_are_those_of_the_dense_matrix(problem):
    """In one program, for to compile them is all that takes time."""
    model, params, inputs, labels = problem
    data = Examples(inputs, labels, ROWS, WEIGHTS, COUNT, KEY)
    both = lambda *given: [getattr(GaussNewton(), each)(model, categorical, *given) for each in ("diagonal", "full")]
    diagonal, full = jax.jit(both)(params, data)
    expected = reference(problem)
    np.testing.assert_allclose(flat(diagonal), jnp.diagonal(expected), atol=1e-10)
    np.testing.assert_allclose(full, expected, atol=1e-10)


def test_both_structures_are_those_of_the_dense_matrix(problem):
    assert_both_are_those_of_the_dense_matrix(problem)


@pytest.mark.parametrize("name", ["relu", "convolutional", "flax"])
def test_chunks_add_up(name, chunks):
    assert_both_are_those_of_the_dense_matrix(make(name))


def test_diagonal_has_the_shape_of_the_parameters(problem):
    model, params, inputs, labels = problem
    function = lambda *given: GaussNewton().diagonal(model, categorical, *given)
    found = jax.eval_shape(function, params, Examples(inputs, labels, ROWS, WEIGHTS, COUNT, KEY))
    assert jax.tree.structure(found) == jax.tree.structure(params)
    assert [a.shape for a in jax.tree.leaves(found)] == [a.shape for a in jax.tree.leaves(params)]


@pytest.mark.parametrize("name", ["sigmoid", "convolutional"])
def test_layers_and_examples_agree(name):
    problem = model, params, inputs, labels = make(name)
    opaque = Model(lambda key, inputs: params, model.apply), params, inputs, labels
    np.testing.assert_allclose(of("diagonal", problem), of("diagonal", opaque), atol=1e-12)


def test_only_the_first_rows_count(chunks):
    model, params, inputs, labels = make("relu")

    @jax.jit
    def both(count):
        given = model, categorical, params, Examples(inputs, labels, ROWS, WEIGHTS, count, KEY)
        return GaussNewton().diagonal(*given), GaussNewton().full(*given)

    for count in (0, 1, 4, 7):
        kept = jnp.where(jnp.arange(len(ROWS)) < count, WEIGHTS, 0)
        expected = dense(model, params, inputs, ROWS, kept)
        diagonal, full = both(count)
        np.testing.assert_allclose(flat(diagonal), jnp.diagonal(expected), atol=1e-10)
        np.testing.assert_allclose(full, expected, atol=1e-10)
    assert both._cache_size() == 1


def test_hessian_of_logistic_regression_is_its_gauss_newton_matrix(chunks):
    problem = make("logistic with bias")
    np.testing.assert_allclose(of("full", problem, ExactHessian()), of("full", problem), atol=1e-12)
    np.testing.assert_allclose(of("diagonal", problem, ExactHessian()), of("diagonal", problem), atol=1e-12)


@pytest.mark.parametrize("name", ["tanh", "convolutional"])
def test_exact_hessian_is_the_hessian_of_the_loss(name):
    problem = model, params, inputs, labels = make(name)
    rows, weights = ROWS[:COUNT], WEIGHTS[:COUNT]
    start, unravel = ravel_pytree(params)
    loss = lambda w: weights @ categorical.loss(model.apply(unravel(w), inputs[rows]), labels[rows])
    # Differences of gradients, so that the reference shares no second derivative with what it checks.
    step, gradient = 1e-5, jax.jit(jax.vmap(jax.grad(loss)))
    shifts = step * jnp.eye(start.size)
    expected = (gradient(start + shifts) - gradient(start - shifts)) / (2 * step)
    np.testing.assert_allclose(of("full", problem, ExactHessian()), expected, atol=1e-7)


@dataclass(frozen=True)
class Poisson:
    """Independent counts with log-rates f: Λ = diag(exp f)."""

    def factor(self, outputs):
        return jax.vmap(jnp.diag)(jnp.exp(outputs / 2))


@pytest.mark.parametrize("name", ["sigmoid", "flax"])
def test_any_likelihood_serves(name):
    problem = model, params, inputs, _ = make(name)
    rates = lambda f: jax.vmap(jnp.diag)(jnp.exp(f))
    expected = dense(model, params, inputs, ROWS[:COUNT], WEIGHTS[:COUNT], rates)
    np.testing.assert_allclose(of("full", problem, likelihood=Poisson()), expected, rtol=1e-9, atol=1e-9)
    found = of("diagonal", problem, likelihood=Poisson())
    np.testing.assert_allclose(found, jnp.diagonal(expected), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", ["relu", "convolutional", "flax"])
def test_monte_carlo_fisher_converges_to_the_exact_one(name):
    # Each estimate is unbiased, and the standard error of their mean is measured from them: six of them for
    # each of at most 200 weights are exceeded by chance less than once in a million times.
    problem, repeats = make(name), 400
    exact = of("diagonal", problem)
    draw = lambda key: of("diagonal", problem, GaussNewton(samples=2), key=key)
    estimates = jax.lax.map(draw, jax.random.split(KEY, repeats))
    error = jnp.abs(estimates.mean(0) - exact)
    assert (error <= 6 * estimates.std(0) / repeats**0.5 + 1e-12).all()
    assert estimates.std(0).max() > 0


def test_monte_carlo_full_matches_its_diagonal():
    problem, method = make("tanh"), GaussNewton(samples=3)
    np.testing.assert_allclose(jnp.diagonal(of("full", problem, method)), of("diagonal", problem, method), atol=1e-12)


def test_chunks_draw_differently(monkeypatch):
    problem = make("tanh")
    monkeypatch.setattr(curvature, "layer_chunk", lambda *_: 1)
    same = jnp.full(4, 2)
    method = GaussNewton(samples=1)
    each = of("diagonal", problem, method, rows=same, weights=jnp.ones(4), count=1)
    four = of("diagonal", problem, method, rows=same, weights=jnp.ones(4), count=4)
    assert jnp.abs(four - 4 * each).max() > 1e-6


@pytest.mark.parametrize("name", ["logistic", "relu", "convolutional", "flax"])
def test_vmap_over_clients_inside_a_loop(name, monkeypatch):
    monkeypatch.setattr(curvature, "PASSED", 500)
    model, params, inputs, labels = make(name)
    rows, weights = jnp.stack([ROWS, ROWS[::-1]]), jnp.stack([WEIGHTS, WEIGHTS + 1])
    counts = jnp.array([COUNT, 2])
    many = jax.tree.map(lambda leaf: jnp.stack([leaf, 2 * leaf]), params)

    @jax.jit
    def twice(many, rows, weights, counts):
        def client(params, *given):
            return GaussNewton().diagonal(model, categorical, params, Examples(inputs, labels, *given, KEY))

        step = lambda _, total: jax.tree.map(jnp.add, total, jax.vmap(client)(many, rows, weights, counts))
        return jax.lax.fori_loop(0, 2, step, jax.tree.map(jnp.zeros_like, many))

    found = twice(many, rows, weights, counts)
    for k in range(2):
        pick = lambda tree, k=k: jax.tree.map(lambda leaf: leaf[k], tree)
        count = int(counts[k])
        expected = dense(model, pick(many), inputs, rows[k, :count], weights[k, :count])
        np.testing.assert_allclose(flat(pick(found)), 2 * jnp.diagonal(expected), atol=1e-10)


def test_chunks_are_sized_by_the_layers():
    def chunk(model, *shape):
        inputs = jnp.zeros((1, *shape))
        params = jax.eval_shape(lambda: model.init(KEY, inputs, 10))
        factor = lambda outputs, key: categorical.factor(outputs)
        return curvature.layer_chunk(model, factor, params, inputs, KEY)

    assert 100 <= chunk(mlp(), 28, 28) <= 400
    assert chunk(logistic(), 50) > 5_000
    assert chunk(zenke_cnn(), 32, 32, 3) == 1
