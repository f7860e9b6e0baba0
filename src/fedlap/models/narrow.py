"""A network's first dense layer in fewer weights: those that a few inputs can see.

The layer knows its n inputs x_i only through W x_i. With orthonormal rows Q whose span has them all, W x_i is
(W Qᵀ)(Q x_i): the network with W Qᵀ, of n columns, says of Q x_i what the network with W says of x_i. What is left of
W, its part outside of the span, no output depends on.
"""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedlap.arrays import Array, Tree
from fedlap.models.model import Trainable
from fedlap.models.network import Dense, Flatten, Network


class Narrow(NamedTuple):
    """A network as some inputs see it, and the way back."""

    layer: int  # the dense one
    basis: Array  # Q, [n, d]
    inputs: Array  # Q x_i, [n, n]

    def inside(self, params: Tree) -> Tree:
        """The weights that the inputs see: W Qᵀ for W."""
        return self._put(params, params[self.layer]["weight"] @ self.basis.T)

    def whole(self, inside: Tree, outside: Tree) -> Tree:
        """All weights: inside of the span those given first, outside of it those of `outside`."""
        given, other = inside[self.layer]["weight"], outside[self.layer]["weight"]
        return self._put(inside, other + (given - other @ self.basis.T) @ self.basis)

    def _put(self, params: Any, weight: Array) -> Tree:
        layer = self.layer
        return (*params[:layer], {**params[layer], "weight": weight}, *params[layer + 1 :])


def first_dense(model: Trainable) -> int | None:
    """Which layer the inputs come to first, if it is a dense one."""
    layers = model.layers if isinstance(model, Network) else ()
    first = next((i for i, each in enumerate(layers) if not isinstance(each, Flatten)), None)
    return first if first is not None and isinstance(layers[first], Dense) else None


def narrow(model: Trainable, inputs: Array) -> Narrow | None:
    """The model in fewer weights, if it begins with a dense layer that is wider than the inputs are many."""
    layer = first_dense(model)
    rows = inputs.reshape(len(inputs), math.prod(inputs.shape[1:]))
    if layer is None or not 0 < len(rows) < rows.shape[1]:
        return None
    basis = orthonormal(rows)
    return Narrow(layer, basis, rows @ basis.T)


def orthonormal(rows: Array) -> Array:
    """Orthonormal rows of the same span, by Gram and Schmidt, twice; zeros for a row that depends on those before it.

    LAPACK's QR runs in threads that wait for each other without letting go of their cores: while others compute, a
    millisecond of it takes up to a second.
    """
    least = len(rows) * jnp.finfo(rows.dtype).eps  # of what is left of a row, to be more than rounding

    def add(place: Array, basis: Array) -> Array:
        row = rows[place]
        rest = row - (basis @ row) @ basis
        rest = rest - (basis @ rest) @ basis
        length = jnp.linalg.norm(rest)
        real = length > least * jnp.linalg.norm(row)
        return basis.at[place].set(jnp.where(real, rest / jnp.where(real, length, 1), 0))

    return jax.lax.fori_loop(0, len(rows), add, jnp.zeros_like(rows))
