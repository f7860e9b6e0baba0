"""Effects of sites: an intercept for each of them, as a column, or as a number that never leaves the site."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, Protocol

import numpy as np

from fedlap.errors import ConfigError, DataError, nearest, unknown
from fedlap.regression.design import Design, SiteRows
from fedlap.regression.families.base import Family
from fedlap.regression.families.binomial import BinomialFamily
from fedlap.regression.families.gaussian import GaussianFamily
from fedlap.regression.families.poisson import PoissonFamily
from fedlap.regression.objective import Expansion, LinearObjective, Objective, product

EFFECTS = ("none", "fixed", "random")
INTERCEPT = "Intercept"
CLOSE = 1e-7  # a step of a site's own search for its effect, after which Newton's method is exact
NEAR = 0.1  # a step along which curvatures change by so much of themselves at most, so that it needs no check
LIMIT = 100  # steps of that search


def known_effects(name: str) -> str:
    """The name of a kind of site effects, if there is one of that name."""
    if name not in EFFECTS:
        raise unknown("site_effects", name, EFFECTS)
    return name


# Fixed: a column a site ----------------------------------------------------------------------------------------------


def with_indicators(names: Sequence[str], rows: Mapping[str, SiteRows]) -> tuple[list[str], dict[str, SiteRows]]:
    """The columns with an indicator of every site but the first; of every site, if there is no intercept."""
    sites = list(rows)
    if len(sites) < 2:
        raise DataError(f"{sites[0]} is the only site; fixed site effects need two sites or more")
    marked = _sites_to_mark(names, sites)
    added = [f"site[T.{name}]" if len(marked) < len(sites) else f"site[{name}]" for name in marked]
    for name in added:
        if name in names:
            raise ConfigError(f"the formula has a column {name} already; leave it out, or site_effects='fixed'")
    return [*names, *added], {site: part._replace(x=_marked(part.x, site, marked)) for site, part in rows.items()}


def _sites_to_mark(names: Sequence[str], sites: Sequence[str]) -> Sequence[str]:
    return sites[1:] if INTERCEPT in names else sites


def _marked(x: np.ndarray, site: str, marked: Sequence[str]) -> np.ndarray:
    indicators = np.array([float(name == site) for name in marked])
    return np.concatenate([x, np.broadcast_to(indicators, (len(x), len(marked)))], 1)


@dataclass(frozen=True, eq=False)
class MarkedDesign:
    """What sites have agreed on, with the indicators among its columns."""

    agreed: Design
    names: tuple[str, ...]
    sites: Sequence[str]
    marked: Sequence[str]  # sites that have an indicator
    column: str | None  # that names the sites, in a table of all

    @property
    def classes(self) -> tuple[Any, ...]:
        """The classes of the outcome."""
        return self.agreed.classes

    @property
    def formula(self) -> str:
        """What was fitted."""
        return f"{self.agreed.formula} + site"

    def matrix(self, new: Any, outcome: bool = True, where: str = "the frame") -> SiteRows:
        """The rows of a table that says which site each is of."""
        if self.column is None:
            raise ConfigError(
                "a prediction with fixed site effects needs the site of every row: fit one table of all sites, with "
                "site='...' for the column that names them"
            )
        rows = self.agreed.matrix(new, outcome=outcome, where=where)
        try:
            named = [str(each) for each in np.asarray(new[self.column])[rows.kept]]
        except KeyError as error:
            raise DataError(f"there is no column {self.column!r}; expected the site of every row") from error
        for position, name in zip(rows.kept, named, strict=True):
            if name not in self.sites:
                near = nearest(name, self.sites)
                hint = f"; did you mean {near!r}?" if near else ""
                raise DataError(f"row {position}: no site of the fit is named {name!r}{hint}")
        indicators = np.array(named)[:, None] == np.array(self.marked)
        return rows._replace(x=np.concatenate([rows.x, indicators], 1))


def with_fixed(design: Any, rows: Mapping[str, SiteRows], column: str | None) -> tuple[Any, dict[str, SiteRows]]:
    """A design and the rows of sites, with indicators of the sites."""
    names, wider = with_indicators(design.names, rows)
    sites = list(rows)
    return MarkedDesign(design, tuple(names), sites, _sites_to_mark(design.names, sites), column), wider


# Random: the number b_k, with a normal density ------------------------------------------------------------------------


class SiteEffect(NamedTuple):
    """The posterior of a site's effect: its mode and its variance."""

    mode: float
    variance: float


class RandomIntercept(Objective, Protocol):
    """The loss of a site's rows with its effect b_k ~ N(0, τ²) integrated out.

    Its weights are those of the columns, then log τ, then what else the family has. So a site's Hessian V_k is the
    Schur complement over b_k of what it would be with b_k as one more weight.
    """

    def effect(self, w: np.ndarray) -> SiteEffect:
        """What the site knows of its own effect."""
        ...


