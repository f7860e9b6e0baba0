"""Scores of class probabilities against labels: how often they are right, and whether they are as sure as they may be.

accuracy   how often the most probable class is the label
NLL        mean of −log p_y
Brier      mean of Σ_c (p_c − [y = c])², from 0 to 2: of all classes, so that for two it is twice the one-class form
ECE        expected calibration error, Σ_b |Σ_i∈b confidence_i − Σ_i∈b right_i| / N over the BINS bins
AUC        of two classes: how often a row of class 1 has more of p_1 than a row of class 0, a tie counting as half
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedlap.arrays import Array, ArrayLike, Number

BINS = 15  # of the top probability, ((b − 1)/15, b/15]


class Metrics(NamedTuple):
    """The five scores: a number each, or an array of them, of all rounds or of many runs.

    The AUC is NaN where there are not two classes, or where rows of one of them are missing. All five are NaN where a
    model has no finite outputs.
    """

    accuracy: Any
    nll: Any
    brier: Any
    ece: Any
    auc: Any


class Reliability(NamedTuple):
    """A reliability diagram: sums over the rows of each bin of the top probability, which is their confidence."""

    rows: Any  # [BINS] how many
    confidence: Any  # [BINS]
    right: Any  # [BINS] how many of them are right


class Tally(NamedTuple):
    """What scores are made of, as sums over rows; those of several parts of the rows may be added."""

    right: Any
    loss: Any
    brier: Any
    bins: Reliability


def nothing() -> Tally:
    """The sums over no rows."""
    zero, zeros = jnp.zeros(()), jnp.zeros(BINS)
    return Tally(zero, zero, zero, Reliability(zeros, zeros, zeros))


@jax.jit
def metrics_of(probabilities: Array, labels: Array, count: Number | None = None) -> Metrics:
    """The scores of class probabilities [rows, classes], wherever they come from.

    Rows from `count` on are padding; there is none if it is not given. A label of probability zero makes the NLL
    infinite, and no other score.
    """
    real = jnp.arange(len(labels)) < (len(labels) if count is None else count)
    tally = tally_of(probabilities, labels, real)
    found = scores(tally, auc(log_odds(probabilities), labels, real))
    finite = jnp.isfinite(tally.brier)
    return Metrics(*(jnp.where(finite, score, jnp.nan) for score in found))


def tally_of(
    probabilities: Array, labels: Array, real: Array, right: Array | None = None, loss: Array | None = None
) -> Tally:
    """The sums over the rows that are `real`.

    `right` and `loss` say row by row what is right and what it costs, where more is known than the probabilities.
    """
    hot = jax.nn.one_hot(labels, probabilities.shape[-1], dtype=probabilities.dtype)
    right = probabilities.argmax(-1) == labels if right is None else right
    loss = -jnp.log((hot * probabilities).sum(-1)) if loss is None else loss
    brier, total = ((probabilities - hot) ** 2).sum(-1), lambda rows: jnp.where(real, rows, 0).sum()
    return Tally(total(right), total(loss), total(brier), bins_of(probabilities, right, real))


def bins_of(probabilities: Array, right: Array, real: Array) -> Reliability:
    """The sums of each bin, over the rows that are `real`."""
    confidence = probabilities.max(-1)
    place = jnp.clip(jnp.ceil(BINS * confidence) - 1, 0, BINS - 1)
    among = (place[:, None] == jnp.arange(BINS)) & real[:, None]  # no scatter, which XLA:CPU runs as a loop
    total = lambda rows: jnp.where(among, rows[:, None], 0).sum(0)
    return Reliability(among.sum(0, dtype=confidence.dtype), total(confidence), total(right.astype(confidence.dtype)))


def calibration_error(bins: Reliability) -> Any:
    """The ECE, from the sums of each bin."""
    return abs(bins.confidence - bins.right).sum() / bins.rows.sum()


def scores(tally: Tally, auc: ArrayLike) -> Metrics:
    """The scores that these sums come to."""
    rows = tally.bins.rows.sum()
    return Metrics(tally.right / rows, tally.loss / rows, tally.brier / rows, calibration_error(tally.bins), auc)


def log_odds(probabilities: Array) -> Array | None:
    """log p_1/p_0 row by row, which still tells rows apart where p_1 is rounded to one; None without two classes."""
    if probabilities.shape[-1] != 2:
        return None
    return jnp.log(probabilities[:, 1]) - jnp.log(probabilities[:, 0])


def auc(odds: Array | None, labels: Array, real: Array) -> Array:
    """The area under the receiver's curve, exact with ties, by Mann and Whitney's count of pairs."""
    if odds is None:
        return jnp.asarray(jnp.nan)
    negative, positive = real & (labels == 0), real & (labels == 1)
    others = jnp.sort(jnp.where(negative, odds, jnp.inf))  # what is none of them is at the end
    below = partial(jnp.searchsorted, others, odds)
    ties_too = jnp.minimum(below(side="right"), negative.sum())
    share = (below(side="left") + ties_too) / (2 * negative.sum())
    area = jnp.where(positive, share, 0).sum() / positive.sum()
    return jnp.where((real & jnp.isnan(odds)).any(), jnp.nan, area)  # of what are no probabilities
