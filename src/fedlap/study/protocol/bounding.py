"""[robust] in a study file: what one member may move the model by in a round.

A round's replies are factors t_j; before them the server had the factors u_j. Lengths are in posterior standard
deviations of the model as it was, ‖d‖² = dᵀSd (Euclid's where the algorithm has no precision). With

    a_j = how far the model moves if j alone has replied
    T   = bound × the lower median of the a_j of all who have replied

the server's line takes u_j + s_j (t_j − u_j), 0 ≤ s_j ≤ 1, instead of t_j. All s_j begin at 1; as long as leaving some
member as it was would change the model by more than T, that of the member with the largest such change is made smaller.

What holds, whatever member k sends: the model differs from the one in which k has stayed as it was, and the others are
taken as they were, by at most T, because the rule does not end before that is so; it does end, as s_k = 0 is a change
of nothing. And T ≤ B_k, in which k has no part: each a_j depends on j's own reply and on the past alone. The lower
median of K numbers is the one at place (K−1)//2, counted from 0; wherever a_k comes in between the K−1 others, that one
is at most the other at the same place, and B_k is bound times this other.

So what one member can add up over a run shrinks with what the honest ones still move. Where all are honest and the
rounds go on until nothing moves, s = 1 at the end, and the model is the same. It does not hold against as many members
as half of those who reply, nor where one has replied alone.
"""

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from fedlap.study.protocol.line import Contributions, ServerLine, length, metric, weights

SMALLEST = 1e-6  # a part of a reply below which it counts as none
SHRINK = 0.95  # a little more than a linear line would need


def bounded(line: ServerLine, server: Any, before: Contributions, new: Mapping[str, Any], bound: float) -> dict:
    """The replies as far as the bound lets them count."""
    precision = metric(line.algorithm.precision(server))
    solo = alone(line, server, before, new)
    most = bound * middle(solo.values())
    parts = dict.fromkeys(new, 1.0)
    while True:
        used = {name: _between(before[name], reply, parts[name]) for name, reply in new.items()}
        whole = weights(line.run(server, {**before, **used}, new))
        moved = {}
        for name in new:
            stays = {**before, **used, name: before[name]}
            moved[name] = length(whole - weights(line.run(server, stays, new)), precision) if parts[name] else 0.0
        worst = max(moved, key=lambda name: (moved[name], solo[name]))
        if moved[worst] <= most:
            return used
        shrunk = parts[worst] * (SHRINK * most / moved[worst])
        parts[worst] = shrunk if shrunk > SMALLEST else 0.0


def alone(line: ServerLine, server: Any, before: Contributions, new: Mapping[str, Any]) -> dict[str, float]:
    """How far the model moves if one has replied and nobody else, of each."""
    precision, stays = metric(line.algorithm.precision(server)), weights(line.run(server, before, ()))
    return {
        name: length(weights(line.run(server, {**before, name: reply}, (name,))) - stays, precision)
        for name, reply in new.items()
    }


def middle(numbers: Any) -> float:
    """The lower median."""
    ordered = sorted(numbers)
    return ordered[(len(ordered) - 1) // 2]


def _between(old: Any, new: Any, part: float) -> Any:
    """The tree so far on the way from the old one to the new; at the ends these themselves, bit for bit."""
    if part in (0.0, 1.0):
        return new if part else old
    return jax.tree.map(lambda a, b: a + np.asarray(part, a.dtype) * (b - a), old, new)
