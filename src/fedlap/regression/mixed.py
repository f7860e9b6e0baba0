"""Regressions with random site intercepts: rounds on what is left when each site has integrated its own one out."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, NoReturn, Self

import numpy as np

from fedlap.errors import ConfigError, DataError
from fedlap.regression import meta
from fedlap.regression.design import Design, SiteRows
from fedlap.regression.effects import Held, RandomIntercept, SiteEffect, check_random, random_intercepts
from fedlap.regression.families.base import Family
from fedlap.regression.federation import Regression
from fedlap.regression.fit import SitesFit
from fedlap.regression.glm import GlmFit, fit_rows
from fedlap.regression.objective import LinearObjective
from fedlap.regression.prior import EvidencePrior, NormalPrior, Prior
from fedlap.regression.rounds import (
    FLAT,
    Belief,
    Broadcast,
    FlatError,
    Optimum,
    Round,
    SiteFactor,
    maximise,
    no_prior,
    solve,
    total,
)
from fedlap.regression.tables import series

if TYPE_CHECKING:
    import pandas as pd

NOTHING = -20.0  # log τ of no effects: their variance is then less than the rounding of a loss
SPREADS = np.geomspace(1e-4, 100, 21)  # τ that are tried first; of a gaussian outcome, τ by √φ
EXACT = 1e-12  # of the outcome's variance: what is left within sites is rounding
FAR = 5.0  # a spread on the scale of logits or logarithms, beyond which sites are all or nothing
ALONE, PROFILE = "without site effects", "the best τ of several"


@dataclass(frozen=True, eq=False, kw_only=True)
class MixedFit(GlmFit):
    """A generalised linear model with random site intercepts; `params` are the coefficients of the columns.

    Standard errors are from the Hessian of all weights, that of log τ among them, as in statsmodels' MixedLM. A
    prediction is for a site whose effect is 0.
    """

    plain: GlmFit  # the same without site effects

    # Of sites ---------------------------------------------------------------------------------------------------------

    @property
    def site_variance(self) -> float:
        """τ², the variance of the sites' effects."""
        return 0.0 if self._at_boundary else math.exp(2 * self.optimum.w[self._place]) * self.unit**2

    @property
    def site_variance_se(self) -> float:
        """Its standard error; at the boundary 0 it has none."""
        if self._at_boundary:
            return math.nan
        last = np.eye(len(self.optimum.w))[self._place]
        return 2 * self.site_variance * math.sqrt(last @ solve(self.information, last))

    @property
    def site_effects(self) -> "pd.Series":
        """The effect of each site, the mode of what it knows; at the site it is computed, and need not leave it."""
        return series([each.mode * self.unit for each in self._effects.values()], list(self._effects))

    @property
    def site_effects_se(self) -> "pd.Series":
        """Their standard deviations, at the estimates of all else."""
        return series([math.sqrt(each.variance) * self.unit for each in self._effects.values()], list(self._effects))

    @cached_property
    def _effects(self) -> dict[str, SiteEffect]:
        if self._at_boundary:
            return dict.fromkeys(self.regression.sites, SiteEffect(0.0, 0.0))
        intercepts = random_intercepts(_rows(self.plain))
        return {name: each.effect(self.optimum.w) for name, each in intercepts.items()}

    @property
    def _place(self) -> int:
        """Where log τ is among the weights."""
        return len(self.plain.optimum.w)

    @property
    def _at_boundary(self) -> bool:
        return bool(self.optimum.w[self._place] == NOTHING)

    def predict(self, new: Any, interval: float | None = None, observation: bool = False) -> Any:
        """As of any fit, for a site whose effect is 0; of a new outcome nothing, which depends on its site."""
        if observation:
            raise ConfigError(
                "where a new outcome lies depends on the effect of its site, and a prediction takes that as 0; leave "
                'observation out, or fit with site_effects="fixed"'
            )
        return super().predict(new, interval)

    # What a kind of regression says for itself ------------------------------------------------------------------------

    @property
    def dispersion(self) -> float:
        return 1.0

    @property
    def scale(self) -> float:
        """φ, the variance within sites of an outcome that is a number; else 1."""
        return math.exp(self.optimum.w[-1]) * self.unit**2 if self.family.has_scale else 1.0

    @property
    def information(self) -> np.ndarray:
        S, place = self.optimum.S.copy(), self._place
        if self._at_boundary:  # the weight is not estimated
            S[place], S[:, place], S[place, place] = 0, 0, 1
        return S

    @property
    def curvature(self) -> np.ndarray:
        return self.information

    @property
    def degrees(self) -> float:
        return math.inf

    def _log_likelihood(self, optimum: Optimum) -> float:
        constant = sum(self.constants[name] for name in self.regression.sites)
        if self.family.has_scale:
            constant -= self.nobs * (math.log(2 * math.pi) / 2 + math.log(self.unit))
        return constant - sum(optimum.losses.values())

    @property
    def aic(self) -> float:
        return 2 * len(self.optimum.w) - 2 * self.llf

    @property
    def bic(self) -> float:
        return math.log(self.nobs) * len(self.optimum.w) - 2 * self.llf

    @property
    def deviance(self) -> float:
        self._no("a deviance", "compare llf")

    @property
    def null_deviance(self) -> float:
        self._no("a deviance", "compare llf and llnull")

    @property
    def pearson_chi2(self) -> float:
        self._no("Pearson's sum", "its rows are not independent")

    def _no(self, what: str, instead: str) -> NoReturn:
        raise ConfigError(f"with random site effects there is no {what}; {instead}, or fit with site_effects='fixed'")

    # Sites, one by one: τ, and φ, are those of all --------------------------------------------------------------------

    @property
    def _own(self) -> dict[str, SiteFactor]:
        """The factors of the coefficients alone."""
        own, w = slice(self._place), self.optimum.w[: self._place]
        return {
            name: SiteFactor(factor.V[own, own] @ w - self.optimum.scores[name][own], factor.V[own, own])
            for name, factor in self.optimum.factors.items()
        }

    @cached_property
    def _estimates(self) -> meta.Estimates:
        back, w = self.regression.back[:, : self._place], self.optimum.w[: self._place]
        moved, variance = zip(*(meta.estimate(factor, w, back, 1.0) for factor in self._own.values()), strict=True)
        return meta.Estimates(self._values + np.stack(moved), np.stack(variance))

    def without(self, site: str) -> Self:
        """The fit as if a site had never taken part: its factor divided out of the fit without site effects first."""
        if len(self.regression.sites) == 2 and site in self.regression.sites:
            raise ConfigError(f"without {site} one site is left; random site effects need two sites or more")
        plain = self.plain.without(site)
        regression, optimum = _mixed(plain)
        return replace(self, plain=plain, regression=regression, optimum=optimum)

    def robust(self, kind: str) -> Self:
        """The same fit with standard errors that hold if the family is wrong: a sandwich over "sites"."""
        if kind == "rows":
            self._no('robust("rows"), as rows of a site are not independent', 'expected robust("sites")')
        return super().robust(kind)

    @cached_property
    def _null(self) -> Optimum:
        kept = self.plain.regression.null
        sites = {name: replace(rows, x=rows.x[:, kept]) for name, rows in _rows(self.plain).items()}
        found = _optimum(sites, self.plain._null.w[kept], no_prior(int(kept.sum())))
        w = np.zeros(len(self.optimum.w))
        w[self.regression.null] = found.w
        return found._replace(w=w)

    def _coalition(self, members: Sequence[str], refresh: bool) -> np.ndarray:
        """The weights of some sites: their coefficients; τ, and φ, are those of all, and no rounds refresh them."""
        null, place, factors = self._null, self._place, [self._own[name] for name in members]
        S = np.eye(place) / 2.5**2 + total(factor.V for factor in factors)
        aim = total(factor.v - factor.V @ null.w[:place] for factor in factors)
        return np.concatenate([null.w[:place] + solve(S, aim), self.optimum.w[place:]])

    # On paper ---------------------------------------------------------------------------------------------------------

    @property
    def title(self) -> str:
        return f"{super().title.removesuffix(')')}, random site intercepts)"

    def head(self) -> list[tuple[str, str]]:
        scale = [("scale", f"{self.scale:.6g}")] if self.family.has_scale else []
        error = "" if self._at_boundary else f", standard error {self.site_variance_se:.6g}"
        return [*SitesFit.head(self), ("site variance", f"{self.site_variance:.6g}{error}"), *scale]

    def notes(self) -> list[str]:
        found = super().notes()
        if self._at_boundary:
            found.append("The variance between sites is 0, on its boundary: the fit is that without site effects.")
        if not self.family.has_scale and self.site_variance > FAR**2:
            found.append(
                f"The standard deviation between sites is {self.site_variance**0.5:.3g}: Laplace's approximation is "
                "poor there. The outcome may never vary at some sites."
            )
        return found


