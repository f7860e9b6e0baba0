"""What requests and replies hold, as records: the form that each must have, and what else must be true of it.

request                      reply
statistics                   Statistics and Versions
points       Pooled          Points
begin        Beginning
train        the broadcast   the contribution and HeldBack
finish       the broadcast   HeldBack
restore      Kept
"""

import platform
from importlib import metadata
from typing import Any, NamedTuple

import jax
import numpy as np

from fedlap.engines.setup import MemoryPoints
from fedlap.errors import DataError
from fedlap.study.protocol.messages import Arrays, Form, part, unpack
from fedlap.study.protocol.terms import Terms
from fedlap.study.table.encoding import Pooled, Statistics


class Versions(NamedTuple):
    """The programs of the server or a site; all but Python's decide the last bits of a result."""

    fedlap: str
    jax: str
    precision: str
    python: str


class Points(NamedTuple):
    """The inputs that one site shows to all, and how many of its examples each stands for."""

    inputs: np.ndarray  # [m, features]
    weights: np.ndarray  # [m]


class Beginning(NamedTuple):
    """What all members begin with, and what stays fixed for the whole run."""

    pooled: Pooled
    sizes: np.ndarray  # [K] rows to train on, in the members' order
    memory: MemoryPoints | None  # the shared points, for an algorithm that has some


class Kept(NamedTuple):
    """What the server holds of a site's state, to be handed back to it."""

    beginning: Beginning
    contribution: Any  # the last of the site that counts


class HeldBack(NamedTuple):
    """Sums over the rows that a site holds back, to be added over members."""

    rows: int = 0
    correct: int = 0
    nll: float = 0.0


class Trained(NamedTuple):
    """A site's reply to a round: its term of the server's sum, and how well the model did before."""

    contribution: Any
    held_back: HeldBack


def versions() -> Versions:
    """The versions here."""
    return Versions(
        fedlap=metadata.version("fedlap"),
        jax=jax.__version__,
        precision=str(jax.numpy.zeros(()).dtype),
        python=platform.python_version(),
    )


def check_versions(member: str, facts: dict, here: Versions) -> None:
    """DataError unless a member has the programs that are here."""
    given = facts.get("versions")
    for name in ("fedlap", "jax", "precision"):
        found = given.get(name) if isinstance(given, dict) else given
        if found != getattr(here, name):
            raise DataError(f"{member} has {name} {found}, the server {getattr(here, name)}; expected the same")


def read_statistics(terms: Terms, arrays: Arrays, source: str) -> Statistics:
    """A member's statistics, of which the study has yet to say whether they can be."""
    return unpack(arrays, Statistics(_real(), *(_real(terms.numbers),) * 3), source)


def read_pooled(terms: Terms, arrays: Arrays) -> Pooled:
    """The statistics of all members together."""
    return unpack(arrays, _pooled(terms), "the pooled statistics")


def read_points(terms: Terms, arrays: Arrays, source: str) -> Points:
    """The points of one member, no more than the algorithm asks for."""
    points = unpack(arrays, Points(_form(np.float32, None, terms.features), _real(None)), source)
    count, most = len(points.inputs), terms.algorithm.memory * terms.classes
    if count > most:
        raise DataError(f"{source}: {count} points; expected at most {most}")
    if len(points.weights) != count:
        raise DataError(f"{source}: {len(points.weights)} weights of {count} points; expected one a point")
    return points


def read_beginning(terms: Terms, arrays: Arrays, source: str) -> Beginning:
    """What all members begin with; the sizes have yet to be compared with what is known of them."""
    count, memory = len(terms.members), None
    if terms.algorithm.memory:
        places, weights = _form(np.int32, count, None), _real(count, None)
        memory = MemoryPoints(_form(np.float32, None, terms.features), places, weights)
    beginning = unpack(arrays, Beginning(_pooled(terms), _form(np.int64, count), memory), source)
    if beginning.memory is not None:
        inputs, places, weights = beginning.memory
        if places.shape != weights.shape or (places.size and not 0 <= places.min() <= places.max() < len(inputs)):
            raise DataError(f"{source}: the members' places are not among the {len(inputs)} shared points")
    return beginning


def read_kept(terms: Terms, arrays: Arrays, like: Any, source: str) -> Kept:
    """What the server hands back; `like` is a contribution of this study."""
    beginning = read_beginning(terms, part(arrays, "beginning"), source)
    return unpack(arrays, Kept(beginning, like), source)


def read_held_back(member: str, facts: dict, before: int | None = None) -> HeldBack:
    """What a member says about the rows that it holds back; `before` is how many it has said there are."""
    given = facts.get("metrics")
    if not isinstance(given, dict) or given.keys() != set(HeldBack._fields):
        raise DataError(f"{member}: its metrics are not {', '.join(HeldBack._fields)}")
    for name, value in given.items():
        kinds = (int, float) if name == "nll" else (int,)
        if type(value) not in kinds or not 0 <= value < 1e15:
            raise DataError(f"{member}: its {name} of held-back rows is no number, or none that can be")
    held_back = HeldBack(**given)
    if held_back.correct > held_back.rows:
        raise DataError(f"{member}: {held_back.correct} right of {held_back.rows} held-back rows; no model is as good")
    if not held_back.rows and held_back.nll:
        raise DataError(f"{member}: an NLL of {held_back.nll:g} on no held-back rows")
    if before and held_back.rows and held_back.rows != before:
        raise DataError(f"{member}: {held_back.rows} held-back rows; it had {before} before, and they do not change")
    return held_back


def _pooled(terms: Terms) -> Pooled:
    return Pooled(_real(), *(_real(terms.numbers),) * 3)


def _real(*shape: int | None) -> Any:
    return _form(np.float64, *shape)


def _form(dtype: Any, *shape: int | None) -> Any:
    """A form in an array's place: `unpack` gives the record back with arrays where such forms stand."""
    return Form(dtype, shape)
