"""Curvature of one client's loss: H = Σ_i ω_i ∇²ℓ(f(x_i; w), y_i), or its Gauss–Newton part.

The examples are rows of a pool, padded at the end: only the first `used` rows and weights matter. They are
read in chunks, as many as `used` needs, so that one program serves clients of every size.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, cast

import jax
import jax.numpy as jnp
from jax import lax
from jax.flatten_util import ravel_pytree

from fedlap.algebra.kronecker import Kronecker, Sides, Turned
from fedlap.arrays import Array, Key, Number, Tree
from fedlap.errors import ConfigError
from fedlap.models.likelihood import Likelihood
from fedlap.models.model import Trainable
from fedlap.models.network import Dense, Network, Weighted, sum_of_squares

# Numbers in a chunk. What passes between layers should stay in the cache; gradients of single examples
# cannot, and their bound only keeps the memory in hand.
PASSED = 1_000_000
HELD = 4_000_000
BACKWARD = 256  # examples whose gradient is taken at once

Factor = Callable[[Array, Key], Array]  # (outputs, key) → the columns F of each example, [n, C, columns]


class Examples(NamedTuple):
    """Rows of a pool whose curvature is summed by weight, padded at the end."""

    inputs: Array  # [N, ...]
    labels: Any  # [N]; None where Gauss–Newton alone is asked for, which needs none
    rows: Array  # [n]
    weights: Array  # [n] ω_i
    used: Number  # how many rows are no padding
    key: Key


class Curvature(Protocol):
    """What is asked of a curvature: H in one of two structures, summed over the examples.

    It is with respect to the numbers of the parameters, of a weight in factors to those of its core. One that has
    `moments` too, as those below, serves a Kronecker covariance.
    """

    def diagonal(self, model: Trainable, likelihood: Likelihood, params: Tree, examples: Examples) -> Tree: ...
    def full(self, model: Trainable, likelihood: Likelihood, params: Tree, examples: Examples) -> Array: ...


@dataclass(frozen=True)
class GaussNewton:
    """The generalised Gauss–Newton matrix Σ_i ω_i JᵢᵀΛᵢJᵢ, where Λ = FFᵀ is the Hessian of the loss in f.

    `samples` = 0 is exact; M > 0 draws M columns of F, an unbiased Monte-Carlo Fisher at M/C of the cost.
    """

    samples: int = 0

    def diagonal(self, model: Trainable, likelihood: Likelihood, params: Tree, examples: Examples) -> Tree:
        """The diagonal of H, shaped as the parameters."""
        by_layer = isinstance(model, Network)
        diagonal, chunk_of = (_by_layer, layer_chunk) if by_layer else (_by_example, example_chunk)
        factor = self._factor(likelihood)

        def term(rows, weights, key):
            return diagonal(model, factor, params, examples.inputs[rows], weights, key)

        chunk = lambda: chunk_of(model, factor, params, examples.inputs[:1], examples.key)
        return _sum(term, jax.tree.map(jnp.zeros_like, _cores(params)), chunk, examples)

    def moments(
        self, model: Trainable, likelihood: Likelihood, params: Tree, examples: Examples, like: Kronecker
    ) -> Kronecker:
        """Σ_i ω_i x_i x_iᵀ and Σ_i ω_i g_i g_iᵀ of every layer that has Sides: its inputs, and JᵢᵀFᵢ at its outputs."""
        factor, layers = self._factor(likelihood), cast(tuple, like.tree)

        def term(rows, weights, key):
            walk = _walk(model, factor, params, examples.inputs[rows], key)
            turns = [own.get("weight") is not None for own in layers]
            return tuple(
                layer.moments(x, G, weights) if turn else own
                for turn, own, (layer, x, G) in zip(turns, (0.0 * like).tree, walk, strict=True)
            )

        chunk = lambda: layer_chunk(model, factor, params, examples.inputs[:1], examples.key)
        return Kronecker(_sum(term, (0.0 * like).tree, chunk, examples))

    def full(self, model: Trainable, likelihood: Likelihood, params: Tree, examples: Examples) -> Array:
        """All of H, [P, P], in the order of `ravel_pytree`."""
        factor = self._factor(likelihood)
        flat, _ = ravel_pytree(_cores(params))

        def term(rows, weights, key):
            gradients = _gradients(model, factor, params, examples.inputs[rows], key)
            columns = jax.vmap(jax.vmap(lambda tree: ravel_pytree(tree)[0]))(gradients)
            return jnp.einsum("n,ncp,ncq->pq", weights, columns, columns)

        chunk = lambda: example_chunk(model, factor, params, examples.inputs[:1], examples.key)
        return _sum(term, jnp.zeros((flat.size, flat.size), flat.dtype), chunk, examples)

    def _factor(self, likelihood: Likelihood) -> Factor:
        if self.samples:
            return lambda outputs, key: likelihood.sampled_factor(outputs, key, self.samples)
        return lambda outputs, key: likelihood.factor(outputs)


@dataclass(frozen=True)
class ExactHessian:
    """Σ_i ω_i ∇²ℓ(f(x_i; w), y_i) itself, which need not be positive; for small models."""

    def diagonal(self, model: Trainable, likelihood: Likelihood, params: Tree, examples: Examples) -> Tree:
        """The diagonal of H, shaped as the parameters."""
        matrix = self.full(model, likelihood, params, examples)
        return ravel_pytree(_cores(params))[1](jnp.diagonal(matrix))

    def full(self, model: Trainable, likelihood: Likelihood, params: Tree, examples: Examples) -> Array:
        """All of H, [P, P], in the order of `ravel_pytree`."""
        flat, unravel = ravel_pytree(_cores(params))

        def loss(flat, rows, weights):
            outputs = model.apply(_put(params, unravel(flat)), examples.inputs[rows])
            return weights @ likelihood.loss(outputs, examples.labels[rows])

        def term(rows, weights, key):
            return jax.hessian(loss)(flat, rows, weights)

        chunk = lambda: HELD // flat.size
        return _sum(term, jnp.zeros((flat.size, flat.size), flat.dtype), chunk, examples)

    def moments(
        self, model: Trainable, likelihood: Likelihood, params: Tree, examples: Examples, like: Kronecker
    ) -> Kronecker:
        """Those of Gauss–Newton: a Hessian that is none has no factors."""
        return GaussNewton().moments(model, likelihood, params, examples, like)


def no_turn(model: Trainable, params: Tree) -> Kronecker:
    """The basis in which every weight is as it is: Sides for the weights and biases of dense layers, None for others.

    A bias has the rows of its weight, here and in any basis found from moments. An error if a model has no such layer.
    """
    if not isinstance(model, Network) or not any(isinstance(layer, Dense) for layer in model.layers):
        kind = type(model).__name__
        raise ConfigError(
            f"a Kronecker covariance turns dense layers, and of the model ({kind}) none is known; expected a Network "
            'with dense layers, such as mlp(...), or FedLapCov with covariance="diagonal"'
        )

    def sides(layer: Any, leaf: Array) -> Sides | None:
        if not isinstance(layer, Dense):
            return None
        rows, *columns = (jnp.eye(size, dtype=leaf.dtype) for size in leaf.shape)
        return Sides(rows, columns[0] if columns else None)

    layers = zip(model.layers, params, strict=True)
    return Kronecker(tuple({name: sides(layer, leaf) for name, leaf in own.items()} for layer, own in layers))


def gradient(model: Trainable, likelihood: Likelihood, params: Tree, examples: Examples) -> Tree:
    """Σ_i ω_i ∇ℓ(f(x_i; w), y_i), shaped as the parameters; read in chunks as curvature is."""

    def loss(params, rows, weights):
        return weights @ likelihood.loss(model.apply(params, examples.inputs[rows]), examples.labels[rows])

    def term(rows, weights, key):
        return jax.grad(loss)(params, rows, weights)

    return _sum(term, jax.tree.map(jnp.zeros_like, params), lambda: BACKWARD, examples)


def _by_layer(network: Any, factor: Factor, params: Tree, inputs: Array, weights: Array, key: Key) -> Tree:
    """The diagonal from the columns of F, pulled back through one layer after the other."""

    def squares(layer, own, x, G):
        if not isinstance(layer, Weighted):
            return {}
        if isinstance(own.get("weight"), Turned):
            x, G = own["weight"].sides.seen(x, G)
        return layer.squared_gradients(x, G, weights)

    walk = _walk(network, factor, params, inputs, key)
    return tuple(squares(layer, own, x, G) for own, (layer, x, G) in zip(params, walk, strict=True))


def _walk(network: Any, factor: Factor, params: Tree, inputs: Array, key: Key) -> list[tuple[Any, Array, Array]]:
    """Every layer with its inputs and the columns of F pulled back to its outputs, from the first to the last."""
    tape = network.linearise(params, inputs)
    cotangents = jnp.moveaxis(factor(tape[-1].outputs, key), -1, 0)
    walk = []
    for layer, layer_inputs, _, pullback in reversed(tape):
        walk.append((layer, layer_inputs, cotangents))
        (cotangents,) = jax.vmap(pullback)(cotangents)
    return walk[::-1]


def _cores(params: Tree) -> Tree:
    """The numbers that a curvature is with respect to: of a weight in factors its core, of any other itself."""
    return jax.tree.map(lambda leaf: leaf.core if _is_turned(leaf) else leaf, params, is_leaf=_is_turned)


def _put(params: Tree, cores: Tree) -> Tree:
    """The same parameters with other cores."""
    put = lambda leaf, core: Turned(core, leaf.sides) if _is_turned(leaf) else core
    return jax.tree.map(put, params, cores, is_leaf=_is_turned)


def _is_turned(thing: Any) -> bool:
    return isinstance(thing, Turned)


def _by_example(model: Trainable, factor: Factor, params: Tree, inputs: Array, weights: Array, key: Key) -> Tree:
    """The diagonal from the gradients of each example, for models whose layers are not known."""

    def squares(leaf):
        return jnp.tensordot(weights, sum_of_squares(jnp.moveaxis(leaf, 1, 0)), 1)

    return jax.tree.map(squares, _gradients(model, factor, params, inputs, key))


def _gradients(model: Trainable, factor: Factor, params: Tree, inputs: Array, key: Key) -> Tree:
    """JᵢᵀFᵢ, shaped [n, columns, ...] for every parameter."""

    def gradients(example, columns):
        apply = lambda cores: model.apply(_put(params, cores), example[None])[0]
        pullback = jax.vjp(apply, _cores(params))[1]
        return jax.vmap(pullback)(columns.T)[0]

    return jax.vmap(gradients)(inputs, factor(model.apply(params, inputs), key))


def layer_chunk(network: Any, factor: Factor, params: Tree, example: Array, key: Key) -> int:
    """How many examples a chunk may have, by the numbers one passes between layers."""

    def sizes(params, example):
        tape = network.linearise(params, example)
        return [(step.inputs, step.outputs) for step in tape if isinstance(step.layer, Weighted)]

    layers = jax.eval_shape(sizes, params, example)
    columns = _columns(network, factor, params, example, key)
    return PASSED // sum(math.prod(x.shape) + columns * math.prod(y.shape) for x, y in layers)


def example_chunk(model: Trainable, factor: Factor, params: Tree, example: Array, key: Key) -> int:
    """How many examples a chunk may have, by the size of one's gradients."""
    numbers = sum(leaf.size for leaf in jax.tree.leaves(params))
    return HELD // (numbers * _columns(model, factor, params, example, key))


def _columns(model: Trainable, factor: Factor, params: Tree, example: Array, key: Key) -> int:
    columns = jax.eval_shape(lambda params, example: factor(model.apply(params, example), key), params, example)
    return columns.shape[-1]


def _sum(term: Callable[[Array, Array, Key], Tree], start: Tree, chunk: Callable[[], int], examples: Examples) -> Tree:
    """start + Σ over chunks of term(rows, weights, key), in ⌈used / chunk⌉ steps."""
    rows, used = examples.rows, examples.used
    if not len(rows):
        return start
    size = min(max(chunk(), 1), len(rows))
    missing = -len(rows) % size
    weights = jnp.where(jnp.arange(len(rows)) < used, examples.weights, 0)
    rows, weights = jnp.pad(rows, (0, missing), mode="edge"), jnp.pad(weights, (0, missing))

    def add(step, total):
        part = lambda array: lax.dynamic_slice_in_dim(array, step * size, size)
        return jax.tree.map(jnp.add, total, term(part(rows), part(weights), jax.random.fold_in(examples.key, step)))

    return lax.fori_loop(0, -(-used // size), add, start)
