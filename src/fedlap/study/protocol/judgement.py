"""What the server believes: a contribution that can be, and a next model that sites can go on from.

Form and finite numbers are checked where a reply is read (`contents`). Here is what the algorithm and the study's own
past say beyond that. A model is judged before it replaces the last one; if it cannot, whoever made it so is found by
leaving members out.
"""

from collections.abc import Callable, Iterable, Sequence
from itertools import combinations
from typing import Any, NamedTuple

import jax
import numpy as np

from fedlap.algebra.soft_labels import SoftLabels
from fedlap.errors import DataError
from fedlap.study.protocol.messages import pack
from fedlap.study.protocol.positive import check_positive
from fedlap.study.protocol.terms import Start, Terms

RUINED = "sent what would have ruined the model"  # in the history, which all members get


class Damped(NamedTuple):
    """What a rule of damping may ask of a client."""

    n: float
    share: float
    count: int  # pyright: ignore[reportIncompatibleMethodOverride]  K, and not a tuple's count
    round: int


def check_contribution(terms: Terms, start: Start, name: str, round: int, sent: Any, before: Any) -> None:
    """DataError if a member's contribution cannot be: `before` is the last of its contributions that counts."""
    place, shards = terms.members.index(name), start.setup.shards
    rows = float(shards.n[place])
    if hasattr(sent, "n") and float(sent.n) != rows:
        raise DataError(f"{name}: a contribution of {float(sent.n):g} rows; it began with {rows:g}")
    if hasattr(sent, "reached"):
        k, expected = Damped(rows, float(shards.share[place]), len(terms.members), round), None
        if terms.divides:  # else it is of more than its own factor, whose past is not sent
            expected = terms.algorithm.reaches(float(before.reached), k)
        if expected is not None and not abs(float(sent.reached) - expected) <= 1e-5:
            raise DataError(f"{name}: its factor has reached {float(sent.reached):g}; expected {float(expected):g}")
        if not float(sent.reached) > 0:
            raise DataError(f"{name}: it has reached {float(sent.reached):g}; expected a number above 0")
    check_curvature(terms, name, sent)
    for labels in jax.tree.leaves(sent, is_leaf=_is_labels):
        if _is_labels(labels):
            _check_labels(name, np.asarray(labels.mass), np.asarray(labels.targets), np.asarray(shards.weights[place]))


def check_curvature(terms: Terms, name: str, sent: Any) -> None:
    """DataError if a contribution has a V that no curvature is.

    A sum of squares has nothing below zero; a matrix of them is symmetric, its eigenvalues known to rounding.
    """
    if not (hasattr(sent, "V") and terms.algorithm.expands):
        return
    V = np.asarray(sent.V)
    if V.ndim == 2:
        check_positive(name, V, "V")
    elif (V < 0).any():
        raise DataError(f"{name}: V has {int((V < 0).sum())} entries below zero; no curvature is negative")


def _is_labels(leaf: Any) -> bool:
    return isinstance(leaf, SoftLabels)


def _check_labels(name: str, mass: np.ndarray, targets: np.ndarray, own: np.ndarray) -> None:
    """What a member says of its memory points: probabilities, each point as heavy as it began."""
    rounding = 1e-4 * max(1.0, float(own.max(initial=0)))
    if np.abs(mass - own).max(initial=0) > rounding:
        raise DataError(f"{name}: its memory points weigh otherwise than at the beginning")
    if (targets < -rounding).any() or np.abs(targets.sum(-1) - mass).max(initial=0) > rounding:
        raise DataError(f"{name}: its soft labels are no probabilities")


# The next model -------------------------------------------------------------------------------------------------------


def judge(algorithm: Any, server: Any, source: str) -> None:
    """DataError unless a state of the server can replace the last one.

    All its numbers are finite, also in the precision of most machines, and so are wᵀw, Sw and wᵀSw, of which the
    sites' objectives are made; its precision is positive.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        for name, array in pack(server).items():
            if array.dtype.kind == "f":
                _finite(array.astype(np.float32), f"{source}: {name}")
        w = np.asarray(server.w, np.float32)
        _finite(w @ w, f"{source}: its weights' squares")
        precision = algorithm.precision(server)
        if precision is None:
            return
        S = np.asarray(precision, np.float32)
        Sw = S @ w if S.ndim == 2 else S * w
        _finite(Sw, f"{source}: its precision times its weights")
        _finite(w @ Sw, f"{source}: its precision times its weights' squares")
    diagonal = np.diagonal(S) if S.ndim == 2 else S
    if not (diagonal > 0).all():
        raise DataError(f"{source}: its precision is not positive")


def _finite(numbers: Any, what: str) -> None:
    wrong = ~np.isfinite(numbers)
    if wrong.any():
        raise DataError(f"{what} has {int(np.sum(wrong))} values that are not finite numbers")


class Possible(NamedTuple):
    """What could be made of replies, and without whose."""

    result: Any
    without: tuple[str, ...]


def found_without(
    members: Sequence[str],
    make: Callable[[Sequence[str]], Any],
    check: Callable[[Any], None],
    change: Callable[[str], float],
) -> Possible:
    """The model of these members' replies, or of all but one of them, or of all but two; DataError if none can be.

    `make(names)` is the model of some replies, `check` raises at one that cannot be. If it helps to leave out any of
    several members, the one whose contribution has changed most is left out.
    """
    error: DataError | None = None
    for count in range(3):
        found = []
        for out in combinations(sorted(members), count):
            result = make([name for name in members if name not in out])
            try:
                check(result)
            except DataError as wrong:
                error = error or wrong
            else:
                found.append((sum(map(change, out)), out, result))
        if found:
            _, out, result = max(found, key=lambda each: each[:2])
            return Possible(result, out)
    raise DataError(
        f"{error}, whichever two of {', '.join(members)} are left out; the model before it is kept: "
        "`fedlap study run --without NAME` goes on without a member for good"
    )


def change(new: Any, old: Any) -> float:
    """How far a contribution is from the last, in its largest number."""
    parts: Iterable[float] = (
        float(np.abs(np.asarray(a, np.float64) - np.asarray(b, np.float64)).max(initial=0))
        for a, b in zip(jax.tree.leaves(new), jax.tree.leaves(old), strict=True)
    )
    return max(parts, default=0.0)
