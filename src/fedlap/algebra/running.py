"""Sums that are kept for long: what is added and taken away again must leave nothing behind."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedlap.arrays import Array, Tree


class Running(NamedTuple):
    """A sum in two numbers: itself, and what its rounding has lost so far.

    Where few of many clients take part, only theirs is exchanged in the server's sum: V_k new for V_k old, round after
    round. In one number the rounding of every exchange would stay, and a large V_k that became small would leave its
    last digits in S_g for good.
    """

    total: Tree
    lost: Tree

    @classmethod
    def of(cls, total: Tree) -> "Running":
        return cls(total, jax.tree.map(jnp.zeros_like, total))

    def __add__(self, change: Any) -> "Running":
        """The sum after a change: a tree like `total`, or another running sum."""
        if isinstance(change, Running):
            return (self + change.total)._plus(change.lost)
        added = jax.tree.map(_add, self.total, change)
        total, lost = (jax.tree.map(lambda pair, i=i: pair[i], added, is_leaf=_is_pair) for i in (0, 1))
        return Running(total, self.lost)._plus(lost)

    def _plus(self, small: Tree) -> "Running":
        """The sum with a little more of what was lost, made whole again: `lost` stays below the last digit."""
        lost = jax.tree.map(jnp.add, self.lost, small)
        added = jax.tree.map(_add, self.total, lost)
        return Running(*(jax.tree.map(lambda pair, i=i: pair[i], added, is_leaf=_is_pair) for i in (0, 1)))


class _Pair(NamedTuple):
    rounded: Array
    error: Array


def _is_pair(thing: Any) -> bool:
    return isinstance(thing, _Pair)


def _add(a: Array, b: Array) -> _Pair:
    """a + b rounded, and exactly what the rounding has lost (Knuth's two-sum)."""
    rounded = a + b
    part = rounded - a
    return _Pair(rounded, (a - (rounded - part)) + (b - part))