def fit_mixed(family: Family, design: Design, rows: Mapping[str, SiteRows], prior: Prior) -> MixedFit:
    """Fit a family with random site intercepts to the designs of sites."""
    check_random(family, list(rows))
    if isinstance(prior, EvidencePrior):
        raise ConfigError(
            "prior='evidence' with site_effects='random' is not to be had; expected fedlap.normal(sd=...)"
        )
    plain = fit_rows(family, design, rows, prior)
    regression, optimum = _mixed(plain)
    return MixedFit(
        regression=regression,
        optimum=optimum,
        family=family,
        design=design,
        constants=plain.constants,
        unit=plain.unit,
        prior=prior,
        back_to_columns=plain.back_to_columns,
        plain=plain,
    )


def _rows(plain: GlmFit) -> dict[str, LinearObjective]:
    """The rows of the sites, which the losses of a fit without site effects hold."""
    return {name: each for name, each in plain.regression.sites.items() if isinstance(each, LinearObjective)}


def _mixed(plain: GlmFit) -> tuple[Regression, Optimum]:
    """The regression with random intercepts and its optimum, from the fit without."""
    penalised, back = ~plain.regression.null, plain.regression.back
    precision = plain.prior.precision if isinstance(plain.prior, NormalPrior) else 0.0
    belief = Belief(np.zeros(len(back)), precision * np.diag(penalised.astype(float)))
    optimum = _optimum(_rows(plain), plain.optimum.w, belief)
    shapes = len(optimum.w) - len(back)
    regression = replace(
        plain.regression,
        sites=random_intercepts(_rows(plain)),
        back=np.concatenate([back, np.zeros((len(back), shapes))], 1),
        parameters=lambda w: back @ w[: len(back)],
        prior=_wider(belief, shapes),
        null=np.concatenate([plain.regression.null, np.ones(shapes, bool)]),
    )
    before = [each._replace(note=each.note or ALONE) for each in plain.optimum.rounds]
    return regression, optimum._replace(rounds=[*before, *optimum.rounds])


