"""Precision matrices as objects: an equation is written once and never asks which structure it has.

All of them know `S @ w`, addition and scaling, and those with a dimension `S.solve(v)` and `S.logdet()`; a number
added to one of these is that multiple of the identity, so that `delta + V` is δI + V. `S.solve(v, near=w)` says where
the solution lies, if that is known: where S says less than its own rounding, it stays there. `np.asarray(S)` are
its numbers: s, [P] or [P, P], of which `as_precision` makes S again. `S.covariance(like)` is S⁻¹ for predictions.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedlap.algebra.covariance import Factored, Variances, factored, variances
from fedlap.algebra.pytrees import pytree
from fedlap.algebra.symmetric import rounding, solve
from fedlap.algebra.vector import Linear, Vector
from fedlap.arrays import Array, Number
from fedlap.errors import ConfigError


@pytree
class Isotropic(Linear):
    """s·I, of any dimension."""

    scale: Number

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.asarray(self.scale, dtype)

    def __add__(self, other: Any) -> Any:
        return Isotropic(self.scale + other.scale) if isinstance(other, Isotropic) else other + self.scale

    def __matmul__(self, w: Vector) -> Vector:
        return self.scale * w

    def covariance(self, like: Vector) -> Variances:
        return variances(like.map(lambda leaf: jnp.full_like(leaf, self.scale)))


@pytree
class Diagonal(Linear):
    """diag(d), the structure of the paper's experiments."""

    d: Vector

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.asarray(self.d, dtype)

    def __add__(self, other: Any) -> Any:
        if isinstance(other, (Full, Shifted)):
            return other + self
        return Diagonal(self.d + (other.d if isinstance(other, Diagonal) else _number(other)))

    __radd__ = __add__

    def __matmul__(self, w: Vector) -> Vector:
        return self.d.times(w)

    def solve(self, v: Vector, near: Vector | None = None) -> Vector:
        return v.times(self.d.map(lambda d: 1 / d))

    def logdet(self) -> Number:
        return sum(jnp.log(leaf).sum() for leaf in jax.tree.leaves(self))

    def positive_part(self) -> "Diagonal":
        return self.at_least(0)

    def at_least(self, least: Number) -> "Diagonal":
        """This, and where it has less than that, so much."""
        return Diagonal(self.d.map(lambda d: jnp.maximum(d, least)))

    def covariance(self, like: Vector) -> Variances:
        return variances(self.d)

    def learnt(self, delta: "Number | Diagonal", like: Vector) -> Vector:
        """Of each weight the part that data tell, and not the prior δ: the diagonal of S⁻¹(S − δ)."""
        return self.solve((self - delta).d)

    @property
    def flat(self) -> Array:
        return self.d.flat


@pytree
class Full(Linear):
    """A dense symmetric matrix over the flat vector, for models of up to a few thousand weights."""

    matrix: Array

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.asarray(self.matrix, dtype)

    def __add__(self, other: Any) -> "Full | Shifted":
        if isinstance(other, Full):
            return Full(self.matrix + other.matrix)
        return Shifted(self, 0.0) + other

    __radd__ = __add__

    def __matmul__(self, w: Vector) -> Vector:
        return w.like(self.matrix @ w.flat)

    def solve(self, v: Vector, near: Vector | None = None) -> Vector:
        return Shifted(self, 0.0).solve(v, near)

    def logdet(self) -> Number:
        return 2 * jnp.log(jnp.diagonal(jnp.linalg.cholesky(self.matrix))).sum()

    def positive_part(self) -> "Full":
        values, vectors = jnp.linalg.eigh(self.matrix)
        return Full((vectors * jnp.maximum(values, 0)) @ vectors.T)

    def covariance(self, like: Vector) -> Factored:
        return factored(np.asarray(self, np.float64))

    @property
    def flat(self) -> Array:
        return self.matrix


