"""Generalised linear models over sites."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from scipy import stats

from fedlap.checks import known_keywords
from fedlap.errors import ConfigError, DataError
from fedlap.regression import standard
from fedlap.regression.design import Agreement, Rows, designs
from fedlap.regression.effects import known_effects, with_fixed
from fedlap.regression.families import family as family_of
from fedlap.regression.families.base import Family
from fedlap.regression.federation import Regression
from fedlap.regression.fit import SitesFit
from fedlap.regression.objective import LinearObjective
from fedlap.regression.prior import EvidencePrior, NormalPrior, Prior, as_prior, evidence
from fedlap.regression.rounds import Belief, Optimum, no_prior
from fedlap.regression.tables import frame

if TYPE_CHECKING:
    import pandas as pd

UNIT = 1e-10  # a change of a scale or of a prior, relative to it, that ends their fixed point


class Closing(NamedTuple):
    """What sites say once the weights are found, as sums over their rows."""

    pearson: float
    deviance: float
    information: np.ndarray

    @staticmethod
    def of(objective: LinearObjective, w: np.ndarray) -> "Closing":
        """The sums of one site."""
        f, family = objective.predict(w), objective.family
        pearson = np.nan
        if family.predictors - family.shapes == 1:
            pearson = float(objective.weights @ ((objective.y - family.mean(f)) ** 2 / family.variance(f)))
        deviance = float(objective.weights @ family.deviance(objective.y, f))
        return Closing(pearson, deviance, objective.information(w) if not family.shapes else np.zeros(0))


@dataclass(frozen=True, eq=False, kw_only=True)
class GlmFit(SitesFit):
    """A generalised linear model, fitted over sites."""

    family: Family
    agreement: Agreement
    constants: Mapping[str, float]  # of the log-likelihood, by site
    unit: float  # of the outcome: what it was divided by
    prior: Prior
    back_to_columns: np.ndarray  # from weights to coefficients of one predictor, for predictions

    @cached_property
    def _closing(self) -> Closing:
        parts = [Closing.of(objective, self.optimum.w) for objective in self.regression.sites.values()]
        return Closing(*(sum(column) for column in zip(*parts, strict=True)))

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
        parts = [Closing.of(objective, self._null.w).deviance for objective in self.regression.sites.values()]
        return sum(parts) * self.unit**2

    @property
    def pearson_chi2(self) -> float:
        """The sum of squared Pearson residuals."""
        return self._closing.pearson * self.unit**2

    @property
    def exp(self) -> "pd.DataFrame":
        """e to the power of each coefficient, with its interval: odds, rate or mean ratios."""
        if not self.family.ratio:
            raise ConfigError(f"with the {self.family.link} link e to the power of a coefficient means nothing")
        low, high = self._interval(0.05)
        return frame(np.exp(np.stack([self._values, low, high], 1)), self.index, [self.family.ratio, "lower", "upper"])

    @property
    def title(self) -> str:
        name = type(self.family).__name__.removesuffix("Family")
        return f"{self.agreement.formula}    ({name}, {self.family.link} link)"

    def head(self) -> list[tuple[str, str]]:
        scale = [("scale", f"{self.scale:.6g}")] if self.family.has_scale else []
        return [*super().head(), ("deviance", f"{self.deviance:.4f}, null {self.null_deviance:.4f}"), *scale]

    def predict(self, new: Any, interval: float | None = None) -> Any:
        """The outcome that is expected for new rows; with `interval`, also where its expectation lies so surely."""
        rows = self.agreement.matrix(new, outcome=False)
        predictors, columns = self.family.predictors - self.family.shapes, rows.x.shape[1]
        own = predictors * columns
        f = rows.x @ self._values[:own].reshape(predictors, columns).T
        f[:, 0] += rows.offset
        index = rows.positions
        if predictors > 1:
            if interval is not None:
                raise ConfigError("an interval of several probabilities at once is not to be had; leave it out")
            return frame(self.family.mean(f.T).T, index, self.agreement.levels)
        shapes = np.broadcast_to(self.optimum.w[own : own + self.family.shapes, None], (self.family.shapes, len(f)))
        mean = lambda f: self.family.mean(np.concatenate([f[None], shapes]) if len(shapes) else f)
        columns_of = {"mean": mean(f[:, 0])}
        if interval is not None:
            if not 0 < interval < 1:
                raise ConfigError(f"interval is {interval!r}; expected a share between 0 and 1, such as 0.95")
            error = np.sqrt(np.einsum("ij,jk,ik->i", rows.x, self._covariance[:own, :own], rows.x))
            reach = stats.t.isf((1 - interval) / 2, self.degrees) * error
            columns_of |= {"mean_ci_lower": mean(f[:, 0] - reach), "mean_ci_upper": mean(f[:, 0] + reach)}
        return frame(columns_of, index, list(columns_of))


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
    agreement, rows = designs(
        formula,
        sites,
        site=site,
        family=family,
        weights=weights,
        offset=offset,
        exposure=exposure,
        trials=trials,
        success=success,
    )
    if site_effects == "random":
        from fedlap.regression.mixed import fit_mixed  # which stands on this module

        return fit_mixed(family_of(family, len(agreement.levels)), agreement, rows, wanted)
    if site_effects == "fixed":
        agreement, rows = with_fixed(agreement, rows, site)
    return fit_rows(family_of(family, len(agreement.levels)), agreement, rows, wanted)


def fit_rows(family: Family, agreement: Agreement, rows: Mapping[str, Rows], prior: Prior) -> GlmFit:
    """Fit a family to the designs of sites."""
    counts = {name: part.weights * part.trials for name, part in rows.items()}
    total = standard.pooled(standard.moments(part.x, counts[name]) for name, part in rows.items())
    size, predictors = len(agreement.names), family.predictors - family.shapes
    nobs = {name: float(part.weights.sum()) for name, part in rows.items()}
    if sum(len(part.y) for part in rows.values()) < predictors * size + family.shapes:
        raise DataError(
            f"{sum(len(part.y) for part in rows.values())} complete rows at all sites together, and "
            f"{predictors * size + family.shapes} coefficients; expected more rows than coefficients"
        )
    scale = standard.standardise(total, agreement.names)
    unit = _unit(family, rows)
    objectives = {
        name: LinearObjective(
            family, scale.apply(part.x), family.checked(part.y, name) / unit, counts[name], part.offset / unit
        )
        for name, part in rows.items()
    }
    constants = {name: float(part.weights @ family.constant(part.y, part.trials)) for name, part in rows.items()}
    one = unit * scale.back
    null = np.zeros(size, bool)
    if scale.intercept is not None:
        null[scale.intercept] = True
    regression = Regression(
        sites=objectives,
        names=_names(agreement, family),
        back=_blocks(one, predictors, family.shapes),
        parameters=lambda w: _parameters(w, one, predictors, family.shapes),
        prior=no_prior(predictors * size + family.shapes),
        null=np.concatenate([np.tile(null, predictors), np.ones(family.shapes, bool)]),
        rows=nobs,
    )
    fitted = _fixed_point(regression, prior, family)
    fit = GlmFit(
        regression=fitted[0],
        optimum=fitted[1],
        family=family,
        agreement=agreement,
        constants=constants,
        unit=unit,
        prior=prior,
        back_to_columns=one,
    )
    if family.shapes:  # the derivative of α = e^a
        back = fit.regression.back.copy()
        back[-1, -1] = np.exp(fit.optimum.w[-1])
        fit = replace(fit, regression=replace(fit.regression, back=back))
    return fit


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
            parts = [Closing.of(objective, optimum.w).pearson for objective in regression.sites.values()]
            dispersion = sum(parts) / (sum(regression.rows.values()) - len(penalised))
        if isinstance(prior, EvidencePrior):
            data = sum(factor.V for factor in optimum.factors.values()) / dispersion
            aim = sum(factor.v for factor in optimum.factors.values()) / dispersion
            chosen = evidence(optimum.w, data, aim, penalised, chosen)
        if np.allclose(before, (dispersion, chosen), rtol=UNIT, atol=0):
            break
    assert optimum is not None, "at least one round of the fixed point"
    return regression, optimum._replace(rounds=rounds)


def _unit(family: Family, rows: Mapping[str, Rows]) -> float:
    """What an outcome without a scale of its own is divided by: its standard deviation over all sites."""
    if family.link != "identity":
        return 1.0
    total = standard.pooled(standard.moments(part.y[:, None], part.weights) for part in rows.values())
    spread = float(np.sqrt(total.products[0, 0] / total.rows))
    if spread <= standard.CONSTANT * abs(total.mean[0]):
        raise DataError(f"the outcome is {total.mean[0]:g} in every row of every site; there is nothing to explain")
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


def _names(agreement: Agreement, family: Family) -> list[Any]:
    if family.predictors - family.shapes > 1:
        return [(level, name) for level in agreement.levels[1:] for name in agreement.names]
    return [*agreement.names, *(["alpha"] if family.shapes else [])]
