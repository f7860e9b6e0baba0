"""How far each member has moved the model in a round, and who of them stands far outside."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from fedlap.study.protocol.line import length, metric, weights

FAR = 8.0  # standard deviations, as a median absolute deviation would estimate them
TIMES = 5.0  # and so often the median: where all are nearly alike, a little more is nothing
NORMAL = 1.4826  # a standard deviation in median absolute deviations, of normal numbers
SHOWN = 8  # members in a line


def influences(algorithm: Any, old: Any, new: Any, without: Callable[[str], Any], names: Sequence[str]) -> dict:
    """Of each member how far the model would be elsewhere without its reply.

    In posterior standard deviations where the algorithm has a precision; else as a part of the model's move.
    """
    now, precision = weights(new), metric(algorithm.precision(new))
    unit = 1.0 if precision is not None else length(now - weights(old), None)
    moved = {name: length(now - weights(without(name)), precision) for name in names}
    return {name: each / unit if unit > 0 else 0.0 for name, each in moved.items()}


def unit(algorithm: Any, server: Any) -> str:
    """What influences are counted in."""
    return "parts of the move" if algorithm.precision(server) is None else "posterior standard deviations"


def in_words(found: Mapping[str, float], unit: str) -> str:
    """The influences of a round for a screen, the largest first."""
    if not found:
        return ""
    order = sorted(found, key=lambda name: (-found[name], name))
    shown = ", ".join(f"{name} {found[name]:.2g}" for name in order[:SHOWN])
    more = f" and {len(order) - SHOWN} more less" if len(order) > SHOWN else ""
    return f"moved by {shown}{more} ({unit})"


def far_outside(rounds: Sequence[Mapping[str, float]], known: Sequence[Sequence[str]]) -> tuple[str, ...]:
    """Who of the last round stands far outside; `known` are those who did in the rounds before it.

    Influences are taken over the median of all in the same round, as they all become smaller when a run converges. A
    member's is compared with the others' now and with its own past, without the rounds in which it was outside: far is
    above the median of these by eight standard deviations (by the median absolute deviation), and above five times it.
    With two members nobody can say which of them stands outside.
    """
    *past, now = [_relative(found) for found in rounds]
    outside = []
    for name, own in now.items():
        before = [found[name] for found, names in zip(past, known, strict=True) if name in found and name not in names]
        reference = np.array([*(value for other, value in now.items() if other != name), *before])
        reference = reference[np.isfinite(reference)]
        if len(reference) < 2:
            continue
        middle = float(np.median(reference))
        spread = NORMAL * float(np.median(np.abs(reference - middle)))
        if own > middle + FAR * spread and own > TIMES * middle:
            outside.append(name)
    return tuple(outside)


def _relative(found: Mapping[str, float]) -> dict[str, float]:
    """Each influence over the median of all; infinite where that is nothing."""
    middle = float(np.median(list(found.values()))) if found else 0.0
    return {name: own / middle if middle > 0 else np.inf if own > 0 else 0.0 for name, own in found.items()}