@dataclass(frozen=True, eq=False)
class GaussianIntercept:
    """
    y ~ N(Xw, φI + τ²11ᵀ)        loss ½[(n − 1) log φ + log d + W/φ + B/d],        d = φ + nτ²

    W is the sum of squares of the residuals around their mean, B is n times the square of that mean. The weights are
    w, log τ and log φ. The Hessian of w is XᵀX of centred columns by φ, and n x̄x̄ᵀ by d.
    """

    rows: LinearObjective

    @cached_property
    def _count(self) -> float:
        return float(self.rows.weights.sum())

    @cached_property
    def _mean(self) -> np.ndarray:
        return self.rows.weights @ self.rows.x / self._count

    @cached_property
    def _products(self) -> np.ndarray:
        centred = self.rows.x - self._mean
        return product(centred, self.rows.weights, centred)

    @np.errstate(over="ignore", invalid="ignore", divide="ignore")
    def loss(self, w: np.ndarray) -> float:
        """The loss at a point."""
        n, phi, d, mean, left = self._parts(w)
        return float((n - 1) * w[-1] + np.log(d) + self.rows.weights @ left**2 / phi + n * mean**2 / d) / 2

    @np.errstate(over="ignore", invalid="ignore", divide="ignore")
    def expand(self, w: np.ndarray) -> Expansion:
        """The loss, its gradient and its Hessian."""
        n, phi, d, mean, left = self._parts(w)
        within, between = self.rows.weights @ left**2, n * mean**2
        within_w = -2 * (self.rows.weights * left) @ (self.rows.x - self._mean)
        between_w = -2 * n * mean * self._mean
        first, second = 1 / d - between / d**2, 2 * between / d**3 - 1 / d**2  # of log d + B/d, by d
        d_tau = 2 * (d - phi)
        gradient = np.array([*(within_w / phi + between_w / d), first * d_tau, n - 1 - within / phi + first * phi])
        by_tau = np.array([*(-between_w * d_tau / d**2), second * d_tau**2 + 2 * first * d_tau, second * d_tau * phi])
        by_phi = np.array([*(-within_w / phi - between_w * phi / d**2), by_tau[-1]])
        hessian = np.zeros((len(w), len(w)))
        hessian[:-2, :-2] = 2 * (self._products / phi + n * np.outer(self._mean, self._mean) / d)
        hessian[-2, :] = hessian[:, -2] = by_tau
        hessian[-1, :-1] = hessian[:-1, -1] = by_phi
        hessian[-1, -1] = within / phi + second * phi**2 + first * phi
        return Expansion(self.loss(w), gradient / 2, hessian / 2)

    def meat(self, w: np.ndarray) -> np.ndarray:
        """Rows that share an effect are one observation: the site's score times itself."""
        score = self.expand(w).gradient
        return np.outer(score, score)

    def effect(self, w: np.ndarray) -> SiteEffect:
        """What the site knows of its own effect."""
        n, phi, d, mean, _ = self._parts(w)
        return SiteEffect(float((d - phi) * mean / d), float(phi * (d - phi) / (n * d)))

    def _parts(self, w: np.ndarray) -> tuple[float, float, float, float, np.ndarray]:
        """n, φ, d, the mean of the residuals, and how far each is from it."""
        n, phi = self._count, np.exp(w[-1])
        residual = self.rows.y - self.rows.predict(w[:-2])
        mean = float(self.rows.weights @ residual / n)
        return n, phi, phi + n * np.exp(2 * w[-2]), mean, residual - mean


