"""Bases that turn each weight matrix from both sides, and precisions that are diagonal in one of them.

A weight W of [rows, columns] is seen in a basis as X = RᵀWC, with orthogonal R and C: of all weights x = Uᵀw, where U
is block by block the Kronecker product R ⊗ C. Sums of Kronecker products are none; diagonals in one basis add up.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedlap.algebra.covariance import Variances, variances
from fedlap.algebra.precision import Diagonal, Full, Isotropic
from fedlap.algebra.pytrees import is_traced, pytree
from fedlap.algebra.symmetric import unless
from fedlap.algebra.vector import Linear, Vector
from fedlap.arrays import Array, Number, Tree
from fedlap.errors import ConfigError


@pytree
class Sides(Linear):
    """A square matrix for the rows of one weight, and one for its columns if it is a matrix."""

    rows: Array
    columns: Array | None

    def map(self, function: Callable[[Array], Array]) -> "Sides":
        return Sides(function(self.rows), None if self.columns is None else function(self.columns))

    def on(self, weight: Array) -> Array:
        """R W Cᵀ."""
        return self.rows @ weight if self.columns is None else self.rows @ weight @ self.columns.T

    def seen(self, inputs: Array, outputs: Array) -> tuple[Array, Array]:
        """What X itself has for inputs and outputs: the layer's, turned, unless the inputs are already."""
        return inputs if self.columns is None else inputs @ self.columns, outputs @ self.rows


@pytree
class Turned:
    """A weight in factors, R X Cᵀ: a layer applies them one after the other, which costs less than their product."""

    core: Array
    sides: Sides

    @property
    def whole(self) -> Array:
        return self.sides.on(self.core)


class Seen(NamedTuple):
    """The weights Ux, known by x: the model's own tree, with Turned in the place of what the basis turns."""

    tree: Tree
    inputs: Any = None  # a client's, where they have been turned for the first layer, whose columns then are None
    place: Any = None  # of these rows of the pool in `inputs`


@pytree
class Kronecker(Linear):
    """The Sides of every weight, shaped as the model's tree; None for a weight that is left as it is.

    Both a basis, `U @ x` and `U.T @ w`, and the second moments it is found from, which add up over clients.
    """

    tree: Tree

    @property
    def T(self) -> "Kronecker":
        return self._each(lambda sides: sides.map(lambda side: jnp.swapaxes(side, -1, -2)))

    def __matmul__(self, x: Any) -> Any:
        """Of a vector the vector U x, of another basis their product."""
        if isinstance(x, Kronecker):
            return Kronecker(jax.tree.map(jnp.matmul, self.tree, x.tree))
        return Vector(self._beside(x, lambda leaf, sides: sides.on(leaf)))

    def at(self, x: Vector) -> Seen:
        """U x in factors, for a loss."""
        return Seen(self._beside(x, Turned))

    def eigenbasis(self) -> "Kronecker":
        """The eigenvectors of every side."""
        return self._each(lambda sides: sides.map(lambda side: jnp.linalg.eigh(side)[1]))

    def spread(self, V: Diagonal) -> Diagonal:
        """The diagonal of U V Uᵀ: its numbers are averages of those of V, whose sum they keep."""
        return Diagonal(self._each(lambda sides: sides.map(jnp.square)) @ V.d)

    def _beside(self, x: Vector, function: Callable[[Array, Sides], Any]) -> Tree:
        """A tree of what a function makes of each leaf and its Sides; a leaf without stays as it is."""
        return jax.tree.map(lambda leaf, sides: leaf if sides is None else function(leaf, sides), x.tree, self.tree)

    def _each(self, function: Callable[[Sides], Sides]) -> "Kronecker":
        return Kronecker(jax.tree.map(function, self.tree, is_leaf=_is_sides))


@pytree
class Turn:
    """From one basis to the next, at a point w_g of the weights."""

    new: Kronecker
    overlap: Kronecker  # newᵀ old
    w: Vector

    @classmethod
    def of(cls, old: Kronecker, new: Kronecker, w: Vector) -> "Turn":
        return cls(new, new.T @ old, w)

    def site(self, current: Array, v: Vector, V: Diagonal) -> tuple[Vector, Diagonal]:
        """A factor in the new basis, which it was in the old one unless it is current."""
        return unless(current, (v, V), lambda: self.turned(v, V))

    def turned(self, v: Vector, V: Diagonal) -> tuple[Vector, Diagonal]:
        """The diagonal that V has in the new basis, and the v with which ∇log t = v − Vx at w_g is what it was.

        Both are linear, so that a sum of factors is turned as each of them is; and as no gradient changes at w_g,
        S_g x_g = Σ_k v_k in the new basis for the same w_g.
        """
        x, D = self.new.T @ self.w, self.diagonal(V)
        return self.overlap @ (v - V @ (self.overlap.T @ x)) + D @ x, D

    def diagonal(self, V: Diagonal) -> Diagonal:
        """The diagonal, in the new basis, of a V that is diagonal in the old one."""
        return self.overlap.spread(V)


