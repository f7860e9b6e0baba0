"""The Cox partial likelihood of one site's rows.

A federation's Cox model is stratified by site: every site has a baseline hazard of its own, which stays there, and the
pooled loss is the sum of the sites' losses. Whoever has the same baseline hazard is a stratum; a site may have several.

Rows stand in the order in which they join the risk sets: those of a stratum together, the latest time first, and at
one time the censored before those with an event. Rows that are alike in all three are a batch, and join together. A
batch of events is an occasion: its risk set is all that joined up to it. Sums over risk sets are kept as logarithms
and means, and the Hessian is a sum of squares of what each batch differs by from those it joins. So covariates of
large scale and risks beyond all numbers cost no digits.
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
from fedlap.regression.running import BLOCK_ROWS, running, smaller_and_equal, totals

TIES = ("efron", "breslow")


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
    """Sums of risks, exp(f) times the weight: logarithms for rows and batches, parts of the occasion's for events."""

    row: np.ndarray  # [n]
    batch: np.ndarray  # [batches]
    before: np.ndarray  # [batches] of the risk set that a batch joins; −inf for the first of a stratum
    after: np.ndarray  # [batches] of this risk set with the batch
    rest: np.ndarray  # [events] of the risk set without the occasion's events
    left: np.ndarray  # [events] of the event's own risk set: with ties, Efron takes a part of the others out
    pull: np.ndarray  # [events] of the occasion's events, as a part of `left`


class Hazards(NamedTuple):
    """What rows were to go through: hazards up to each occasion, and what each event adds to it."""

    log: np.ndarray  # [occasions + 1] log of the cumulative hazard; the last is of rows that were at no occasion
    mean: np.ndarray  # [occasions + 1, P] of the covariates, over risk sets and hazards
    added: np.ndarray  # [events] as a part of 1 / the occasion's sum of risks
    own: np.ndarray  # [events] what of it those with an event at the occasion go through


class Join(NamedTuple):
    """Consecutive batches with the means of their covariates."""

    batches: slice
    rows: slice
    mean: np.ndarray  # [batches, P]
    before: np.ndarray  # [batches, P] of the risk set that each joins; its own for the first of a stratum