def _optimum(sites: Mapping[str, LinearObjective], w: np.ndarray, prior: Belief) -> Optimum:
    """The optimum with random intercepts, from the weights w of the fit without.

    The loss is not convex in log τ, and may be least where τ is 0. So sites first expand their losses at w for some τ,
    0 among them, and rounds go on from the best. If that is 0, or rounds end there, so does the fit.
    """
    intercepts, place = random_intercepts(sites), len(w)
    starts = _starts(sites, w)
    belief = _wider(prior, len(starts[0]) - place)
    pooled = lambda at: sum(each.loss(at) for each in intercepts.values()) + belief.loss(at)
    nothing = pooled(starts[0])
    start, least = _best(intercepts, belief, starts[1:], place)
    before = [Round(min(least, nothing), np.nan, PROFILE)]
    if least < nothing:
        try:
            found = maximise(intercepts, belief, Broadcast(start, np.eye(len(start)), search=False))
        except FlatError as flat:
            if not pooled(flat.w) > nothing - FLAT:
                raise DataError(
                    "the variance between sites has no finite estimate, or cannot be told from that within: expected "
                    "sites with several rows, and outcomes that differ within sites"
                ) from flat
        else:
            if pooled(found.w) < nothing:
                return found._replace(rounds=[*before, *found.rounds])
    found = _nothing(intercepts, belief, starts[0], place)
    return found._replace(rounds=[*before, *found.rounds])


