"""Generalised linear models over sites."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, Self, cast

import numpy as np

from fedlap.checks import known_keywords
from fedlap.errors import ConfigError, DataError
from fedlap.regression import standard
from fedlap.regression.design import Design, SiteRows, designs
from fedlap.regression.effects import known_effects, with_fixed
from fedlap.regression.families import family as family_of
from fedlap.regression.families.base import Family
from fedlap.regression.federation import Losses, Regression, losses_in_turn
from fedlap.regression.fit import SitesFit
from fedlap.regression.model import Opening, Units, fit_here
from fedlap.regression.objective import Closing, LinearObjective, Objective
from fedlap.regression.prediction import Prediction
from fedlap.regression.prior import EvidencePrior, NormalPrior, Prior, as_prior, evidence
from fedlap.regression.rounds import Ask, Belief, Optimum, in_turn, no_prior, total
from fedlap.regression.tables import frame

if TYPE_CHECKING:
    import pandas as pd

UNIT = 1e-10  # a change of a scale or of a prior, relative to it, that ends their fixed point


@dataclass(frozen=True, eq=False, kw_only=True)
class GlmFit(SitesFit):
    """A generalised linear model, fitted over sites."""

    family: Family
    design: Design
    constants: Mapping[str, float]  # of the log-likelihood, by site
    unit: float  # of the outcome: what it was divided by
    prior: Prior
    back_to_columns: np.ndarray  # from weights to coefficients of one predictor, for predictions

    @cached_property
    def _closing(self) -> Closing:
        return _closing(self.regression, self.optimum.w)

    @property
    def dispersion(self) -> float:
        return self._closing.pearson / self.df_resid if self.family.has_scale else 1.0

    @property
    def scale(self) -> float:
        """The dispersion of the outcome: Pearson's sum over N − P of a family that has one, else 1."""
        return self.dispersion * self.unit**2

    @property
    def information(self) -> np.ndarray:
        return self.optimum.S if self.family.shapes else self._closing.information + self.regression.prior.precision

    @property
    def degrees(self) -> float:
        """Of an outcome that is a number the estimates are t-distributed, as in a linear regression."""
        return self.df_resid if self.family.link == "identity" else np.inf

    @property
    def llf(self) -> float:
        return self._log_likelihood(self.optimum)

    @property
    def llnull(self) -> float:
        """The log-likelihood of the model with nothing but its intercepts."""
        return self._log_likelihood(self._null)

    def _log_likelihood(self, optimum: Optimum) -> float:
        loss = sum(optimum.losses.values()) * self.unit**2
        constant = sum(self.constants[name] for name in self.regression.sites)
        return float(self.family.log_likelihood(loss, constant, self.nobs, self.scale))

    @property
    def deviance(self) -> float:
        """Twice how far the fit is from predicting every row perfectly."""
        return self._closing.deviance * self.unit**2

    @property
    def null_deviance(self) -> float:
        """The deviance of the model with nothing but its intercepts."""
        return _closing(self.regression, self._null.w).deviance * self.unit**2

    @property
    def pearson_chi2(self) -> float:
        """The sum of squared Pearson residuals."""
        return self._closing.pearson * self.unit**2

    @property
    def exp(self) -> "pd.DataFrame":
        """e to the power of each coefficient, with its interval: odds, rate or mean ratios."""
        if not self.family.ratio:
            raise ConfigError(f"with the {self.family.link} link e to the power of a coefficient means nothing")
        own = len(self._values) - self.family.shapes  # e to the power of a dispersion is nothing
        numbers = np.exp(np.stack([self._values, *self._interval(0.05)], 1)[:own])
        return frame(numbers, self.index[:own], [self.family.ratio, "lower", "upper"])

    @property
    def title(self) -> str:
        name = type(self.family).__name__.removesuffix("Family")
        return f"{self.design.formula}    ({name}, {self.family.link} link)"

    def head(self) -> list[tuple[str, str]]:
        scale = [("scale", f"{self.scale:.6g}")] if self.family.has_scale else []
        return [*super().head(), ("deviance", f"{self.deviance:.4f}, null {self.null_deviance:.4f}"), *scale]

    def robust(self, kind: str) -> Self:
        """The same fit with standard errors that hold if the family is wrong: a sandwich over "rows" or "sites"."""
        if kind == "rows" and self.design.roles.trials is not None:
            raise ConfigError('robust("rows") takes trials for rows, and these are counted together; use "sites"')
        return super().robust(kind)

    def predict(self, new: Any, interval: float | None = None, observation: bool = False) -> Any:
        """The outcome that is expected for new rows; with `interval`, also where its expectation lies so surely.

        With `observation`, further where a new outcome lies so surely, if that is a number or a count.
        """
        rule = Prediction(self.family, self.design, self._values, self._covariance, self.degrees, self.scale)
        return rule.of(self.design.matrix(new, outcome=False, where="the new rows"), interval, observation)


