"""The Jacobian J of a model's outputs by its weights, example by example, and J V Jᵀ for variances V of the weights.

A network of known layers gives the latter layer by layer, from their inputs and the outputs pulled back to them; of any
other model the gradients of each example are formed. Neither is more than the outputs and weights of a chunk.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp

from fedlap.arrays import Array, Tree
from fedlap.models.curvature import HELD, PASSED
from fedlap.models.model import Trainable
from fedlap.models.network import Dense, Network, Spreading, Weighted


def gradients(model: Trainable, params: Tree, inputs: Array) -> tuple[Array, Tree]:
    """The outputs [n, C], and J of each example, [n, C, …] for every parameter."""

    def of_example(example):
        outputs, pullback = jax.vjp(lambda params: model.apply(params, example[None])[0], params)
        return outputs, jax.vmap(pullback)(jnp.eye(len(outputs), dtype=outputs.dtype))[0]

    return jax.vmap(of_example)(inputs)


def has_layers(model: Trainable) -> bool:
    """Whether `covariance` can walk through a model's layers."""
    if not isinstance(model, Network):
        return False
    return all(isinstance(layer, Spreading) for layer in model.layers if isinstance(layer, Weighted))


def covariance(network: Any, params: Tree, variances: Tree, sides: Tree, inputs: Array) -> tuple[Array, Array]:
    """The outputs [n, C], and J V Jᵀ of each example, [n, C, C], for V = diag(variances) of the weights.

    Or of their cores, where a layer's Sides say in which basis V is diagonal: there the layer is one of turned inputs
    and outputs. A bias has the rows of its weight.
    """
    tape = network.linearise(params, inputs)
    outputs = tape[-1].outputs
    classes = outputs.shape[-1]
    hot = jnp.eye(classes, dtype=outputs.dtype)
    cotangents = jnp.broadcast_to(hot[:, None], (classes, *outputs.shape))
    total = jnp.zeros((len(outputs), classes, classes), outputs.dtype)
    walk = zip(reversed(tape), reversed(variances), reversed(sides), strict=True)
    for (layer, layer_inputs, _, pullback), own, turn in walk:
        if isinstance(layer, Spreading):
            weight = turn.get("weight")
            x, G = (layer_inputs, cotangents) if weight is None else weight.seen(layer_inputs, cotangents)
            total += layer.covariance(x, G, own)
        (cotangents,) = jax.vmap(pullback)(cotangents)
    return outputs, total


def layer_chunk(network: Any, params: Tree, example: Any) -> int:
    """How many examples a chunk may have if layers are known, by the numbers that one needs."""

    def passed(params, example):
        return [(step.inputs, step.outputs) for step in network.linearise(params, example)]

    sizes = jax.eval_shape(passed, params, example)
    classes = sizes[-1][1].shape[-1]
    between = sum(math.prod(x.shape) + classes * math.prod(y.shape) for x, y in sizes)
    # Dense layers form no gradients.
    formed = [own for layer, own in zip(network.layers, params, strict=True) if not isinstance(layer, Dense)]
    return max(1, min(PASSED // between, HELD // (classes * (_size(formed) + classes))))


def example_chunk(model: Trainable, params: Tree, example: Any) -> int:
    """How many examples a chunk may have, by the size of one's gradients."""
    classes = jax.eval_shape(model.apply, params, example).shape[-1]
    return max(1, HELD // (classes * (_size(params) + classes)))


def _size(tree: Tree) -> int:
    return sum(leaf.size for leaf in jax.tree.leaves(tree))
