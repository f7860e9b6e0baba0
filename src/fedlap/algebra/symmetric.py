"""Equations with a curvature that is known to rounding only.

A curvature summed from data is singular wherever the data are silent: two logits leave their sum open, a feature that
is a multiple of another their difference. In floating point such a matrix has rounding errors for eigenvalues there, of
either sign, and dividing by them makes an answer wander, or no number at all. Here the silent directions are told from
the others, and along them the answer is what the prior says. What counts as rounding is measured with a unit diagonal,
because columns may differ by ten powers of ten.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import cho_solve

from fedlap.arrays import Array, Number


class Silent(NamedTuple):
    """The directions that a symmetric matrix says nothing of."""

    null: Array  # [P, P] columns that span it, zero where a column of the matrix depends on no other
    pivots: Array  # [P] what the matrix has left for each of them, of a unit diagonal


def solve(V: Array, delta: Number, v: Array, near: Array) -> Array:
    """w = (V + δI)⁻¹ v, where V and v carry the rounding errors of sums over data, and δ ≥ 0 may be tiny beside V.

    It is found as a step from a point near it. Where V is silent only the prior speaks: w is v/δ, or zero where v says
    no more than rounding does. Where V may say more than δ does, but no more than rounding, w stays as it is. No
    number if V + δI is not positive.
    """
    scale = unit(jnp.diagonal(V) + delta)
    M = scale[:, None] * V * scale + jnp.diag(delta * scale**2)
    factor = jnp.linalg.cholesky(M)
    missing = v - V @ near - delta * near
    quick = scale * cho_solve((factor, True), scale * missing)
    # Pivots that nothing can be wrong with; a Cholesky factor that failed has none. Then eigenvalues, which cost more.
    sure = jnp.diagonal(factor).min() ** 2 > jnp.finfo(V.dtype).eps ** (1 / 3)
    heard = unless(sure, sure, lambda: _all_heard(V))
    return near + unless(heard, quick, lambda: _step_where_heard(V, delta, v, near, scale, M))


def _all_heard(V: Array) -> Array:
    """Whether a matrix is silent on nothing."""
    scale = unit(jnp.diagonal(V))
    values = jnp.linalg.eigvalsh(scale[:, None] * V * scale)
    return values[0] > rounding(V) * values[-1]


def _step_where_heard(V: Array, delta: Number, v: Array, near: Array, scale: Array, M: Array) -> Array:
    """The step from `near` to the solution, where V is silent on something.

    With B for that, Bᵀw is known, and said once more gives the system full rank. In units of the matrix,
    x = w/scale, that is CCᵀx = C·(…), where C is scale · B with columns of length one.
    """
    B, pivots = silent(V)
    C = scale[:, None] * B
    lengths = jnp.linalg.norm(C, axis=0)
    lengths = jnp.where(lengths > 0, lengths, 1)
    C = C / lengths
    values, vectors = jnp.linalg.eigh(M + C @ C.T)
    missing = v - V @ near - delta * near

    def step_of(known):
        right = scale * missing + C @ (known / lengths)
        return scale * (vectors @ ((vectors.T @ right) / jnp.maximum(values, rounding(V))))

    prior = delta * (C**2).T @ scale**2
    doubtful = jnp.where(jnp.abs(pivots) > 20 * jnp.finfo(V.dtype).eps, rounding(V), 0)
    to_zero = -jnp.where(prior + doubtful > 0, prior / (prior + doubtful), 0) * (B.T @ near)
    terms = jnp.abs(v) + jnp.abs(V) @ (jnp.abs(near) + jnp.abs(step_of(to_zero)))
    heard = (jnp.abs(B.T @ v) > jnp.sqrt(jnp.finfo(V.dtype).eps) * (jnp.abs(B).T @ terms)) & (delta > 0)
    step = step_of(jnp.where(heard, B.T @ missing / jnp.where(delta > 0, delta, 1), to_zero))
    # Not by the pivots, which the errors of all sweeps are in; and not by the values, which CCᵀ may have lifted.
    return jnp.where(jnp.linalg.eigvalsh(M)[0] < -rounding(V), jnp.nan, step)


def silent(matrix: Array) -> Silent:
    """The directions that a matrix says nothing of, by sweeps: of large pivots, until none but rounding is left.

    Each of the columns that are left over is then, to rounding, a sum of some others, and of as few as there are:
    directions of columns in different units stay apart, as those of an orthogonal basis would not. Columns in small
    units, whose numbers are large, are swept first, so that those left over are made of them, and not the reverse.
    """
    size = len(matrix)
    scale = unit(jnp.diagonal(matrix))
    start = scale[:, None] * matrix * scale
    least = rounding(matrix)

    def pivots(swept, table):
        return jnp.where(swept, -jnp.inf, jnp.diagonal(table))

    def unfinished(carry):
        return pivots(*carry).max() > least

    def sweep(carry):
        swept, table = carry
        remaining = pivots(swept, table)
        j = jnp.where(remaining >= remaining.max() / 10, jnp.diagonal(matrix), -jnp.inf).argmax()
        pivot, column, row = table[j, j], table[:, j], table[j]
        table = table - jnp.outer(column, row) / pivot
        table = table.at[:, j].set(-column / pivot).at[j].set(row / pivot).at[j, j].set(1 / pivot)
        return swept.at[j].set(True), table

    swept, table = jax.lax.while_loop(unfinished, sweep, (jnp.zeros(size, bool), start))
    # Smaller parts of a sum than this are errors of the sweeps, which other units would blow up.
    parts = jnp.where(jnp.abs(table) > jnp.sqrt(jnp.finfo(matrix.dtype).eps), table, 0)
    null = jnp.where(swept, 0, jnp.where(swept[:, None], -parts, jnp.eye(size, dtype=matrix.dtype)))
    return Silent(scale[:, None] * null, jnp.where(swept, 0, jnp.diagonal(table)))


def unless(fine: Array | bool, value: Any, make: Callable[[], Any]) -> Any:
    """The value where that is fine, and otherwise another one, which is not made if nobody needs it.

    `lax.cond` would make both of them under `vmap`, where a loop runs as often as the longest of them.
    """
    missing = jnp.logical_not(fine)
    return jax.lax.while_loop(lambda carry: carry[0], lambda carry: (False & carry[0], make()), (missing, value))[1]


def unit(diagonal: Array) -> Array:
    """What a matrix of this diagonal must be scaled by, on both sides, to have ones there; 1 for an empty row."""
    return jax.lax.rsqrt(jnp.where(diagonal > 0, diagonal, 1))


def rounding(matrix: Array | np.ndarray) -> float | np.floating:
    """The part of a unit diagonal below which a pivot is not known."""
    return 10 * len(matrix) * jnp.finfo(matrix.dtype).eps
