"""Memory points, inputs that clients and server both hold, and the soft labels that clients send about them.

Cross-entropy is linear in its target, so soft labels form a vector space: they are added over clients,
subtracted, and scaled. Σ_i τ_i ℓ(ŷ_i, w) needs of them only the weight and the weighted target of each point,

    Σ_i  mass_i · logsumexp f(x_i; w) − targets_iᵀ f(x_i; w).

On its own points a client's mass cancels exactly, which leaves a function linear in the outputs. Minimising a
negative cross-entropy on its own would be unbounded below.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp

from fedlap.algebra.pytrees import pytree
from fedlap.algebra.quadratic import Quadratic
from fedlap.algebra.vector import Linear, Vector
from fedlap.arrays import Array, Number


@pytree
class SoftLabels(Linear):
    """Weights and weighted targets, of some points: mass [m], targets [m, C]."""

    mass: Array
    targets: Array


def weigh(mass: Array, probabilities: Array) -> SoftLabels:
    """Soft labels of the given weights."""
    return SoftLabels(mass, mass[..., None] * probabilities)


@pytree
class Memory:
    """M points, and which of them are whose.

    A client has the places of its own points, the server those of all clients, stacked.
    """

    inputs: Array  # [M, ...]
    places: Array  # [m] places in `inputs`

    def place(self, labels: SoftLabels) -> SoftLabels:
        """Labels of the points at `places` as labels of all M points, zero elsewhere."""
        size, classes = len(self.inputs), labels.targets.shape[-1]
        return SoftLabels(
            jnp.zeros(size, labels.mass.dtype).at[self.places].add(labels.mass),
            jnp.zeros((size, classes), labels.targets.dtype).at[self.places].add(labels.targets),
        )


class Distilled(NamedTuple):
    """w ↦ τ Σ_i τ_i ℓ(ŷ_i, w) + posterior(w), in its parts: who minimises it may state them in other coordinates."""

    tau: Number
    distil: Callable[[Vector, SoftLabels], Array]  # Σ_i τ_i ℓ(ŷ_i, w)
    y: SoftLabels
    posterior: Quadratic

    def __call__(self, w: Vector) -> Array:
        return self.tau * self.distil(w, self.y) + self.posterior(w)
