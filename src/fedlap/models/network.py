"""Networks: layers, chains of them that a curvature can walk through one by one, and ready-made ones.

Layers and networks are frozen values that hold sizes, while their weights are passed in; equal ones share one compiled
program. A layer with weights also gives the diagonal of Σ_i ω_i JᵢᵀFᵢFᵢᵀJᵢ with respect to them, from its inputs and
the columns of F pulled back to its outputs (`cotangents`, [columns, n, ...]).
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, NamedTuple, Protocol, cast, runtime_checkable

import jax
import jax.numpy as jnp
from jax.custom_batching import custom_vmap

from fedlap.algebra.kronecker import Sides, Turned
from fedlap.arrays import Array, Key
from fedlap.checks import is_whole
from fedlap.domains import Domain
from fedlap.errors import unknown
from fedlap.models.convolution import convolve, max_pool, pad, patches
from fedlap.registry import Registry

# Layers ---------------------------------------------------------------------------------------------------------------

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


@runtime_checkable
class Spreading(Protocol):
    """A layer that tells what the variances of its weights add to the covariance of a network's outputs."""

    def covariance(self, inputs: Array, cotangents: Array, variances: Params) -> Array: ...


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


# Below this many multiplications a call of the matrix product costs more than the product: in a round of tiny steps
# the sums written out are faster, those of the weight gradient twice.
TINY = 4096
SHORT = 32  # terms; XLA:CPU does a longer sum in two passes, with all products in memory between them


@jax.custom_jvp
def _tiny_product(inputs: Array, weight: Array) -> Array:
    return _products(inputs, weight)


@_tiny_product.defjvp
def _tiny_product_jvp(primals, tangents):
    (inputs, weight), (input_tangent, weight_tangent) = primals, tangents
    written_out = (inputs[:, None, :] * weight_tangent).sum(-1)
    return _tiny_product(inputs, weight), input_tangent @ weight.T + written_out


