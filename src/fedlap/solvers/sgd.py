"""Stochastic gradient descent, with heavy-ball momentum: the solver of which most federated methods are stated."""

import jax.numpy as jnp
import optax

from fedlap.algebra.hyperparameters import hyper, hyperparameters
from fedlap.algebra.pytrees import as_call
from fedlap.arrays import Number
from fedlap.solvers.loop import repeat
from fedlap.solvers.minibatches import Minibatches, clipped


@hyperparameters
class SGD(Minibatches):
    """u ← momentum · u + gradient, w ← w − learning_rate · u, on minibatches; each round begins with u = 0."""

    epochs: int = hyper("count", static=True, default=5)
    batch: int = hyper("count", static=True, default=32)
    learning_rate: float = hyper("positive", default=1e-2)
    momentum: float = hyper("fraction", default=0.0)
    clip: float | None = hyper("optional positive", default=None)

    __repr__ = as_call("sgd")

    @property
    def rate(self) -> float:
        return self.learning_rate

    def effective_steps(self, steps: Number, pull: Number | None) -> Number | None:
        """Σ_i a_i, where all steps lead from w to w − rate · Σ_i a_i g_i.

        Found as the way that gradients of one lead, because the way is linear in gradients; once they are clipped, one
        that pulls back is not.
        """
        if pull is not None and self.clip is not None:
            return None
        back = 0.0 if pull is None else self.rate * pull

        def step(_, kept, nothing):
            way, u = kept
            u = self.momentum * u + 1 - back * way
            return (way + u, u), nothing

        zero = jnp.zeros_like(jnp.asarray(self.momentum, float))
        return repeat(steps, step, (zero, zero), ())[0]

    @property
    def _optimiser(self) -> optax.GradientTransformation:
        return clipped(self.clip, optax.sgd(self.learning_rate, momentum=self.momentum))


sgd = SGD
