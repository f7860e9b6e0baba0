"""Adam on a whole objective with a rate that falls to zero, for the server: few steps, and none to find out the end."""

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
    """Adam on the whole objective for so many steps, each shorter than the last, down to none.

    FedLap-Func's problem is given to it in as few weights as its memory can see. If it ends above its start, it stays
    there.
    """

    steps: int = hyper("count", static=True, default=200)
    learning_rate: float = hyper("positive", default=3e-3)
    narrow: ClassVar[bool] = True  # whether a problem may be stated in other coordinates, which Adam does notice

    __repr__ = as_call("annealed")

    def solve(self, function: Callable[[Tree], Array], start: Tree) -> Tree:
        optimiser, gradient = optax.scale_by_adam(b2=DECAY), jax.grad(function)

        def step(i, carry):
            variable, moments = carry
            update, moments = optimiser.update(gradient(variable), moments)
            rate = self.learning_rate * (1 - i / self.steps)
            return optax.apply_updates(variable, jax.tree.map(lambda leaf: -rate * leaf, update)), moments

        found, _ = jax.lax.fori_loop(0, self.steps, step, (start, optimiser.init(start)))
        lower = function(found) <= function(start)
        return jax.tree.map(lambda new, old: jnp.where(lower, new, old), found, start)


annealed = Annealed
