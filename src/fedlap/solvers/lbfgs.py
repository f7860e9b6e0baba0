"""L-BFGS on all the data, for models too large for Newton and too small to need minibatches."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import optax

from fedlap.algebra.hyperparameters import hyper, hyperparameters
from fedlap.algebra.pytrees import as_call
from fedlap.arrays import Array, Tree
from fedlap.solvers.problem import FullBatch


@hyperparameters
class LBFGS(FullBatch):
    """optax's L-BFGS with its zoom line search, until the largest gradient is below `tolerance`."""

    steps: int = hyper("count", static=True, default=100)
    history: int = hyper("count", static=True, default=10)
    tolerance: float = hyper("nonnegative", default=1e-6)

    __repr__ = as_call("lbfgs")

    def solve(self, function: Callable[[Tree], Array], start: Tree) -> Tree:
        optimiser = optax.lbfgs(memory_size=self.history)
        value_and_gradient = optax.value_and_grad_from_state(function)

        def unfinished(carry):
            i, _, _, steepest = carry
            return (i < self.steps) & (steepest > self.tolerance)

        def step(carry):
            i, variable, state, _ = carry
            value, gradient = value_and_gradient(variable, state=state)
            update, state = optimiser.update(gradient, state, variable, value=value, grad=gradient, value_fn=function)
            return i + 1, optax.apply_updates(variable, update), state, optax.tree.norm(gradient, ord=jnp.inf)

        infinity = jnp.full_like(function(start), jnp.inf)
        return jax.lax.while_loop(unfinished, step, (0, start, optimiser.init(start), infinity))[1]


lbfgs = LBFGS
