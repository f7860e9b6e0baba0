"""What an algorithm may ask about the steps of its local solver. Not every solver has an answer."""

from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp

from fedlap.algorithms.base import AnyAlgorithm
from fedlap.arrays import Number
from fedlap.errors import ConfigError
from fedlap.solvers import Solver


@dataclass(frozen=True)
class SolverPace:
    """The steps of one client in one round: how many, how long, and what they are together."""

    algorithm: AnyAlgorithm
    solver: Solver
    planned: Number

    @property
    def steps(self) -> Number:
        """How many there are, for a solver that takes a number of them, and not as many as it needs."""
        if not self.solver.step_count(1):
            raise self._no_answer("k.steps", "one with minibatches, as sgd()")
        return self.planned

    @property
    def rate(self) -> Number:
        """How long they are, for a solver that goes along the gradient."""
        rate = getattr(self.solver, "rate", None)
        if rate is None:
            raise self._no_answer("k.rate", "one whose steps are along the gradient, as sgd()")
        return rate

    def effective_steps(self, pull: Number | None) -> Number:
        """How many plain steps they are together."""
        answer: Any = getattr(self.solver, "effective_steps", lambda steps, pull: None)
        together = answer(self.steps, pull)
        if together is None:
            asked = "k.effective_steps()" if pull is None else "k.effective_steps(pull)"
            raise self._no_answer(asked, "one whose steps are known, as sgd() without clip")
        return jnp.asarray(together, float)

    def _no_answer(self, asked: str, expected: str) -> ConfigError:
        algorithm, solver = type(self.algorithm).__name__, type(self.solver).__name__
        return ConfigError(f"{algorithm} asks for {asked}, and the solver {solver} has none; expected {expected}")
