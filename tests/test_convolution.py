"""The convolution by products against XLA's own, and the max-pool against its windowed reduction."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from fedlap import convolution
from fedlap.convolution import convolve, max_pool


def library(inputs, weight, padding):
    sides = [(padding, padding)] * 2
    return lax.conv_general_dilated(inputs, weight, (1, 1), sides, dimension_numbers=("NHWC", "HWIO", "NHWC"))


def draw(n=6, height=7, width=5, channels=3, size=3, filters=4, seed=0):
    keys = jax.random.split(jax.random.key(seed))
    inputs = jax.random.normal(keys[0], (n, height, width, channels))
    return inputs, jax.random.normal(keys[1], (size, size, channels, filters))


def value_and_gradients(function, inputs, weight, padding):
    """The outputs, and the gradients of a scalar in which every output has a different part."""

    def scalar(inputs, weight):
        outputs = function(inputs, weight, padding)
        return (jnp.sin(jnp.arange(outputs.size)).reshape(outputs.shape) * outputs**2).sum()

    return function(inputs, weight, padding), *jax.grad(scalar, (0, 1))(inputs, weight)


def assert_close(found, expected):
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-10)


@pytest.fixture(params=[1, 400, convolution.CACHED], ids=["one image", "some images", "all images"])
def group(request, monkeypatch):
    """Groups of one, of a few and of all the images."""
    monkeypatch.setattr(convolution, "CACHED", request.param)


@pytest.mark.parametrize(("size", "padding"), [(3, 0), (3, 1), (5, 2), (2, 0), (1, 0)])
def test_outputs_and_both_gradients_are_the_librarys(group, size, padding):
    drawn = draw(size=size)
    assert_close(
        value_and_gradients(convolve, *drawn, padding), value_and_gradients(library, *drawn, padding)
    )


def test_under_vmap_over_clients(group):
    first, second = draw(), draw(seed=1)
    stacked = [jnp.stack(pair) for pair in zip(first, second, strict=True)]
    together = jax.vmap(lambda x, w: value_and_gradients(convolve, x, w, 1))(*stacked)
    expected = [value_and_gradients(library, *drawn, 1) for drawn in (first, second)]
    assert_close(together, [jnp.stack(pair) for pair in zip(*expected, strict=True)])


def test_under_vmapped_pullbacks(group):
    inputs, weight = draw()
    outputs, pullback = jax.vjp(lambda x: convolve(x, weight, 1), inputs)
    columns = jax.random.normal(jax.random.key(3), (2, *outputs.shape))
    _, reference = jax.vjp(lambda x: library(x, weight, 1), inputs)
    assert_close(jax.vmap(pullback)(columns), jax.vmap(reference)(columns))


def test_inside_a_loop(group):
    inputs, weight = draw()

    def descend(function):
        loss = lambda weight: jnp.tanh(function(inputs, weight, 1)).sum()
        step = lambda _, weight: weight - 0.01 * jax.grad(loss)(weight)
        return jax.jit(lambda steps, weight: lax.fori_loop(0, steps, step, weight))(3, weight)

    np.testing.assert_allclose(descend(convolve), descend(library), atol=1e-10)


def test_second_derivatives(group):
    inputs, weight = draw(n=2, height=4, width=4, channels=1, filters=2)
    hessian = lambda function: jax.hessian(lambda w: jnp.tanh(function(inputs, w, 0)).sum())(weight)
    np.testing.assert_allclose(hessian(convolve), hessian(library), atol=1e-10)


def test_no_library_convolution_is_lowered_for_a_cpu():
    inputs, weight = draw()
    step = jax.jit(jax.grad(lambda x, w: (convolve(x, w, 1) ** 2).sum(), (0, 1)))
    operation = "stablehlo.convolution"
    for platform, library_expected in (("cpu", False), ("cuda", True)):
        text = step.trace(inputs, weight).lower(lowering_platforms=(platform,)).as_text()
        assert (operation in text) == library_expected


@pytest.mark.parametrize("shape", [(2, 6, 6, 3), (2, 7, 5, 3)])
def test_max_pool_is_the_windowed_maximum(shape):
    images = jax.random.normal(jax.random.key(0), shape)
    window = (1, 2, 2, 1)
    reference = lambda images: lax.reduce_window(images, -jnp.inf, lax.max, window, window, "VALID")
    np.testing.assert_array_equal(max_pool(images, 2), reference(images))
    gradients = [
        jax.grad(lambda x, f=f: (f(x) ** 2).sum())(images) for f in (lambda x: max_pool(x, 2), reference)
    ]
    np.testing.assert_allclose(*gradients)
