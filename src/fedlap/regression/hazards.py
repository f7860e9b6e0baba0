"""Proportional hazards over sites: Cox regression, stratified by site."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np

from fedlap.checks import known_keywords
from fedlap.errors import ConfigError, DataError
from fedlap.regression import standard
from fedlap.regression.cox import Survival
from fedlap.regression.design import Design, SiteRows, designs
from fedlap.regression.federation import Losses, Regression, losses_in_turn
from fedlap.regression.fit import SitesFit
from fedlap.regression.model import Opening, Units, fit_here
from fedlap.regression.objective import Objective
from fedlap.regression.prior import NormalPrior, Prior, as_prior
from fedlap.regression.rounds import Ask, Belief, in_turn, no_prior
from fedlap.regression.standard import Scale
from fedlap.regression.tables import frame

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, eq=False, kw_only=True)
class CoxFit(SitesFit):
    """A Cox regression, fitted over sites. Every site has its own baseline hazard, which stays there."""

    design: Design
    scale: Scale
    ties: str
    prior: Prior
    events: Mapping[str, float]

    @property
    def _survivals(self) -> Mapping[str, Survival]:
        return cast("Mapping[str, Survival]", self.regression.sites)

    @property
    def hazard_ratios(self) -> "pd.DataFrame":
        """e to the power of each coefficient, with its interval."""
        low, high = self._interval(0.05)
        return frame(np.exp(np.stack([self._values, low, high], 1)), self.index, ["hazard ratio", "lower", "upper"])

    @property
    def exp(self) -> "pd.DataFrame":
        """The hazard ratios, under the name that ratios of other regressions have."""
        return self.hazard_ratios

    @property
    def llnull(self) -> float:
        """The log partial likelihood without any column."""
        return -sum(self._null.losses.values())

    @property
    def concordance(self) -> float:
        """The share of comparable pairs within sites whose events came in the order of their risks."""
        pairs = [each.concordant(self.optimum.w) for each in self._survivals.values()]
        comparable = sum(pair.comparable for pair in pairs)
        return sum(pair.concordant + pair.tied / 2 for pair in pairs) / comparable if comparable else float("nan")

    def baseline(self, site: str) -> "pd.DataFrame":
        """The cumulative hazard and the survival at a site, of somebody with the pooled mean of every column.

        It is computed at the site from its own event times, and is nothing that a site sends in a run.
        """
        if site not in self._survivals:
            raise ConfigError(f"no site is named {site!r}; expected one of {', '.join(self._survivals)}")
        found = self._survivals[site].baseline(self.optimum.w)
        return frame({"hazard": found.hazard, "survival": found.survival}, found.times, ["hazard", "survival"])

    @property
    def title(self) -> str:
        roles = self.design.roles
        return f"Cox: {roles.duration}, {roles.event} ~ {self.design.formula}    (stratified by site, {self.ties} ties)"

    def head(self) -> list[tuple[str, str]]:
        events = sum(self.events[name] for name in self.regression.sites)
        return [*super().head(), ("events", f"{events:,.0f}"), ("concordance", f"{self.concordance:.4f}")]


@known_keywords("cox")
def cox(
    formula: str,
    sites: Any,
    *,
    duration: str,
    event: str,
    ties: str = "efron",
    site: str | None = None,
    prior: Any = None,
    weights: str | None = None,
    offset: str | None = None,
) -> CoxFit:
    """Fit a Cox regression to the rows of several sites, stratified by site, as if they were pooled.

    `sites` is a mapping of names to tables, or one table with a column `site` that names them. `duration` and `event`
    (1 if it happened, 0 if the row was censored) name columns. `ties` is "efron" or "breslow".
    """
    wanted = as_prior(prior)
    if wanted is not None and not isinstance(wanted, NormalPrior):
        raise ConfigError(
            'prior="evidence" is not to be had for a Cox regression; expected None or fedlap.normal(sd=...)'
        )
    if "~" in formula:
        raise ConfigError(
            f"formula is {formula!r}; expected the right side alone: duration= and event= are the outcome"
        )
    design, rows = designs(formula, sites, site=site, weights=weights, offset=offset, duration=duration, event=event)
    return fit_here(CoxModel(design, ties, wanted), rows)


class Durations(NamedTuple):
    """The rows of a site as a Cox regression takes them."""

    rows: SiteRows
    duration: np.ndarray
    event: np.ndarray
    weights: np.ndarray
    ties: str

    def opening(self) -> Opening:
        """What the site says before the first round."""
        return Opening(
            complete=len(self.event),
            rows=float(self.weights.sum()),
            columns=standard.moments(self.rows.x, self.weights),
            outcome=standard.Moments(0.0, np.zeros(1), np.zeros((1, 1))),
            events=float(self.weights @ self.event),
            constant=0.0,
        )

    def objective(self, units: Units) -> Survival:
        """The loss of the rows; their columns are standardised in place."""
        x, rows = units.scale.apply(self.rows.x), self.rows
        return Survival.of(x, self.duration, self.event, rows.weights, rows.offset, self.ties)


@dataclass(frozen=True)
class CoxModel:
    """The columns that a hazard is log-linear in, how ties are treated, and the prior of the coefficients."""

    design: Design
    ties: str
    prior: NormalPrior | None

    @property
    def size(self) -> int:
        return len(self.design.names)

    def part(self, rows: SiteRows, where: str) -> Durations:
        if rows.duration is None or rows.event is None:
            raise ConfigError(f"{where}: the design has no duration and event; expected both")
        weights = np.ones(len(rows.x)) if rows.weights is None else rows.weights
        return Durations(rows, rows.duration, rows.event, weights, self.ties)

    def units(self, openings: Mapping[str, Opening]) -> Units:
        pooled = standard.pooled(opening.columns for opening in openings.values())
        scale = standard.standardise(pooled, self.design.names, centred=True)
        if not sum(opening.events for opening in openings.values()):
            event = self.design.roles.event
            raise DataError(
                f"column {event!r} is 0 in every row of every site: no event, so there is nothing to explain"
            )
        return Units(scale)

    def fit(
        self,
        openings: Mapping[str, Opening],
        units: Units,
        sites: Mapping[str, Objective],
        ask: Ask = in_turn,
        losses: Losses = losses_in_turn,
    ) -> CoxFit:
        belief = no_prior(self.size)
        if self.prior is not None:
            belief = Belief(np.zeros(self.size), self.prior.precision * np.eye(self.size))
        scale = units.scale
        regression = Regression(
            sites=sites,
            names=self.design.names,
            back=scale.back,
            parameters=lambda w: scale.back @ w,
            prior=belief,
            null=np.zeros(self.size, bool),
            rows={name: opening.rows for name, opening in openings.items()},
            ask=ask,
            losses=losses,
        )
        return CoxFit(
            regression=regression,
            optimum=regression.optimum(),
            design=self.design,
            scale=scale,
            ties=self.ties,
            prior=self.prior,
            events={name: opening.events for name, opening in openings.items()},
        )
