"""The terms of a study: what server and sites each build from the study file, so that all run the same program.

A site has its own rows in its pool, numbered from 0, and nobody else's. Of the others it knows how many rows they have:
its row numbers are padded to as many as the largest member has, because a sum over more terms, zeros at its end, may
be rounded in another order. With the same padding on the same numbers it gives the same bits as the simulation that
has all rows.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import jax
import numpy as np

from fedlap.algebra.hyperparameters import check
from fedlap.engines.parties import Batches, Pool, Shard, Task
from fedlap.engines.round import Method, State, initial
from fedlap.engines.setup import MemoryPoints, Setup, as_leaves, draw_own_batches, make_pool, make_shards
from fedlap.errors import ConfigError
from fedlap.models.curvature import GaussNewton
from fedlap.models.likelihood import categorical
from fedlap.models.model import as_model
from fedlap.study.protocol.permits import SiteRules
from fedlap.study.table.encoding import features, most_rows, numbers
from fedlap.study.table.requirements import Requirements


class Named(Protocol):
    """A member, of whom the protocol knows the name."""

    @property
    def name(self) -> str: ...


class Makers(Protocol):
    """What a study says of its method: each part is made when it is asked for."""

    def make_model(self) -> Any: ...
    def make_algorithm(self) -> Any: ...
    def make_solver(self) -> Any: ...
    def make_server_solver(self) -> Any: ...


class Agreement(Requirements, Protocol):
    """The part of a study that decides about its runs: a `Study` has it, and nothing here needs more of one."""

    @property
    def path(self) -> Path: ...
    @property
    def folder(self) -> Path: ...
    @property
    def digest(self) -> str: ...
    @property
    def members(self) -> tuple[Named, ...]: ...
    @property
    def method(self) -> Makers: ...
    @property
    def rounds(self) -> int: ...
    @property
    def share_points(self) -> bool: ...
    @property
    def bound(self) -> float | None: ...
    @property
    def quorum(self) -> int: ...
    @property
    def deadline(self) -> float: ...
    @property
    def retries(self) -> int: ...
    def policy(self, data: str | Path, /) -> SiteRules:
        """What the site of a data file allows; ConfigError if the study is none for it."""
        ...


class Rows(NamedTuple):
    """One site's encoded data; test rows never take part in training."""

    inputs: np.ndarray
    labels: np.ndarray
    test_inputs: np.ndarray
    test_labels: np.ndarray


class Start(NamedTuple):
    """What the server, or a site, has before the first round."""

    setup: Setup
    first: State  # with one client for all


@dataclass(frozen=True)
class Terms:
    """What is fitted, how, and by whom."""

    digest: str
    members: tuple[str, ...]  # sorted: the order of summation
    model: Any
    method: Method
    seed: int
    rounds: int
    classes: int
    features: int  # of the model's inputs
    numbers: int  # of the number columns among them
    share_points: bool = False
    gaps: bool = True  # whether a member may have been away in some rounds: not where all take part in every one
    bound: float | None = None  # how often the middle member's move one member may move the model, in a round

    def __post_init__(self) -> None:
        """Refuse what must not run."""
        for part in self.method:
            check(part)
        if list(self.members) != sorted(set(self.members)):
            raise ConfigError(f"members are {list(self.members)}; expected different names in alphabetical order")
        if self.algorithm.memory and not self.share_points:
            raise ConfigError(
                f"{type(self.algorithm).__name__} shows some patients' inputs to all members; "
                "it needs share_points = true in the study file"
            )

    @classmethod
    def of(cls, study: Agreement) -> "Terms":
        """The terms of a study file."""
        method = study.method
        return cls(
            digest=study.digest,
            members=tuple(member.name for member in study.members),
            model=method.make_model(),
            method=Method(method.make_algorithm(), method.make_solver(), method.make_server_solver()),
            seed=study.seed,
            rounds=study.rounds,
            classes=len(study.target.classes),
            features=len(features(study)),
            numbers=len(numbers(study)),
            share_points=study.share_points,
            gaps=study.quorum < len(study.members),
            bound=study.bound,
        )

    @property
    def algorithm(self) -> Any:
        """The algorithm of the method."""
        return self.method.algorithm

    @property
    def divides(self) -> bool:
        """Whether a member's part of the model can be divided out of it: what it sends is a factor of a product."""
        return self.algorithm.sends_factor and self.algorithm.divides

    @property
    def covariances(self) -> int:
        """How many weights a full matrix is sent of; none with a diagonal, or without a covariance.

        Matrices of moments count as one: they are smaller, and say of rows what it says.
        """
        nobody = np.ones(len(self.members), np.int64)
        first = jax.eval_shape(lambda: self.server_start(nobody, None).first)
        weights = sum(leaf.size for leaf in jax.tree.leaves(first.start))
        squares = any(leaf.shape == (weights, weights) for leaf in jax.tree.leaves(first.clients.contribution))
        return weights if squares or self.algorithm.matrices else 0

    @property
    def last_round(self) -> int:
        """The number of the last round; the first is 0."""
        return 0 if self.algorithm.one_shot else self.rounds - 1

    @property
    def most_rows(self) -> int:
        """How many rows one member may train on."""
        return most_rows(self.features)

    def server_start(self, sizes: np.ndarray, memory: MemoryPoints | None) -> Start:
        """The start of the server, which has nobody's rows: one row of zeros gives the model its shape."""
        memory = memory or self._no_memory()
        nobody = np.zeros((1, self.features)), np.zeros(1, np.int32)
        rows = np.zeros((len(self.members), 1), np.int32)
        return self._start(make_pool(*nobody, memory), make_shards(self.members, sizes, rows, memory))

    def contribution_bytes(self) -> int:
        """How many bytes one member's term of the server's sum has, shared points aside."""
        start = self.server_start(np.ones(len(self.members), np.int64), None)
        return sum(leaf.nbytes for leaf in jax.tree.leaves(start.first.clients.contribution))

    def site_start(self, member: str, rows: Rows, sizes: np.ndarray, memory: MemoryPoints | None) -> Start:
        """The start of one member, which has its own rows and is alone in its stack of shards."""
        memory, place = memory or self._no_memory(), self.members.index(member)
        own = np.zeros((1, max(sizes)), np.int32)
        own[0, : len(rows.labels)] = np.arange(len(rows.labels))
        everyone = make_shards(self.members, sizes, np.zeros((len(sizes), 1), np.int32), memory)
        alone = jax.tree.map(lambda leaf: leaf[place : place + 1], everyone)
        pool = make_pool(rows.inputs, rows.labels.astype(np.int32), memory)
        return self._start(pool, alone._replace(rows=jax.numpy.asarray(own)))

    def batches(self, member: str, count: int, round: int) -> Batches:
        """The minibatches of a member with so many rows."""
        return draw_own_batches(self.method.solver, member, np.arange(count, dtype=np.int32), self.seed, round)

    def _start(self, pool: Pool, shards: Shard) -> Start:
        task, key = Task(as_model(self.model), categorical, GaussNewton()), jax.random.key(self.seed)
        setup = Setup(task, len(self.members), self.classes, as_leaves(self.method), pool, shards, key)
        return Start(setup, initial(setup)._replace(round=0))

    def _no_memory(self) -> MemoryPoints:
        """The shared points of an algorithm that shares none."""
        count = len(self.members)
        return MemoryPoints(
            np.zeros((0, self.features), np.float32), np.zeros((count, 0), np.int32), np.zeros((count, 0))
        )
