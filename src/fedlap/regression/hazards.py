"""Proportional hazards over sites: Cox regression, stratified by site."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from fedlap.checks import known_keywords
from fedlap.errors import ConfigError, DataError
from fedlap.regression import standard
from fedlap.regression.cox import Survival
from fedlap.regression.design import Design, designs
from fedlap.regression.federation import Regression
from fedlap.regression.fit import SitesFit
from fedlap.regression.prior import NormalPrior, Prior, as_prior
from fedlap.regression.rounds import Belief, no_prior
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
    ones = {name: np.ones(len(part.x)) if part.weights is None else part.weights for name, part in rows.items()}
    pooled = standard.pooled(standard.moments(part.x, ones[name]) for name, part in rows.items())
    scale = standard.standardise(pooled, design.names, centred=True)
    survivals = {}
    for name, part in rows.items():
        assert part.duration is not None and part.event is not None, "both are said above"
        x = scale.apply(part.x)
        survivals[name] = Survival.of(x, part.duration, part.event, part.weights, part.offset, ties)
    events = {name: float(ones[name] @ np.asarray(part.event)) for name, part in rows.items()}
    if not sum(events.values()):
        raise DataError(f"column {event!r} is 0 in every row of every site: no event, so there is nothing to explain")
    size = len(design.names)
    belief = no_prior(size)
    if wanted is not None:
        belief = Belief(np.zeros(size), wanted.precision * np.eye(size))
    regression = Regression(
        sites=survivals,
        names=design.names,
        back=scale.back,
        parameters=lambda w: scale.back @ w,
        prior=belief,
        null=np.zeros(size, bool),
        rows={name: float(count.sum()) for name, count in ones.items()},
    )
    return CoxFit(
        regression=regression,
        optimum=regression.optimum(),
        design=design,
        scale=scale,
        ties=ties,
        prior=wanted,
        events=events,
    )