@known_keywords("glm")
def glm(
    formula: str,
    sites: Any,
    *,
    family: str = "binomial",
    site: str | None = None,
    prior: Any = None,
    weights: str | None = None,
    offset: str | None = None,
    exposure: str | None = None,
    trials: str | None = None,
    success: Any = None,
    site_effects: str = "none",
) -> GlmFit:
    """Fit a generalised linear model to the rows of several sites, as if they were pooled.

    `sites` is a mapping of names to tables, or one table with a column `site` that names them. Families: gaussian,
    binomial, poisson, negative_binomial, gamma, multinomial. `weights`, `offset`, `exposure` (its logarithm is an
    offset) and `trials` (of a proportion) name columns; `success` is the value of a binomial outcome that counts.
    `site_effects`: "fixed" for an intercept a site; "random" if these are drawn from a normal density with mean 0.
    """
    known_effects(site_effects)
    wanted = as_prior(prior)
    outcome = outcome_of(family, trials)
    design, rows = designs(
        formula,
        sites,
        site=site,
        weights=weights,
        offset=offset,
        exposure=exposure,
        trials=trials,
        success=success,
        outcome=outcome,
    )
    kind = family_of(family, len(design.classes))
    if site_effects == "random":
        from fedlap.regression.mixed import fit_mixed  # which stands on this module

        return fit_mixed(kind, design, rows, wanted)
    if site_effects == "fixed":
        return fit_rows(kind, *with_fixed(design, rows, site), wanted)
    return fit_rows(kind, design, rows, wanted)


def outcome_of(family: str, trials: str | None = None) -> str:
    """What the outcome of a family is to a design: a number, binary, or classes."""
    kind = family_of(family)
    if trials is not None and kind.link != "logit":
        raise ConfigError(f"trials is {trials!r}, and the family {family}; only a binomial outcome has trials")
    return "classes" if kind.unordered else "binary" if kind.link == "logit" and trials is None else "number"


class Outcomes(NamedTuple):
    """The rows of a site as a family takes them."""

    family: Family
    x: np.ndarray
    y: np.ndarray  # of trials, the share that was a success
    weights: np.ndarray  # how often a row counts
    trials: np.ndarray
    offset: np.ndarray

    @staticmethod
    def of(rows: SiteRows, family: Family, where: str) -> "Outcomes":
        """The rows of a design; whatever was not said is one, or for an offset nothing."""
        if rows.y is None:
            raise ConfigError("the formula has no left side; expected the outcome, as in 'outcome ~ age'")
        ones = np.ones(len(rows.y))
        trials = ones if rows.trials is None else rows.trials
        y = family.checked(rows.y / trials, where, rows.kept)
        return Outcomes(
            family,
            rows.x,
            y,
            ones if rows.weights is None else rows.weights,
            trials,
            0 * ones if rows.offset is None else rows.offset,
        )

    def opening(self) -> Opening:
        """What the site says before the first round."""
        return Opening(
            complete=len(self.y),
            rows=float(self.weights.sum()),
            columns=standard.moments(self.x, self.weights * self.trials),
            outcome=standard.moments(self.y[:, None], self.weights),
            events=0.0,
            constant=float(self.weights @ self.family.constant(self.y, self.trials)),
        )

    def objective(self, units: Units) -> LinearObjective:
        """The loss of the rows; their columns are standardised in place."""
        unit, counts = units.outcome, self.weights * self.trials
        return LinearObjective(self.family, units.scale.apply(self.x), self.y / unit, counts, self.offset / unit)


