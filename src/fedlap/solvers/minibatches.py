"""The loop over minibatches, whatever the optimiser that takes the steps."""

from abc import ABC, abstractmethod

import jax
import numpy as np
import optax

from fedlap.arrays import Tree
from fedlap.solvers.loop import pick, repeat
from fedlap.solvers.problem import Problem


class Epochs:
    """A solver that goes through a client's data in minibatches, so many times a round."""

    epochs: int
    batch: int

    def step_count(self, n: int) -> int:
        return self.epochs * -(-n // self.batch)

    def schedule(self, rng: np.random.Generator, rows: np.ndarray, out: np.ndarray) -> None:
        """Each epoch visits every row once, in its own order; the last batch may be short."""
        epochs = out.reshape(self.epochs, -1)[:, : len(rows)]
        epochs[:] = rows
        rng.permuted(epochs, axis=1, out=epochs)


class Minibatches(Epochs, ABC):
    """A solver whose every step is an optimiser's of optax, on the gradient of one minibatch.

    With `keep`, what the optimiser remembers, and its count of steps, survive from round to round.
    """

    keep: bool = False

    @property
    @abstractmethod
    def _optimiser(self) -> optax.GradientTransformation: ...

    def init(self, variable: Tree) -> Tree:
        return self._optimiser.init(variable) if self.keep else ()

    def minimise(self, problem: Problem, state: Tree) -> tuple[Tree, Tree]:
        optimiser, scale, objective = self._optimiser, problem.scale, problem.objective

        def step(i, variable, moments):
            client = problem.minibatch(pick(problem.rows, i), i)
            gradient = jax.grad(lambda v: scale * objective(v, client))(variable)
            update, moments = optimiser.update(gradient, moments, variable)
            return optax.apply_updates(variable, update), moments

        def remembering(i, kept, nothing):
            return step(i, *kept), nothing

        if self.keep:
            return repeat(problem.steps, remembering, (problem.start, state), ())
        return repeat(problem.steps, step, problem.start, optimiser.init(problem.start)), ()


def clipped(norm: float | None, optimiser: optax.GradientTransformation) -> optax.GradientTransformation:
    """An optimiser of gradients that are no longer than this."""
    return optax.chain(*([] if norm is None else [optax.clip_by_global_norm(norm)]), optimiser)
