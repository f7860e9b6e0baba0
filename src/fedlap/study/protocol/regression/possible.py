"""What a member of a regression cannot have said, whatever its rows are: asked at the server, of every reply."""

import math

import numpy as np

from fedlap.errors import DataError
from fedlap.regression.cox import Pairs
from fedlap.regression.glm import GlmModel
from fedlap.regression.model import Opening
from fedlap.regression.objective import Closing
from fedlap.regression.rounds import Answer
from fedlap.regression.standard import Moments
from fedlap.study.protocol.positive import check_positive
from fedlap.study.protocol.regression.agreed import RegressionAgreement

ROUNDING = 1e-9  # of a sum over rows
KNOWN = 1e-8  # of a curvature, which some models make by subtraction


def check_opening(study: RegressionAgreement, name: str, opening: Opening) -> None:
    """DataError at counts and moments that no rows of this study have."""
    roles = study.design.roles
    if roles.weights is None and not math.isclose(opening.rows, opening.complete, rel_tol=ROUNDING):
        raise DataError(f"{name}: {opening.rows:g} rows of {opening.complete} complete ones; expected as many")
    if roles.trials is None and not math.isclose(opening.columns.rows, opening.rows, rel_tol=ROUNDING):
        raise DataError(f"{name}: moments of {opening.columns.rows:g} rows; it has {opening.rows:g}")
    check_positive(name, opening.columns.products, "the matrix of its columns' products", KNOWN)
    _check_ranges(study, name, opening.columns)


def _check_ranges(study: RegressionAgreement, name: str, moments: Moments) -> None:
    """Of a column that stands in the formula as it is, or a category, mean and spread are within its range."""
    ranged = {"Intercept": (1.0, 1.0)}
    categories = tuple(f"{column.name}[" for column in study.columns if column.kind == "category")
    for column in study.columns:
        if column.kind == "number" and math.isfinite(column.minimum) and math.isfinite(column.maximum):
            ranged[column.name] = column.minimum, column.maximum
    for column in study.design.names:
        if column.startswith(categories) and ":" not in column:
            ranged[column] = 0.0, 1.0
    for place, column in enumerate(study.design.names):
        if column not in ranged:
            continue
        low, high = ranged[column]
        mean, square = float(moments.mean[place]), float(moments.products[place, place])
        largest = max(abs(low), abs(high))
        slack = ROUNDING * largest
        if not low - slack <= mean <= high + slack:
            raise DataError(f"{name}, column {column}: no numbers from {low:g} to {high:g} have the mean {mean:g}")
        most = moments.rows * (high - mean) * (mean - low)  # the spread of numbers that are at the two ends
        if square > most + moments.rows * slack * largest:
            raise DataError(f"{name}, column {column}: no numbers from {low:g} to {high:g} spread as far")


def check_answer(study: RegressionAgreement, name: str, answer: Answer, kept: np.ndarray) -> None:
    """DataError at a loss or a curvature that no rows have; a loss beyond all numbers has neither.

    The loss of every family curves upwards in its coefficients. A dispersion is another matter.
    """
    if not np.isfinite(answer.loss):
        return
    model, own = study.model, len(answer.score)
    if isinstance(model, GlmModel):
        own -= int(kept[len(kept) - model.family.shapes :].sum())
        discrete = model.family.link == "logit" or model.family.unordered
    else:
        discrete = True
    if discrete and answer.loss < -ROUNDING:
        raise DataError(f"{name}: a loss of {answer.loss:g}; of probabilities none is below zero")
    check_positive(name, answer.factor.V[:own, :own], "its curvature", KNOWN)


def check_closing(study: RegressionAgreement, name: str, closing: Closing | Pairs) -> None:
    """DataError at closing sums that no rows have."""
    if isinstance(closing, Pairs):
        if min(closing) < 0 or closing.concordant + closing.tied > closing.comparable:
            raise DataError(
                f"{name}: {closing.concordant} and {closing.tied} of {closing.comparable} pairs; no rows have these"
            )
        return
    if closing.pearson < -ROUNDING or closing.deviance < -ROUNDING * max(1.0, abs(closing.pearson)):
        found = f"a Pearson sum of {closing.pearson:g}, a deviance of {closing.deviance:g}"
        raise DataError(f"{name}: {found}; none is below 0")
    if closing.information.ndim == 2:
        check_positive(name, closing.information, "its information", KNOWN)
