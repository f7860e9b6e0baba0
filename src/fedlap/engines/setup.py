"""All that stays fixed during a run, as arrays on the device."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import jax
import numpy as np

from fedlap.algebra.pytrees import pytree, static
from fedlap.arrays import Key, Tree, on_device
from fedlap.engines.parties import Batches, Pool, Shard, Task
from fedlap.engines.round import Method
from fedlap.engines.sums import Said
from fedlap.solvers import Solver
from fedlap.streams import number, stream, streams

# Memory points: which inputs the clients and the server share for FedLap-Func -----------------------------------------


class Holdings(Protocol):
    """What is asked of a federation: who holds which rows of one pool."""

    @property
    def clients(self) -> Sequence[str]: ...
    @property
    def inputs(self) -> np.ndarray: ...
    @property
    def labels(self) -> np.ndarray: ...
    @property
    def rows(self) -> Sequence[np.ndarray]: ...
    @property
    def sizes(self) -> np.ndarray: ...
    @property
    def by_name(self) -> np.ndarray: ...
    @property
    def classes(self) -> int: ...
    @property
    def public(self) -> np.ndarray | None: ...


class MemoryPoints(NamedTuple):
    """All clients' points. Studies send and store it, each array under the name of its field."""

    inputs: np.ndarray  # [M, ...]
    mine: np.ndarray  # [K, m] places of each client's points in `inputs`
    weights: np.ndarray  # [K, m] how many examples a point stands for, N_kc / M_kc; 0 is padding


def draw_memory(federation: Holdings, per_class: int, seed: int) -> MemoryPoints:
    """`per_class` random points of each class a client has; or the federation's public inputs, shared by all.

    A public point belongs to no class, so a client's N_k examples are spread evenly over them.
    """
    count = len(federation.clients)
    if per_class and federation.public is not None:
        size = len(federation.public)
        places = np.tile(np.arange(size, dtype=np.int32), (count, 1))
        return MemoryPoints(federation.public, places, np.repeat(federation.sizes[:, None] / size, size, axis=1))
    chosen = [
        choose_points(federation.labels[rows], federation.classes, per_class, seed, name)
        for name, rows in zip(federation.clients, federation.rows, strict=True)
    ]
    inputs = [federation.inputs[rows[places]] for rows, (places, _) in zip(federation.rows, chosen, strict=True)]
    return join_points(inputs, [weights for _, weights in chosen])


def choose_points(
    labels: np.ndarray, classes: int, per_class: int, seed: int, name: str
) -> tuple[np.ndarray, np.ndarray]:
    """Which of a client's rows it shows to the others, and how many of its examples each stands for."""
    rng = stream(seed, "memory", name)
    members = [np.flatnonzero(labels == label) for label in range(classes)]
    chosen = [rng.permutation(rows)[:per_class] for rows in members]
    weights = [
        np.full(len(points), len(rows) / max(1, len(points))) for points, rows in zip(chosen, members, strict=True)
    ]
    return np.concatenate(chosen), np.concatenate(weights)


def join_points(inputs: Sequence[np.ndarray], weights: Sequence[np.ndarray]) -> MemoryPoints:
    """All clients' points one after the other; a client with fewer than the most is padded with weightless ones."""
    sizes = list(map(len, weights))
    places, padded = np.zeros((len(sizes), max(sizes)), np.int32), np.zeros((len(sizes), max(sizes)))
    for k, (begin, size) in enumerate(zip(np.cumsum([0, *sizes]), sizes, strict=False)):
        places[k, :size], padded[k, :size] = np.arange(begin, begin + size), weights[k]
    return MemoryPoints(np.concatenate(inputs), places, padded)


# The setup ------------------------------------------------------------------------------------------------------------


@pytree
class Setup:
    """All that stays fixed during a run, given whole to every function of a round.

    To jit it is arrays, and a program to compare.
    """

    task: Task = static()
    count: int = static()
    classes: int = static()
    method: Method
    pool: Pool
    shards: Shard
    key: Key
    past: tuple[Said, ...] = ()  # by data that are no longer here


class Past(NamedTuple):
    """What a client's earlier data have said, for good: its term in the server's sum, which is part of the prior."""

    name: str
    sent: Tree
    memory: np.ndarray  # the inputs of its memory points, [m, ...]


def make_setup(task: Task, method: Method, federation: Holdings, seed: int, past: Sequence[Past] = ()) -> Setup:
    """The setup of a federation whose rows are all here."""
    memory = draw_memory(federation, method.algorithm.memory, seed)
    shards = make_shards(federation.clients, federation.sizes, pad(federation.rows, 0), memory)
    ends = np.cumsum([len(memory.inputs), *(len(each.memory) for each in past)])
    all_points = memory._replace(inputs=np.concatenate([memory.inputs, *(each.memory for each in past)]))
    pool = make_pool(federation.inputs, federation.labels, all_points)
    said = tuple(
        Said(jax.tree.map(_reals, each.sent), on_device(np.arange(begin, end), np.int32))
        for each, begin, end in zip(past, ends[:-1], ends[1:], strict=True)
    )
    count, key = len(federation.sizes), jax.random.key(seed)
    return Setup(task, count, federation.classes, as_leaves(method), pool, shards, key, said)