@pytree
class Shifted(Linear):
    """V + δI, its two parts kept apart: in one matrix a small δ would be lost to the rounding of V.

    Where weights differ in their δ, it is a diagonal matrix.
    """

    V: Full
    delta: Number | Diagonal

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.asarray(self.flat, dtype)

    def __add__(self, other: Any) -> "Shifted":
        if isinstance(other, Shifted):
            return Shifted(Full(self.V.matrix + other.V.matrix), self.delta + other.delta)
        if isinstance(other, Full):
            return Shifted(Full(self.V.matrix + other.matrix), self.delta)
        return Shifted(self.V, self.delta + _number(other))

    __radd__ = __add__

    def __matmul__(self, w: Vector) -> Vector:
        return self.V @ w + (self.delta @ w if isinstance(self.delta, Diagonal) else self.delta * w)

    def solve(self, v: Vector, near: Vector | None = None) -> Vector:
        start = jnp.zeros_like(v.flat) if near is None else near.flat
        if isinstance(self.delta, Diagonal):  # in units of the prior, where it is I
            unit = jax.lax.rsqrt(self.delta.flat)
            return v.like(unit * solve(self._in_units(unit), 1.0, unit * v.flat, start / unit))
        return v.like(solve(self.V.matrix, self.delta, v.flat, start))

    def learnt(self, delta: Number | Diagonal, like: Vector) -> Vector:
        """Of each weight the part that data tell, and not the prior δ: the diagonal of S⁻¹V.

        With V = UΛUᵀ in units of the prior it is U²Λ/(1 + Λ); of a direction that V says no more of than rounding,
        data tell nothing.
        """
        unit = jax.lax.rsqrt(self.delta.flat if isinstance(self.delta, Diagonal) else self.delta + 0 * like.flat)
        values, vectors = jnp.linalg.eigh(self._in_units(unit))
        told = jnp.where(values > rounding(self.V.matrix) * values[-1], values / (1 + values), 0)
        return like.like(vectors**2 @ told)

    def _in_units(self, unit: Array) -> Array:
        return unit[:, None] * self.V.matrix * unit

    def logdet(self) -> Number:
        return Full(self.flat).logdet()

    def positive_part(self) -> Full:
        return Full(self.flat).positive_part()

    def covariance(self, like: Vector) -> Factored:
        V, delta = np.asarray(self.V, np.float64), np.asarray(self.delta, np.float64)
        return factored(V + np.diag(np.broadcast_to(delta, len(V))))  # in double precision, where δ is not lost

    @property
    def flat(self) -> Array:
        matrix = self.V.matrix
        if isinstance(self.delta, Diagonal):
            return matrix + jnp.diag(self.delta.flat)
        return matrix + jnp.asarray(self.delta)[..., None, None] * jnp.eye(matrix.shape[-1], dtype=matrix.dtype)


def as_precision(numbers: Any, like: Vector) -> Any:
    """The precision that some numbers are of, for weights shaped as `like`; one that is a precision as it is."""
    if isinstance(numbers, Linear):
        return numbers
    numbers = jnp.asarray(numbers)
    return (Isotropic, lambda d: Diagonal(like.like(d)), Full)[numbers.ndim](numbers)


def _number(other: Any) -> Any:
    return other.scale if isinstance(other, Isotropic) else other


LARGEST = 4e9  # bytes of full matrices


def identity(structure: str, like: Vector, clients: int = 1) -> Diagonal | Full:
    """I in the named structure, for weights shaped as `like`; an error if that of each client would be too large."""
    if structure == "diagonal":
        return Diagonal(like.map(jnp.ones_like))
    if structure == "full":
        needed = clients * like.size**2 * like.flat.dtype.itemsize
        if needed > LARGEST:
            raise ConfigError(
                f'covariance="full" of {like.size:,} weights is a matrix for each of {clients} clients, '
                f'{needed / 1e9:,.1f} GB in all, and may have {LARGEST / 1e9:g} GB; use covariance="diagonal"'
            )
        return Full(jnp.eye(like.size, dtype=like.flat.dtype))
    raise ConfigError(f'covariance is "{structure}"; expected "diagonal" or "full"')
