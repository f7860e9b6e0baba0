"""How well a fit predicts rows that it has not seen, from what sites say in sums and counts.

Each site holds back a fifth of its rows, all fit the rest together, and each says of its own held-out rows how many
fell into each bin of the prediction and what their outcomes add up to. No row and no prediction is said.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from scipy import stats

from fedlap.checks import is_number, is_whole
from fedlap.errors import ConfigError, DataError
from fedlap.regression import standard
from fedlap.regression.design import SiteRows
from fedlap.regression.families.base import Family
from fedlap.regression.families.binomial import BinomialFamily
from fedlap.regression.glm import GlmFit, GlmModel, Outcomes
from fedlap.regression.model import fit_here
from fedlap.regression.standard import Moments

FINE, COARSE = 200, 10  # bins of a probability, for the ROC curve and for calibration
SMALL = 5  # rows: a bin with fewer of them comes near to telling of one


class Bins(NamedTuple):
    """Sums over rows by bin of the predicted probability: bin j holds those above edge j, and edge j + 1 itself."""

    edges: np.ndarray  # [B + 1]
    weight: np.ndarray  # [B], how many rows
    predicted: np.ndarray  # [B], the sum of their probabilities
    events: np.ndarray  # [B]


class Calibration(NamedTuple):
    """Observed shares against predicted ones, by bin, with Wilson's interval; empty bins are left out."""

    low: np.ndarray
    high: np.ndarray
    rows: np.ndarray
    predicted: np.ndarray
    observed: np.ndarray
    lower: np.ndarray
    upper: np.ndarray


class Roc(NamedTuple):
    """The ROC curve at the edges of bins, the area below it, and how far the area of the rows may be from it."""

    false_positive: np.ndarray
    true_positive: np.ndarray
    auc: float
    bound: float


class ResidualBins(NamedTuple):
    """Sums over rows by bin of the linear predictor."""

    edges: np.ndarray  # [B − 1], between the bins
    weight: np.ndarray  # [B]
    fitted: np.ndarray
    residual: np.ndarray  # in standard deviations that the model says
    square: np.ndarray  # of these residuals


class Sums(NamedTuple):
    """What a site says of all its held-out rows."""

    rows: float
    loss: float  # negative log-likelihood, but for its constants
    square: float  # of the distance of outcomes from predictions, summed over levels
    right: float  # rows whose likeliest level is theirs; of an outcome without levels, NaN


@dataclass(frozen=True, eq=False)
class Assessment:
    """What all sites together say of the held-out rows."""

    fitted: Mapping[str, float]  # rows by site that were fitted
    held_out: Mapping[str, float]  # and that were not
    total: Sums
    outcome: Moments
    bins: Bins | None  # of a probability
    residuals: ResidualBins | None  # of a number
    small: int  # bins of some site that had some rows, but fewer than five
    rounds: int  # of the fit to the rest
    seed: int

    @property
    def mean_loss(self) -> float:
        """The mean negative log-likelihood of a row, but for its constants: of probabilities, the log loss."""
        return self.total.loss / self.total.rows

    @property
    def mean_square(self) -> float:
        """The mean squared distance of outcomes from predictions: of probabilities, the Brier score."""
        return self.total.square / self.total.rows

    @property
    def spread(self) -> float:
        """The mean squared distance of outcomes from their own mean."""
        return float(self.outcome.products[0, 0] / self.outcome.rows)


class Unassessed(NamedTuple):
    """Why no rows could be held out."""

    reason: str


def edges(count: int = FINE) -> np.ndarray:
    """Bins of one width from 0 to 1."""
    return np.arange(count + 1) / count


# At a site ------------------------------------------------------------------------------------------------------------


def bins(y: np.ndarray, p: np.ndarray, weights: np.ndarray, edges: np.ndarray) -> Bins:
    """The sums of one site's rows, whose outcomes are 0, 1 or a share between them, by predicted probability."""
    place = np.searchsorted(edges[1:-1], p)
    add = lambda part: np.bincount(place, part, minlength=len(edges) - 1)
    return Bins(edges, add(weights), add(weights * p), add(weights * y))


