"""The server's line over the members who are in a run, as often as a question about it needs: what if one were not?"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import jax
import numpy as np

from fedlap.engines.sequential import run_server
from fedlap.study.protocol.terms import Start, Terms

Contributions = Mapping[str, Any]  # by member


class ServerLine:
    """Line 3 of the study's algorithm, summed over these members in the study's order.

    Where a sum has a term of each member, one who is not among these has none: its factor is divided out.
    """

    def __init__(self, terms: Terms, start: Start, members: Sequence[str]) -> None:
        self.algorithm, self.members = terms.algorithm, tuple(members)
        places = np.array([terms.members.index(name) for name in members])
        everyone = len(places) == len(terms.members)
        shards = jax.tree.map(lambda leaf: leaf[places], start.setup.shards)
        self.setup = start.setup if everyone else replace(start.setup, shards=shards)

    def run(self, server: Any, contributions: Contributions, drawn: Collection[str]) -> Any:
        """The server's state after a round in which the drawn have answered; of the others it has their last."""
        took_part = np.array([name in drawn for name in self.members])
        return run_server(self.setup, server, tuple(contributions[name] for name in self.members), took_part)


def weights(server: Any) -> np.ndarray:
    """The weights of a state as flat numbers, in double precision."""
    return np.asarray(server.w, np.float64)


def metric(precision: Any) -> np.ndarray | None:
    """A precision as numbers to measure lengths by: [P] or [P, P]; None where there is none."""
    return None if precision is None else np.asarray(precision, np.float64)


def length(step: np.ndarray, precision: np.ndarray | None) -> float:
    """The length of a step, in posterior standard deviations if a precision is given; infinite if it is no number."""
    with np.errstate(over="ignore", invalid="ignore"):
        if precision is None:
            square = step @ step
        else:
            square = step @ (precision @ step if precision.ndim == 2 else precision * step)
        return float(np.sqrt(max(square, 0.0))) if np.isfinite(square) else np.inf
