"""A regression over sites: their losses on standardised columns, the optimum, and what sites must not be blamed for."""

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fedlap.errors import ConfigError, DataError, DivergedWarning
from fedlap.regression.objective import Expansion, Loss, Objective
from fedlap.regression.rounds import (
    FLAT,
    Ask,
    Belief,
    Broadcast,
    FlatError,
    Optimum,
    SiteFactor,
    in_turn,
    maximise,
    no_prior,
    solve,
    total,
)

Losses = Callable[[Mapping[str, Loss], np.ndarray], np.ndarray]


def losses_in_turn(sites: Mapping[str, Loss], points: np.ndarray) -> np.ndarray:
    """The pooled loss at several points [m, P], of sites in this process."""
    return np.array([sum(loss.loss(w) for loss in sites.values()) for w in points])


@dataclass(frozen=True, eq=False)
class Regression:
    """The losses of all sites in standardised weights, and the way back to the user's parameters."""

    sites: Mapping[str, Objective]
    names: Sequence[Any]  # of the parameters
    back: np.ndarray  # what turns a change of the weights into one of the parameters
    parameters: Callable[[np.ndarray], np.ndarray]  # of weights
    prior: Belief
    null: np.ndarray  # which weights the null model has, a truth value each
    rows: Mapping[str, float]
    ask: Ask = in_turn  # how the sites are asked
    losses: Losses = losses_in_turn  # how they are asked for their losses alone

    def optimum(self, begin: Broadcast | None = None, known: Mapping | None = None) -> Optimum:
        """The optimum of the pooled loss; an error that names the columns if there is none."""
        try:
            found = maximise(self.sites, self.prior, begin, known, self.ask)
        except FlatError as flat:
            part = np.abs(flat.direction)
            named = [str(self.names[j]) for j in map(int, np.flatnonzero(part > 0.1 * part.max()))]
            if named == ["alpha"]:
                raise DataError("alpha goes to 0: the counts vary no more than Poisson's; use family poisson") from flat
            raise DataError(
                f"the coefficients of {', '.join(named)} have no finite estimate: along them the outcome is predicted "
                "perfectly (separation), or the rows say nothing of them; leave a column out, join levels, or give a "
                "prior, such as prior=fedlap.normal(sd=2.5)"
            ) from flat

        if not found.converged:
            warnings.warn(
                f"not converged after {len(found.rounds)} rounds: Newton's decrement is "
                f"{found.rounds[-1].decrement:.1e}, expected below 1e-9; do not use these numbers, and try a prior, "
                "such as prior=fedlap.normal(sd=2.5)",
                DivergedWarning,
                stacklevel=2,
            )
        return found

    def continued(self, w: np.ndarray, known: Mapping[str, SiteFactor]) -> Optimum:
        """The optimum, from weights and factors that another regression of the same sites has ended with."""
        return self.optimum(Broadcast(w, self.prior.precision + total(factor.V for factor in known.values())), known)

    def subset(self, names: Sequence[str]) -> "Regression":
        """The same with some of the sites."""
        for name in names:
            if name not in self.sites:
                raise ConfigError(f"no site is named {name!r}; expected one of {', '.join(self.sites)}")
        return replace(self, sites={name: self.sites[name] for name in names}, rows={n: self.rows[n] for n in names})

    def without(self, site: str, whole: Optimum) -> tuple["Regression", Optimum]:
        """The regression and its optimum as if a site had never taken part.

        Its factor is divided out of the posterior; from there the others' rounds go on, until nothing moves.
        """
        if site not in self.sites:
            raise ConfigError(f"no site is named {site!r}; expected one of {', '.join(self.sites)}")
        if len(self.sites) == 1:
            raise ConfigError(f"{site} is the only site; without it there is nothing to fit")
        rest = self.subset([name for name in self.sites if name != site])
        gone, known = whole.factors[site], {name: whole.factors[name] for name in rest.sites}
        S = whole.S - gone.V
        if np.linalg.eigvalsh(S)[0] > FLAT:
            w = whole.w + solve(S, gone.V @ whole.w - gone.v)
            if np.isfinite(self.losses(rest.sites, w[None])[0]):
                return rest, rest.optimum(Broadcast(w, S), known)
        return rest, rest.optimum()

    def null_optimum(self) -> Optimum:
        """The optimum of the model with nothing but its intercepts."""
        names = np.flatnonzero(self.null)
        sites = {name: Restricted(objective, self.null) for name, objective in self.sites.items()}
        if not len(names):
            losses = {name: objective.loss(np.zeros(len(self.null))) for name, objective in self.sites.items()}
            empty = np.zeros((0, 0))
            return Optimum(np.zeros(len(self.null)), empty, {}, losses, {}, [], True)
        found = maximise(sites, no_prior(len(names)), ask=self.ask)
        w = np.zeros(len(self.null))
        w[self.null] = found.w
        return found._replace(w=w)


@dataclass(frozen=True, eq=False)
class Restricted:
    """A loss as a function of some of its weights; the others are zero."""

    whole: Loss
    kept: np.ndarray

    def full(self, w: np.ndarray) -> np.ndarray:
        """All weights, of those that are kept."""
        full = np.zeros(len(self.kept))
        full[self.kept] = w
        return full

    def loss(self, w: np.ndarray) -> float:
        """The loss at a point."""
        return self.whole.loss(self.full(w))

    def expand(self, w: np.ndarray) -> Expansion:
        """The loss, its gradient and its Hessian, of the weights that are kept."""
        there = self.whole.expand(self.full(w))
        return Expansion(there.loss, there.gradient[self.kept], there.hessian[np.ix_(self.kept, self.kept)])
