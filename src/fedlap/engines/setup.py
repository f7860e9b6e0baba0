"""All that stays fixed during a run, as arrays on the device."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedlap.algebra.pytrees import pytree, static
from fedlap.engines.memory import draw_memory
from fedlap.engines.parties import Batches, Pool, Shard, Task
from fedlap.engines.round import Method
from fedlap.streams import number, stream


@pytree
class Setup:
    """What every function of a round is given whole: jit sees arrays in it, and a program to compare."""

    task: Task = static()
    count: int = static()
    classes: int = static()
    method: Method
    pool: Pool
    shards: Shard
    key: Any


def make_setup(task, method, federation, seed, memory=None):
    """`memory` is given where nobody has all clients' rows to draw it from."""
    real = jax.dtypes.canonicalize_dtype(float)
    reals = lambda values: jnp.asarray(np.asarray(values, real))  # converted on the host: nothing to compile
    method = jax.tree.map(reals, method)
    memory = draw_memory(federation, method.algorithm.memory, seed) if memory is None else memory
    sizes = federation.sizes
    shards = Shard(
        rows=jnp.asarray(pad(federation.rows, 0)),
        n=reals(sizes),
        share=reals(sizes / sizes.sum()),
        number=jnp.asarray(np.array([number(name) for name in federation.clients], np.uint32)),
        mine=jnp.asarray(memory.mine),
        weights=reals(memory.weights),
    )
    pool = Pool(
        inputs=reals(federation.inputs),
        labels=jnp.asarray(federation.labels),
        memory=reals(memory.inputs),
        points=jnp.asarray(len(memory.inputs)),
    )
    return Setup(task, len(sizes), federation.classes, method, pool, shards, jax.random.key(seed))


class Plan(NamedTuple):
    """What chance decides about one round."""

    drawn: np.ndarray  # [K] which clients take part
    batches: Batches  # of every client; empty for those not drawn


def draw_plan(solver, federation, participation, seed, round):
    """The clients and the minibatches of a round: a function of the seed, the round and the clients' names."""
    drawn = _draw_clients(federation.clients, participation, seed, round)
    return Plan(drawn, draw_batches(solver, federation, drawn, seed, round))


def draw_batches(solver, federation, drawn, seed, round):
    """The minibatches of the drawn clients; no client's depend on who else is drawn."""
    sizes, size_of = np.unique(federation.sizes, return_inverse=True)
    steps = np.array([solver.step_count(size) for size in sizes.tolist()], np.int32)[size_of]
    batches = np.full((len(drawn), steps.max(), solver.batch), -1, np.int32)
    for k in np.flatnonzero(drawn):
        name, rows = federation.clients[k], federation.rows[k]
        solver.schedule(stream(seed, "batches", round, name), rows, out=batches[k, : steps[k]])
    return Batches(batches, steps * drawn)


def everyone(participation):
    """Whether all clients take part in every round, however many they are; as a number, 1 is one client."""
    return isinstance(participation, float) and participation == 1.0


def _draw_clients(names, participation, seed, round):
    count = len(names)
    wanted = participation if isinstance(participation, int) else int(np.ceil(participation * count - 1e-9))
    if wanted >= count:
        return np.ones(count, bool)
    by_name = np.argsort(names)  # in whatever order they come, the same names are drawn
    drawn = by_name[stream(seed, "participants", round).permutation(count)[:wanted]]
    return np.isin(np.arange(count), drawn)


def pad(ragged, value):
    """Arrays of several lengths as one, filled up at the end."""
    full = np.full((len(ragged), max(map(len, ragged))), value, ragged[0].dtype)
    for row, short in zip(full, ragged, strict=True):
        row[: len(short)] = short
    return full