@custom_vmap
def _products(inputs: Array, weight: Array) -> Array:
    """x Wᵀ for each place of the leading axes, which vmap adds: [..., n, d] and [..., outputs, d]."""
    places = jnp.broadcast_shapes(inputs.shape[:-2], weight.shape[:-2])
    if math.prod((*places, *inputs.shape[-2:], weight.shape[-2])) > TINY:  # of all clients: many small ones are large
        return inputs @ weight.swapaxes(-1, -2)
    terms = inputs.shape[-1]
    pieces = -(-terms // SHORT)
    length = terms // pieces
    products = inputs[..., :, None, :] * weight[..., None, :, :]
    short = cast(Array, sum(products[..., i * length : (i + 1) * length] for i in range(pieces))).sum(-1)
    return short if terms == pieces * length else short + products[..., pieces * length :].sum(-1)


@_products.def_vmap
def _products_side_by_side(count, batched, inputs, weight):
    """A leading axis for both, of length one where there is nothing to tell apart."""
    return _products(inputs if batched[0] else inputs[None], weight if batched[1] else weight[None]), True


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
        weight: Any = params["weight"]
        if isinstance(weight, Turned):
            cores = {name: turned.core for name, turned in cast(dict[str, Any], params).items()}
            inputs, _ = weight.sides.seen(inputs, weight.sides.rows)
            return _add_bias(cores, product(inputs, weight.core)) @ weight.sides.rows.T
        return _add_bias(params, product(inputs, weight))

    def squared_gradients(self, inputs: Array, cotangents: Array, weights: Array) -> Params:
        """Σ_i ω_i x_ia² Σ_c g_icb²: one product, and no example's gradient is formed."""
        squares = weights[:, None] * sum_of_squares(cotangents)
        return _keep_bias(self, squares.T @ inputs**2, squares.sum(0))

    def covariance(self, inputs: Array, cotangents: Array, variances: Params) -> Array:
        """Σ_b g_cb g_db (Σ_a x_a² v_ba + v_b): [n, C, C], and no example's gradient is formed."""
        scale = _add_bias(variances, inputs**2 @ variances["weight"].T)
        return jnp.einsum("cno,dno->ncd", cotangents * scale, cotangents)

    def moments(self, inputs: Array, cotangents: Array, weights: Array) -> dict[str, Sides]:
        """A = Σ_i ω_i x_i x_iᵀ and B = Σ_i ω_i Σ_c g_ic g_icᵀ: the sides of W are B and A, that of b is B."""
        B = cast(Array, sum((weights[:, None] * column).T @ column for column in cotangents))
        return _keep_bias(self, Sides(B, (weights[:, None] * inputs).T @ inputs), Sides(B, None))


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

    def covariance(self, inputs: Array, cotangents: Array, variances: Params) -> Array:
        """Σ_ab G_cab G_dab v_ab + Σ_b g_cb g_db v_b, of sums G = Σ gPᵀ and g over positions: [n, C, C]."""
        columns = patches(pad(inputs, self.padding), self.size)
        gradients = jnp.einsum("cnhwo,nhwp->ncpo", cotangents, columns)
        variance = variances["weight"].reshape(-1, self.width)
        total = jnp.einsum("ncpo,ndpo->ncd", gradients * variance, gradients)
        sums = cotangents.sum((2, 3))
        return total + jnp.einsum("cno,dno->ncd", sums * variances["bias"], sums) if self.bias else total


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


def _keep_bias(layer: "Dense | Convolution", weight: Any, bias: Any) -> dict[str, Any]:
    return {"weight": weight, "bias": bias} if layer.bias else {"weight": weight}


def _add_bias(params: Params, outputs: Array) -> Array:
    return outputs + params["bias"] if "bias" in params else outputs


# Networks -------------------------------------------------------------------------------------------------------------


class Linearised(NamedTuple):
    """One layer at one batch: its inputs, its outputs and the pullback from these to those."""

    layer: Layer
    inputs: Array
    outputs: Array
    pullback: Callable[[Array], tuple[Array]]


@dataclass(frozen=True)
class Network:
    """f = layer_L ∘ … ∘ layer_1, with one dictionary of weights a layer, which is empty if it has none."""

    layers: tuple[Layer, ...]

    def init(self, key: Key, inputs: Array, classes: int) -> tuple[Params, ...]:
        params = []
        for layer, layer_key in zip(self.layers, jax.random.split(key, len(self.layers)), strict=True):
            weights = layer.init(layer_key, inputs, classes) if isinstance(layer, Weighted) else {}
            inputs = jax.eval_shape(layer.apply, weights, inputs)
            params.append(weights)
        return tuple(params)

    def apply(self, params: tuple[Params, ...], inputs: Array) -> Array:
        for layer, weights in zip(self.layers, params, strict=True):
            inputs = layer.apply(weights, inputs)
        return inputs

    def train(self, params: tuple[Params, ...], inputs: Array, key: Key) -> Array:
        keys = jax.random.split(key, len(self.layers))
        for layer, weights, layer_key in zip(self.layers, params, keys, strict=True):
            inputs = layer.apply(weights, inputs, layer_key)
        return inputs

    def linearise(self, params: tuple[Params, ...], inputs: Array) -> list[Linearised]:
        """The layers in order, each with what its part of JᵀF needs."""
        tape = []
        for layer, weights in zip(self.layers, params, strict=True):
            outputs, pullback = jax.vjp(partial(layer.apply, weights), inputs)
            tape.append(Linearised(layer, inputs, outputs, pullback))
            inputs = outputs
        return tape


# Ready-made models, by name -------------------------------------------------------------------------------------------


def logistic(bias: bool = False) -> Network:
    """Multinomial logistic regression, from zero weights: two logits for two classes.

    Flat weights are in the order of a [classes, features] matrix, with all intercepts before it. An intercept has the
    prior of any weight, N(0, 1/δ), and a coefficient of the log-odds, w_1 − w_0, has N(0, 2/δ): two classes are one
    logit with a penalty of δ/2.
    """
    return Network((Flatten(), Dense(bias=bias, draw=zeros)))


MOST_LAYERS, MOST_UNITS = 100, 100_000
WIDTHS = Domain(
    f"whole numbers above 0, for example (200, 100): at most {MOST_LAYERS} layers of {MOST_UNITS:,} units",
    lambda hidden: (
        isinstance(hidden, (list, tuple))
        and len(hidden) <= MOST_LAYERS
        and all(is_whole(width, least=1, most=MOST_UNITS) for width in hidden)
    ),
)


def mlp(hidden: Annotated[Sequence[int], WIDTHS] = (200, 100), activation: str = "relu") -> Network:
    """A multilayer perceptron; 178,110 weights on 28 × 28 images of ten classes."""
    WIDTHS.check("mlp: hidden", hidden)
    inner = [layer for width in hidden for layer in (Dense(width), Activation(activation))]
    return Network((Flatten(), *inner, Dense()))


def zenke_cnn() -> Network:
    """The CIFAR network of Zenke et al. (2017), with dropout; 1,250,858 weights for ten classes."""
    relu = Activation("relu")

    def block(width: int) -> tuple[Layer, ...]:
        first, second = Convolution(width, 3, padding=1), Convolution(width, 3)
        return first, relu, second, relu, MaxPool(), Dropout(0.25)

    return Network((*block(32), *block(64), Flatten(), Dense(512), relu, Dropout(0.5), Dense()))


def acar_cnn() -> Network:
    """The CIFAR network of Acar et al. (2021), who proposed FedDyn; 797,962 weights for ten classes."""
    relu = Activation("relu")
    convolutions = [layer for _ in range(2) for layer in (Convolution(64, 5), relu, MaxPool())]
    return Network((*convolutions, Flatten(), Dense(384), relu, Dense(192), relu, Dense()))


_OWN: dict[str, Callable[..., Any]] = {model.__name__: model for model in (logistic, mlp, zenke_cnn, acar_cnn)}
MODELS = Registry("models", _OWN, "a function that returns a model", callable)
