"""The pictures of the report. Each has a title, a description and, beside it, a table with the same numbers."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from fedlap.regression.report.assessment import Calibration, Roc
from fedlap.regression.report.drawing import (
    LINE,
    Frame,
    Ruler,
    Tick,
    axes,
    box,
    curve,
    dot,
    line,
    linear_ticks,
    logarithm,
    picture,
    plain,
    polygon,
    power_ticks,
    ratio_ticks,
    span,
    text,
    width_of,
)
from fedlap.regression.report.markup import Markup, joined

WIDE, HALF, FOREST = 640.0, 460.0, 480.0  # pixels
NAMES = 22  # letters of a label
SEEN = 0.02  # a site's share of the weight, below which its interval may leave the picture
STEEP, FINE = 30.0, 1e-3  # logarithms beyond which, and a range of them below which, ratios are hard to read


class Mark(NamedTuple):
    """A line of a forest plot: an estimate with its interval, and how much it weighs."""

    name: str
    estimate: float
    low: float
    high: float
    weight: float


class Forest(NamedTuple):
    """What a forest plot shows: sites, the pooled estimate, and those of meta-analyses."""

    name: str
    sites: Sequence[Mark]
    pooled: Mark
    others: Sequence[Mark]
    ratio: str  # what e to the power of the coefficient is, where that is to be read
    neutral: bool  # whether 0 says that there is no association


def forest(data: Forest) -> Markup:
    """Sites as squares as large as they weigh, the pooled estimate as a diamond, meta-analyses dashed."""
    marks = [*data.sites, data.pooled, *data.others]
    left = width_of([mark.name for mark in marks], NAMES)
    low, high = forest_range(data)
    x = Ruler(low, high, left + 8, FOREST - 28)
    bottom = 14 + LINE * (len(marks) + 0.5)
    as_ratio = bool(data.ratio) and max(abs(low), abs(high)) < STEEP and high - low > FINE
    ticks = (ratio_ticks if as_ratio else linear_ticks)(low, high)
    parts = []
    for tick in ticks:
        parts.append(line(x.at(tick.at), 10, x.at(tick.at), bottom, "grid"))
        parts.append(text(x.at(tick.at), bottom + 15, tick.text, "tick", "middle"))
    parts.append(line(x.start, bottom, x.end, bottom, "rule"))
    if data.neutral and x.shows(0):
        parts.append(line(x.at(0), 10, x.at(0), bottom, "zero"))
    parts.append(line(x.at(data.pooled.estimate), 10, x.at(data.pooled.estimate), bottom, "pooled-line"))
    heaviest = max((mark.weight for mark in data.sites if math.isfinite(mark.weight)), default=1.0) or 1.0
    for place, mark in enumerate(marks):
        y = 14 + LINE * (place + 0.5 + (0.5 if place >= len(data.sites) else 0))
        parts.append(text(left, y + 4, mark.name, "label strong" if mark is data.pooled else "label", "end", NAMES))
        if not math.isfinite(mark.estimate):
            parts.append(text(x.start + 4, y + 4, "its rows say nothing of this coefficient", "tick aside"))
        elif mark is data.pooled:
            parts.append(_diamond(x, mark, y))
        elif place < len(data.sites):
            parts += [_interval(x, mark, y, "whisker"), _square(x, mark, y, math.sqrt(mark.weight / heaviest))]
        else:
            parts += [_interval(x, mark, y, "whisker dashed"), dot(x.at(mark.estimate), y, "hollow")]
    scale = f"{data.ratio} (logarithmic scale)" if as_ratio else "coefficient"
    parts.append(text((x.start + x.end) / 2, bottom + 33, scale, "axis", "middle"))
    described = (
        f"{len(data.sites)} sites with their estimates and 95 % intervals, squares sized by weight; a diamond for the "
        f"pooled estimate, {plain(data.pooled.estimate)}, from {plain(data.pooled.low)} to {plain(data.pooled.high)}; "
        "dashed lines for meta-analyses. The table has the numbers."
    )
    return picture(FOREST, bottom + 42, f"Forest plot of {data.name}", described, *parts)


def forest_range(data: Forest) -> tuple[float, float]:
    """The ends of the axis: what weighs little does not squeeze the others."""
    seen = [mark for mark in data.sites if math.isfinite(mark.weight) and mark.weight >= SEEN]
    shown = [*seen, data.pooled, *data.others]
    ends = [end for mark in shown for end in (mark.low, mark.high)]
    return span([*ends, 0.0] if data.neutral and _near(ends) else ends)


def _near(ends: Sequence[float]) -> bool:
    """Whether 0 is so close that showing it costs little."""
    finite = [end for end in ends if math.isfinite(end)]
    if not finite:
        return True
    low, high = min(finite), max(finite)
    return max(low, 0) + max(-high, 0) <= 2 * (high - low)


def _interval(x: Ruler, mark: Mark, y: float, kind: str) -> Markup:
    """A whisker; an arrow where it goes on beyond the picture."""
    parts = [line(x.at(mark.low), y, x.at(mark.high), y, kind)]
    if mark.low < x.low:
        parts.append(polygon([(x.start - 5, y), (x.start + 3, y - 4), (x.start + 3, y + 4)], "arrow"))
    if mark.high > x.high:
        parts.append(polygon([(x.end + 5, y), (x.end - 3, y - 4), (x.end - 3, y + 4)], "arrow"))
    return joined(parts)


def _square(x: Ruler, mark: Mark, y: float, size: float) -> Markup:
    if not x.shows(mark.estimate):
        return Markup()
    half = 2 + 6 * size
    return box(x.at(mark.estimate) - half, y - half, 2 * half, 2 * half, "site")


def _diamond(x: Ruler, mark: Mark, y: float) -> Markup:
    middle = x.at(mark.estimate)
    left, right = min(x.at(mark.low), middle - 3), max(x.at(mark.high), middle + 3)
    return polygon([(left, y), (middle, y - 8), (right, y), (middle, y + 8)], "pooled")


def convergence(losses: Sequence[float], decrements: Sequence[float]) -> Markup:
    """How far the loss still was above its last value, and Newton's decrement, round by round."""
    above = [logarithm(loss - losses[-1]) for loss in losses]
    panels = {"loss above its last value": above, "Newton's decrement": [logarithm(each) for each in decrements]}
    described = (
        f"Two panels with logarithmic scales over {len(losses)} rounds: by how much the pooled loss still fell, and "
        "Newton's decrement. Rounds without a number on such a scale are not drawn. The table has the numbers."
    )
    return picture(WIDE, 242, "Convergence by round", described, _by_round(panels, power_ticks))


