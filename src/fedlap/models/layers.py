"""Layers of a network: frozen values that hold sizes, while their weights are passed in.

A layer with weights also gives the diagonal of Σ_i ω_i JᵢᵀFᵢFᵢᵀJᵢ with respect to them, from its inputs and
the columns of F pulled back to its outputs (`cotangents`, [columns, n, ...]).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, cast, runtime_checkable

import jax
import jax.numpy as jnp

from fedlap.arrays import Array, Key
from fedlap.errors import unknown
from fedlap.models.convolution import convolve, max_pool, pad, patches

ACTIVATIONS: dict[str, Callable[[Array], Array]] = {"relu": jax.nn.relu, "sigmoid": jax.nn.sigmoid, "tanh": jnp.tanh}


Params = dict[str, Array]  # the weights of one layer, by name; empty if it has none
Draw = Callable[[Key, tuple[int, ...], int], Array]  # (key, shape, fan_in) → the weights to begin with


class Layer(Protocol):
    """What every layer has. `key` is given in training only."""

    def apply(self, params: Params, inputs: Array, key: Key | None = None) -> Array: ...


@runtime_checkable
class Weighted(Protocol):
    """A layer with weights."""

    def init(self, key: Key, inputs: Array, classes: int) -> Params: ...
    def apply(self, params: Params, inputs: Array, key: Key | None = None) -> Array: ...
    def squared_gradients(self, inputs: Array, cotangents: Array, weights: Array) -> Params: ...


def uniform(key: Key, shape: tuple[int, ...], fan_in: int) -> Array:
    """U(−1/√fan_in, 1/√fan_in), PyTorch's default for weights and biases alike."""
    bound = 1 / math.sqrt(fan_in)
    return jax.random.uniform(key, shape, minval=-bound, maxval=bound)


def zeros(key: Key, shape: tuple[int, ...], fan_in: int) -> Array:
    """Zeros, whatever the key."""
    return jnp.zeros(shape)


def product(inputs: Array, weight: Array) -> Array:
    """x Wᵀ."""
    return _tiny_product(inputs, weight) if inputs.size * len(weight) <= TINY else inputs @ weight.T


# Below this many multiplications a call of the matrix product costs more than the product: in a round of tiny
# steps, the weight gradient written out as a sum is twice as fast.
TINY = 4096


@jax.custom_jvp
def _tiny_product(inputs: Array, weight: Array) -> Array:
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
    draw: Draw = uniform

    def init(self, key: Key, inputs: Array, classes: int) -> Params:
        (fan_in,) = inputs.shape[1:]
        width = classes if self.width is None else self.width
        return _draw(self, key, (width, fan_in), width, fan_in)

    def apply(self, params: Params, inputs: Array, key: Key | None = None) -> Array:
        return _add_bias(params, product(inputs, params["weight"]))

    def squared_gradients(self, inputs: Array, cotangents: Array, weights: Array) -> Params:
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
    draw: Draw = uniform

    def init(self, key: Key, inputs: Array, classes: int) -> Params:
        shape = (self.size, self.size, inputs.shape[-1], self.width)
        return _draw(self, key, shape, self.width, math.prod(shape[:-1]))

    def apply(self, params: Params, inputs: Array, key: Key | None = None) -> Array:
        return _add_bias(params, convolve(inputs, params["weight"], self.padding))

    def squared_gradients(self, inputs: Array, cotangents: Array, weights: Array) -> Params:
        """Σ_i ω_i Σ_c (G_icᵀPᵢ)²: the square is of a sum over positions, so each gradient must be formed."""
        columns = patches(pad(inputs, self.padding), self.size)

        # One column of F at a time, so that its products stay in the cache.
        def add(total: Array, cotangent: Array) -> tuple[Array, None]:
            return total + jnp.einsum("nhwo,nhwp->nop", cotangent, columns) ** 2, None

        none = jnp.zeros((len(inputs), self.width, columns.shape[-1]), cotangents.dtype)
        weight = jnp.tensordot(weights, jax.lax.scan(add, none, cotangents)[0], 1).T
        bias = jnp.tensordot(weights, sum_of_squares(cotangents.sum((2, 3))), 1)
        return _keep_bias(self, weight.reshape(self.size, self.size, -1, self.width), bias)


@dataclass(frozen=True)
class Activation:
    """A nonlinearity by name."""

    name: str

    def __post_init__(self) -> None:
        if self.name not in ACTIVATIONS:
            raise unknown("activation", self.name, ACTIVATIONS)

    def apply(self, params: Params, inputs: Array, key: Key | None = None) -> Array:
        return ACTIVATIONS[self.name](inputs)


@dataclass(frozen=True)
class Flatten:
    """One row of numbers per example."""

    def apply(self, params: Params, inputs: Array, key: Key | None = None) -> Array:
        return inputs.reshape(len(inputs), math.prod(inputs.shape[1:]))


@dataclass(frozen=True)
class MaxPool:
    """The largest of each size × size window."""

    size: int = 2

    def apply(self, params: Params, inputs: Array, key: Key | None = None) -> Array:
        return max_pool(inputs, self.size)


@dataclass(frozen=True)
class Dropout:
    """In training, each number is zero with probability `rate` and otherwise divided by 1 − rate."""

    rate: float

    def apply(self, params: Params, inputs: Array, key: Key | None = None) -> Array:
        if key is None:
            return inputs
        kept = jax.random.bernoulli(key, 1 - self.rate, inputs.shape)
        return jnp.where(kept, inputs / (1 - self.rate), 0)


def sum_of_squares(columns: Array) -> Array:
    """Σ_c columns_c²."""
    # Unrolled: a reduction over the leading axis goes to a library that is several times slower on CPUs.
    return cast(Array, sum(column**2 for column in columns))


def _draw(layer: "Dense | Convolution", key: Key, shape: tuple[int, ...], width: int, fan_in: int) -> Params:
    weight_key, bias_key = jax.random.split(key)
    return _keep_bias(layer, layer.draw(weight_key, shape, fan_in), layer.draw(bias_key, (width,), fan_in))


def _keep_bias(layer: "Dense | Convolution", weight: Array, bias: Array) -> Params:
    return {"weight": weight, "bias": bias} if layer.bias else {"weight": weight}


def _add_bias(params: Params, outputs: Array) -> Array:
    return outputs + params["bias"] if "bias" in params else outputs
