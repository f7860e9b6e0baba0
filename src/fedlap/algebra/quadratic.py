"""Quadratic functions of the weights, which add up to one quadratic before any step is taken.

Written term by term as in the paper, v_kᵀw − ½wᵀV_kw + ½‖w − w_g‖²_{S_g} becomes a single ½(w−c)ᵀA(w−c) + rᵀ(w−c) with
A = S_g − V_k, c = w_g and r = v_k − V_k w_g. It is, up to a constant, minus the log of q_g / t_k: the client's cavity.
The file keeps the equation, and the solver streams fewer vectors through memory.

The centre c is kept apart from r for a reason. Where a client's data say nothing about a weight, the gradient at
w = w_g is exactly zero, and A(w−c) + r is exactly zero too, while Aw + (r − Ac) is a rounding error. Adam divides a
gradient by its own size, so in a few steps it would blow that error up to full steps.
"""

from typing import Any

import jax

from fedlap.algebra.precision import Diagonal, Full, Isotropic, Shifted
from fedlap.algebra.pytrees import pytree
from fedlap.algebra.vector import Vector
from fedlap.arrays import Array, Number


@pytree
class Quadratic:
    """w ↦ ½(w−c)ᵀA(w−c) + rᵀ(w−c); a centre that is None is zero.

    A slope of zero is a number and is added like any other: without it the compiler would round the rest otherwise.
    """

    A: Any
    c: Any
    r: Any

    def __add__(self, other: "Quadratic") -> "Quadratic":
        centre = other.c if self.c is None else self.c
        curvature = other.A if self.A is FLAT else self.A if other.A is FLAT else self.A + other.A
        return Quadratic(curvature, centre, self._slope_at(centre) + other._slope_at(centre))

    def __mul__(self, number: Number) -> "Quadratic":
        return Quadratic(FLAT if self.A is FLAT else number * self.A, self.c, number * self.r)

    def __truediv__(self, number: Number) -> "Quadratic":
        return self * (1 / number)

    def __neg__(self) -> "Quadratic":
        return self * -1.0

    def __sub__(self, other: "Quadratic") -> "Quadratic":
        return self + -other

    __rmul__ = __mul__

    def _slope_at(self, centre: Vector | None) -> Any:
        """The slope at another centre. At its own, the very same vector, there is nothing to add; at a copy, zeros."""
        if self.c is centre or self.A is FLAT:
            return self.r
        return self.r + self.A @ (centre if self.c is None else centre - self.c)

    def __call__(self, w: Vector) -> Array:
        return _value(jax.lax.stop_gradient(self), w)


def fold(q: Quadratic) -> Quadratic:
    """The same function with as few vectors as it can be had: an isotropic one needs its minimiser only.

    One without curvature has none, and stays as it is.
    """
    if isinstance(q.A, Isotropic) and not _is_zero(q.A.scale) and not _is_zero(q.r):
        shift = q.r / q.A.scale
        return Quadratic(q.A, -shift if q.c is None else q.c - shift, 0.0)
    return q


def _is_zero(number: Number) -> bool:
    """Whether a number is known to be zero: one inside a compiled program never is."""
    return isinstance(number, float) and number == 0


# The derivative is stated, not derived: autodiff of ½xᵀAx would form Ax and Aᵀx and add their halves.
@jax.custom_jvp
def _value(q: Quadratic, w: Vector) -> Array:
    x = _from_centre(q, w)
    return (q.A @ x / 2 + q.r) @ x


@_value.defjvp
def _value_jvp(primals, tangents):
    (q, w), (_, dw) = primals, tangents
    return _value(q, w), (q.A @ _from_centre(q, w) + q.r) @ dw


def _from_centre(q: Quadratic, w: Vector) -> Vector:
    return w if q.c is None else w - q.c


IDENTITY = Isotropic(1.0)
FLAT = Isotropic(0.0)  # no curvature: known by itself, because inside a compiled program no number is known to be zero


def linear(v: Vector) -> Quadratic:
    """w ↦ vᵀw."""
    return Quadratic(FLAT, None, v)


def square(S: Isotropic | Diagonal | Full | Shifted = IDENTITY, *, around: Vector | None = None) -> Quadratic:
    """w ↦ (w − m)ᵀS(w − m); m is zero unless given."""
    return Quadratic(2 * S, around, 0.0)
