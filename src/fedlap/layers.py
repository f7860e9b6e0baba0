"""Layers of a network: frozen values that hold sizes, while their weights are passed in.

A layer with weights also gives the diagonal of Σ_i ω_i JᵢᵀFᵢFᵢᵀJᵢ with respect to them, from its inputs and the
columns of F pulled back to its outputs (`cotangents`, [columns, n, ...]).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import jax
import jax.numpy as jnp

from .convolution import convolve, max_pool, pad, patches
from .errors import unknown

ACTIVATIONS = {"relu": jax.nn.relu, "sigmoid": jax.nn.sigmoid, "tanh": jnp.tanh}


@runtime_checkable
class Weighted(Protocol):
    """A layer with weights; the others have `apply` alone. `key` is given in training only."""

    def init(self, key, inputs, classes): ...
    def apply(self, params, inputs, key=None): ...
    def squared_gradients(self, inputs, cotangents, weights): ...


def uniform(key, shape, fan_in):
    """U(−1/√fan_in, 1/√fan_in), PyTorch's default for weights and biases alike."""
    bound = 1 / math.sqrt(fan_in)
    return jax.random.uniform(key, shape, minval=-bound, maxval=bound)


def zeros(key, shape, fan_in):
    return jnp.zeros(shape)


def product(inputs, weight):
    """x Wᵀ."""
    return _tiny_product(inputs, weight) if inputs.size * len(weight) <= TINY else inputs @ weight.T


# Below this many multiplications a call of the matrix product costs more than the product: in a round of tiny
# steps, the weight gradient written out as a sum is twice as fast.
TINY = 4096


@jax.custom_jvp
def _tiny_product(inputs, weight):
    return inputs @ weight.T


@_tiny_product.defjvp
def _tiny_product_jvp(primals, tangents):
    (inputs, weight), (input_tangent, weight_tangent) = primals, tangents
    written_out = (inputs[:, None, :] * weight_tangent).sum(-1)
    return _tiny_product(inputs, weight), input_tangent @ weight.T + written_out


@dataclass(frozen=True)
class Dense:
    """y = xWᵀ + b, W of [outputs, inputs]; a width of None is the number of classes."""

    width: int | None = None
    bias: bool = True
    draw: Callable = uniform

    def init(self, key, inputs, classes):
        (fan_in,) = inputs.shape[1:]
        width = classes if self.width is None else self.width
        return _draw(self, key, (width, fan_in), width, fan_in)

    def apply(self, params, inputs, key=None):
        return _add_bias(params, product(inputs, params["weight"]))

    def squared_gradients(self, inputs, cotangents, weights):
        """(∂/∂W_ab)² = x_a² g_b², so the sum over examples is one product and no example's gradient is formed."""
        squares = weights[:, None] * sum_of_squares(cotangents)
        return _keep_bias(self, squares.T @ inputs**2, squares.sum(0))


@dataclass(frozen=True)
class Convolution:
    """A stride 1 convolution of [n, height, width, channels]."""

    width: int
    size: int
    padding: int = 0
    bias: bool = True
    draw: Callable = uniform

    def init(self, key, inputs, classes):
        shape = (self.size, self.size, inputs.shape[-1], self.width)
        return _draw(self, key, shape, self.width, math.prod(shape[:-1]))

    def apply(self, params, inputs, key=None):
        return _add_bias(params, convolve(inputs, params["weight"], self.padding))

    def squared_gradients(self, inputs, cotangents, weights):
        """A weight is used at every position, so each example's gradient PᵀG must be formed before it is squared."""
        columns = patches(pad(inputs, self.padding), self.size)
        channels = inputs.shape[-1]
        gradients = jnp.einsum("nhwp,cnhwo->cnop", columns, cotangents)
        weight = jnp.tensordot(weights, sum_of_squares(gradients), 1)
        bias = jnp.tensordot(weights, sum_of_squares(cotangents.sum((2, 3))), 1)
        return _keep_bias(self, weight.T.reshape(self.size, self.size, channels, self.width), bias)


@dataclass(frozen=True)
class Activation:
    """A nonlinearity by name."""

    name: str

    def __post_init__(self):
        if self.name not in ACTIVATIONS:
            raise unknown("activation", self.name, ACTIVATIONS)

    def apply(self, params, inputs, key=None):
        return ACTIVATIONS[self.name](inputs)


@dataclass(frozen=True)
class Flatten:
    """One row of numbers per example."""

    def apply(self, params, inputs, key=None):
        return inputs.reshape(len(inputs), -1)


@dataclass(frozen=True)
class MaxPool:
    """The largest of each size × size window."""

    size: int = 2

    def apply(self, params, inputs, key=None):
        return max_pool(inputs, self.size)


@dataclass(frozen=True)
class Dropout:
    """In training, each number is zero with probability `rate` and otherwise divided by 1 − rate."""

    rate: float

    def apply(self, params, inputs, key=None):
        if key is None:
            return inputs
        kept = jax.random.bernoulli(key, 1 - self.rate, inputs.shape)
        return jnp.where(kept, inputs / (1 - self.rate), 0)


def sum_of_squares(columns):
    """Σ_c columns_c²."""
    # Unrolled, because XLA:CPU hands a reduction over the leading axis to a library that is several times slower.
    total = columns[0] ** 2
    for column in columns[1:]:
        total = total + column**2
    return total


def _draw(layer, key, shape, width, fan_in):
    weight_key, bias_key = jax.random.split(key)
    return _keep_bias(layer, layer.draw(weight_key, shape, fan_in), layer.draw(bias_key, (width,), fan_in))


def _keep_bias(layer, weight, bias):
    return {"weight": weight, "bias": bias} if layer.bias else {"weight": weight}


def _add_bias(params, outputs):
    return outputs + params["bias"] if "bias" in params else outputs
