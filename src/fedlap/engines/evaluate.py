"""The scores of the broadcast weights w_g on a test set."""

from functools import partial

import jax
import jax.numpy as jnp

from fedlap.algebra.vector import Vector
from fedlap.arrays import Array, Number
from fedlap.engines.parties import Task
from fedlap.engines.scores import Metrics, auc, log_odds, nothing, scores, tally_of

CHUNK = 500  # examples at a time: a network's activations for 10,000 images would not fit


@partial(jax.jit, static_argnums=0)
def evaluate(task: Task, w: Vector, inputs: Array, labels: Array, count: Number | None = None) -> Metrics:
    """The scores of the weights on a test set.

    None is a number when the outputs are not finite, so that a diverged run cannot look like a bad one. Rows from
    `count` on are padding; there is none if it is not given.
    """
    size = len(labels)
    count = size if count is None else count
    chunks = -(-size // CHUNK)
    places = jnp.arange(chunks * CHUNK).reshape(chunks, -1)

    def add(totals, chunk):
        at = jnp.minimum(chunk, size - 1)
        outputs, real = task.model.apply(w.tree, inputs[at]), chunk < count
        probabilities, loss = task.likelihood.probabilities(outputs), task.likelihood.loss(outputs, labels[at])
        right = outputs.argmax(-1) == labels[at]
        tally = tally_of(probabilities, labels[at], real, right, loss)
        return jax.tree.map(jnp.add, totals, tally), log_odds(probabilities)

    tally, odds = jax.lax.scan(add, nothing(), places)
    odds = None if odds is None else odds.reshape(-1)[:size]
    found = scores(tally, auc(odds, labels, jnp.arange(size) < count))
    finite = jnp.isfinite(tally.loss) & jnp.isfinite(tally.brier)
    return Metrics(*(jnp.where(finite, score, jnp.nan) for score in found))


@partial(jax.jit, static_argnums=0)
def predict(task: Task, w: Vector, inputs: Array) -> Array:
    """Class probabilities at the point estimate."""
    return task.likelihood.probabilities(task.model.apply(w.tree, inputs))
