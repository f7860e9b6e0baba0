"""One local argmin, as a solver sees it."""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import numpy as np

from fedlap.algorithms.base import Client
from fedlap.arrays import Array, Number, Tree


class Problem(NamedTuple):
    """An objective of one client, where to start, and its data, whole and in minibatches."""

    objective: Callable[[Any, Client], Any]
    start: Tree
    client: Client  # all of its data
    minibatch: Callable[[Any, Any], Client]  # (rows, step) → the client seen through these rows
    rows: Array  # [steps, batch] row numbers, −1 for none
    steps: Number  # how many of them count
    mean_loss: bool = False  # whether the objective is stated on ℓ_k/N_k, and not on the sum ℓ_k

    @property
    def scale(self) -> Number:
        """What brings the objective to the scale of a mean loss.

        An objective may be stated on ℓ_k or on ℓ_k/N_k; its minimiser is the same, but gradient clipping and
        tolerances are not.
        """
        coefficient = 1 / self.client.n if self.mean_loss else 1.0
        return 1 / (coefficient * self.client.n)

    def full_batch(self, variable: Tree) -> Array:
        return self.scale * self.objective(variable, self.client)


class Solver(Protocol):
    """What is asked of a client's solver."""

    @property
    def batch(self) -> int: ...
    def step_count(self, n: int) -> int: ...
    def schedule(self, rng: np.random.Generator, rows: np.ndarray, out: np.ndarray) -> None: ...
    def init(self, variable: Tree) -> Tree: ...
    def minimise(self, problem: Problem, state: Tree) -> tuple[Tree, Tree]: ...


class ServerSolver(Protocol):
    """What is asked of the server's solver."""

    def solve(self, function: Callable[[Tree], Array], start: Tree) -> Tree: ...


class FullBatch:
    """A solver that looks at all the data, in no batches, and keeps nothing."""

    batch: int = 1

    def step_count(self, n: int) -> int:
        return 0

    def schedule(self, rng: np.random.Generator, rows: np.ndarray, out: np.ndarray) -> None:
        """Nothing to draw."""

    def init(self, variable: Tree) -> Tree:
        return ()

    def minimise(self: ServerSolver, problem: Problem, state: Tree) -> tuple[Tree, Tree]:
        return self.solve(problem.full_batch, problem.start), ()
