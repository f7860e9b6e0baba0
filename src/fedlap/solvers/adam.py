"""Adam on minibatches, for clients, and on a whole objective until it converges, for the server."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import optax

from fedlap.algebra.hyperparameters import hyper, hyperparameters
from fedlap.algebra.pytrees import as_call
from fedlap.arrays import Array, Number, Tree
from fedlap.solvers.minibatches import Minibatches, clipped


@hyperparameters
class Adam(Minibatches):
    """Adam with minibatches; with `keep`, its moments and step count survive from round to round."""

    epochs: int = hyper("count", static=True, default=5)
    batch: int = hyper("count", static=True, default=32)
    learning_rate: float = hyper("positive", default=1e-3)
    clip: float | None = hyper("optional positive", default=None)
    keep: bool = hyper("truth", static=True, default=False)

    __repr__ = as_call("adam")

    def effective_steps(self, steps: Number, pull: Number | None) -> Number | None:
        """As many as are taken: where the gradient stays the same, each of Adam's steps is as long as its rate."""
        return steps if pull is None else None

    @property
    def _optimiser(self) -> optax.GradientTransformation:
        return clipped(self.clip, optax.adam(self.learning_rate))


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
