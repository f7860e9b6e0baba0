"""What server and sites both build from the study file, so that all run the same compiled program.

Row numbers, batch shapes and the padding of every array are those of the whole federation. A site has its own rows
in their places and zeros in everyone else's: gathering never reads those, and a program of the same shapes on
the same numbers gives the same bits as the simulation that has all rows.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from fedlap.algebra.hyperparameters import check
from fedlap.engines.memory import MemoryPoints
from fedlap.engines.parties import Task
from fedlap.engines.round import Method, initial
from fedlap.engines.setup import draw_batches, make_setup
from fedlap.errors import ConfigError
from fedlap.models.curvature import GaussNewton
from fedlap.models.likelihood import categorical
from fedlap.models.model import as_model
from fedlap.study.table.encoding import features, most_rows


class Rows(NamedTuple):
    """One site's encoded data; test rows never take part in training."""

    inputs: np.ndarray
    labels: np.ndarray
    test_inputs: np.ndarray
    test_labels: np.ndarray


@dataclass(frozen=True)
class Outline:
    """A federation of which at most one client's rows are here, in the form the engines take."""

    clients: tuple[str, ...]
    inputs: np.ndarray
    labels: np.ndarray
    rows: tuple[np.ndarray, ...]
    classes: int

    @property
    def sizes(self):
        return np.array([len(rows) for rows in self.rows])


@dataclass(frozen=True)
class Terms:
    """What is fitted, how, and by whom."""

    digest: str
    members: tuple[str, ...]  # sorted: the order of summation
    algorithm: Any
    model: Any
    solver: Any
    server_solver: Any
    seed: int
    rounds: int
    classes: int
    features: int
    share_points: bool = False

    def __post_init__(self):
        """Refuse what must not run."""
        for thing in (self.algorithm, self.solver, self.server_solver):
            check(thing)
        if list(self.members) != sorted(set(self.members)):
            raise ConfigError(f"members are {list(self.members)}; expected different names in alphabetical order")
        if self.algorithm.memory and not self.share_points:
            raise ConfigError(
                f"{type(self.algorithm).__name__} shows some patients' inputs to all members; "
                "it needs share_points = true in the study file"
            )

    @classmethod
    def of(cls, study):
        """The terms of a study file."""
        method = study.method
        return cls(
            digest=study.digest,
            members=tuple(member.name for member in study.members),
            algorithm=method.make_algorithm(),
            model=method.make_model(),
            solver=method.make_solver(),
            server_solver=method.make_server_solver(),
            seed=study.seed,
            rounds=study.rounds,
            classes=len(study.target.classes),
            features=len(features(study)),
            share_points=study.share_points,
        )

    @property
    def last_round(self):
        return 0 if self.algorithm.one_shot else self.rounds - 1

    @property
    def most_rows(self):
        """Of one member; `begin` makes room for the rows of all."""
        return most_rows(self.features, len(self.members))

    def begin(self, sizes, memory, member=None, rows=None):
        """Everything that stays fixed during a run, as the given member sees it, or as the server does."""
        ends = np.cumsum(sizes)
        places = tuple(np.split(np.arange(ends[-1], dtype=np.int32), ends[:-1]))
        inputs, labels = np.zeros((ends[-1], self.features)), np.zeros(ends[-1], np.int32)
        if member is not None:
            mine = places[self.members.index(member)]
            inputs[mine], labels[mine] = rows.inputs, rows.labels
        outline = Outline(self.members, inputs, labels, places, self.classes)
        task = Task(as_model(self.model), categorical, GaussNewton())
        method = Method(self.algorithm, self.solver, self.server_solver)
        setup = make_setup(task, method, outline, self.seed, memory or self.no_memory(len(sizes)))
        return Fixed(self, outline, setup, initial(setup)._replace(round=0))

    def no_memory(self, count):
        """The shared points of an algorithm that shares none."""
        return MemoryPoints(
            np.zeros((0, self.features), np.float32), np.zeros((count, 0), np.int32), np.zeros((count, 0))
        )


class Fixed(NamedTuple):
    """What one party has before the first round."""

    terms: Terms
    outline: Outline
    setup: Any
    first: Any  # the State before the first round, with one client for all

    def batches(self, member, round):
        """The minibatches of one member."""
        chosen = np.array([name == member for name in self.terms.members])
        every = draw_batches(self.terms.solver, self.outline, chosen, self.terms.seed, round)
        k = int(np.argmax(chosen))
        return k, type(every)(every.rows[k], every.steps[k])
