"""A network as a chain of layers, which a curvature can walk through one by one.

It is compared by value, so that two equal networks share one compiled program.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import jax

from fedlap.arrays import Array, Key
from fedlap.models.layers import Layer, Params, Weighted


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
