"""A loop over a client's steps that stays one loop when many clients take theirs side by side."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.custom_batching import custom_vmap

from fedlap.arrays import Array, Number, Tree


def repeat(steps: Number, step: Callable[[Array, Tree, Tree], tuple[Tree, Tree]], kept: Tree, passing: Tree) -> Tree:
    """What is left of `kept` after so many times `kept, passing = step(i, kept, passing)`.

    Under vmap every client goes on until the longest is done, and its own later steps change nothing that is kept. The
    counter is one number for all, so that a minibatch is a slice and not a gather; `passing` is not even chosen.
    """

    def body(i, carry):
        kept, passing = carry
        new, passing = step(i, kept, passing)
        return jax.tree.map(lambda new, old: jnp.where(i < steps, new, old), new, kept), passing

    return jax.lax.fori_loop(0, _longest(steps), body, (kept, passing))[0]


@custom_vmap
def _longest(steps: Number) -> Number:
    """The most steps of all clients that run side by side; of one alone, its own."""
    return steps


@_longest.def_vmap
def _longest_of_many(count, batched, steps):
    return _longest(steps.max(0)), False


def pick(array: Array, i: Array, axis: int = 0) -> Array:
    """array[i] along an axis, for the counter of a loop.

    Under vmap it stays a slice as long as the counter is one number for all; JAX's own rule makes a gather of it.
    """
    plain = lambda array, i: jax.lax.dynamic_index_in_dim(array, i, axis, keepdims=False)
    sliced = custom_vmap(plain)

    @sliced.def_vmap
    def _(count, batched, array, i):
        if batched == [True, False]:
            return pick(array, i, axis + 1), True
        return jax.vmap(plain, [0 if each else None for each in batched])(array, i), True

    return sliced(array, i)
