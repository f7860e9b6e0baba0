"""What pictures are made of: scales with round ticks, texts that fit, and an SVG that says what it shows."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from fedlap.regression.report.markup import Markup, joined, tag

LETTER = 6.6  # pixels, the mean width of one at the size of the labels
LINE = 22.0  # pixels from one row to the next


class Ruler(NamedTuple):
    """Numbers as places on a line: linear between two ends."""

    low: float
    high: float
    start: float
    end: float

    def at(self, x: float) -> float:
        """The place of a number; one that is off the line is at its end."""
        share = (x - self.low) / (self.high - self.low) if self.high > self.low else 0.5
        return self.start + min(max(share, 0.0), 1.0) * (self.end - self.start)

    def shows(self, x: float) -> bool:
        """Whether a number is on the line."""
        return bool(self.low <= x <= self.high)


class Tick(NamedTuple):
    """A place on a ruler and what is written there."""

    at: float
    text: str


class Frame(NamedTuple):
    """The ruler across and the ruler up."""

    x: Ruler
    y: Ruler


def nice(low: float, high: float, most: int = 6) -> list[float]:
    """Round numbers from one end to the other, no more than so many."""
    if not high > low:
        return [low]
    power = 10.0 ** math.floor(math.log10((high - low) / most))
    step = next((f * power for f in (1, 2, 5, 10) if (high - low) / (f * power) < most), 20 * power)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [k * step for k in range(first, last + 1)]


def plain(x: float) -> str:
    """A tick as it is written."""
    return "0" if x == 0 else f"{x:.6g}".replace("-", "−")


def linear_ticks(low: float, high: float, most: int = 6) -> list[Tick]:
    """Round numbers."""
    step = (high - low) * 1e-9
    return [Tick(x, plain(0.0 if abs(x) < step else x)) for x in nice(low, high, most)]


def ratio_ticks(low: float, high: float, most: int = 6) -> list[Tick]:
    """Round ratios, where the ruler has their logarithms."""
    if high - low < math.log(8):
        return [Tick(math.log(r), plain(r)) for r in nice(math.exp(low), math.exp(high), most) if r > 0]
    powers = range(math.floor(low / math.log(10)), math.ceil(high / math.log(10)) + 1)
    for digits in ((1, 2, 5), (1, 3), (1,)):
        ratios = [(digit, k) for k in powers for digit in digits]
        inside = [(d, k) for d, k in ratios if low <= math.log(d) + k * math.log(10) <= high]
        if len(inside) <= most:
            break
    every = -(-len(inside) // most)
    return [Tick(math.log(d) + k * math.log(10), plain(d * 10.0**k)) for d, k in inside if d > 1 or k % every == 0]


def power_ticks(low: float, high: float, most: int = 6) -> list[Tick]:
    """Powers of ten, where the ruler has their exponents."""
    first, last = math.ceil(low), math.floor(high)
    every = max(1, -(-(last - first + 1) // most))
    return [Tick(k, "1" if k == 0 else f"1e{k}".replace("-", "−")) for k in range(first, last + 1) if k % every == 0]


def short(text: str, most: int) -> str:
    """A text of no more than so many letters; of a long one the middle is left out."""
    if len(text) <= most:
        return text
    end = (most - 1) // 2
    return f"{text[: most - 1 - end]}…{text[len(text) - end :]}"


def width_of(texts: Sequence[str], most: int) -> float:
    """How wide a column of labels is, in pixels."""
    return LETTER * max((min(len(text), most) for text in texts), default=0) + 8


def place(x: float) -> str:
    """A coordinate."""
    return f"{x:.1f}"


def line(x1: float, y1: float, x2: float, y2: float, kind: str) -> Markup:
    """A straight line."""
    return tag("line", x1=place(x1), y1=place(y1), x2=place(x2), y2=place(y2), class_=kind)


def box(x: float, y: float, width: float, height: float, kind: str) -> Markup:
    """A rectangle."""
    return tag("rect", x=place(x), y=place(y), width=place(max(width, 0)), height=place(max(height, 0)), class_=kind)


def dot(x: float, y: float, kind: str, radius: float = 3.5) -> Markup:
    """A point."""
    return tag("circle", cx=place(x), cy=place(y), r=place(radius), class_=kind)


def polygon(points: Sequence[tuple[float, float]], kind: str) -> Markup:
    """A closed shape."""
    return tag("polygon", points=_points(points), class_=kind)


def path(points: Sequence[tuple[float, float]], kind: str) -> Markup:
    """A line through points."""
    return tag("polyline", points=_points(points), class_=kind)


def _points(points: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{place(x)},{place(y)}" for x, y in points)


def text(x: float, y: float, content: str, kind: str = "label", anchor: str = "start", most: int = 200) -> Markup:
    """A label; one that had to be shortened tells the whole under the pointer."""
    whole = [] if len(content) <= most else [tag("title", content)]
    return tag("text", *whole, short(content, most), x=place(x), y=place(y), class_=kind, text_anchor=anchor)


def axes(frame: Frame, x_ticks: Sequence[Tick], y_ticks: Sequence[Tick], x_title: str, y_title: str) -> Markup:
    """The lines, ticks and titles around a plot."""
    x, y = frame
    parts = [box(x.start, y.end, x.end - x.start, y.start - y.end, "frame")]
    for tick in x_ticks:
        parts.append(line(x.at(tick.at), y.start, x.at(tick.at), y.end, "grid"))
        parts.append(text(x.at(tick.at), y.start + 15, tick.text, "tick", "middle"))
    for tick in y_ticks:
        parts.append(line(x.start, y.at(tick.at), x.end, y.at(tick.at), "grid"))
        parts.append(text(x.start - 6, y.at(tick.at) + 4, tick.text, "tick", "end"))
    parts.append(text((x.start + x.end) / 2, y.start + 33, x_title, "axis", "middle"))
    parts.append(text(x.start, y.end - 9, y_title, "axis", "start"))
    return joined(parts)


def curve(frame: Frame, xs: Sequence[float], ys: Sequence[float], kind: str) -> Markup:
    """A line through points of a plot; it is broken where there is no number."""
    parts, run = [], []
    for x, y in [*zip(xs, ys, strict=True), (math.nan, math.nan)]:
        if math.isfinite(x) and math.isfinite(y):
            run.append((frame.x.at(x), frame.y.at(y)))
        else:
            parts += [path(run, kind)] if len(run) > 1 else []
            run = []
    return joined(parts)


def picture(width: float, height: float, title: str, description: str, *parts: object) -> Markup:
    """An SVG with a name and words for those who cannot see it."""
    return tag(
        "svg",
        tag("title", title),
        tag("desc", description),
        *parts,
        viewBox=f"0 0 {place(width)} {place(height)}",
        role="img",
        style=f"max-width:{place(width)}px",
    )


def span(values: Sequence[float], margin: float = 0.05) -> tuple[float, float]:
    """The ends of a ruler that shows all numbers, with some room."""
    finite = np.array([x for x in values if math.isfinite(x)])
    if not len(finite):
        return -1.0, 1.0
    low, high = float(finite.min()), float(finite.max())
    room = margin * (high - low) or 0.5 * abs(high) or 1.0
    return low - room, high + room


def logarithm(x: float) -> float:
    """The exponent of ten; of nothing, no number."""
    return math.log10(x) if x > 0 else math.nan
