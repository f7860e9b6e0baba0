"""What the requests and replies of a regression hold, as records, and the form that each must have.

request                      reply
moments                      Opening and the versions of programs
begin      Standard
answer     Question          Answer
closing    Weights           Closing, or of a Cox regression Pairs
losses     SeveralWeights    LossesThere
meat       Weights           Meat
finish
restore    Standard and the site's own replies
"""

import math
import platform
import re
from importlib import metadata
from typing import Any, NamedTuple

import numpy as np

from fedlap.errors import DataError
from fedlap.regression.cox import Pairs
from fedlap.regression.glm import GlmModel
from fedlap.regression.model import Opening
from fedlap.regression.objective import Closing
from fedlap.regression.rounds import Answer, SiteFactor
from fedlap.regression.standard import Moments
from fedlap.study.protocol.messages import Arrays, Form, Reply, decode, encode, unpack
from fedlap.study.protocol.regression.agreed import RegressionAgreement, most_points

PROGRAMS = ("fedlap", "formulaic")  # of the same version everywhere: they make the columns


class Standard(NamedTuple):
    """What all sites count in, for the whole run."""

    shift: np.ndarray  # [columns]
    spread: np.ndarray
    outcome: np.ndarray  # []


class Question(NamedTuple):
    """What a round broadcasts, and of which weights: the others are zero."""

    w: np.ndarray  # [kept]
    S: np.ndarray  # [kept, kept]
    kept: np.ndarray  # [P] truth values
    search: np.ndarray  # []


class Weights(NamedTuple):
    """Weights at which a site is to say something."""

    w: np.ndarray  # [P]


class SeveralWeights(NamedTuple):
    """Several weights."""

    w: np.ndarray  # [m, P]


class LossesThere(NamedTuple):
    """The losses at several weights."""

    losses: np.ndarray  # [m]


class OwnReplies(NamedTuple):
    """What the server holds of a site's state: all of it, for a site computes from its rows and its own replies."""

    standard: Arrays
    moments: Arrays
    steps: dict[int, tuple[str, Reply]]  # of each step its kind, and what the site said


class Meat(NamedTuple):
    """The middle of a robust covariance."""

    meat: np.ndarray  # [P, P]


STEP = re.compile(r"step-([0-9]{6})-([a-z]+)")


def pack_replies(own: OwnReplies) -> Arrays:
    """A site's replies in one message: each as the bytes that it once was."""
    named = {f"step-{number:06d}-{kind}": reply for number, (kind, reply) in own.steps.items()}
    steps = {name: np.frombuffer(encode(reply), np.uint8) for name, reply in named.items()}
    standard = {f"standard{name}": array for name, array in own.standard.items()}
    return {**standard, **{f"moments{name}": array for name, array in own.moments.items()}, **steps}


def read_replies(arrays: Arrays, source: str) -> OwnReplies:
    """What the server hands back, of which the site has yet to say whether it is its own."""
    parts: dict[str, Arrays] = {"standard": {}, "moments": {}}
    steps = {}
    for name, array in arrays.items():
        head, dot, rest = name.partition(".")
        if step := STEP.fullmatch(name):
            if array.dtype != np.uint8 or array.ndim != 1:
                raise DataError(f"{source}: {name} is {array.dtype} {array.shape}; expected bytes")
            steps[int(step[1])] = step[2], decode(array.tobytes(), Reply)
        elif dot and head in parts:
            parts[head][f".{rest}"] = array
        else:
            raise DataError(f"{source}: {name[:60]!r} is not expected")
    return OwnReplies(parts["standard"], parts["moments"], steps)


def programs() -> dict[str, str]:
    """The versions here."""
    return {**{name: metadata.version(name) for name in PROGRAMS}, "python": platform.python_version()}


def check_programs(member: str, facts: dict[str, Any]) -> None:
    """DataError unless a member's programs make the same columns as those here."""
    here, given = programs(), facts.get("versions")
    for name in PROGRAMS:
        found = given.get(name) if isinstance(given, dict) else given
        if found != here[name]:
            raise DataError(f"{member} has {name} {found}, the server {here[name]}; expected the same")


def check_size(study: RegressionAgreement, source: str, rows: int) -> None:
    """DataError unless a site has enough rows; the site asks itself, the server asks again."""
    if rows < study.minimum_rows:
        raise DataError(f"{source}: {rows} complete rows; expected at least {study.minimum_rows} (minimum_rows)")
    size, share = study.model.size, study.parameters_per_row
    if size > share * rows:
        raise DataError(
            f"{source}: {rows} complete rows for {size} coefficients; expected at least {math.ceil(size / share)} "
            f"rows (parameters_per_row = {share:g}): sums over fewer would tell too much about single patients"
        )


