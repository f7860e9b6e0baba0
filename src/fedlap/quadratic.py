"""Quadratic functions of the weights, which add up to one quadratic before any step is taken.

Written term by term as in the paper, v_kᵀw − ½wᵀV_kw + ½‖w − w_g‖²_{S_g} becomes a single ½wᵀAw + bᵀw with
A = S_g − V_k and b = v_k − S_g w_g. It is, up to a constant, minus the log of q_g / t_k: the client's cavity. The
solver streams two vectors through memory instead of four, and the file keeps the equation.
"""

import jax

from .precision import Isotropic
from .vector import Linear, pytree


@pytree
class Quadratic(Linear):
    """w ↦ ½ wᵀAw + bᵀw."""

    A: object
    b: object

    def __add__(self, other):
        return Quadratic(self.A + other.A, self.b + other.b)

    def __call__(self, w):
        return _value(jax.lax.stop_gradient(self), w)


# The derivative is stated, not derived: autodiff of ½wᵀAw would form Aw and Aᵀw and add their halves.
@jax.custom_jvp
def _value(q, w):
    return (q.A @ w / 2 + q.b) @ w


@_value.defjvp
def _value_jvp(primals, tangents):
    (q, w), (_, dw) = primals, tangents
    return _value(q, w), (q.A @ w + q.b) @ dw


def linear(v):
    """w ↦ vᵀw."""
    return Quadratic(Isotropic(0.0), v)


def square(S=Isotropic(1.0), *, around=None):
    """w ↦ (w − m)ᵀS(w − m), its constant dropped; m is zero unless given."""
    return Quadratic(2 * S, 0.0 if around is None else -2 * (S @ around))
