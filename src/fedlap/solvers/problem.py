"""One local argmin, as a solver sees it."""

from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

from fedlap.algorithms.base import Client


class Problem(NamedTuple):
    objective: Callable[[Any, Client], Any]
    start: Any
    client: Client  # all of its data
    minibatch: Callable[[Any, Any], Client]  # (rows, step) → the client seen through these rows
    rows: Any  # [steps, batch] row numbers, −1 for none
    steps: Any  # how many of them count
    mean_loss: bool = False  # whether the objective is stated on ℓ_k/N_k, and not on the sum ℓ_k

    @property
    def scale(self):
        """What brings the objective to the scale of a mean loss.

        An objective may be stated on ℓ_k or on ℓ_k/N_k; its minimiser is the same, but gradient clipping and
        tolerances are not.
        """
        coefficient = 1 / self.client.n if self.mean_loss else 1.0
        return 1 / (coefficient * self.client.n)

    def full_batch(self, variable):
        return self.scale * self.objective(variable, self.client)


class FullBatch:
    """A solver that looks at all the data, in no batches, and keeps nothing."""

    batch: ClassVar[int] = 1

    def step_count(self, n):
        return 0

    def schedule(self, rng, rows, out):
        """Nothing to draw."""

    def init(self, variable):
        return ()

    def minimise(self, problem, state):
        return self.solve(problem.full_batch, problem.start), ()
