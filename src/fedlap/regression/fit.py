"""What a regression over sites has found, under the names that statsmodels uses."""

import functools
import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Self

import numpy as np
from scipy import stats

from fedlap.errors import ConfigError
from fedlap.regression import meta
from fedlap.regression.federation import Regression
from fedlap.regression.rounds import Belief, Broadcast, Optimum, solve, total
from fedlap.regression.summary import Summary, label
from fedlap.regression.tables import Index, frame, series

if TYPE_CHECKING:
    import pandas as pd

REFRESHED = 6  # sites: of at most so many, every coalition gets rounds of its own
EXACT = 10  # sites: of more of them, Shapley values are means over orders drawn at random
ORDERS = 2000  # of these


@dataclass(frozen=True, eq=False)
class SitesFit:
    """A fit over sites: parameters with their covariance, and what each site has to do with them."""

    regression: Regression
    optimum: Optimum
    covariance: np.ndarray | None = None  # of the parameters, where it is not that of the model
    covariance_kind: str = "model"

    # What a kind of regression says for itself ------------------------------------------------------------------------

    @property
    def dispersion(self) -> float:
        """What variances are multiplied by, in the units of the weights."""
        return 1.0

    @property
    def llf(self) -> float:
        """The log-likelihood of all rows at the parameters."""
        return -sum(self.optimum.losses.values())

    @property
    def information(self) -> np.ndarray:
        """The precision of the weights, in units of the scale."""
        return self.optimum.S

    @property
    def curvature(self) -> np.ndarray:
        """The Hessian of the pooled loss, for standard errors that hold if the family is wrong."""
        return self.optimum.S

    @property
    def degrees(self) -> float:
        """Degrees of freedom of the parameters' distribution: infinitely many of a normal one."""
        return math.inf

    # Parameters -------------------------------------------------------------------------------------------------------

    @property
    def index(self) -> Index:
        """The names of the parameters."""
        return self.regression.names

    @functools.cached_property
    def _values(self) -> np.ndarray:
        return self.regression.parameters(self.optimum.w)

    @functools.cached_property
    def _covariance(self) -> np.ndarray:
        if self.covariance is not None:
            return self.covariance
        back = self.regression.back
        return self.dispersion * back @ solve(self.information, back.T)

    @property
    def _errors(self) -> np.ndarray:
        return np.sqrt(np.diag(self._covariance))

    @property
    def params(self) -> "pd.Series":
        """The estimates, by column."""
        return series(self._values, self.index)

    @property
    def bse(self) -> "pd.Series":
        """Their standard errors."""
        return series(self._errors, self.index)

    @property
    def tvalues(self) -> "pd.Series":
        """The estimates in units of their standard errors."""
        return series(self._values / self._errors, self.index)

    @property
    def pvalues(self) -> "pd.Series":
        """How likely an estimate so far from 0 would be, either way, if the coefficient were 0."""
        return series(2 * stats.t.sf(np.abs(self._values / self._errors), self.degrees), self.index)

    def cov_params(self) -> "pd.DataFrame":
        """The covariance of the estimates."""
        return frame(self._covariance, self.index, self.index)

    def conf_int(self, alpha: float = 0.05) -> "pd.DataFrame":
        """The interval of every estimate that holds the truth in all but a share `alpha` of studies."""
        return frame(np.stack(self._interval(alpha), 1), self.index, [0, 1])

    def _interval(self, alpha: float) -> tuple[np.ndarray, np.ndarray]:
        if not 0 < alpha < 1:
            raise ConfigError(f"alpha is {alpha!r}; expected a number between 0 and 1")
        reach = stats.t.isf(alpha / 2, self.degrees) * self._errors
        return self._values - reach, self._values + reach

    @property
    def nobs(self) -> float:
        """The number of rows, each as often as it counts."""
        return sum(self.regression.rows.values())

    @property
    def df_model(self) -> int:
        """The number of parameters besides those of the null model."""
        return int((~self.regression.null).sum())

    @property
    def df_resid(self) -> float:
        """The number of rows less that of parameters."""
        return self.nobs - len(self._values)

    @property
    def aic(self) -> float:
        """Akaike's criterion: less is better."""
        return 2 * len(self._values) - 2 * self.llf

    @property
    def bic(self) -> float:
        """The Bayesian information criterion, of the log-likelihood: less is better."""
        return math.log(self.nobs) * len(self._values) - 2 * self.llf

    # How it went ------------------------------------------------------------------------------------------------------

    @property
    def rounds(self) -> int:
        """How often every site got the weights and answered."""
        return len(self.optimum.rounds)

    @property
    def converged(self) -> bool:
        """Whether Newton's decrement of the pooled loss came to nothing."""
        return self.optimum.converged

    @property
    def history(self) -> "pd.DataFrame":
        """Pooled loss and Newton's decrement after every round, and what was done where the loss rose."""
        rounds = self.optimum.rounds
        columns = [list(column) for column in zip(*rounds, strict=True)]
        names = ["loss", "decrement", "note"]
        return frame(dict(zip(names, columns, strict=True)), range(1, len(rounds) + 1), names)

    # Sites ------------------------------------------------------------------------------------------------------------

    @functools.cached_property
    def _estimates(self) -> meta.Estimates:
        back, w = self.regression.back, self.optimum.w
        parts = [meta.estimate(factor, w, back, self.dispersion) for factor in self.optimum.factors.values()]
        moved, variance = (np.stack(part) for part in zip(*parts, strict=True))
        return meta.Estimates(self._values + moved, variance)

    @property
    def sites(self) -> "pd.DataFrame":
        """A row a site and coefficient: its own estimate, the standard error, and its weight among the sites.

        The estimate is that of the site's factor, V_k⁻¹v_k: one step of Newton's from the pooled optimum.
        """
        value, variance = self._estimates
        precision = np.nan_to_num(1 / variance)
        total = precision.sum(0)
        columns = {
            "estimate": value.ravel(),
            "se": np.sqrt(variance).ravel(),
            "weight": (precision / np.where(total > 0, total, np.nan)).ravel(),
        }
        names = [(site, name) for site in self.optimum.factors for name in self.index]
        return frame(columns, names, list(columns), levels=("site", "coefficient"))

    @property
    def heterogeneity(self) -> "pd.DataFrame":
        """How far the sites differ: Cochran's Q, its p-value, I² and DerSimonian and Laird's τ², by coefficient."""
        parts = meta.heterogeneity(self._estimates)._asdict()
        return frame(parts, self.index, list(parts))

    @property
    def meta(self) -> "pd.DataFrame":
        """What a meta-analysis of the sites' estimates says: one effect for all, and random effects."""
        found = meta.combine(self._estimates)
        columns = {
            "fixed": found.fixed,
            "fixed_se": np.sqrt(found.fixed_variance),
            "random": found.random,
            "random_se": np.sqrt(found.random_variance),
        }
        return frame(columns, self.index, list(columns))

    def without(self, site: str) -> Self:
        """The fit as if a site had never taken part: its factor divided out, then rounds of the others."""
        regression, optimum = self.regression.without(site, self.optimum)
        return replace(self, regression=regression, optimum=optimum)

    def robust(self, kind: str) -> Self:
        """The same fit with standard errors that hold if the family is wrong: a sandwich over "rows" or "sites".

        Sites are few, so theirs has the usual correction G/(G − 1) · (N − 1)/(N − P).
        """
        back = self.regression.back
        if kind == "rows":
            middle = total(objective.meat(self.optimum.w) for objective in self.regression.sites.values())
        elif kind == "sites":
            scores, groups = np.stack(list(self.optimum.scores.values())), len(self.optimum.scores)
            if groups < 2:
                raise ConfigError('robust("sites") needs two sites or more; this fit has one')
            middle = scores.T @ scores * groups / (groups - 1) * (self.nobs - 1) / self.df_resid
        else:
            raise ConfigError(f'robust({kind!r}): expected "rows" or "sites"')
        bread = back @ solve(self.curvature, np.eye(back.shape[1]))
        return replace(self, covariance=bread @ middle @ bread.T, covariance_kind=f"robust, {kind}")

    # Whose rows it comes from -----------------------------------------------------------------------------------------

    def shapley(self, refresh: bool | None = None, seed: int = 0) -> "pd.Series":
        """Each site's share of the log-likelihood gained over the null model: the shares add up to the gain.

        A coalition's weights are one linear solve with its factors, from a weak prior around the null model, and with
        `refresh` (the default for up to six sites) a few rounds from there, all coalitions at once; sites then say
        their losses at them. Of more than ten sites, a mean over orders drawn at random.
        """
        names = list(self.optimum.factors)
        count = len(names)
        refresh = count <= REFRESHED if refresh is None else refresh
        if count <= EXACT:
            terms = [
                (k, others, 1 / (count * math.comb(count - 1, size)))
                for k, size in itertools.product(range(count), range(count))
                for others in itertools.combinations([j for j in range(count) if j != k], size)
            ]
        else:
            draws, rng = max(ORDERS // count, 20), np.random.default_rng(seed)
            orders = [rng.permutation(count).tolist() for _ in range(draws)]
            terms = [(k, tuple(order[:place]), 1 / draws) for order in orders for place, k in enumerate(order)]
        pairs = [(frozenset(others), frozenset((*others, k))) for k, others, _ in terms]
        gains = self._gains(dict.fromkeys(itertools.chain.from_iterable(pairs)), names, refresh)
        shares = np.zeros(count)
        for (k, _, weight), (before, after) in zip(terms, pairs, strict=True):
            shares[k] += weight * (gains[after] - gains[before])
        return series(shares, names)

    @functools.cached_property
    def _null(self) -> Optimum:
        return self.regression.null_optimum()

    def _gains(
        self, coalitions: Iterable[frozenset[int]], names: Sequence[str], refresh: bool
    ) -> dict[frozenset[int], float]:
        """The log-likelihood of all rows at what some sites estimate, less that of the null model."""
        several = [members for members in coalitions if members]
        points = np.stack([self._coalition([names[k] for k in sorted(members)], refresh) for members in several])
        losses = self.regression.losses(self.regression.sites, points)
        gains = (sum(self._null.losses.values()) - losses) / self.dispersion
        return {frozenset(): 0.0, **dict(zip(several, gains.tolist(), strict=True))}

    def _coalition(self, members: Sequence[str], refresh: bool) -> np.ndarray:
        """The weights of some sites."""
        null, factors = self._null, {name: self.optimum.factors[name] for name in members}
        weak = Belief(null.w, np.eye(len(null.w)) / 2.5**2)
        S = weak.precision + total(factor.V for factor in factors.values())
        w = null.w + solve(S, total(factor.v - factor.V @ null.w for factor in factors.values()))
        if not refresh:
            return w
        return replace(self.regression.subset(members), prior=weak).optimum(Broadcast(w, S), factors).w

    # On paper ---------------------------------------------------------------------------------------------------------

    @property
    def title(self) -> str:
        """What was fitted."""
        raise NotImplementedError

    def head(self) -> list[tuple[str, str]]:
        """What stands above the table of coefficients, as pairs of a name and a value."""
        rows = self.regression.rows
        sites = ", ".join(f"{name} {count:,.0f}" for name, count in rows.items())
        decrement = self.optimum.rounds[-1].decrement
        proof = f"Newton's decrement {decrement:.1e}" if self.converged else f"NOT CONVERGED, decrement {decrement:.1e}"
        return [
            ("sites, rows", sites if len(rows) <= 6 else f"{len(rows)} sites, {self.nobs:,.0f} rows"),
            ("log-likelihood", f"{self.llf:.4f}"),
            ("AIC, BIC", f"{self.aic:.2f}, {self.bic:.2f}"),
            ("rounds", f"{self.rounds}, {proof}"),
            ("covariance", self.covariance_kind),
        ]

    def notes(self) -> list[str]:
        """What stands below it."""
        mixed = self.heterogeneity
        doubtful = [label(name) for name, p in zip(self.index, mixed["p"], strict=True) if p < 0.05]
        rose = sum(each.note.startswith("the loss rose") for each in self.optimum.rounds)
        return [
            *([f"Sites differ by more than chance (Q, p < 0.05): {', '.join(doubtful)}"] if doubtful else []),
            *([f"In {rose} rounds the pooled loss rose, and the step was taken back."] if rose else []),
        ]

    def summary(self) -> Summary:
        """The table of coefficients, with what it was fitted to and how; print it."""
        return Summary.of(self)