@dataclass(frozen=True, eq=False)
class Survival:
    """The negative log partial likelihood of one site's rows.

    Weights are frequencies. With Breslow's ties a row of weight 2 is two rows. With Efron's the events of an occasion
    share their weight evenly, as in lifelines and R, so that a row of weight 2 is not quite two rows.
    """

    x: np.ndarray  # [n, P], less the mean of each stratum
    weights: np.ndarray  # [n]
    offset: np.ndarray  # [n]
    given: np.ndarray  # [n] where each row stood
    ties: str
    codes: np.ndarray  # [strata]
    centres: np.ndarray  # [strata, P]
    starts: np.ndarray  # [batches] the first row of each
    times: np.ndarray  # [batches]
    strata: np.ndarray  # [batches] as positions in `codes`
    occasions: np.ndarray  # [occasions] as batches

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
        x, duration, event = x[order], duration[order], event[order]
        codes, stratum = np.unique(strata[order], return_inverse=True)
        opens = np.flatnonzero(np.diff(stratum, prepend=-1))  # strata come last first
        centres = (np.add.reduceat(x, opens) / np.diff(opens, append=len(x))[:, None])[::-1]
        for column in range(x.shape[1]):
            x[:, column] -= centres[stratum, column]
        changes = [np.diff(each, prepend=-1) != 0 for each in (stratum, duration, event)]
        starts = np.flatnonzero(np.any(changes, axis=0))
        return cls(
            x=x,
            weights=weights[order],
            offset=offset[order],
            given=order,
            ties=ties,
            codes=codes,
            centres=centres,
            starts=starts,
            times=duration[starts],
            strata=stratum[starts],
            occasions=np.flatnonzero(event[starts]),
        )

    def loss(self, w: np.ndarray) -> float:
        """The negative log partial likelihood; infinite where a row's risk is no number."""
        f = self._predictor(w)
        return self._loss(f, self._risk_sets(f)) if np.isfinite(f).all() else np.inf

    def expand(self, w: np.ndarray) -> Expansion:
        """The loss, its gradient and its Hessian."""
        width = self.x.shape[1]
        f = self._predictor(w)
        if not np.isfinite(f).all():
            return Expansion(np.inf, np.full(width, np.nan), np.full((width, width), np.nan))
        risks = self._risk_sets(f)
        hazards = self._hazards(risks, np.zeros((len(self.occasions), 0)))
        within, between = self._expected(risks, hazards)
        pull = self._sums(self._event_weights * risks.pull)
        gradient, hessian = -self._event_total, np.zeros((width, width))
        for join in self._joins(risks):
            gap = join.mean - join.before
            hessian += (between[join.batches, None] * gap).T @ gap
            if len(gap) < join.rows.stop - join.rows.start:
                around = self.x[join.rows] - np.repeat(join.mean, self._sizes[join.batches], axis=0)
                hessian += (within[join.rows, None] * around).T @ around
            here, at = self._occasions_of(join)
            gradient += self._occasion_weights[here] @ join.before[at] + pull[here] @ gap[at]
        return Expansion(self._loss(f, risks), gradient, (hessian + hessian.T) / 2)

    def residual_scores(self, w: np.ndarray) -> np.ndarray:
        """What each row adds to the score, [n, P], rows as they were given; their sum is minus the gradient.

        A row's is its weight times the slope of the score in this weight, for both kinds of ties. So are lifelines'
        where no times are tied; elsewhere lifelines' depend on the order of rows.
        """
        risks = self._risk_sets(self._finite_predictor(w))
        before, gap = (np.empty((len(self.occasions), self.x.shape[1])) for _ in range(2))
        for join in self._joins(risks):
            here, at = self._occasions_of(join)
            before[here], gap[here] = join.before[at], join.mean[at] - join.before[at]
        mean = lambda part: before + (self._sums(part * risks.pull) / self._sums(part))[:, None] * gap
        hazards = self._hazards(risks, mean(self._event_weights / risks.left))
        plain, own_mean = mean(np.ones(len(self._event_rows))), mean(hazards.own)
        past, expected = self._past[self._batch_of], self._past_events(risks, hazards)
        own = self._own_events(risks, hazards)
        scores = np.empty_like(self.x)
        for start in range(0, len(scores), BLOCK_ROWS):
            block = slice(start, start + BLOCK_ROWS)
            scores[self.given[block]] = expected[block, None] * (hazards.mean[past[block]] - self.x[block])
        for start in range(0, len(own), BLOCK_ROWS):
            events = slice(start, start + BLOCK_ROWS)
            rows, at = self._event_rows[events], self._occasion_of[events]
            surprise = self.weights[rows, None] * (self.x[rows] - plain[at])
            scores[self.given[rows]] += surprise - own[events, None] * (self.x[rows] - own_mean[at])
        return scores

    def meat(self, w: np.ndarray) -> np.ndarray:
        """The sum over rows of their score times itself; a row that stands for several counts as often."""
        scores = self.residual_scores(w) / np.sqrt(self.weights[np.argsort(self.given)])[:, None]
        return scores.T @ scores

    def row_curvatures(self, w: np.ndarray) -> np.ndarray:
        """How much each row counts in the Hessian, [n]: the events that it was to have."""
        f = self._predictor(w)
        if not np.isfinite(f).all():
            return np.full(len(f), np.nan)
        risks = self._risk_sets(f)
        return self._expected(risks, self._hazards(risks, np.zeros((len(self.occasions), 0))))[0]

    def baseline(self, w: np.ndarray, at: ArrayLike | None = None) -> Baseline:
        """Breslow's cumulative hazard and survival at the covariates `at`, zeros if not given, and an offset of 0.

        lifelines' are at the mean of all rows that it was fitted to.
        """
        risks = self._risk_sets(self._finite_predictor(w))
        rising = self.occasions[::-1]
        log_added = np.log(self._occasion_weights)[::-1] - risks.after[rising]
        stratum = self.strata[rising]
        log_hazard, _ = running(log_added, np.zeros((len(rising), 0)), stratum)
        at = np.zeros(self.x.shape[1]) if at is None else np.asarray(at, np.float64)
        with np.errstate(over="ignore"):  # a hazard beyond all numbers is infinite, and nobody survives it
            hazard = np.exp(log_hazard + ((at - self.centres) @ w)[stratum])
        return Baseline(self.times[rising], hazard, np.exp(-hazard), self.codes[stratum])

    def concordant(self, w: np.ndarray) -> Pairs:
        """Pairs whose order the model gets right; weights do not count, as in lifelines.

        A pair is comparable if the earlier of its times is an event's; at one time, an event comes before a censoring.
        """
        f, stratum = self._finite_predictor(w), self.strata[self._batch_of]
        order = np.lexsort((f, stratum))  # strata come last first: all that joined in others have larger keys
        changes = (np.diff(stratum[order], prepend=-1) != 0) | (np.diff(f[order], prepend=np.nan) != 0)
        keys = np.empty(len(f), np.int64)
        keys[order] = np.cumsum(changes) - 1
        joined = self.starts[self.occasions][self._occasion_of]
        opens = np.searchsorted(-stratum, -stratum[self._event_rows])
        smaller, equal = smaller_and_equal(keys, keys[self._event_rows], joined)
        return Pairs(int(smaller.sum()), int(equal.sum()), int((joined - opens).sum()))

    # What does not depend on the coefficients -----------------------------------------------------------------------

    @cached_property
    def _log_weights(self) -> np.ndarray:
        return np.log(self.weights)

    @cached_property
    def _sizes(self) -> np.ndarray:
        return np.diff(self.starts, append=len(self.x))

    @cached_property
    def _batch_of(self) -> np.ndarray:
        return np.repeat(np.arange(len(self.starts)), self._sizes)

    @cached_property
    def _past(self) -> np.ndarray:
        """[batches] the latest occasion that a batch was at, less its own; the number of occasions if none."""
        past = np.searchsorted(self.occasions, np.arange(len(self.starts)), side="right")
        return np.where(np.append(self.strata[self.occasions], -1)[past] == self.strata, past, len(self.occasions))

    @cached_property
    def _occasion_of(self) -> np.ndarray:
        return np.repeat(np.arange(len(self.occasions)), self._sizes[self.occasions])

    @cached_property
    def _event_starts(self) -> np.ndarray:
        return np.searchsorted(self._occasion_of, np.arange(len(self.occasions)))

    @cached_property
    def _place(self) -> np.ndarray:
        """[events] each one's place among those of its occasion."""
        return np.arange(len(self._occasion_of)) - self._event_starts[self._occasion_of]

    @cached_property
    def _event_rows(self) -> np.ndarray:
        return self.starts[self.occasions][self._occasion_of] + self._place

    @cached_property
    def _event_total(self) -> np.ndarray:
        """[P] the sum of the covariates of all events."""
        weights = np.zeros(len(self.x))
        weights[self._event_rows] = self.weights[self._event_rows]
        return weights @ self.x

    @cached_property
    def _occasion_weights(self) -> np.ndarray:
        return self._sums(self.weights[self._event_rows])

    @cached_property
    def _event_weights(self) -> np.ndarray:
        """[events] the weight of an occasion's events, evenly shared."""
        return (self._occasion_weights / self._sizes[self.occasions])[self._occasion_of]

    @cached_property
    def _kept(self) -> np.ndarray:
        """[events] the part of the risks of its occasion's events that an event's own risk set has."""
        if self.ties == "breslow":
            return np.ones(len(self._occasion_of))
        return 1 - self._place / self._sizes[self.occasions][self._occasion_of]

    def _sums(self, events: np.ndarray) -> np.ndarray:
        """[occasions] sums over the events of each."""
        return np.bincount(self._occasion_of, events, len(self.occasions))

    # Risk sets ------------------------------------------------------------------------------------------------------

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

    def _risk_sets(self, f: np.ndarray) -> RiskSets:
        row = f + self._log_weights
        batch, nothing = totals(row, self.x[:, :0], self.starts)
        after, _ = running(batch, nothing, self.strata)
        joins = np.diff(self.strata, prepend=-1) == 0
        before = np.where(joins, np.roll(after, 1), -np.inf)
        rest = np.exp(before - after)[self.occasions][self._occasion_of]
        kept = self._kept * np.exp(batch - after)[self.occasions][self._occasion_of]
        return RiskSets(row, batch, before, after, rest, rest + kept, kept / (rest + kept))

    def _loss(self, f: np.ndarray, risks: RiskSets) -> float:
        log_left = risks.after[self.occasions][self._occasion_of] + np.log(risks.left)
        return float(self._event_weights @ log_left - self.weights[self._event_rows] @ f[self._event_rows])

    def _hazards(self, risks: RiskSets, means: np.ndarray) -> Hazards:
        """From the means [occasions, P] of the covariates over the risk sets of each occasion's events."""
        added = self._event_weights / risks.left
        log_added = np.log(self._sums(added)) - risks.after[self.occasions]
        log, mean = running(log_added[::-1], means[::-1], self.strata[self.occasions][::-1])
        mean = np.concatenate([mean[::-1], np.zeros((1, mean.shape[1]))])
        return Hazards(np.append(log[::-1], -np.inf), mean, added, self._kept * added)

    def _past_events(self, risks: RiskSets, hazards: Hazards) -> np.ndarray:
        """[n] how many events each row was to have before its batch's time, or up to it if censored."""
        return np.exp(risks.row + hazards.log[self._past][self._batch_of])

    def _own_events(self, risks: RiskSets, hazards: Hazards) -> np.ndarray:
        """[events] how many events each event's row was to have at its own occasion."""
        at = self._occasion_of
        return np.exp(risks.row[self._event_rows] - risks.after[self.occasions][at]) * self._sums(hazards.own)[at]

    def _expected(self, risks: RiskSets, hazards: Hazards) -> tuple[np.ndarray, np.ndarray]:
        """What squares count in the Hessian: [n] of a row around its batch, [batches] of a batch around the others."""
        within = self._past_events(risks, hazards)
        within[self._event_rows] += self._own_events(risks, hazards)
        between = np.exp(hazards.log[self._past] + risks.batch + risks.before - risks.after)
        between[self.occasions] += self._sums(hazards.added * risks.pull * risks.rest)
        return within, between

    def _joins(self, risks: RiskSets) -> Iterator[Join]:
        """All batches in turn, about a block of rows at a time."""
        bounds = np.append(self.starts, len(self.x)).tolist()
        cuts = (np.flatnonzero(np.diff(self.starts // BLOCK_ROWS)) + 1).tolist()
        logs, means, strata = np.zeros(1), np.zeros((1, self.x.shape[1])), np.full(1, -1)  # a stratum that no row has
        for first, last in zip([0, *cuts], [*cuts, len(self.starts)], strict=True):
            rows, batches = slice(bounds[first], bounds[last]), slice(first, last)
            _, mean = totals(risks.row[rows], self.x[rows], self.starts[batches] - rows.start)
            strata = np.append(strata[-1:], self.strata[batches])
            logs, means = np.append(logs[-1:], risks.batch[batches]), np.concatenate([means[-1:], mean])
            logs, means = running(logs, means, strata)
            joins = strata[1:] == strata[:-1]
            yield Join(batches, rows, mean, np.where(joins[:, None], means[:-1], mean))

    def _occasions_of(self, join: Join) -> tuple[slice, np.ndarray]:
        """The occasions among consecutive batches: which, and where."""
        first, last = (int(np.searchsorted(self.occasions, end)) for end in (join.batches.start, join.batches.stop))
        return slice(first, last), self.occasions[first:last] - join.batches.start


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
