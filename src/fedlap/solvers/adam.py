"""Adam on minibatches, for clients, and on a whole objective until it converges, for the server."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from fedlap.algebra.hyperparameters import hyper, hyperparameters
from fedlap.algebra.pytrees import as_call
from fedlap.arrays import Array, Tree
from fedlap.solvers.loop import pick, repeat
from fedlap.solvers.problem import Problem


@hyperparameters
class Adam:
    """Adam with minibatches; with `keep`, its moments and step count survive from round to round."""

    epochs: int = hyper("count", static=True, default=5)
    batch: int = hyper("count", static=True, default=32)
    learning_rate: float = hyper("positive", default=1e-3)
    clip: float | None = hyper("optional positive", default=None)
    keep: bool = hyper("truth", static=True, default=False)

    __repr__ = as_call("adam")

    def step_count(self, n: int) -> int:
        return self.epochs * -(-n // self.batch)

    def schedule(self, rng: np.random.Generator, rows: np.ndarray, out: np.ndarray) -> None:
        """Each epoch visits every row once, in its own order; the last batch may be short."""
        epochs = out.reshape(self.epochs, -1)[:, : len(rows)]
        epochs[:] = rows
        rng.permuted(epochs, axis=1, out=epochs)

    def init(self, variable: Tree) -> Tree:
        return self._optimiser.init(variable) if self.keep else ()

    def minimise(self, problem: Problem, state: Tree) -> tuple[Tree, Tree]:
        optimiser, scale, objective = self._optimiser, problem.scale, problem.objective

        def step(i, variable, moments):
            client = problem.minibatch(pick(problem.rows, i), i)
            gradient = jax.grad(lambda v: scale * objective(v, client))(variable)
            update, moments = optimiser.update(gradient, moments)
            return optax.apply_updates(variable, update), moments

        def remembering(i, kept, nothing):
            return step(i, *kept), nothing

        if self.keep:
            return repeat(problem.steps, remembering, (problem.start, state), ())
        return repeat(problem.steps, step, problem.start, optimiser.init(problem.start)), ()

    @property
    def _optimiser(self) -> Any:
        clip = [] if self.clip is None else [optax.clip_by_global_norm(self.clip)]
        return optax.chain(*clip, optax.adam(self.learning_rate))


@hyperparameters
class Descent:
    """Adam on the whole objective, for at most `steps`, stopped when a hundred more gain next to nothing.

    "Next to nothing" is the fraction `tolerance` of all that has been gained since the start. If the last hundred lost
    something, they are taken back. With a tolerance of 0 all steps are taken, and kept.
    """

    steps: int = hyper("whole", static=True, default=5000)
    learning_rate: float = hyper("positive", default=1e-3)
    tolerance: float = hyper("nonnegative", default=1e-3)

    __repr__ = as_call("descent")

    def solve(self, function: Callable[[Tree], Array], start: Tree) -> Tree:
        optimiser, gradient = optax.adam(self.learning_rate), jax.grad(function)
        block, first = 100, function(start)

        def step(_, carry):
            variable, moments = carry
            update, moments = optimiser.update(gradient(variable), moments)
            return optax.apply_updates(variable, update), moments

        def unconverged(carry):
            done, _, (now, _), (before, _) = carry
            gains = before - now > self.tolerance * (first - now)
            return (done < self.steps) & (gains | (self.tolerance == 0))

        def advance(carry):
            done, moments, (value, variable), _ = carry
            todo = jnp.minimum(block, self.steps - done)
            further, moments = jax.lax.fori_loop(0, todo, step, (variable, moments))
            return done + todo, moments, (function(further), further), (value, variable)

        begun = (0, optimiser.init(start), (first, start), (jnp.full_like(first, jnp.inf), start))
        _, _, (now, last), (before, previous) = jax.lax.while_loop(unconverged, advance, begun)
        kept = (now <= before) | (self.tolerance == 0)
        return jax.tree.map(lambda new, old: jnp.where(kept, new, old), last, previous)


adam = Adam
descent = Descent
