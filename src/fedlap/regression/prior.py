"""Priors of the coefficients, on standardised columns; intercepts and shapes have none."""

from dataclasses import dataclass

import numpy as np

from fedlap.checks import is_number
from fedlap.errors import ConfigError


@dataclass(frozen=True)
class NormalPrior:
    """Every coefficient is N(0, sd²), a column counted in its own standard deviations."""

    sd: float

    @property
    def precision(self) -> float:
        """1/sd²."""
        return 1 / self.sd**2


@dataclass(frozen=True)
class EvidencePrior:
    """A normal prior whose precision makes the rows most likely: MacKay's fixed point."""


Prior = NormalPrior | EvidencePrior | None


def normal(sd: float) -> NormalPrior:
    """A normal prior with this standard deviation on coefficients of standardised columns; 2.5 is weak."""
    if not is_number(sd) or sd <= 0:
        raise ConfigError(f"normal: sd is {sd!r}; expected a number above 0")
    return NormalPrior(float(sd))


def as_prior(prior: object) -> Prior:
    """A prior as users give it: None, "evidence", or one that `normal` has made."""
    if prior is None or isinstance(prior, NormalPrior):
        return prior
    if prior == "evidence":
        return EvidencePrior()
    raise ConfigError(f'prior is {prior!r}; expected None, "evidence", or fedlap.normal(sd=...)')


def evidence(w: np.ndarray, data: np.ndarray, aim: np.ndarray, penalised: np.ndarray, start: float) -> float:
    """MacKay's precision for a quadratic loss with Hessian `data` and `aim` = data @ its optimum.

    δ ← γ/‖w‖², γ = P − δ tr S⁻¹ over the penalised weights, S = data + δ: from w_g and S_g alone, without a message.
    """
    delta = start
    for _ in range(1000):
        S = data + delta * np.diag(penalised.astype(float))
        w = np.linalg.solve(S, aim)
        effective = penalised.sum() - delta * np.trace(np.linalg.inv(S)[np.ix_(penalised, penalised)])
        new = effective / max(w[penalised] @ w[penalised], 1e-300)
        if not 1e-8 < new < 1e8:
            return float(np.clip(new, 1e-8, 1e8))
        if abs(np.log(new / delta)) < 1e-12:
            return float(new)
        delta = new
    return float(delta)