def read_opening(study: RegressionAgreement, arrays: Arrays, source: str) -> Opening:
    """What a member says before the first round."""
    columns = len(study.design.names)
    form = Opening(_form(np.int64), _real(), _moments(columns), _moments(1), events=_real(), constant=_real())
    read = unpack(arrays, form, source)
    check_size(study, source, int(read.complete))
    for moments in (read.columns, read.outcome):
        squares = np.diag(moments.products)
        rounding = 1e-9 * np.sqrt(np.abs(np.outer(squares, squares)))
        if (squares < 0).any() or (np.abs(moments.products - moments.products.T) > rounding).any():
            raise DataError(f"{source}: no rows have these products")
    if not read.rows > 0 or read.columns.rows <= 0 or not 0 <= read.events <= read.rows:
        raise DataError(f"{source}: {read.rows:g} rows, {read.events:g} events; no file has so many")
    return Opening(
        complete=int(read.complete),
        rows=float(read.rows),
        columns=_numbers(read.columns),
        outcome=_numbers(read.outcome),
        events=float(read.events),
        constant=float(read.constant),
    )


def read_standard(study: RegressionAgreement, arrays: Arrays, source: str) -> Standard:
    """What all sites count in."""
    columns = len(study.design.names)
    standard = unpack(arrays, Standard(_real(columns), _real(columns), _real()), source)
    if not (standard.spread > 0).all() or not standard.outcome > 0:
        raise DataError(f"{source}: a spread that is not above 0")
    return standard


def read_question(study: RegressionAgreement, arrays: Arrays, source: str) -> Question:
    """What a round broadcasts."""
    size = study.model.size
    form = Question(_real(None), _real(None, None), _form(np.bool_, size), _form(np.bool_))
    question = unpack(arrays, form, source)
    kept = int(question.kept.sum())
    if not kept or question.w.shape != (kept,) or question.S.shape != (kept, kept):
        raise DataError(f"{source}: weights of shape {question.w.shape} where {kept} are kept")
    return question


def read_answer(arrays: Arrays, size: int, source: str) -> Answer:
    """A member's answer to a round; a loss that is beyond all numbers makes the server step back."""
    form = Answer(_any(), _any(size), SiteFactor(_any(size), _any(size, size)))
    answer = unpack(arrays, form, source)
    if np.isfinite(answer.loss) and not all(np.isfinite(part).all() for part in (answer.score, *answer.factor)):
        raise DataError(f"{source}: its loss is a number, and its slope or curvature is not")
    return answer._replace(loss=float(answer.loss))


def read_point(study: RegressionAgreement, arrays: Arrays, source: str) -> Weights:
    """Weights at which a site is to say something."""
    return unpack(arrays, Weights(_real(study.model.size)), source)


def read_points(study: RegressionAgreement, arrays: Arrays, source: str) -> SeveralWeights:
    """Several weights, as many as the study allows."""
    points = unpack(arrays, SeveralWeights(_real(None, study.model.size)), source)
    if not 1 <= len(points.w) <= most_points(study):
        raise DataError(f"{source}: {len(points.w)} weights; expected at most {most_points(study)}")
    return points


def read_losses(arrays: Arrays, count: int, source: str) -> LossesThere:
    """A member's losses at several weights."""
    return unpack(arrays, LossesThere(_any(count)), source)


def read_meat(study: RegressionAgreement, arrays: Arrays, source: str) -> Meat:
    """A member's part of the middle of a robust covariance."""
    return unpack(arrays, Meat(_real(study.model.size, study.model.size)), source)


def read_closing(study: RegressionAgreement, arrays: Arrays, source: str) -> Closing | Pairs:
    """What a member says once the weights are found."""
    model = study.model
    if not isinstance(model, GlmModel):
        pairs = unpack(arrays, Pairs(*(_form(np.int64),) * 3), source)
        return Pairs(*map(int, pairs))
    shape = (0,) if model.family.shapes else (model.size, model.size)
    form = Closing(_any(), _real(), _real(*shape))
    closing = unpack(arrays, form, source)
    if not model.family.unordered and not np.isfinite(closing.pearson):
        raise DataError(f"{source}: its Pearson sum is not a finite number")
    return Closing(float(closing.pearson), float(closing.deviance), closing.information)


def _moments(columns: int) -> Moments:
    return Moments(_real(), _real(columns), _real(columns, columns))


def _numbers(moments: Moments) -> Moments:
    return moments._replace(rows=float(moments.rows))


def _real(*shape: int | None) -> Any:
    return _form(np.float64, *shape)


def _any(*shape: int | None) -> Any:
    """A form of float64 that need not be finite."""
    return Form(np.float64, shape, finite=False)


def _form(dtype: Any, *shape: int | None) -> Any:
    return Form(dtype, shape)
