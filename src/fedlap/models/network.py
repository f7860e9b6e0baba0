"""A network as a chain of layers, which a curvature can walk through one by one.

It is compared by value, so that two equal networks share one compiled program.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import jax

from fedlap.arrays import Array, Key
from fedlap.checks import is_whole
from fedlap.errors import ConfigError
from fedlap.models.layers import (
    Activation,
    Convolution,
    Dense,
    Dropout,
    Flatten,
    Layer,
    MaxPool,
    Params,
    Weighted,
    zeros,
)


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


def mlp(hidden: Sequence[int] = (200, 100), activation: str = "relu") -> Network:
    """A multilayer perceptron; 178,110 weights on 28 × 28 images of ten classes."""
    if not (isinstance(hidden, (list, tuple)) and all(is_whole(width, least=1) for width in hidden)):
        raise ConfigError(f"mlp: hidden is {hidden!r}; expected whole numbers above 0, for example (200, 100)")
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


MODELS = {model.__name__: model for model in (logistic, mlp, zenke_cnn, acar_cnn)}
