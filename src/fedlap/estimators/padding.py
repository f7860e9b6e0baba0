"""Rows padded to few sizes, so that the folds of a cross-validation share one compiled program.

Padding is masked out of every sum. What it costs is at most twice the rows of small data, an eighth more of large.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import numpy as np

from fedlap.arrays import on_device
from fedlap.run.simulation import Simulation

FEWEST = 512
SMALL = 1024  # up to here sizes double, beyond they grow by an eighth at most


def roomy(count: int) -> int:
    """The next size that is not below a number of rows.

    >>> [roomy(count) for count in (3, 512, 513, 1000, 1025, 2049)]
    [512, 512, 1024, 1024, 1152, 2304]
    """
    power = max(FEWEST, 1 << (count - 1).bit_length())
    if power <= SMALL:
        return power
    step = power // 16
    return -(-count // step) * step


def padded(run: Simulation) -> Simulation:
    """A run without a test set, with room: rows that no client owns, row numbers that nobody counts.

    A set that is watched says how many of its rows count.
    """
    pool, shards = run.setup.pool, run.setup.shards
    setup = replace(
        run.setup,
        pool=pool._replace(inputs=_longer(pool.inputs, 0), labels=_longer(pool.labels, 0)),
        shards=shards._replace(rows=_longer(shards.rows, 1)),
    )
    watch: Any = {
        name: (_longer(inputs, 0), _longer(labels, 0), on_device(len(labels)))
        for name, (inputs, labels) in run.watch.items()
    }
    return replace(run, setup=setup, watch=watch)


def in_room(function: Callable[[np.ndarray], np.ndarray], rows: np.ndarray) -> np.ndarray:
    """A function of rows that gives an answer for each, with as many rows as there is room for."""
    more = np.zeros((roomy(len(rows)) - len(rows), *rows.shape[1:]), rows.dtype)
    return function(np.concatenate([rows, more]))[: len(rows)]


def _longer(array: jax.Array, axis: int) -> jax.Array:
    width = [(0, roomy(size) - size if place == axis else 0) for place, size in enumerate(array.shape)]
    return on_device(np.pad(np.asarray(array), width))