def _best(
    sites: Mapping[str, RandomIntercept], prior: Belief, starts: Sequence[np.ndarray], place: int
) -> tuple[np.ndarray, float]:
    """Where rounds begin, and the least loss of the starts.

    The coefficients of every start make one step of Newton's alone, as they are those of no effects. That whose loss is
    then expected to be least is taken, among the neighbours of the one whose loss is least: far away nothing is sure.
    """
    losses, expected, stepped = [], [], []
    for w in starts:
        there = [each.expand(w) for each in sites.values()]
        score = (total(each.gradient for each in there) + prior.precision @ (w - prior.mean))[:place]
        step = -solve((prior.precision + total(each.hessian for each in there))[:place, :place], score)
        losses.append(sum(each.loss for each in there) + prior.loss(w))
        expected.append(losses[-1] + score @ step / 2)
        stepped.append(np.concatenate([w[:place] + step, w[place:]]))
    least = int(np.argmin(losses))
    first = max(least - 3, 0)
    return stepped[first + int(np.argmin(expected[first : least + 2]))], losses[least]


def _starts(sites: Mapping[str, LinearObjective], w: np.ndarray) -> list[np.ndarray]:
    """The weights without site effects, and with such of several sizes; their variance is taken from that of rows."""
    if not next(iter(sites.values())).family.has_scale:
        return [np.append(w, each) for each in (NOTHING, *np.log(SPREADS))]
    _check_within(sites)
    squares = sum(float(rows.weights @ (rows.y - rows.predict(w)) ** 2) for rows in sites.values())
    scale = np.log(squares / sum(rows.weights.sum() for rows in sites.values()))
    starts = [np.append(w, [NOTHING, scale])]
    for spread in SPREADS:
        within = scale - np.log1p(spread**2)
        starts.append(np.append(w, [np.log(spread) + within / 2, within]))
    return starts


def _check_within(sites: Mapping[str, LinearObjective]) -> None:
    """An error if nothing is left within sites: a regression of distances from the sites' means predicts them all."""
    if max(rows.weights.sum() for rows in sites.values()) < 2:
        raise DataError("every site has one row: the variance between sites cannot be told from that within")
    centred = []
    for rows in sites.values():
        mean = lambda column, weights=rows.weights: weights @ column / weights.sum()
        y = rows.y - rows.offset
        centred.append(replace(rows, x=rows.x - mean(rows.x), y=y - mean(y), offset=np.zeros(len(y))))
    there = [each.expand(np.zeros(rows.x.shape[1])) for each, rows in zip(centred, sites.values(), strict=True)]
    w = -np.linalg.pinv(total(each.hessian for each in there), hermitian=True) @ total(each.gradient for each in there)
    if not sum(each.loss(w) for each in centred) > EXACT * sum(rows.weights.sum() for rows in sites.values()):
        raise DataError("the columns and the sites predict the outcome of every row exactly; no variance is left")


def _nothing(sites: Mapping[str, RandomIntercept], prior: Belief, start: np.ndarray, place: int) -> Optimum:
    """The optimum where the variance between sites is 0."""
    held = {name: Held(each, place, NOTHING) for name, each in sites.items()}
    free = np.delete(start, place)
    less = Belief(np.delete(prior.mean, place), np.delete(np.delete(prior.precision, place, 0), place, 1))
    found = maximise(held, less, Broadcast(free, np.eye(len(free)), search=False))
    w = np.insert(found.w, place, NOTHING)
    there = {name: each.expand(w) for name, each in sites.items()}
    return found._replace(
        w=w,
        S=prior.precision + total(each.hessian for each in there.values()),
        factors={name: SiteFactor(each.hessian @ w - each.gradient, each.hessian) for name, each in there.items()},
        scores={name: each.gradient for name, each in there.items()},
    )


def _wider(belief: Belief, shapes: int) -> Belief:
    """What is known of weights, and nothing of some more."""
    size = len(belief.mean)
    precision = np.zeros((size + shapes, size + shapes))
    precision[:size, :size] = belief.precision
    return Belief(np.append(belief.mean, np.zeros(shapes)), precision)