@dataclass(frozen=True)
class GlmModel:
    """A family, the columns it is linear in, and the prior of their coefficients."""

    family: Family
    design: Design
    prior: Prior

    @staticmethod
    def of(name: str, design: Design, prior: Prior) -> "GlmModel":
        """The model of a family by its name."""
        return GlmModel(family_of(name, len(design.classes)), design, prior)

    @property
    def predictors(self) -> int:
        """How many predictors a row has that are linear in its columns."""
        return self.family.predictors - self.family.shapes

    @property
    def size(self) -> int:
        return self.predictors * len(self.design.names) + self.family.shapes

    def part(self, rows: SiteRows, where: str) -> Outcomes:
        return Outcomes.of(rows, self.family, where)

    def units(self, openings: Mapping[str, Opening]) -> Units:
        complete = sum(opening.complete for opening in openings.values())
        if complete < self.size + self.family.has_scale:
            raise DataError(
                f"{complete} complete rows at all sites together, and {self.size} coefficients; "
                "expected more rows than coefficients"
            )
        pooled = standard.pooled(opening.columns for opening in openings.values())
        return Units(standard.standardise(pooled, self.design.names), _unit(self.family, openings))

    def fit(
        self,
        openings: Mapping[str, Opening],
        units: Units,
        sites: Mapping[str, Objective],
        ask: Ask = in_turn,
        losses: Losses = losses_in_turn,
    ) -> GlmFit:
        family, predictors = self.family, self.predictors
        one = units.outcome * units.scale.back
        null = np.zeros(len(one), bool)
        if units.scale.intercept is not None:
            null[units.scale.intercept] = True
        regression = Regression(
            sites=sites,
            names=_names(self.design, family),
            back=_blocks(one, predictors, family.shapes),
            parameters=lambda w: _parameters(w, one, predictors, family.shapes),
            prior=no_prior(self.size),
            null=np.concatenate([np.tile(null, predictors), np.ones(family.shapes, bool)]),
            rows={name: opening.rows for name, opening in openings.items()},
            ask=ask,
            losses=losses,
        )
        regression, optimum = _fixed_point(regression, self.prior, family)
        if family.shapes:  # the derivative of α = e^a
            back = regression.back.copy()
            back[-1, -1] = np.exp(optimum.w[-1])
            regression = replace(regression, back=back)
        return GlmFit(
            regression=regression,
            optimum=optimum,
            family=family,
            design=self.design,
            constants={name: opening.constant for name, opening in openings.items()},
            unit=units.outcome,
            prior=self.prior,
            back_to_columns=one,
        )


def fit_rows(family: Family, design: Design, rows: Mapping[str, SiteRows], prior: Prior) -> GlmFit:
    """Fit a family to the rows of sites; their columns are standardised in place."""
    return fit_here(GlmModel(family, design, prior), rows)


def _closing(regression: Regression, w: np.ndarray) -> Closing:
    """The closing sums of all sites."""
    sites = cast("Mapping[str, LinearObjective]", regression.sites)
    parts = [objective.closing(w) for objective in sites.values()]
    return Closing(
        sum(part.pearson for part in parts),
        sum(part.deviance for part in parts),
        total(part.information for part in parts),
    )


def _fixed_point(regression: Regression, prior: Prior, family: Family) -> tuple[Regression, Optimum]:
    """The optimum; with a prior and a dispersion, or a prior to be chosen, that at which these do not change."""
    if prior is None:
        return regression, regression.optimum()
    penalised = ~regression.null
    chosen = prior.precision if isinstance(prior, NormalPrior) else 1.0
    dispersion, optimum = 1.0, None
    rounds = []
    for _ in range(200):
        belief = Belief(np.zeros(len(penalised)), dispersion * chosen * np.diag(penalised.astype(float)))
        regression = replace(regression, prior=belief)
        if optimum is None:
            optimum = regression.optimum()
        else:
            optimum = regression.continued(optimum.w, optimum.factors)
        rounds += optimum.rounds
        before = dispersion, chosen
        if family.has_scale:
            pearson = _closing(regression, optimum.w).pearson
            dispersion = pearson / (sum(regression.rows.values()) - len(penalised))
        if isinstance(prior, EvidencePrior):
            data = total(factor.V for factor in optimum.factors.values()) / dispersion
            aim = total(factor.v for factor in optimum.factors.values()) / dispersion
            chosen = evidence(optimum.w, data, aim, penalised, chosen)
        if np.allclose(before, (dispersion, chosen), rtol=UNIT, atol=0):
            break
    assert optimum is not None, "at least one round of the fixed point"
    return regression, optimum._replace(rounds=rounds)


def _unit(family: Family, openings: Mapping[str, Opening]) -> float:
    """What an outcome without a scale of its own is divided by: its standard deviation over all sites."""
    if family.link != "identity":
        return 1.0
    pooled = standard.pooled(opening.outcome for opening in openings.values())
    spread = float(np.sqrt(pooled.products[0, 0] / pooled.rows))
    if spread <= standard.CONSTANT * abs(pooled.mean[0]):
        raise DataError(f"the outcome is {pooled.mean[0]:g} in every row of every site; there is nothing to explain")
    return spread


def _blocks(one: np.ndarray, predictors: int, shapes: int) -> np.ndarray:
    size = len(one)
    back = np.eye(predictors * size + shapes)
    for j in range(predictors):
        part = slice(j * size, (j + 1) * size)
        back[part, part] = one
    return back


def _parameters(w: np.ndarray, one: np.ndarray, predictors: int, shapes: int) -> np.ndarray:
    own = w[: predictors * len(one)].reshape(predictors, -1)
    return np.concatenate([(own @ one.T).ravel(), np.exp(w[predictors * len(one) :])])


def _names(design: Design, family: Family) -> list[Any]:
    if family.unordered:
        return [(level, name) for level in design.classes[1:] for name in design.names]
    return [*design.names, *(["alpha"] if family.shapes else [])]
