"""All that stays fixed during a run, as arrays on the device."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..memory_points import draw_memory
from ..parties import Batches, Pool, Shard, Task
from ..streams import number, stream
from .round import Method


@dataclass(frozen=True)
class Setup:
    task: Task
    count: int
    classes: int
    method: Method
    pool: Pool
    shards: Shard
    key: Any

    @property
    def static(self):
        return self.task, self.count, self.classes


def make_setup(task, method, federation, seed):
    real = jnp.zeros(()).dtype
    method = jax.tree.map(lambda leaf: jnp.asarray(leaf, real), method)
    memory = draw_memory(federation, method.algorithm.memory, seed)
    sizes = federation.sizes
    shards = Shard(
        rows=jnp.asarray(pad(federation.rows, 0)),
        n=jnp.asarray(sizes, real),
        share=jnp.asarray(sizes / sizes.sum(), real),
        number=jnp.asarray([number(name) for name in federation.clients], jnp.uint32),
        mine=jnp.asarray(memory.mine),
        weights=jnp.asarray(memory.weights, real),
    )
    pool = Pool(
        jnp.asarray(federation.inputs, real), jnp.asarray(federation.labels), jnp.asarray(memory.inputs, real)
    )
    return Setup(task, len(sizes), federation.classes, method, pool, shards, jax.random.key(seed))


def draw_batches(solver, federation, seed, round, drawn):
    """The minibatches of every client drawn; the others' stay empty."""
    steps = np.array([solver.step_count(int(n)) for n in federation.sizes], np.int32)
    rows = []
    for name, mine, active in zip(federation.clients, federation.rows, drawn, strict=True):
        places = solver.schedule(stream(seed, "batches", round, name), len(mine) if active else 0)
        rows.append(np.where(places < 0, -1, mine[places]))
    return Batches(pad(rows, -1, steps.max()), steps * drawn)


def pad(ragged, value, length=None):
    """Arrays of several lengths as one, filled up at the end."""
    length = max(map(len, ragged)) if length is None else length
    full = np.full((len(ragged), length, *ragged[0].shape[1:]), value, ragged[0].dtype)
    for row, short in zip(full, ragged, strict=True):
        row[: len(short)] = short
    return full
