"""Layers of a network: frozen values that hold sizes, while their weights are passed in.

A layer with weights also gives the diagonal of Σ_i ω_i JᵢᵀFᵢFᵢᵀJᵢ with respect to them, from its inputs and
the columns of F pulled back to its outputs (`cotangents`, [columns, n, ...]).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import jax
import jax.numpy as jnp

from fedlap.errors import unknown
from fedlap.models.convolution import convolve, max_pool, pad, patches

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
        """Σ_i ω_i x_ia² Σ_c g_icb²: one product, and no example's gradient is formed."""
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
        """Σ_i ω_i Σ_c (G_icᵀPᵢ)²: the square is of a sum over positions, so each gradient must be formed."""
        columns = patches(pad(inputs, self.padding), self.size)

        # One column of F at a time, so that its products stay in the cache.
        def add(total, cotangent):
            return total + jnp.einsum("nhwo,nhwp->nop", cotangent, columns) ** 2, None

        none = jnp.zeros((len(inputs), self.width, columns.shape[-1]), cotangents.dtype)
        weight = jnp.tensordot(weights, jax.lax.scan(add, none, cotangents)[0], 1).T
        bias = jnp.tensordot(weights, sum_of_squares(cotangents.sum((2, 3))), 1)
        return _keep_bias(self, weight.reshape(self.size, self.size, -1, self.width), bias)


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
        return inputs.reshape(len(inputs), math.prod(inputs.shape[1:]))


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
    # Unrolled: a reduction over the leading axis goes to a library that is several times slower on CPUs.
    return sum(column**2 for column in columns)


def _draw(layer, key, shape, width, fan_in):
    weight_key, bias_key = jax.random.split(key)
    return _keep_bias(layer, layer.draw(weight_key, shape, fan_in), layer.draw(bias_key, (width,), fan_in))


def _keep_bias(layer, weight, bias):
    return {"weight": weight, "bias": bias} if layer.bias else {"weight": weight}


def _add_bias(params, outputs):
    return outputs + params["bias"] if "bias" in params else outputs
