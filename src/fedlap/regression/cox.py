"""The Cox partial likelihood of one site's rows.

A federation's Cox model is stratified by site: every site has a baseline hazard of its own, which stays there, and the
pooled loss is the sum of the sites' losses. Whoever has the same baseline hazard is a stratum; a site may have several.

Rows stand in the order in which they join the risk sets: those of a stratum together, the latest time first. A moment
is a time of a stratum, with all rows that end there; an occasion is a moment with events. Sums over risk sets are kept
as their logarithm and the mean of the covariates, so neither covariates of large scale nor rare risks leave the range.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from numbers import Real
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike

from fedlap.data import validation
from fedlap.errors import DataError, unknown
from fedlap.regression.objective import Expansion
from fedlap.regression.running import running, smaller_and_equal, totals

TIES = ("efron", "breslow")
BLOCK_ROWS = 2**15  # what is [rows, P] is worked out for so many at a time


class Pairs(NamedTuple):
    """Pairs of rows of a stratum; the sums of all sites give the index (concordant + tied / 2) / comparable."""

    concordant: int  # the row with the earlier event has the higher risk
    tied: int  # both have the same risk
    comparable: int  # it is known whose event came first


class Baseline(NamedTuple):
    """The risk of somebody with given covariates up to each occasion: strata and times rise."""

    times: np.ndarray
    hazard: np.ndarray  # cumulative
    survival: np.ndarray
    stratum: np.ndarray  # the code of each occasion's stratum


class RiskSets(NamedTuple):
    """The risk sets of consecutive occasions. Of its occasion's, an event has what Efron's ties leave to it."""

    occasions: slice
    events: slice
    log_risk: np.ndarray  # [occasions] log of the sum of risks
    left: np.ndarray  # [events] the part of this sum that the event has
    mean: np.ndarray  # [events, P] of the covariates over what it has


class Hazards(NamedTuple):
    """What an occasion adds to the hazard, as a part of 1 / its sum of risks, with the mean of the covariates."""

    log_risk: np.ndarray  # [occasions]
    added: np.ndarray  # [occasions]
    spared: np.ndarray  # [occasions] the part of it that those with an event there are spared
    added_mean: np.ndarray  # [occasions, P]
    spared_sum: np.ndarray  # [occasions, P] spared times its mean


@dataclass(frozen=True, eq=False)
class Survival:
    """The negative log partial likelihood of one site's rows.

    Weights are frequencies. With Breslow's ties a row of weight 2 is two rows. With Efron's the events of a moment
    share their weight evenly, as in lifelines and R, so that a row of weight 2 is not quite two rows.
    """

    x: np.ndarray  # [n, P], less the mean of each stratum
    weights: np.ndarray  # [n]
    offset: np.ndarray  # [n]
    given: np.ndarray  # [n] where each row stood
    ties: str
    codes: np.ndarray  # [strata]
    centres: np.ndarray  # [strata, P]
    event_rows: np.ndarray  # [events]
    moment_starts: np.ndarray  # [moments] the first row of each
    moment_times: np.ndarray  # [moments]
    moment_strata: np.ndarray  # [moments] as positions in `codes`
    occasions: np.ndarray  # [occasions] as moments

    @classmethod
    def of(
        cls,
        x: ArrayLike,
        duration: ArrayLike,
        event: ArrayLike,
        weights: ArrayLike | None = None,
        offset: ArrayLike | None = None,
        ties: str = "efron",
        strata: ArrayLike | None = None,
    ) -> Self:
        """The rows of a site: covariates [n, P], times, and whether they end with an event or are censored.

        Further strata within the site are codes, whole numbers.
        """
        if ties not in TIES:
            raise unknown("ties", ties, TIES)
        x, duration, event, weights, offset, strata = _checked(x, duration, event, weights, offset, strata)
        order = np.lexsort((event == 0, duration, strata))[::-1]
        x, duration, event, weights = x[order], duration[order], event[order], weights[order]
        codes, stratum = np.unique(strata[order], return_inverse=True)
        opens = np.flatnonzero(np.diff(stratum, prepend=-1))  # strata come last first
        centres = (np.add.reduceat(x, opens) / np.diff(opens, append=len(x))[:, None])[::-1]
        for column in range(x.shape[1]):
            x[:, column] -= centres[stratum, column]
        starts = np.flatnonzero((np.diff(stratum, prepend=-1) != 0) | (np.diff(duration, prepend=-1.0) != 0))
        event_rows = np.flatnonzero(event)
        return cls(
            x=x,
            weights=weights,
            offset=offset[order],
            given=order,
            ties=ties,
            codes=codes,
            centres=centres,
            event_rows=event_rows,
            moment_starts=starts,
            moment_times=duration[starts],
            moment_strata=stratum[starts],
            occasions=np.unique(np.searchsorted(starts, event_rows, side="right") - 1),
        )

    def loss(self, w: np.ndarray) -> float:
        """The negative log partial likelihood; infinite where a row's risk is no number."""
        f = self._predictor(w)
        if not np.isfinite(f).all():
            return np.inf
        return sum((self._loss(f, part) for part in self._risk_sets(f, self.x[:, :0])), 0.0)

    def expand(self, w: np.ndarray) -> Expansion:
        """The loss, its gradient and its Hessian."""
        width = self.x.shape[1]
        f = self._predictor(w)
        if not np.isfinite(f).all():
            return Expansion(np.inf, np.full(width, np.nan), np.full((width, width), np.nan))
        loss, gradient, hessian = 0.0, np.zeros(width), np.zeros((width, width))
        hazards = self._no_hazards(0)
        for part in self._risk_sets(f, self.x):
            rows, weight = self.event_rows[part.events], self._event_weights[part.events]
            loss += self._loss(f, part)
            gradient += weight @ part.mean - self.weights[rows] @ self.x[rows]
            hessian -= (weight[:, None] * part.mean).T @ part.mean
            self._put(part._replace(mean=part.mean[:, :0]), hazards)
        expected, own, _ = self._expected(f, hazards)
        expected[self.event_rows] -= own * hazards.spared[self._event_occasions]
        for start in range(0, len(f), BLOCK_ROWS):
            block = self.x[start : start + BLOCK_ROWS]
            hessian += (expected[start : start + BLOCK_ROWS, None] * block).T @ block
        return Expansion(loss, gradient, (hessian + hessian.T) / 2)

    def residual_scores(self, w: np.ndarray) -> np.ndarray:
        """What each row adds to the score, [n, P], rows as they were given; their sum is minus the gradient.

        A row's is its weight times the slope of the score in this weight, for both kinds of ties. So are lifelines'
        where no times are tied; elsewhere lifelines' depend on the order of rows.
        """
        f = self._finite_predictor(w)
        hazards = self._no_hazards(self.x.shape[1])
        scores = np.zeros_like(self.x)
        for part in self._risk_sets(f, self.x):
            rows, here = self.event_rows[part.events], self._event_occasions[part.events]
            starts = self._event_starts[part.occasions] - part.events.start
            mean = np.add.reduceat(part.mean, starts) / self._event_counts[part.occasions, None]
            scores[rows] = self.weights[rows, None] * (self.x[rows] - mean[here - part.occasions.start])
            self._put(part, hazards)
        expected, own, mean = self._expected(f, hazards)
        last = self._last_occasions
        for start in range(0, len(f), BLOCK_ROWS):
            rows = slice(start, start + BLOCK_ROWS)
            scores[rows] -= expected[rows, None] * (self.x[rows] - mean[last[rows]])
        for start in range(0, len(self.event_rows), BLOCK_ROWS):
            events = slice(start, start + BLOCK_ROWS)
            rows, here = self.event_rows[events], self._event_occasions[events]
            spared = hazards.spared[here, None] * self.x[rows] - hazards.spared_sum[here]
            scores[rows] += own[events, None] * spared
        out = np.empty_like(scores)
        out[self.given] = scores
        return out

    def baseline(self, w: np.ndarray, at: ArrayLike | None = None) -> Baseline:
        """Breslow's cumulative hazard and survival at the covariates `at`, zeros if not given, and an offset of 0.

        lifelines' are at the mean of all rows that it was fitted to.
        """
        f = self._finite_predictor(w)
        log_risk = np.zeros(len(self.occasions))
        for part in self._risk_sets(f, self.x[:, :0]):
            log_risk[part.occasions] = part.log_risk
        moments = self.occasions[::-1]
        stratum = self.moment_strata[moments]
        deaths = np.log(self._event_sums)[::-1]
        log_hazard, _ = running(deaths - log_risk[::-1], np.zeros((len(moments), 0)), stratum)
        at = np.zeros(self.x.shape[1]) if at is None else np.asarray(at, np.float64)
        with np.errstate(over="ignore"):  # a hazard beyond all numbers is infinite, and nobody survives it
            hazard = np.exp(log_hazard + ((at - self.centres) @ w)[stratum])
        return Baseline(self.moment_times[moments], hazard, np.exp(-hazard), self.codes[stratum])

    def concordant(self, w: np.ndarray) -> Pairs:
        """Pairs whose order the model gets right; weights do not count, as in lifelines.

        A pair is comparable if the earlier of its times is an event's; at one time, an event comes before a censoring.
        """
        f = self._finite_predictor(w)
        rows = len(f)
        ends = np.append(self.moment_starts, rows)
        stratum = np.repeat(self.moment_strata, np.diff(ends))
        order = np.lexsort((f, stratum))  # strata come last first: all that joined in others have larger keys
        changes = (np.diff(stratum[order], prepend=-1) != 0) | (np.diff(f[order], prepend=np.nan) != 0)
        keys = np.empty(rows, np.int64)
        keys[order] = np.cumsum(changes) - 1
        pool = self.event_rows[self._event_starts][self._event_occasions]  # censored rows of a moment come first
        opens = np.searchsorted(-stratum, -stratum[self.event_rows])
        below, same = smaller_and_equal(keys, keys[self.event_rows], pool)
        return Pairs(int(below.sum()), int(same.sum()), int((pool - opens).sum()))

    # The rows' own numbers ------------------------------------------------------------------------------------------

    def _predictor(self, w: np.ndarray) -> np.ndarray:
        """f [n], up to a number for each stratum. Equal rows have equal bits, wherever they stand."""
        with np.errstate(over="ignore", invalid="ignore"):
            return np.einsum("np,p->n", self.x, np.asarray(w, np.float64)) + self.offset

    def _finite_predictor(self, w: np.ndarray) -> np.ndarray:
        f = self._predictor(w)
        good = np.isfinite(f)
        if not good.all():
            row = int(self.given[np.argmin(good)])
            raise DataError(f"row {row}: its risk at these coefficients is no number; expected finite coefficients")
        return f

    @cached_property
    def _log_weights(self) -> np.ndarray:
        return np.log(self.weights)

    @cached_property
    def _event_occasions(self) -> np.ndarray:
        """[events] the occasion of each."""
        moments = np.searchsorted(self.moment_starts, self.event_rows, side="right") - 1
        return np.searchsorted(self.occasions, moments)

    @cached_property
    def _event_starts(self) -> np.ndarray:
        """[occasions] the first event of each."""
        return np.searchsorted(self._event_occasions, np.arange(len(self.occasions)))

    @cached_property
    def _event_counts(self) -> np.ndarray:
        return np.diff(self._event_starts, append=len(self.event_rows))

    @cached_property
    def _event_sums(self) -> np.ndarray:
        """[occasions] the weight of the events of each."""
        return np.bincount(self._event_occasions, self.weights[self.event_rows], len(self.occasions))

    @cached_property
    def _event_weights(self) -> np.ndarray:
        """[events] the weight of an occasion's events, evenly shared."""
        return (self._event_sums / self._event_counts)[self._event_occasions]

    @cached_property
    def _event_shares(self) -> np.ndarray:
        """[events] the part of its fellows' risks that has left the risk set before it."""
        if self.ties == "breslow":
            return np.zeros(len(self.event_rows))
        place = np.arange(len(self.event_rows)) - self._event_starts[self._event_occasions]
        return place / self._event_counts[self._event_occasions]

    @cached_property
    def _last_occasions(self) -> np.ndarray:
        """[n] the latest occasion that a row was at risk at; the number of occasions if there is none."""
        moments = np.repeat(np.arange(len(self.moment_starts)), np.diff(self.moment_starts, append=len(self.x)))
        last = np.searchsorted(self.occasions, moments)
        strata = np.append(self.moment_strata[self.occasions], -1)
        return np.where(strata[last] == self.moment_strata[moments], last, len(self.occasions))

    # Sums over risk sets --------------------------------------------------------------------------------------------

    def _risk_sets(self, f: np.ndarray, x: np.ndarray) -> Iterator[RiskSets]:
        """The risk sets of all occasions, some at a time."""
        log_risks = f + self._log_weights
        starts = np.append(self.moment_starts, len(f))
        cuts = np.flatnonzero(np.diff(self.moment_starts // BLOCK_ROWS)) + 1
        before = np.zeros(1), np.zeros((1, x.shape[1])), np.full(1, -1)  # a stratum that no row has
        for first, last in zip([0, *cuts], [*cuts, len(self.moment_starts)], strict=True):
            rows = slice(starts[first], starts[last])
            log, mean = totals(log_risks[rows], x[rows], starts[first:last] - starts[first])
            strata = np.append(before[2], self.moment_strata[first:last])
            log, mean = running(np.append(before[0], log), np.concatenate([before[1], mean]), strata)
            before = log[-1:], mean[-1:], strata[-1:]
            occasions = slice(*(int(np.searchsorted(self.occasions, moment)) for moment in (first, last)))
            if occasions.stop > occasions.start:
                at = self.occasions[occasions] - first + 1
                yield self._left(occasions, log_risks, x, log[at], mean[at])

    def _left(
        self, occasions: slice, log_risks: np.ndarray, x: np.ndarray, log: np.ndarray, mean: np.ndarray
    ) -> RiskSets:
        """Of an occasion's risk set, with the logarithm of its sum and its mean, what each of its events has."""
        bounds = np.append(self._event_starts, len(self.event_rows))
        events = slice(int(bounds[occasions.start]), int(bounds[occasions.stop]))
        rows, of = self.event_rows[events], self._event_occasions[events] - occasions.start
        leaving, leaving_mean = totals(log_risks[rows], x[rows], self._event_starts[occasions] - events.start)
        gone = self._event_shares[events] * np.minimum(np.exp(leaving - log), 1.0)[of]
        away = (mean - leaving_mean)[of]
        return RiskSets(occasions, events, log, 1 - gone, mean[of] + (gone / (1 - gone))[:, None] * away)

    def _loss(self, f: np.ndarray, part: RiskSets) -> float:
        rows = self.event_rows[part.events]
        log_left = part.log_risk[self._event_occasions[part.events] - part.occasions.start] + np.log(part.left)
        return float(self._event_weights[part.events] @ log_left - self.weights[rows] @ f[rows])

    def _no_hazards(self, width: int) -> Hazards:
        count = len(self.occasions)
        return Hazards(*(np.zeros(count) for _ in range(3)), *(np.zeros((count, width)) for _ in range(2)))

    def _put(self, part: RiskSets, hazards: Hazards) -> None:
        """Write what these occasions add to the hazard into its place."""
        here, starts = part.occasions, self._event_starts[part.occasions] - part.events.start
        added = self._event_weights[part.events] / part.left
        spared = self._event_shares[part.events] * added
        hazards.log_risk[here] = part.log_risk
        hazards.added[here] = np.add.reduceat(added, starts)
        hazards.spared[here] = np.add.reduceat(spared, starts)
        hazards.added_mean[here] = np.add.reduceat(added[:, None] * part.mean, starts) / hazards.added[here, None]
        hazards.spared_sum[here] = np.add.reduceat(spared[:, None] * part.mean, starts)

    def _expected(self, f: np.ndarray, hazards: Hazards) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """How many events each row was to have, each event's part of its own risk set, and means of covariates.

        The means are those of the hazard up to each occasion, with a last one for rows that saw none.
        """
        strata = self.moment_strata[self.occasions]
        log, mean = running((np.log(hazards.added) - hazards.log_risk)[::-1], hazards.added_mean[::-1], strata[::-1])
        log, mean = np.append(log[::-1], -np.inf), np.concatenate([mean[::-1], np.zeros((1, mean.shape[1]))])
        log_risks = f + self._log_weights
        own = np.exp(log_risks[self.event_rows] - hazards.log_risk[self._event_occasions])
        return np.exp(log_risks + log[self._last_occasions]), own, mean


# What was given -------------------------------------------------------------------------------------------------------


def _checked(
    x: ArrayLike,
    duration: ArrayLike,
    event: ArrayLike,
    weights: ArrayLike | None,
    offset: ArrayLike | None,
    strata: ArrayLike | None,
) -> tuple[np.ndarray, ...]:
    """All columns in float64, the strata in int64; a DataError for a row that cannot be used."""
    x = validation.floating("x", x).astype(np.float64, copy=False)
    if x.ndim != 2:
        raise DataError(f"x has shape {x.shape}; expected one number for each row and covariate")
    rows = len(x)
    validation.not_empty("x", x)
    validation.finite(x, lambda row: f"x, row {row}")
    duration = _column("duration", duration, rows, "a number, 0 or above", lambda v: np.isfinite(v) & (v >= 0))
    event = _column("event", event, rows, "1, or 0 where the row is censored", lambda v: (v == 0) | (v == 1))
    if weights is None:
        weights = np.ones(rows)
    weights = _column("weights", weights, rows, "a number above 0", lambda v: np.isfinite(v) & (v > 0))
    offset = _column("offset", np.zeros(rows) if offset is None else offset, rows, "a finite number", np.isfinite)
    if strata is None:
        strata = np.zeros(rows)
    strata = _column("strata", strata, rows, "a whole number", lambda v: np.isfinite(v) & (v == np.floor(v)))
    return x, duration, event, weights, offset, strata.astype(np.int64)


def _column(
    name: str, values: ArrayLike, rows: int, expected: str, usable: Callable[[np.ndarray], np.ndarray]
) -> np.ndarray:
    column = np.asarray(values)
    if column.shape != (rows,):
        raise DataError(f"{name} has shape {column.shape} but x has {rows} rows; expected one number for each")
    if column.dtype.kind not in "buif":
        for row, value in enumerate(column.tolist()):
            if validation.missing(value) or not isinstance(value, Real):
                raise DataError(f"{name}, row {row}: {value!r}; expected {expected}")
    column = column.astype(np.float64)
    good = usable(column)
    if not good.all():
        row = int(np.argmin(good))
        raise DataError(f"{name}, row {row}: {column[row]}; expected {expected}")
    return column
