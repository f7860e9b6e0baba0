"""IVON, the improved variational online Newton method (Shen et al., ICML 2024), for an argmin over Gaussians."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedlap.algebra.gaussian import LogGaussian
from fedlap.algebra.hyperparameters import hyper, hyperparameters
from fedlap.algebra.pytrees import as_call
from fedlap.algebra.vector import Vector
from fedlap.algorithms.base import Client
from fedlap.arrays import Array, Number, Tree
from fedlap.domains import COUNT, optional
from fedlap.errors import ConfigError
from fedlap.solvers.loop import pick, repeat
from fedlap.solvers.minibatches import Epochs
from fedlap.solvers.problem import Problem


class Momentum(NamedTuple):
    """A running mean of the loss's gradients, and of how many steps it is."""

    g: Vector
    t: Array


class Known(NamedTuple):
    """What an objective is besides its expected loss: rᵀ(m−m₀) + ½(m−m₀)ᵀA(m−m₀) + ½ Σ_i (A_i/S_i + log S_i / λ_i)."""

    m0: Vector
    r: Vector
    A: Vector
    lam: Vector


@hyperparameters
class IVON(Epochs):
    """Natural gradients over q = N(m, S⁻¹), S = λ(h + s), from the draws that an algorithm takes of q.

        g ← β₁g + (1 − β₁)ĝ,    ĝ the mean loss's gradient at θ ~ q,    ĥ = ĝ(θ − m)S
        h ← β₂h + (1 − β₂)ĥ + ½(1 − β₂)²(h − ĥ)²/(h + s)              so that S stays above zero
        m ← m − rate (g/(1 − β₁ᵗ) + the gradient of all else)/(h + s)

    All else in the objective, KL divergence and factors, is known without draws, and s is its curvature. β₁ is
    `momentum` and β₂ `decay`. In round 1, where q_g is but the prior, q begins with h = `hessian`, and later at q_g.
    With `cosine` the rate falls to zero over so many rounds. With `keep`, g and t survive from round to round.
    """

    epochs: int = hyper("count", static=True, default=5)
    batch: int = hyper("count", static=True, default=32)
    learning_rate: float = hyper("positive", default=1e-3)
    momentum: float = hyper("fraction", default=0.9)
    decay: float = hyper("fraction", default=0.9998)
    hessian: float = hyper("nonnegative", default=1e-3)
    cosine: int | None = hyper(optional(COUNT), static=True, default=None)
    keep: bool = hyper("truth", static=True, default=False)

    __repr__ = as_call("ivon")

    def init(self, variable: Tree) -> Tree:
        start = _gaussian(variable)
        return _at_rest(start) if self.keep else ()

    def minimise(self, problem: Problem, state: Tree) -> tuple[Tree, Tree]:
        start = _gaussian(problem.start)
        known, rate = _known(problem, start), self._rate(problem.client.round)
        first = jnp.where(problem.client.round == 0, self.hessian, 0.0)
        start = start._replace(
            u=jax.tree.map(lambda u, lam: jnp.logaddexp(u, jnp.log(first * lam)), start.u, known.lam)
        )

        def step(i, q, momentum):
            client = problem.minibatch(pick(problem.rows, i), i)
            gradient = jax.grad(lambda q: problem.scale * _expected_loss(problem.objective, q, client))(q)
            return self._step(q, momentum, gradient, known, rate)

        def remembering(i, kept, nothing):
            return step(i, *kept), nothing

        if self.keep:
            return repeat(problem.steps, remembering, (start, state), ())
        return repeat(problem.steps, step, start, _at_rest(start)), ()

    def _step(
        self, q: LogGaussian, momentum: Momentum, gradient: LogGaussian, known: Known, rate: Number
    ) -> tuple[LogGaussian, Momentum]:
        """One step; in u = log S the gradient of the loss is −½ĥ/S, and h's line multiplies S by 1 − x + ½x² ≥ ½."""

        def log_precision(u, slope, A, lam):
            x = (1 - self.decay) * (1 - lam * A * jnp.exp(-u) + 2 * lam * slope)
            return u + jnp.log1p(x * (x / 2 - 1))

        def mean(m, u, g, m0, r, A, lam):
            return m - rate * lam * jnp.exp(-u) * (g / (1 - self.momentum**t) + r + A * (m - m0))

        t = momentum.t + 1
        g = self.momentum * momentum.g + (1 - self.momentum) * gradient.m
        u = jax.tree.map(log_precision, q.u, gradient.u, known.A, known.lam)
        return LogGaussian(jax.tree.map(mean, q.m, u, g, *known), u), Momentum(g, t)

    def _rate(self, round: Number) -> Number:
        if self.cosine is None:
            return self.learning_rate
        return self.learning_rate * (1 + jnp.cos(jnp.pi * jnp.minimum(round / self.cosine, 1))) / 2


def _gaussian(variable: Tree) -> LogGaussian:
    if not isinstance(variable, LogGaussian):
        raise ConfigError(
            "ivon fits a Gaussian, and this algorithm's argmin is over weights alone; expected pvi, or bayes_admm with "
            "samples=1 or more, or another solver, such as adam"
        )
    return variable


def _at_rest(start: LogGaussian) -> Momentum:
    return Momentum(jax.tree.map(jnp.zeros_like, start.m), jnp.zeros((), jnp.int32))


def _expected_loss(objective: Callable[[Any, Client], Any], q: LogGaussian, client: Client) -> Array:
    """E_q[ℓ_k], as often as it is in the objective: the derivative with respect to a weight of the loss."""
    weighed = lambda weight: objective(q, client._replace(loss=lambda w: weight * client.loss(w)))
    return jax.jvp(weighed, (1.0,), (1.0,))[1]


def _known(problem: Problem, start: LogGaussian) -> Known:
    """The objective with a loss of zero, from its derivatives: in u they are ½/λ − ½A/S and ½A/S."""
    silent = problem.client._replace(loss=lambda w: jnp.zeros(()))
    gradient = jax.grad(lambda q: problem.scale * problem.objective(q, silent))
    along = LogGaussian(jax.tree.map(jnp.zeros_like, start.m), jax.tree.map(jnp.ones_like, start.u))
    first, second = jax.jvp(gradient, (start,), (along,))
    A = jax.tree.map(lambda second, u: 2 * second * jnp.exp(u), second.u, start.u)
    return Known(start.m, first.m, A, jax.tree.map(lambda first, second: 0.5 / (first + second), first.u, second.u))


ivon = IVON