def scores(accuracies: Sequence[float], losses: Sequence[float]) -> Markup:
    """Accuracy and negative log-likelihood of a row, round by round; NaN where a round has none."""
    described = (
        f"Two panels over {len(losses)} rounds: how often the likeliest class was the true one, and the mean negative "
        "log-likelihood of a row. Rounds without a number are not drawn. The table has the numbers."
    )
    panels = {"accuracy": accuracies, "negative log-likelihood": losses}
    return picture(WIDE, 242, "Scores by round", described, _by_round(panels, linear_ticks))


def _by_round(panels: Mapping[str, Sequence[float]], ticks: Callable[[float, float], list[Tick]]) -> Markup:
    """Two panels side by side, of numbers by round."""
    parts = []
    for place, (title, values) in enumerate(panels.items()):
        rounds = range(1, len(values) + 1)
        start = 58 + place * (WIDE / 2)
        low, high = span(values, 0.08)
        frame = Frame(Ruler(0.5, len(rounds) + 0.5, start, start + WIDE / 2 - 74), Ruler(low, high, 200, 28))
        across = [Tick(k, plain(k)) for k in rounds if len(rounds) <= 8 or k % -(-len(rounds) // 8) == 0]
        parts.append(axes(frame, across, ticks(low, high), "round", title))
        parts.append(curve(frame, rounds, values, "curve"))
        parts += [dot(frame.x.at(k), frame.y.at(v), "point") for k, v in zip(rounds, values, strict=True) if v == v]
    return joined(parts)


def calibration(data: Calibration) -> Markup:
    """Observed shares over predicted probabilities, with intervals; on the diagonal both agree."""
    described = (
        f"{len(data.rows)} bins: the share of rows with the outcome over the mean predicted probability, with Wilson's "
        "95 % intervals. On the diagonal both are the same. The table has the numbers."
    )
    drawn = _diagonal(data, "predicted probability", "observed share")
    return picture(HALF, 384, "Calibration on held-out rows", described, drawn)


def reliability(data: Calibration) -> Markup:
    """Shares of predictions that are right over how sure they are, with intervals; below the diagonal, too sure."""
    described = (
        f"{len(data.rows)} cells: the share of rows whose likeliest class is the true one over its mean probability, "
        "with Wilson's 95 % intervals. On the diagonal the model is as sure as it is right; below it, too sure. The "
        "table has the numbers."
    )
    drawn = _diagonal(data, "confidence: mean probability of the likeliest class", "share that is right")
    return picture(HALF, 384, "Reliability on held-back rows", described, drawn)


def _diagonal(data: Calibration, x_title: str, y_title: str) -> Markup:
    """Shares over probabilities, with their intervals and the line where both are the same."""
    frame = Frame(Ruler(0, 1, 52, HALF - 16), Ruler(0, 1, 340, 28))
    ticks = linear_ticks(0, 1)
    parts = [axes(frame, ticks, ticks, x_title, y_title)]
    parts.append(line(frame.x.at(0), frame.y.at(0), frame.x.at(1), frame.y.at(1), "zero"))
    for p, share, low, high in zip(data.predicted, data.observed, data.lower, data.upper, strict=True):
        parts.append(line(frame.x.at(p), frame.y.at(low), frame.x.at(p), frame.y.at(high), "whisker"))
        parts.append(dot(frame.x.at(p), frame.y.at(share), "point"))
    return joined(parts)


def roc(data: Roc) -> Markup:
    """The ROC curve; on the diagonal predictions are worth nothing."""
    frame = Frame(Ruler(0, 1, 52, HALF - 16), Ruler(0, 1, 340, 28))
    ticks = linear_ticks(0, 1)
    parts = [axes(frame, ticks, ticks, "share of false alarms (1 − specificity)", "share found (sensitivity)")]
    parts.append(line(frame.x.at(0), frame.y.at(0), frame.x.at(1), frame.y.at(1), "zero"))
    parts.append(curve(frame, data.false_positive.tolist(), data.true_positive.tolist(), "curve"))
    parts.append(text(frame.x.at(0.97), frame.y.at(0.05), f"AUC {data.auc:.3f}", "label strong", "end"))
    described = (
        f"Sensitivity over 1 − specificity at {len(data.true_positive)} thresholds; the area below the curve is "
        f"{data.auc:.3f}. The table has the curve at some thresholds."
    )
    return picture(HALF, 384, "ROC curve on held-out rows", described, *parts)


def residuals(fitted: np.ndarray, mean: np.ndarray, reach: np.ndarray, logarithmic: bool) -> Markup:
    """Mean residuals over fitted values by bin, and where nine or so of ten means would be if the model were right."""
    xs = np.log(fitted) if logarithmic else fitted
    low, high = span(xs.tolist())
    height = max(1e-3, 1.1 * float(np.nanmax(np.abs(np.concatenate([mean, reach])))))
    frame = Frame(Ruler(low, high, 58, WIDE - 16), Ruler(-height, height, 250, 28))
    ticks = ratio_ticks(low, high) if logarithmic else linear_ticks(low, high)
    title = "fitted mean (logarithmic scale)" if logarithmic else "fitted mean"
    parts = [axes(frame, ticks, linear_ticks(-height, height), title, "mean residual, in standard deviations")]
    parts.append(line(frame.x.start, frame.y.at(0), frame.x.end, frame.y.at(0), "zero"))
    for sign in (-1, 1):
        parts.append(curve(frame, xs.tolist(), (sign * reach).tolist(), "curve dashed"))
    parts += [dot(frame.x.at(x), frame.y.at(r), "point") for x, r in zip(xs, mean, strict=True)]
    described = (
        f"Mean standardised residual over the mean fitted value, in {len(mean)} bins; dashed lines are where 95 of 100 "
        "such means would be if the fitted means were right. The table has the numbers."
    )
    return picture(WIDE, 294, "Residuals on held-out rows", described, *parts)


def bars(names: Sequence[str], values: Sequence[float], title: str, unit: str) -> Markup:
    """A bar a name, to the right of nothing or to the left of it."""
    left = width_of(names, NAMES)
    low, high = min(0.0, *values), max(0.0, *values)
    room = 0.12 * (high - low) or 1.0
    x = Ruler(low - (room if low < 0 else 0), high + (room if high > 0 else 0), left + 8, WIDE - 28)
    bottom = 14 + LINE * len(names)
    parts = []
    for tick in linear_ticks(x.low, x.high):
        parts.append(line(x.at(tick.at), 8, x.at(tick.at), bottom, "grid"))
        parts.append(text(x.at(tick.at), bottom + 15, tick.text, "tick", "middle"))
    for place, (name, value) in enumerate(zip(names, values, strict=True)):
        y, zero, end = 14 + LINE * place, x.at(0), x.at(value)
        parts.append(text(left, y + 12, name, "label", "end", NAMES))
        parts.append(box(min(zero, end), y + 2, abs(end - zero), LINE - 8, "bar"))
        outside = (end + 5, "start") if value >= 0 else (end - 5, "end")
        parts.append(text(outside[0], y + 12, f"{value:.4g}".replace("-", "−"), "tick", outside[1]))
    parts.append(line(x.at(0), 8, x.at(0), bottom, "rule"))
    parts.append(text((x.start + x.end) / 2, bottom + 33, unit, "axis", "middle"))
    described = f"{len(names)} bars, one a site. The table has the numbers."
    return picture(WIDE, bottom + 42, title, described, *parts)