@pytree
class Sites(Linear):
    """What some clients say in one basis, added up: v, V, V without its lag, who has told moments, and how many."""

    v: Vector
    V: Diagonal
    ahead: Diagonal
    told: Number
    count: Number

    def turned(self, turn: Turn) -> "Sites":
        """The same in the new basis; for the basis after it nobody has told anything."""
        return Sites(*turn.turned(self.v, self.V), turn.diagonal(self.ahead), 0.0 * self.told, self.count)


@pytree
class Rotated(Linear):
    """U D Uᵀ, a precision that is diagonal in a basis. `np.asarray` is its diagonal in the weights' own coordinates."""

    basis: Kronecker
    D: Diagonal

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.asarray(self.diagonal, dtype)

    def __add__(self, other: Any) -> "Rotated":
        if isinstance(other, Rotated):
            _check_same(self.basis, other.basis)
            return Rotated(self.basis, self.D + other.D)
        return Rotated(self.basis, self.D + (other.scale if isinstance(other, Isotropic) else other))

    __radd__ = __add__

    def __mul__(self, number: Any) -> "Rotated":
        return Rotated(self.basis, number * self.D)

    def __truediv__(self, number: Any) -> "Rotated":
        return Rotated(self.basis, self.D / number)

    def __neg__(self) -> "Rotated":
        return Rotated(self.basis, -self.D)

    __rmul__ = __mul__

    def __matmul__(self, w: Vector) -> Vector:
        return self.basis @ (self.D @ (self.basis.T @ w))

    def solve(self, v: Vector, near: Vector | None = None) -> Vector:
        return self.basis @ self.D.solve(self.basis.T @ v)

    def logdet(self) -> Number:
        return self.D.logdet()

    def positive_part(self) -> "Rotated":
        return Rotated(self.basis, self.D.positive_part())

    def covariance(self, like: Vector) -> "TurnedVariances":
        return TurnedVariances(self.basis, variances(self.D.d))

    @property
    def diagonal(self) -> Diagonal:
        """Its diagonal in the weights' own coordinates: how sure each weight is if the others are known."""
        return self.basis.spread(self.D)

    @property
    def full(self) -> Full:
        """All of it, of a model of up to a few thousand weights."""
        like = self.D.d
        columns = jax.vmap(lambda unit: (self @ like.like(unit)).flat)(jnp.eye(like.size, dtype=like.flat.dtype))
        return Full((columns + columns.T) / 2)

    @property
    def flat(self) -> Array:
        return self.diagonal.flat


@pytree
class TurnedVariances:
    """U diag(v) Uᵀ: the covariance of a precision that is diagonal in a basis."""

    basis: Kronecker
    variances: Variances

    def between(self, gradients: Vector) -> Array:
        return self.variances.between(jax.vmap(jax.vmap(lambda gradient: self.basis.T @ gradient))(gradients))

    def draw(self, noise: Vector) -> Vector:
        return self.basis @ self.variances.draw(noise)


@pytree
class Shadow(Linear):
    """The diagonal of a precision that is diagonal in a basis which was not kept: enough to look at, not to predict."""

    d: Array

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.asarray(self.d, dtype)

    def covariance(self, like: Vector) -> TurnedVariances:
        raise ConfigError(
            "a history of FedLapKron is saved without its basis, and the posterior needs it; "
            "predict with the history that simulate returned"
        )


def either(first: Array, one: Tree, other: Tree) -> Any:
    """One of two trees."""
    return jax.tree.map(lambda a, b: jnp.where(first, a, b), one, other)


def _is_sides(thing: Any) -> bool:
    return isinstance(thing, Sides)


def _check_same(one: Kronecker, other: Kronecker) -> None:
    """Diagonals of two bases add up to none: only what is known to be of one basis is added."""
    same = lambda a, b: a is b or (not (is_traced(a) or is_traced(b)) and np.array_equal(a, b))
    if not all(map(same, jax.tree.leaves(one), jax.tree.leaves(other))):
        raise ConfigError("two precisions that are diagonal in different bases are added; expected one basis")
