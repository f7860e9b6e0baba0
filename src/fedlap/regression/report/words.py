"""Numbers as sentences that a clinician can read, and that a statistician would sign."""

import math
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from fedlap.regression.families import FAMILIES
from fedlap.regression.fit import SitesFit
from fedlap.regression.summary import label, number

CURVES = ("bs(", "cs(", "cr(", "cc(", "cubic_spline(", "poly(", "**", "I(", "^")  # columns that are read together
CHANGED = {  # what a ratio multiplies
    "odds ratio": "the odds of the outcome",
    "rate ratio": "the expected count",
    "ratio of means": "the expected outcome",
    "hazard ratio": "the hazard",
}
SPOKEN = {"gaussian": "Gaussian", "poisson": "Poisson"}
INTERVAL = (
    "A 95 % interval comes from a procedure that covers the true value in 95 of 100 studies like this one, if the "
    "model is right. It does not say that the true value is in this one with a probability of 95 %."
)
P_VALUE = (
    "The p-value is how likely an estimate at least as far from 0 would be if the coefficient were 0 and the model "
    "right. It is not the probability that there is no association, and it says nothing of cause and effect."
)


class Subject(NamedTuple):
    """What was fitted, in names."""

    formula: str
    family: str
    link: str
    ratio: str  # what e to the power of a coefficient is; empty if nothing
    levels: Sequence[Any]  # of an outcome that has several; the first is the reference


def subject(fit: SitesFit) -> Subject:
    """The names of what a fit is of; of one that has no family, its title."""
    family, design = getattr(fit, "family", None), getattr(fit, "design", None)
    formula = str(design.formula) if design is not None else fit.title
    if family is None:
        name = type(fit).__name__.removesuffix("Fit")
        exp = getattr(fit, "exp", None)
        return Subject(formula, name, "log", str(exp.columns[0]) if exp is not None else "", ())
    name = next((name for name, kind in FAMILIES.items() if type(family) is kind), type(family).__name__)
    levels = design.classes if design is not None and family.unordered else ()
    return Subject(formula, name, family.link, family.ratio, levels)


def spoken(family: str) -> str:
    """The name of a family in a sentence."""
    return SPOKEN.get(family, family.replace("_", " "))


def listed(names: Sequence[str], most: int = 8) -> str:
    """Names in a sentence; of many, the first and how many more."""
    if len(names) > most:
        return f"{', '.join(names[:most])} and {len(names) - most} more"
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]])) if names else "none"


def quantity(count: float, noun: str, nouns: str | None = None) -> str:
    """So many of something."""
    shown = f"{count:,.0f}" if float(count).is_integer() else f"{count:,.2f}"
    return f"{shown} {noun if count == 1 else nouns or noun + 's'}"


def percent(share: float) -> str:
    """A share of 100, to whole numbers unless it is small."""
    if not math.isfinite(share):
        return "–"
    return f"{100 * share:.0f} %" if share >= 0.095 or share == 0 else f"{100 * share:.1f} %"


def probability(p: float) -> str:
    """A p-value in a sentence."""
    return "p < 0.001" if p < 5e-4 else f"p = {p:.3f}"


def reading(name: Any, value: float, low: float, high: float, of: Subject, names: Sequence[Any]) -> str:
    """What a coefficient says, in a sentence."""
    column = _column(name)
    if ":" in re.sub(r"\[.*?\]", "", column):
        return (
            f"{label(name)}: an interaction. It is how the association of one of its columns changes with the others, "
            "and is read together with them."
        )
    if any(part in column for part in CURVES):
        return f"{label(name)}: one of several columns that draw a curve together; it is not read alone."
    held = "holding the other columns fixed"
    if any(":" in each and column in each.split(":") for each in map(_column, names)):
        held += ", and where the columns that it interacts with are 0"
    effect = _multiplied(name, value, low, high, of) if of.ratio else _added(value, low, high)
    none = "1, which is no association" if of.ratio else "0, which is no association"
    verdict = f"The interval {'includes' if low <= 0 <= high else 'excludes'} {none}."
    return f"{label(name)}: {held}, {_step(column)} goes with {effect}. {verdict}"


def _column(name: Any) -> str:
    return str(name[-1]) if isinstance(name, tuple) else str(name)


def _step(column: str) -> str:
    """What the coefficient of a column compares."""
    level = re.fullmatch(r"(.*)\[T\.(.*)\]", column)
    if level:
        return f"level {level[2]} of {level[1]}, compared with the reference level,"
    return f"one unit more of {column}"


def _multiplied(name: Any, value: float, low: float, high: float, of: Subject) -> str:
    what = CHANGED.get(of.ratio, "the outcome")
    if of.levels:
        what = f"the odds of {label(name[:-1])} against {of.levels[0]}"
    return f"{what} multiplied by {ratio(value)} (95 % interval {ratio(low)} to {ratio(high)})"


def _added(value: float, low: float, high: float) -> str:
    return (
        f"a mean outcome that is {number(abs(value))} {'higher' if value >= 0 else 'lower'} "
        f"(change {number(value)}, 95 % interval {number(low)} to {number(high)})"
    )


def ratio(logarithm: float) -> str:
    """e to the power of a coefficient, with as many digits as it takes to tell it from 1."""
    if not math.isfinite(logarithm):
        return "–"
    if abs(logarithm) > 700:
        return "too large to write" if logarithm > 0 else "almost 0"
    if 0 < abs(logarithm) < 5e-3:
        return f"{math.exp(logarithm):.{2 - math.floor(math.log10(abs(logarithm)))}f}"
    return number(math.exp(logarithm))


def agreement_of_sites(Q: float, df: float, p: float, I2: float, tau2: float) -> str:
    """How far sites differ in a coefficient."""
    if not math.isfinite(Q):
        return "Fewer than two sites say anything of this coefficient; there is nothing to compare."
    measured = f"Q = {Q:.2f} on {df:.0f} degrees of freedom, {probability(p)}; I² = {percent(I2)}, τ² = {tau2:.3g}."
    if p < 0.05:
        return f"{measured} The sites differ by more than chance alone would often make them."
    return f"{measured} The sites differ no more than chance may make them, which does not prove that they are alike."
