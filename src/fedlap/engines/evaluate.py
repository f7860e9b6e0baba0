"""Accuracy and negative log-likelihood of the broadcast weights w_g on a test set."""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedlap.algebra.vector import Vector
from fedlap.arrays import Array, Number
from fedlap.engines.parties import Task

CHUNK = 500  # examples at a time: a network's activations for 10,000 images would not fit


class Metrics(NamedTuple):
    """Accuracy and negative log-likelihood: a number each, or an array of them, of all rounds or of many runs."""

    accuracy: Any
    nll: Any


@partial(jax.jit, static_argnums=0)
def evaluate(task: Task, w: Vector, inputs: Array, labels: Array, count: Number | None = None) -> Metrics:
    """Accuracy and NLL of the weights on a test set.

    Neither is a number when the outputs are not finite, so that a diverged run cannot look like a bad one. Rows from
    `count` on are padding; there is none if it is not given.
    """
    size = len(labels)
    count = size if count is None else count
    chunks = -(-size // CHUNK)
    places = jnp.arange(chunks * CHUNK).reshape(chunks, -1)

    def add(totals, chunk):
        at = jnp.minimum(chunk, size - 1)
        outputs, real = task.model.apply(w.tree, inputs[at]), chunk < count
        right = outputs.argmax(-1) == labels[at]
        loss = task.likelihood.loss(outputs, labels[at])
        return (totals[0] + jnp.where(real, right, 0).sum(), totals[1] + jnp.where(real, loss, 0).sum()), None

    zero = jnp.zeros(())
    (right, loss), _ = jax.lax.scan(add, (zero, zero), places)
    return Metrics(jnp.where(jnp.isfinite(loss), right / count, jnp.nan), loss / count)


@partial(jax.jit, static_argnums=0)
def predict(task: Task, w: Vector, inputs: Array) -> Array:
    """Class probabilities at the point estimate."""
    return task.likelihood.probabilities(task.model.apply(w.tree, inputs))
