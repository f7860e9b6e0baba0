"""The covariance S⁻¹ of a Gaussian over weights, as predictions ask for it: J S⁻¹ Jᵀ of gradients J, and draws.

A precision gives its own by `S.covariance(like)`, an error where S is not positive. One structure more is one class
more with these two methods.
"""

from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol, cast

import jax
import jax.numpy as jnp
import numpy as np
import scipy

from fedlap.algebra.pytrees import pytree
from fedlap.algebra.symmetric import rounding
from fedlap.algebra.vector import Vector
from fedlap.arrays import Array
from fedlap.errors import ConfigError


class Covariance(Protocol):
    """What is asked of a covariance."""

    def between(self, gradients: Vector) -> Array | np.ndarray:
        """J S⁻¹ Jᵀ of each of n examples, [n, C, C], from the gradients of its C outputs, [n, C, …]."""
        ...

    def draw(self, noise: Vector) -> Vector:
        """S^{−1/2} ε: a draw from N(0, S⁻¹) if ε is one from N(0, I)."""
        ...


@pytree
class Variances:
    """diag(v): a variance for every weight. It is never a matrix."""

    v: Vector

    def between(self, gradients: Vector) -> Array:
        def of_leaf(J: Array, v: Array) -> Array:
            J = J.reshape(*J.shape[:2], v.size)
            return jnp.einsum("ncp,ndp->ncd", J * v.reshape(-1), J)

        leaves = zip(jax.tree.leaves(gradients), jax.tree.leaves(self.v), strict=True)
        return cast(Array, sum(of_leaf(J, v) for J, v in leaves))

    def draw(self, noise: Vector) -> Vector:
        return noise.times(self.v.map(jnp.sqrt))


@dataclass(frozen=True, eq=False)
class Factored:
    """S⁻¹ = D L⁻ᵀL⁻¹ D for D S D = LLᵀ with a unit diagonal, in double precision.

    Data are silent on some directions, as softmax is on a constant added to all outputs. There S⁻¹ is as large as the
    prior's, and in single precision the differences of outputs would be lost in it.
    """

    units: np.ndarray  # the diagonal of D
    L: np.ndarray

    def between(self, gradients: Vector) -> np.ndarray:
        rows = np.concatenate([_rows(leaf) for leaf in jax.tree.leaves(gradients)], -1) * self.units
        half = scipy.linalg.solve_triangular(self.L, rows.reshape(-1, len(self.L)).T, lower=True)
        half = half.T.reshape(rows.shape)
        return half @ half.swapaxes(1, 2)

    def draw(self, noise: Vector) -> Vector:
        step = scipy.linalg.solve_triangular(self.L.T, np.asarray(noise, np.float64))
        return noise.like(jnp.asarray(self.units * step, noise.flat.dtype))


def variances(d: Vector) -> Variances:
    """The covariance of a diagonal precision."""
    numbers = np.asarray(d)
    wrong = np.flatnonzero(~(numbers > 0))  # nor is a NaN
    if len(wrong):
        raise _not_positive(f"it is {numbers[wrong[0]]:.3g} for weight {wrong[0]} of {len(numbers)}")
    return Variances(d.map(lambda leaf: 1 / leaf))


def factored(matrix: np.ndarray) -> Factored:
    """The covariance of a precision that is a matrix.

    Beside data on a huge scale the prior is less than their rounding, and where they are silent S is a rounding error
    of either sign. So much as may be rounding is then added, measured with a unit diagonal: columns differ in units.
    """
    if not np.isfinite(matrix).all():
        raise _not_positive("not all of its numbers are finite")
    if (np.diag(matrix) > 0).all():
        units = 1 / np.sqrt(np.diag(matrix))
        scaled = units[:, None] * matrix * units
        for part in (0.0, rounding(scaled)):
            with suppress(np.linalg.LinAlgError):
                return Factored(units, scipy.linalg.cholesky(scaled + part * np.eye(len(scaled)), lower=True))
    raise _not_positive(f"its least eigenvalue is {np.linalg.eigvalsh(matrix)[0]:.3g}")


def _rows(leaf: Array) -> np.ndarray:
    """A leaf of gradients [n, C, …] as [n, C, p]."""
    numbers = np.asarray(leaf, np.float64)
    return numbers.reshape(*numbers.shape[:2], int(np.prod(numbers.shape[2:])))


def _not_positive(how: str) -> ConfigError:
    return ConfigError(
        f"the precision is not positive, so there is no posterior: {how}. Where a run has not diverged, a larger "
        "delta, the curvature GaussNewton(), which is never below zero, or JAX_ENABLE_X64=1 help"
    )