def residual_bins(
    fitted: np.ndarray, predictor: np.ndarray, residual: np.ndarray, weights: np.ndarray, edges: np.ndarray
) -> ResidualBins:
    """The sums of one site's rows, by linear predictor."""
    place = np.searchsorted(edges, predictor)
    add = lambda part: np.bincount(place, part, minlength=len(edges) + 1)
    return ResidualBins(edges, add(weights), add(weights * fitted), add(weights * residual), add(weights * residual**2))


# Of all sites ---------------------------------------------------------------------------------------------------------


def pooled(parts: Sequence[Any]) -> Any:
    """The sums of all sites, of parts of one kind; their edges must be the same."""
    if not parts:
        raise DataError("no site has said anything; expected the sums of one or more")
    kind, names = type(parts[0]), parts[0]._fields
    if "edges" in names and any(not np.array_equal(part.edges, parts[0].edges) for part in parts):
        raise DataError("sites have bins with different edges; expected the same everywhere")
    return kind(*(getattr(parts[0], n) if n == "edges" else sum(getattr(part, n) for part in parts) for n in names))


def calibration(fine: Bins, count: int = COARSE) -> Calibration:
    """Observed shares by `count` bins of one width, which are made of whole fine ones."""
    if len(fine.weight) % count:
        raise ConfigError(f"{count} bins of {len(fine.weight)}; expected a number that divides them")
    weight, predicted, events = (part.reshape(count, -1).sum(1) for part in fine[1:])
    there = weight > 0
    low, high = fine.edges[:: len(fine.weight) // count][:-1], fine.edges[:: len(fine.weight) // count][1:]
    n, share = weight[there], events[there] / weight[there]
    lower, upper = wilson(share, n)
    return Calibration(low[there], high[there], n, predicted[there] / n, share, lower, upper)


def wilson(share: np.ndarray, n: np.ndarray, alpha: float = 0.05) -> tuple[np.ndarray, np.ndarray]:
    """Wilson's interval of a share of n."""
    z = stats.norm.isf(alpha / 2)
    centre = (share + z**2 / (2 * n)) / (1 + z**2 / n)
    reach = z / (1 + z**2 / n) * np.sqrt(share * (1 - share) / n + z**2 / (4 * n**2))
    return np.maximum(centre - reach, 0), np.minimum(centre + reach, 1)


def roc(fine: Bins) -> Roc | None:
    """The curve by trapezoids; None if all outcomes are the same.

    Of two rows in one bin it is not known which is ranked first: a trapezoid says half, and is wrong by half at most.
    """
    positive, negative = fine.events[::-1], (fine.weight - fine.events)[::-1]
    if positive.sum() <= 0 or negative.sum() <= 1e-12 * positive.sum():
        return None
    true, false = (np.concatenate([[0.0], np.cumsum(part) / part.sum()]) for part in (positive, negative))
    bound = float(positive @ negative / positive.sum() / negative.sum() / 2)
    return Roc(false, true, float(np.trapezoid(true, false)), bound)


# Rows held out --------------------------------------------------------------------------------------------------------


def split(count: int, share: float, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """The places of the rows that are fitted, and of those that are held out, each in their order."""
    order, held = rng.permutation(count), round(share * count)
    return np.sort(order[held:]), np.sort(order[:held])


def hold_out(
    model: GlmModel, rows: Mapping[str, SiteRows], *, share: float = 0.2, seed: int = 0
) -> Assessment | Unassessed:
    """Fit most rows of every site and assess the fit on the others; say why if the most cannot be fitted.

    A site's split depends on the seed, on its place and on nothing else.
    """
    if not is_number(share) or not 0 < share < 1:
        raise ConfigError(f"hold_out: share is {share!r}; expected a number between 0 and 1, such as 0.2")
    if not is_whole(seed):
        raise ConfigError(f"hold_out: seed is {seed!r}; expected a whole number, 0 or above")
    fitted: dict[str, SiteRows] = {}
    held: dict[str, Outcomes] = {}
    for place, (name, part) in enumerate(rows.items()):
        most, others = split(len(part.x), share, np.random.default_rng([seed, place]))
        if len(most):
            fitted[name] = part.take(most)
        if len(others):
            held[name] = model.part(part.take(others), f"site {name!r}")
    if not held:
        return Unassessed("every site has too few rows to hold one out")
    try:
        fit = fit_here(model, fitted)
    except DataError as error:
        return Unassessed(f"the rest of the rows cannot be fitted: {error}")
    if not fit.converged:
        return Unassessed(f"the fit to the rest of the rows has not converged in {fit.rounds} rounds")
    return assess(fit, held, seed)


def assess(fit: GlmFit, held: Mapping[str, Outcomes], seed: int) -> Assessment:
    """What rows that a fit has not seen say of it."""
    predictions = {name: _predictors(fit, part) for name, part in held.items()}
    counts = {name: part.weights * part.trials for name, part in held.items()}
    total = pooled([_sums(fit.family, part.y, predictions[name], counts[name]) for name, part in held.items()])
    fine = numbers = None
    parts: list[Any] = []
    if isinstance(fit.family, BinomialFamily):
        parts = [bins(part.y, fit.family.mean(predictions[name]), counts[name], edges()) for name, part in held.items()]
        fine = pooled(parts)
    elif not fit.family.unordered:
        between = _between(list(predictions.values()), list(counts.values()))
        parts = [_residuals(fit, part, predictions[n], counts[n], between) for n, part in held.items()]
        numbers = pooled(parts)
    return Assessment(
        fitted=fit.regression.rows,
        held_out={name: float(part.weights.sum()) for name, part in held.items()},
        total=total,
        outcome=standard.pooled(standard.moments(part.y[:, None], counts[name]) for name, part in held.items()),
        bins=fine,
        residuals=numbers,
        small=sum(int(((part.weight > 0) & (part.weight < SMALL)).sum()) for part in parts),
        rounds=fit.rounds,
        seed=seed,
    )


def _predictors(fit: GlmFit, part: Outcomes) -> np.ndarray:
    """The linear predictors of rows, as the family takes them."""
    values, family, columns = fit.params.to_numpy(), fit.family, part.x.shape[1]
    own = (family.predictors - family.shapes) * columns
    f = values[:own].reshape(-1, columns) @ part.x.T
    f[0] += part.offset
    shapes = np.log(values[own:])  # a family has the logarithm of what users are told
    f = np.concatenate([f, np.broadcast_to(shapes[:, None], (len(shapes), len(part.y)))])
    return f if family.several else f[0]


def _sums(family: Family, y: np.ndarray, f: np.ndarray, weights: np.ndarray) -> Sums:
    mean, right = family.mean(f), np.nan
    if family.unordered:
        levels = np.arange(len(mean))[:, None] == y
        square, right = ((mean - levels) ** 2).sum(0), float(weights @ (mean.argmax(0) == y))
    elif isinstance(family, BinomialFamily):  # of a share, each of its trials
        square = y * (1 - mean) ** 2 + (1 - y) * mean**2
    else:
        square = (y - mean) ** 2
    return Sums(float(weights.sum()), float(weights @ family.loss(y, f)), float(weights @ square), right)


def _between(predictors: Sequence[np.ndarray], weights: Sequence[np.ndarray]) -> np.ndarray:
    """Edges that part a normal predictor of the same mean and spread into bins of as many rows; two sums a site."""
    own = [np.atleast_2d(f)[0] for f in predictors]
    rows = sum(float(w.sum()) for w in weights)
    mean = sum(float(w @ f) for f, w in zip(own, weights, strict=True)) / rows
    square = sum(float(w @ (f - mean) ** 2) for f, w in zip(own, weights, strict=True)) / rows
    return mean + np.sqrt(square) * stats.norm.ppf(np.arange(1, COARSE) / COARSE)


def _residuals(fit: GlmFit, part: Outcomes, f: np.ndarray, weights: np.ndarray, between: np.ndarray) -> ResidualBins:
    mean = fit.family.mean(f)
    residual = (part.y - mean) / np.sqrt(fit.family.variance(f) * fit.scale)
    return residual_bins(mean, np.atleast_2d(f)[0], residual, weights, between)