@dataclass(frozen=True, eq=False)
class LaplaceIntercept:
    """
    loss min_b [ℓ(w, b) + b²/2τ²] + log τ + ½ log k,        k = ∂²ℓ/∂b² + 1/τ²

    Laplace's approximation of the integral over b. The weights are w and log τ. Where w and τ move, the minimum moves
    by db = −(F_bw dw + F_bτ d log τ)/k, with F what is minimised. So all derivatives are exact: those of the minimum
    are the Schur complement over b, those of log k have third and fourth derivatives of the rows' losses.
    """

    rows: LinearObjective

    @np.errstate(over="ignore", invalid="ignore", divide="ignore")
    def loss(self, w: np.ndarray) -> float:
        """The loss at a point."""
        f, variance = self.rows.predict(w[:-1]), np.exp(2 * w[-1])
        b = self._search(f, variance)
        curvature = self.rows.weights @ self.rows.family.curvature(self.rows.y, f + b)
        return float(self._cost(f, b, variance) + np.log1p(variance * curvature) / 2)

    @np.errstate(over="ignore", invalid="ignore", divide="ignore")
    def expand(self, w: np.ndarray) -> Expansion:
        """The loss, its gradient and its Hessian."""
        rows, family, x = self.rows, self.rows.family, self.rows.x
        f, variance = rows.predict(w[:-1]), np.exp(2 * w[-1])
        b = self._search(f, variance)
        f = f + b
        slope, curvature = family.slope(rows.y, f) * rows.weights, family.curvature(rows.y, f) * rows.weights
        third, fourth = (each * rows.weights for each in family.higher(f))
        k = curvature.sum() + 1 / variance
        # Derivatives of F = ℓ + b²/2τ² by b (so often as the name says), and once by w and log τ.
        b_by = np.array([*(curvature @ x), -2 * b / variance])
        bb_by = np.array([*(third @ x), -2 / variance])
        bbb_by = np.array([*(fourth @ x), 0.0])
        moved = -b_by / k  # the derivative of the minimum
        k_by = bb_by + third.sum() * moved
        gradient = np.array([*(slope @ x), 1 - b**2 / variance]) + k_by / (2 * k)
        # Twice by w; then twice by log τ. Of log k there are F_bb's own second derivatives and, as b moves, F_b's.
        turn = third.sum() / k
        hessian = np.zeros((len(w), len(w)))
        hessian[:-1, :-1] = product(x, curvature + (fourth - turn * third) / (2 * k), x)
        hessian[-1, -1] = 2 * b**2 / variance + (4 - turn * 4 * b) / variance / (2 * k)
        mixed = np.outer(bbb_by - turn * bb_by, moved)
        bending = mixed + mixed.T + (fourth.sum() - turn * third.sum()) * np.outer(moved, moved)
        hessian += np.outer(b_by, moved) + bending / (2 * k) - np.outer(k_by, k_by) / (2 * k**2)
        loss = self._cost(f - b, b, variance) + np.log1p(variance * curvature.sum()) / 2
        return Expansion(float(loss), gradient, hessian)

    def meat(self, w: np.ndarray) -> np.ndarray:
        """Rows that share an effect are one observation: the site's score times itself."""
        score = self.expand(w).gradient
        return np.outer(score, score)

    @np.errstate(over="ignore")
    def effect(self, w: np.ndarray) -> SiteEffect:
        """What the site knows of its own effect."""
        f, variance = self.rows.predict(w[:-1]), np.exp(2 * w[-1])
        b = self._search(f, variance)
        curvature = self.rows.weights @ self.rows.family.curvature(self.rows.y, f + b)
        return SiteEffect(float(b), float(variance / (1 + variance * curvature)))

    def _cost(self, f: np.ndarray, b: float, variance: float) -> float:
        return float(self.rows.weights @ self.rows.family.loss(self.rows.y, f + b)) + b**2 / (2 * variance)

    def _search(self, f: np.ndarray, variance: float) -> float:
        """The minimum over b, by Newton's method: the loss is convex in b."""
        family, y, weights = self.rows.family, self.rows.y, self.rows.weights
        b, value = np.float64(0), self._cost(f, 0.0, variance)
        for _ in range(LIMIT):
            slope = weights @ family.slope(y, f + b) + b / variance
            step = np.float64(-slope / (weights @ family.curvature(y, f + b) + 1 / variance))
            if not CLOSE < abs(step) < np.inf:
                return b + step
            while not (there := self._cost(f, b + step, variance)) <= value and abs(step) > NEAR:
                step /= 2
            b, value = b + step, there
        return np.nan


@dataclass(frozen=True, eq=False)
class Held:
    """A loss with random intercepts as a function of its other weights; log τ is held."""

    whole: RandomIntercept
    place: int  # of log τ among the weights
    value: float

    def loss(self, w: np.ndarray) -> float:
        """The loss at a point."""
        return self.whole.loss(np.insert(w, self.place, self.value))

    def expand(self, w: np.ndarray) -> Expansion:
        """The loss, its gradient and its Hessian, of the weights that are free."""
        there = self.whole.expand(np.insert(w, self.place, self.value))
        hessian = np.delete(np.delete(there.hessian, self.place, 0), self.place, 1)
        return Expansion(there.loss, np.delete(there.gradient, self.place), hessian)


INTERCEPTS: dict[type[Family], type[GaussianIntercept] | type[LaplaceIntercept]] = {
    GaussianFamily: GaussianIntercept,
    BinomialFamily: LaplaceIntercept,
    PoissonFamily: LaplaceIntercept,
}


def random_intercepts(sites: Mapping[str, LinearObjective]) -> dict[str, RandomIntercept]:
    """The losses of sites with random intercepts, of those without."""
    return {name: INTERCEPTS[type(rows.family)](rows) for name, rows in sites.items()}


def check_random(family: Family, sites: Sequence[str]) -> None:
    """An error if there are no random intercepts for a family, or too few sites for them."""
    if type(family) not in INTERCEPTS:
        name = type(family).__name__.removesuffix("Family")
        raise ConfigError(
            f"{name} with site_effects='random' is not to be had; expected a family gaussian, binomial or poisson, "
            "or site_effects='fixed'"
        )
    if len(sites) < 2:
        raise DataError(f"{', '.join(sites)} is the only site; random site effects need two sites or more")
