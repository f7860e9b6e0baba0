"""What a site can say about its rows: the loss at a point, with its slope and curvature there."""

from typing import NamedTuple, Protocol

import numpy as np


class Expansion(NamedTuple):
    """A loss up to second order around a point."""

    loss: float  # a negative log-likelihood
    gradient: np.ndarray  # [P]
    hessian: np.ndarray  # [P, P]


class Objective(Protocol):
    """The negative log-likelihood of one site's rows, as a function of the coefficients. Everything is float64."""

    def loss(self, w: np.ndarray) -> float:
        """The loss at a point; infinite or NaN where it has no value, which a line search steps back from."""
        ...

    def expand(self, w: np.ndarray) -> Expansion:
        """The loss, its gradient and its Hessian at a point."""
        ...
