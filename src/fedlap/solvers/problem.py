"""One local argmin, as a solver sees it."""

from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import jax

from ..algorithm import Client


class Problem(NamedTuple):
    objective: Callable[[Any, Client], Any]
    start: Any
    client: Client  # all of its data
    minibatch: Callable[[Any, Any], Client]  # (rows, step) → the client seen through these rows
    rows: Any  # [steps, batch] row numbers, −1 for none
    steps: Any  # how many of them count

    @property
    def scale(self):
        """What brings the objective to the scale of a mean loss.

        An objective may be stated on ℓ_k or on ℓ_k/N_k; its minimiser is the same, but gradient clipping and
        tolerances are not. The coefficient of ℓ_k is the derivative of the objective with respect to it.
        """

        def as_function_of_loss(value):
            return self.objective(self.start, self.client._replace(loss=lambda w: value))

        return 1 / (jax.grad(as_function_of_loss)(1.0) * self.client.n)

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
