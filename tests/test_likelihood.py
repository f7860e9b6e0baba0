"""The categorical likelihood against its definition."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedlap.models.likelihood import categorical


def outputs(n=5, classes=4, scale=2.0, seed=0):
    return scale * jax.random.normal(jax.random.key(seed), (n, classes))


def test_loss_is_minus_the_log_probability_of_the_label():
    f, y = outputs(), jnp.array([0, 1, 2, 3, 0])
    expected = -jnp.log(categorical.probabilities(f)[jnp.arange(5), y])
    np.testing.assert_allclose(categorical.loss(f, y), expected, rtol=1e-12)


def test_loss_and_its_gradient_survive_extreme_outputs():
    f, y = jnp.array([[1e4, -1e4, 0.0]]), jnp.array([1])
    gradient = jax.grad(lambda f: categorical.loss(f, y).sum())(f)
    np.testing.assert_allclose(categorical.loss(f, y), [2e4])
    np.testing.assert_allclose(gradient, [[1.0, -1.0, 0.0]])
    assert np.isfinite(categorical.factor(f)).all()


def test_soft_loss_is_the_cross_entropy_of_normalised_targets():
    f = outputs()
    targets = categorical.probabilities(outputs(seed=1))
    expected = -(targets * jax.nn.log_softmax(f)).sum(-1)
    np.testing.assert_allclose(categorical.soft_loss(f, jnp.ones(5), targets), expected, rtol=1e-12)


@given(st.floats(-3, 3), st.floats(-3, 3))
def test_soft_loss_is_linear_in_mass_and_targets(a, b):
    f = outputs()
    first = jnp.arange(5.0), outputs(seed=1)
    second = jnp.ones(5), outputs(seed=2)
    together = [a * x + b * y for x, y in zip(first, second, strict=True)]
    expected = a * categorical.soft_loss(f, *first) + b * categorical.soft_loss(f, *second)
    np.testing.assert_allclose(categorical.soft_loss(f, *together), expected, atol=1e-10)


@pytest.mark.parametrize("scale", [0.0, 2.0, 50.0])
def test_factor_squares_to_the_hessian_of_the_loss(scale):
    f, y = outputs(scale=scale), jnp.zeros(5, int)
    hessian = jax.vmap(jax.hessian(lambda f, y: categorical.loss(f[None], y[None])[0]))(f, y)
    factor = categorical.factor(f)
    assert factor.shape == (5, 4, 3)
    np.testing.assert_allclose(factor @ factor.mT, hessian, atol=1e-14)


def test_sampled_factor_is_unbiased():
    # The entries of FFᵀ are means of M draws that lie in [−1, 1]; five standard errors are below 5/√M.
    f, samples = outputs(n=3), 40_000
    factor = categorical.sampled_factor(f, jax.random.key(7), samples)
    exact = categorical.factor(f)
    assert factor.shape == (3, 4, samples)
    np.testing.assert_allclose(factor @ factor.mT, exact @ exact.mT, atol=5 / samples**0.5)
