"""A family: how an outcome is distributed, given what the columns predict."""

from typing import ClassVar

import numpy as np

from fedlap.errors import DataError


class Family:
    """The loss of a row and its derivatives, as functions of the outcome y and of the linear predictor f = xᵀw.

    Losses are negative log-likelihoods but for what does not depend on the weights. With several predictors a row,
    f is [J, n], a slope [J, n] and a curvature [J, J, n]; the last `shapes` of them are one weight each, for all rows.
    """

    link: ClassVar[str]
    ratio: ClassVar[str] = ""  # what e to the power of a coefficient is, if that has a name
    shapes: ClassVar[int] = 0
    unordered: ClassVar[bool] = False  # an outcome of several levels, with a predictor for each but the first
    has_scale: ClassVar[bool] = False  # a dispersion, estimated from Pearson residuals
    outcome: ClassVar[str] = ""  # "number" or "count", where it makes sense to say between which two a new one lies

    def __init__(self, levels: int = 2) -> None:
        self.predictors = 1

    @property
    def several(self) -> bool:
        """Whether f has a first axis of predictors."""
        return self.unordered or self.shapes > 0

    def check(self, y: np.ndarray) -> np.ndarray:
        """Where an outcome is one that the family cannot have, a truth value a row."""
        raise NotImplementedError

    expected: str  # of an outcome, for the message

    def checked(self, y: np.ndarray, where: str, numbers: np.ndarray) -> np.ndarray:
        """The outcomes, if the family can have them all; `numbers` are those of their rows."""
        wrong = np.flatnonzero(self.check(y))
        if len(wrong):
            first = wrong[0]
            raise DataError(f"{where}, row {numbers[first]}: the outcome is {y[first]:g}; expected {self.expected}")
        return y

    def loss(self, y: np.ndarray, f: np.ndarray) -> np.ndarray:
        """The loss of each row."""
        raise NotImplementedError

    def slope(self, y: np.ndarray, f: np.ndarray) -> np.ndarray:
        """The derivative of the loss with respect to f."""
        raise NotImplementedError

    def curvature(self, y: np.ndarray, f: np.ndarray) -> np.ndarray:
        """The second derivative of the loss with respect to f."""
        raise NotImplementedError

    def higher(self, f: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The third and the fourth derivative of the loss with respect to f, for effects that are integrated out."""
        raise NotImplementedError

    def information(self, f: np.ndarray) -> np.ndarray:
        """What the curvature is expected to be, for standard errors; with the canonical link it is the curvature."""
        return self.curvature(np.zeros(f.shape[-1]), f)

    def mean(self, f: np.ndarray) -> np.ndarray:
        """The outcome that is expected."""
        raise NotImplementedError

    def variance(self, f: np.ndarray) -> np.ndarray:
        """The variance of the outcome, in units of the scale."""
        raise NotImplementedError

    def cumulative(self, y: np.ndarray, f: np.ndarray, scale: float) -> np.ndarray:
        """How likely an outcome is to be y or less, where it is a number or a count."""
        raise NotImplementedError

    def deviance(self, y: np.ndarray, f: np.ndarray) -> np.ndarray:
        """Twice how far each row is from being predicted perfectly."""
        raise NotImplementedError

    def constant(self, y: np.ndarray, trials: np.ndarray) -> np.ndarray:
        """What a row's log-likelihood has beyond the loss, and the weights have no part in."""
        return np.zeros(len(y))

    def log_likelihood(self, loss: float, constant: float, rows: float, scale: float) -> float:
        """The log-likelihood of all rows, from sums over them."""
        return constant - loss
