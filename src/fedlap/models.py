"""Models: `init(key, inputs, classes)`, `apply(params, inputs)` and `train(params, inputs, key)`.

`init` looks at the shape of a batch of inputs only, `apply` is deterministic, and `train` may draw (dropout).
A model is compared by value, so that two equal models share one compiled program.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from numbers import Integral
from typing import Any, NamedTuple

import jax

from .errors import ConfigError
from .layers import Activation, Convolution, Dense, Dropout, Flatten, MaxPool, Weighted, zeros
from .modules import Linen, Nnx, Wrapped, is_linen, is_nnx


class Linearised(NamedTuple):
    """One layer at one batch: its inputs, its outputs and the pullback from these to those."""

    layer: Any
    inputs: Any
    outputs: Any
    pullback: Callable


@dataclass(frozen=True)
class Network:
    """f = layer_L ∘ … ∘ layer_1, with one dictionary of weights a layer, which is empty if it has none."""

    layers: tuple

    def init(self, key, inputs, classes):
        params = []
        for layer, layer_key in zip(self.layers, jax.random.split(key, len(self.layers)), strict=True):
            weights = layer.init(layer_key, inputs, classes) if isinstance(layer, Weighted) else {}
            inputs = jax.eval_shape(layer.apply, weights, inputs)
            params.append(weights)
        return tuple(params)

    def apply(self, params, inputs):
        for layer, weights in zip(self.layers, params, strict=True):
            inputs = layer.apply(weights, inputs)
        return inputs

    def train(self, params, inputs, key):
        keys = jax.random.split(key, len(self.layers))
        for layer, weights, layer_key in zip(self.layers, params, keys, strict=True):
            inputs = layer.apply(weights, inputs, layer_key)
        return inputs

    def linearise(self, params, inputs):
        """The layers in order, each with what its part of JᵀF needs."""
        tape = []
        for layer, weights in zip(self.layers, params, strict=True):
            outputs, pullback = jax.vjp(partial(layer.apply, weights), inputs)
            tape.append(Linearised(layer, inputs, outputs, pullback))
            inputs = outputs
        return tape


@dataclass(frozen=True, init=False)
class Model:
    """A model made of functions: `init(key, inputs)`, `apply(params, inputs)`, `train(params, inputs, key)`.

    Without `train`, training uses `apply`. Functions are compared by identity: pass the same ones again, not
    new lambdas, and the compiled program is found again.
    """

    functions: tuple

    def __init__(self, init, apply, train=None):
        object.__setattr__(self, "functions", (init, apply, train))

    def init(self, key, inputs, classes):
        return self.functions[0](key, inputs)

    def apply(self, params, inputs):
        return self.functions[1](params, inputs)

    def train(self, params, inputs, key):
        _, apply, train = self.functions
        return apply(params, inputs) if train is None else train(params, inputs, key)


def as_model(thing):
    """A model as it is, or a module of Flax or another library as a model."""
    has = lambda *names: all(callable(getattr(thing, name, None)) for name in names)
    if isinstance(thing, type):
        raise ConfigError(f"model is the class {thing.__name__}; expected an instance, {thing.__name__}(...)")
    if is_linen(thing):
        return Linen.of(thing)
    if is_nnx(thing):
        return Nnx.of(thing)
    if has("init", "apply", "train"):
        return thing
    if has("init", "apply"):
        return Wrapped.of(thing)
    raise ConfigError(f"model is {thing!r}; expected a model, a Flax module or fedlap.Model(init, apply)")


def check_outputs(model, params, inputs, classes):
    """An error unless the model gives one output a class."""
    found, wanted = jax.eval_shape(model.apply, params, inputs).shape, (len(inputs), classes)
    if found != wanted:
        raise ConfigError(f"the model's outputs have shape {found}; expected {wanted}, one output a class")


def logistic(bias=False):
    """Multinomial logistic regression, from zero weights: two logits for two classes.

    Flat weights are in the order of a [classes, features] matrix, with all intercepts before it. An intercept has the
    prior of any weight, N(0, 1/δ), and a coefficient of the log-odds, w_1 − w_0, has N(0, 2/δ): two classes are one
    logit with a penalty of δ/2.
    """
    return Network((Flatten(), Dense(bias=bias, draw=zeros)))


def mlp(hidden=(200, 100), activation="relu"):
    """A multilayer perceptron; 178,110 weights on 28 × 28 images of ten classes."""
    whole = lambda width: isinstance(width, Integral) and not isinstance(width, bool) and width > 0
    if not (isinstance(hidden, (list, tuple)) and all(map(whole, hidden))):
        raise ConfigError(f"mlp: hidden is {hidden!r}; expected whole numbers above 0, for example (200, 100)")
    inner = [layer for width in hidden for layer in (Dense(width), Activation(activation))]
    return Network((Flatten(), *inner, Dense()))


def zenke_cnn():
    """The CIFAR network of Zenke et al. (2017), with dropout; 1,250,858 weights for ten classes."""
    relu = Activation("relu")

    def block(width):
        first, second = Convolution(width, 3, padding=1), Convolution(width, 3)
        return first, relu, second, relu, MaxPool(), Dropout(0.25)

    return Network((*block(32), *block(64), Flatten(), Dense(512), relu, Dropout(0.5), Dense()))


def acar_cnn():
    """The CIFAR network of Acar et al. (2021), who proposed FedDyn; 797,962 weights for ten classes."""
    relu = Activation("relu")
    convolutions = [layer for _ in range(2) for layer in (Convolution(64, 5), relu, MaxPool())]
    return Network((*convolutions, Flatten(), Dense(384), relu, Dense(192), relu, Dense()))
