"""Weights as one vector w ∈ R^P, whatever tree of arrays the model keeps them in.

A model's own tree is kept, and never flattened inside a training step: slices and concatenations of one
flat array are copies, and cost up to twice the time of the step itself.
"""

import dataclasses
import operator

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree


def pytree(cls):
    """A frozen dataclass whose fields are leaves, except those declared with `static`."""
    return jax.tree_util.register_dataclass(dataclasses.dataclass(frozen=True)(cls))


def static(**options):
    """A field that is part of the program, not a value in it: changing it compiles anew."""
    return dataclasses.field(metadata={"static": True}, **options)


class Linear:
    """Addition and scaling, leaf by leaf; a plain number is added to every leaf, as in NumPy."""

    __array_ufunc__ = None  # so that numpy_number * vector asks the vector

    def __add__(self, other):
        if isinstance(other, Linear):
            return jax.tree.map(operator.add, self, other)
        return jax.tree.map(lambda leaf: leaf + other, self)

    def __mul__(self, number):
        return jax.tree.map(lambda leaf: number * leaf, self)

    def __truediv__(self, number):
        return jax.tree.map(lambda leaf: leaf / number, self)

    def __neg__(self):
        return jax.tree.map(operator.neg, self)

    def __sub__(self, other):
        return self + (-other)

    def __rsub__(self, other):
        return -self + other

    __radd__ = __add__
    __rmul__ = __mul__

    def sum(self, axis):
        return jax.tree.map(lambda leaf: leaf.sum(axis), self)

    def mean(self, axis):
        return jax.tree.map(lambda leaf: leaf.mean(axis), self)


@pytree
class Vector(Linear):
    """A tree of arrays with the operations of a vector; `v @ w` is the inner product."""

    tree: object

    def __matmul__(self, other):
        return sum(jnp.vdot(a, b) for a, b in zip(jax.tree.leaves(self), jax.tree.leaves(other), strict=True))

    def times(self, other):
        """The elementwise product."""
        return jax.tree.map(operator.mul, self, other)

    def map(self, function):
        return jax.tree.map(function, self)

    @property
    def flat(self):
        return ravel_pytree(self.tree)[0]

    def like(self, flat):
        """The vector with this one's shape and the given flat numbers."""
        return Vector(ravel_pytree(self.tree)[1](flat))

    @property
    def size(self):
        return sum(leaf.size for leaf in jax.tree.leaves(self))