def as_leaves(method: Method) -> Method:
    """A method with its numbers on the device, as a setup holds it."""
    return jax.tree.map(_reals, method)


def make_shards(names: Sequence[str], sizes: np.ndarray, rows: np.ndarray, memory: MemoryPoints) -> Shard:
    """All clients' shards, stacked; `rows` are row numbers of the pool, [K, longest]."""
    return Shard(
        rows=on_device(rows),
        n=_reals(sizes),
        share=_reals(sizes / sizes.sum()),
        number=on_device([number(name) for name in names], np.uint32),
        places=on_device(memory.mine),
        weights=_reals(memory.weights),
    )


def make_pool(inputs: np.ndarray, labels: np.ndarray, memory: MemoryPoints) -> Pool:
    """The arrays that row numbers point into, on the device."""
    return Pool(
        inputs=_reals(inputs),
        labels=on_device(labels),
        memory=_reals(memory.inputs),
        points=on_device(len(memory.inputs)),
    )


def _reals(values: Any) -> jax.Array:
    """Numbers on the device, in its precision; converted on the host, where there is nothing to compile."""
    return on_device(values, jax.dtypes.canonicalize_dtype(float))


class Plan(NamedTuple):
    """What chance decides about one round."""

    drawn: Any  # [K] which clients take part
    batches: Any  # theirs, [D, …]: Batches, or a Draw of them


@dataclass(frozen=True)
class Draw:
    """The minibatches of the clients drawn in a round, each drawn when somebody asks for it.

    They depend on the seed, the round and the client's name: on nobody else, and not on when.
    """

    solver: Solver
    federation: Holdings  # which has the names and the rows
    places: np.ndarray  # [D] of the clients drawn
    steps: np.ndarray  # [D] how many each takes
    longest: int  # of any client, drawn or not: one shape for all rounds
    seed: int
    round: int

    def at(self, which: np.ndarray) -> Batches:
        """The minibatches of some of them, stacked."""
        rows = np.full((len(which), self.longest, self.solver.batch), -1, np.int32)
        steps, of_client = self.steps[which], streams(self.seed, "batches", self.round)
        names, of_names, schedule = self.federation.clients, self.federation.rows, self.solver.schedule
        for out, place, count in zip(rows, map(int, self.places[which]), map(int, steps), strict=True):
            schedule(of_client(names[place]), of_names[place], out=out[:count])
        return Batches(rows, steps)

    def all(self) -> Batches:
        return self.at(np.arange(len(self.places)))


def draw_plan(
    solver: Solver, federation: Holdings, participation: float, seed: int, round: int, ahead: bool = True
) -> Plan:
    """The clients and the minibatches of a round: a function of the seed, the round and the clients' names.

    Minibatches are drawn now, or else when they are needed.
    """
    drawn = _draw_clients(federation, participation, seed, round)
    draw = draw_batches(solver, federation, drawn, seed, round)
    return Plan(drawn, draw.all() if ahead else draw)


def draw_batches(solver: Solver, federation: Holdings, drawn: np.ndarray, seed: int, round: int) -> Draw:
    """The minibatches of the drawn clients, to be drawn."""
    places, steps = np.flatnonzero(drawn), step_counts(solver, federation.sizes)
    return Draw(solver, federation, places, steps[places], int(steps.max()), seed, round)


def step_counts(solver: Solver, sizes: np.ndarray) -> np.ndarray:
    """How many steps each client takes in a round, by its size."""
    several, which = np.unique(sizes, return_inverse=True)
    return np.array([solver.step_count(size) for size in several.tolist()], np.int32)[which]


def draw_own_batches(solver: Solver, name: str, rows: np.ndarray, seed: int, round: int) -> Batches:
    """The minibatches of one client by itself: those that `draw_batches` gives it, without padding."""
    batches = np.full((solver.step_count(len(rows)), solver.batch), -1, np.int32)
    solver.schedule(stream(seed, "batches", round, name), rows, out=batches)
    return Batches(batches, np.int32(len(batches)))


def everyone(participation: float) -> bool:
    """Whether all clients take part in every round, however many they are; as a number, 1 is one client."""
    return isinstance(participation, float) and participation == 1.0


def _draw_clients(federation: Holdings, participation: float, seed: int, round: int) -> np.ndarray:
    count = len(federation.clients)
    size = participation if isinstance(participation, int) else int(np.ceil(participation * count - 1e-9))
    drawn = np.full(count, size >= count)
    if size < count:  # by name: in whatever order they come, the same are drawn
        drawn[federation.by_name[stream(seed, "participants", round).permutation(count)[:size]]] = True
    return drawn


def pad(ragged: Sequence[np.ndarray], value: int) -> np.ndarray:
    """Arrays of several lengths as one, filled up at the end."""
    full = np.full((len(ragged), max(map(len, ragged))), value, ragged[0].dtype)
    for row, short in zip(full, ragged, strict=True):
        row[: len(short)] = short
    return full
