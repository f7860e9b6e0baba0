"""The convolution by products against XLA's own, and the max-pool against its windowed reduction."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from fedlap.models import convolution
from fedlap.models.convolution import convolve, max_pool, pad


def library(inputs, weight, padding):
    sides, layout = [(padding, padding)] * 2, ("NHWC", "HWIO", "NHWC")
    return lax.conv_general_dilated(inputs, weight, (1, 1), sides, dimension_numbers=layout)


def draw(n=6, height=7, width=5, channels=3, size=3, filters=4, seed=0):
    keys = jax.random.split(jax.random.key(seed))
    inputs = jax.random.normal(keys[0], (n, height, width, channels))
    return inputs, jax.random.normal(keys[1], (size, size, channels, filters))


def outputs_and_gradients(function, inputs, weight, padding):
    """The outputs, and the gradients of a scalar in which every output has a different part."""

    def scalar(inputs, weight):
        outputs = function(inputs, weight, padding)
        return (jnp.sin(jnp.arange(outputs.size)).reshape(outputs.shape) * outputs**2).sum(), outputs

    (_, outputs), gradients = jax.jit(jax.value_and_grad(scalar, (0, 1), has_aux=True))(inputs, weight)
    return outputs, *gradients


def assert_close(found, expected):
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-10)


def assert_same_convolution(drawn, padding):
    assert_close(*(outputs_and_gradients(function, *drawn, padding) for function in (convolve, library)))


# Each form of the product by sizes that take it: 3 × 3 filters of many channels, few channels, and any other filters.
FORMS = {
    "winograd": {"channels": 16, "filters": 18},
    "planes": {"channels": 3},
    "patches": {"channels": 16, "filters": 4},
}


@pytest.fixture(params=["winograd", "patches"])
def groups(request, monkeypatch):
    """Sizes of which two of the six images make a group, with a padding of one."""
    sizes = FORMS[request.param]
    inputs, _ = draw(**sizes)
    winograd, cut = 16 * 4 * 3 * (16 + 18), 9 * pad(inputs, 1)[0].size
    numbers = winograd if request.param == "winograd" else cut
    monkeypatch.setattr(convolution, "CACHED", 2 * numbers)
    assert convolution.group_size(len(inputs), numbers) == 2
    return sizes


@pytest.mark.parametrize(("form", "padding"), [("winograd", 0), ("planes", 0), ("planes", 1), ("patches", 0)])
def test_outputs_and_both_gradients_are_the_librarys(form, padding):
    assert_same_convolution(draw(**FORMS[form]), padding)


@pytest.mark.parametrize(("size", "padding"), [(5, 2), (2, 0), (1, 0)])
def test_filters_of_other_sizes(size, padding):
    assert_same_convolution(draw(size=size, channels=16, filters=16), padding)


def test_sides_of_an_even_length_and_more_padding_than_the_filter_needs():
    assert_same_convolution(draw(height=6, width=8, **FORMS["winograd"]), 3)


def test_groups_of_images_add_up(groups):
    assert_same_convolution(draw(**groups), 1)


def test_a_prime_number_of_images_larger_than_the_cache(monkeypatch):
    monkeypatch.setattr(convolution, "CACHED", 1)
    assert_same_convolution(draw(n=5, **FORMS["patches"]), 0)


def test_winograds_form_is_exact_to_rounding_in_single_precision():
    drawn = draw(n=4, height=16, width=16, seed=5, **FORMS["winograd"])
    exact = outputs_and_gradients(library, *drawn, 1)
    single = [array.astype(jnp.float32) for array in drawn]
    for found, known in zip(outputs_and_gradients(convolve, *single, 1), exact, strict=True):
        assert abs(found - known).max() < 3e-6 * abs(known).max()


@pytest.mark.parametrize("form", FORMS)
def test_no_images_have_no_outputs_and_no_gradient(form):
    """As of a memory without points."""
    images, weight = draw(n=0, **FORMS[form])
    outputs, pullback = jax.vjp(convolve, images, weight)
    assert outputs.shape == (0, 5, 3, weight.shape[-1])
    to_images, to_weight = pullback(outputs)
    assert to_images.shape == images.shape and not to_weight.any()


def test_under_vmap_over_clients(groups):
    first, second = draw(**groups), draw(seed=1, **groups)
    stacked = [jnp.stack(pair) for pair in zip(first, second, strict=True)]
    together = jax.vmap(lambda x, w: outputs_and_gradients(convolve, x, w, 1))(*stacked)
    expected = [outputs_and_gradients(library, *drawn, 1) for drawn in (first, second)]
    assert_close(together, [jnp.stack(pair) for pair in zip(*expected, strict=True)])


def test_under_vmapped_pullbacks(groups):
    inputs, weight = draw(**groups)
    columns = jax.random.normal(jax.random.key(3), (2, *convolve(inputs, weight, 1).shape))

    def pull(function):
        pullback = lambda column: jax.vjp(lambda x: function(x, weight, 1), inputs)[1](column)[0]
        return jax.jit(jax.vmap(pullback))(columns)

    np.testing.assert_allclose(pull(convolve), pull(library), atol=1e-10)


def test_inside_a_loop(groups):
    inputs, weight = draw(**groups)

    def descend(function):
        loss = lambda weight: jnp.tanh(function(inputs, weight, 1)).sum()
        step = lambda _, weight: weight - 0.01 * jax.grad(loss)(weight)
        return jax.jit(lambda steps, weight: lax.fori_loop(0, steps, step, weight))(3, weight)

    np.testing.assert_allclose(descend(convolve), descend(library), atol=1e-10)


def test_second_derivatives():
    inputs, weight = draw(n=2, height=4, width=4, channels=1, size=2, filters=2)

    def hessian(function):
        return jax.jit(jax.hessian(lambda w: jnp.tanh(function(inputs, w, 0)).sum()))(weight)

    np.testing.assert_allclose(hessian(convolve), hessian(library), atol=1e-10)


@pytest.mark.parametrize(("platform", "by_library"), [("cpu", False), ("cuda", True)])
@pytest.mark.parametrize("form", FORMS)
def test_the_library_convolves_on_accelerators_only(form, platform, by_library):
    step = jax.jit(jax.grad(lambda x, w: (convolve(x, w, 1) ** 2).sum(), (0, 1)))
    text = step.trace(*draw(**FORMS[form])).lower(lowering_platforms=(platform,)).as_text()
    assert ("stablehlo.convolution" in text) == by_library


@pytest.mark.parametrize("shape", [(2, 6, 6, 3), (2, 7, 5, 3)])
def test_max_pool_is_the_windowed_maximum(shape):
    images, window = jax.random.normal(jax.random.key(0), shape), (1, 2, 2, 1)

    def value_and_gradient(pool):
        function = lambda images: ((pool(images) ** 2).sum(), pool(images))
        return jax.jit(jax.value_and_grad(function, has_aux=True))(images)

    reference = lambda images: lax.reduce_window(images, -jnp.inf, lax.max, window, window, "VALID")
    found, expected = value_and_gradient(lambda images: max_pool(images, 2)), value_and_gradient(reference)
    jax.tree.map(np.testing.assert_allclose, found, expected)
