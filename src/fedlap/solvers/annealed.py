"""Adam on a whole objective with a rate that falls to zero, and again while that gains something, for the server."""

from collections.abc import Callable
from typing import ClassVar

import jax
import jax.numpy as jnp
import optax

from fedlap.algebra.hyperparameters import hyper, hyperparameters
from fedlap.algebra.pytrees import as_call
from fedlap.arrays import Array, Tree

# Of Adam's second moment. The gradient has no noise to average out; what is long past only makes steps short.
DECAY = 0.9


@hyperparameters
class Annealed:
    """Adam on the whole objective, in turns of so many steps, each shorter than the last, down to none.

    There is another turn, of at most so many, until one gains no more than the fraction `tolerance` of all that has
    been gained since the start. A turn that ends above where it began is taken back. FedLap-Func's problem is given to
    it in as few weights as its memory can see.
    """

    steps: int = hyper("count", static=True, default=200)
    learning_rate: float = hyper("positive", default=3e-3)
    tolerance: float = hyper("nonnegative", default=1e-2)
    turns: int = hyper("count", static=True, default=25)
    narrow: ClassVar[bool] = True  # whether a problem may be stated in other coordinates, which Adam does notice

    __repr__ = as_call("annealed")

    def solve(self, function: Callable[[Tree], Array], start: Tree) -> Tree:
        first = function(start)

        def unconverged(carry):
            done, value, _, gain = carry
            return (done < self.turns) & (gain > self.tolerance * (first - value))

        def advance(carry):
            done, value, variable, _ = carry
            found = self._turn(function, variable)
            reached = function(found)
            lower = reached <= value
            kept = jax.tree.map(lambda new, old: jnp.where(lower, new, old), found, variable)
            return done + 1, jnp.where(lower, reached, value), kept, jnp.where(lower, value - reached, 0)

        return jax.lax.while_loop(unconverged, advance, (0, first, start, jnp.full_like(first, jnp.inf)))[2]

    def _turn(self, function: Callable[[Tree], Array], start: Tree) -> Tree:
        """Adam from a rate to none."""
        optimiser, gradient = optax.scale_by_adam(b2=DECAY), jax.grad(function)

        def step(i, carry):
            variable, moments = carry
            update, moments = optimiser.update(gradient(variable), moments)
            rate = self.learning_rate * (1 - i / self.steps)
            return optax.apply_updates(variable, jax.tree.map(lambda leaf: -rate * leaf, update)), moments

        return jax.lax.fori_loop(0, self.steps, step, (start, optimiser.init(start)))[0]


annealed = Annealed
