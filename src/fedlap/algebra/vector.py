"""Weights as one vector w ∈ R^P, whatever tree of arrays the model keeps them in.

A model's own tree is kept, and never flattened inside a training step: slices and concatenations of one
flat array are copies, and cost up to twice the time of the step itself.
"""

import operator
from collections.abc import Callable
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from fedlap.algebra.pytrees import pytree
from fedlap.arrays import Array, ArrayLike, Tree


class Linear:
    """Addition and scaling, leaf by leaf; a plain number is added to every leaf, as in NumPy."""

    __array_ufunc__ = None  # so that numpy_number * vector asks the vector

    def __add__(self, other: Any) -> Self:
        if isinstance(other, Linear):
            return jax.tree.map(operator.add, self, other)
        return jax.tree.map(lambda leaf: leaf + other, self)

    def __mul__(self, number: ArrayLike) -> Self:
        return jax.tree.map(lambda leaf: number * leaf, self)

    def __truediv__(self, number: ArrayLike) -> Self:
        return jax.tree.map(lambda leaf: leaf / number, self)

    def __neg__(self) -> Self:
        return jax.tree.map(operator.neg, self)

    def __sub__(self, other: Any) -> Self:
        return self + (-other)

    def __rsub__(self, other: Any) -> Self:
        return -self + other

    __radd__ = __add__
    __rmul__ = __mul__

    def sum(self, axis: int) -> Self:
        return jax.tree.map(lambda leaf: leaf.sum(axis), self)


@pytree
class Vector(Linear):
    """A tree of arrays with the operations of a vector; `v @ w` is the inner product."""

    tree: Tree

    def __repr__(self) -> str:
        return f"Vector({self.named})"

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        """Flat numbers, leaf by leaf; not `flat`, where JAX would round arrays of a precision that it does not have."""
        leaves = [np.ravel(leaf) for leaf in jax.tree.leaves(self)]
        return np.asarray(np.concatenate(leaves or [np.zeros(0)]), dtype)

    def __matmul__(self, other: "Vector") -> Any:
        return sum(jnp.vdot(a, b) for a, b in zip(jax.tree.leaves(self), jax.tree.leaves(other), strict=True))

    def times(self, other: "Vector") -> "Vector":
        """The elementwise product."""
        return jax.tree.map(operator.mul, self, other)

    def map(self, function: Callable[[Any], Any]) -> "Vector":
        return jax.tree.map(function, self)

    @property
    def flat(self) -> Array:
        return ravel_pytree(self.tree)[0]

    def like(self, flat: Array) -> "Vector":
        """The vector with this one's shape and the given flat numbers."""
        return Vector(ravel_pytree(self.tree)[1](flat))

    @property
    def rows(self) -> Array:
        """The flat numbers of stacked vectors, such as `state.clients.factor.v`, a row each: [K, P]."""
        return jax.vmap(lambda vector: vector.flat)(self)

    @property
    def named(self) -> dict[str, Array]:
        """The arrays in the order of the flat numbers, each by its place in the tree: {"1.bias": …, "1.weight": …}."""
        leaves = jax.tree_util.tree_leaves_with_path(self.tree)
        names = [jax.tree_util.keystr(path, simple=True, separator=".") for path, _ in leaves]
        if len(set(names)) < len(names):  # {"a.b": …, "a": {"b": …}}
            names = [jax.tree_util.keystr(path) for path, _ in leaves]
        return dict(zip(names, (leaf for _, leaf in leaves), strict=True))

    @property
    def size(self) -> int:
        return sum(leaf.size for leaf in jax.tree.leaves(self))
