"""Many clients' states in memory, of which a round replaces some: as values, at the cost of those that change."""

import threading
from typing import Any, cast

import jax
import numpy as np

from fedlap.arrays import Tree


class Persistent:
    """All clients' states as one stack of arrays, [K, …], as it was after one round.

    The latest version has the arrays. When some clients change, the new version takes the arrays over and the old one
    remembers what it had in their place (Baker's persistent arrays): who still holds it can read it and go on from it,
    and if nobody does, it is gone at once. Whoever holds one keeps what has changed since.
    """

    __slots__ = ("_arrays", "_lock", "_newer", "_old")

    def __init__(self, arrays: Tree, lock: Any = None) -> None:
        self._arrays: Tree | None = arrays
        self._lock = lock or threading.RLock()  # one for all versions, as they share the arrays
        self._newer: Persistent | None = None  # the version that has the arrays, or knows who has
        self._old: tuple[np.ndarray, Tree] | None = None  # in which places it differs from that one, and how

    @classmethod
    def of(cls, state: Tree, count: int) -> "Persistent":
        """So many clients in the same state."""
        return cls(jax.tree.map(lambda leaf: np.repeat(np.asarray(leaf)[None], count, axis=0), state))

    def at(self, places: np.ndarray) -> Tree:
        """The states of some clients, stacked: a copy."""
        with self._lock:
            return jax.tree.map(lambda leaf: leaf[places], self._have())

    def replaced(self, places: np.ndarray, new: Tree) -> "Persistent":
        """The version after these clients have changed."""
        with self._lock:
            arrays = self._have()
            if all(len(leaf) == len(places) for leaf in jax.tree.leaves(arrays)):
                return Persistent(new)
            old = self.at(places)
            put(arrays, places, new)
            newer = Persistent(arrays, self._lock)
            self._arrays, self._newer, self._old = None, newer, (places, old)
            return newer

    def __reduce__(self) -> tuple:
        """Pickled, it is this version alone."""
        return Persistent, (self.stacked,)

    def room(self, count: int) -> Tree:
        """Arrays for the states of so many clients, yet to be written."""
        with self._lock:
            return jax.tree.map(lambda leaf: np.empty((count, *leaf.shape[1:]), leaf.dtype), self._have())

    @property
    def factor(self) -> Tree:
        return self.stacked.factor

    @property
    def solver(self) -> Tree:
        return self.stacked.solver

    @property
    def contribution(self) -> Tree:
        return self.stacked.contribution

    @property
    def stacked(self) -> Any:
        """All states, a copy: the arrays themselves change."""
        with self._lock:
            return jax.tree.map(np.copy, self._have())

    def _have(self) -> Any:
        """The arrays, taken back from a newer version if need be."""
        if self._arrays is None:
            chain: list[Persistent] = [self]
            while (newer := chain[-1]._newer) is not None:
                chain.append(newer)
            for older, newer in zip(chain[-2::-1], chain[:0:-1], strict=True):
                older._take_back(newer)
        return self._arrays

    def _take_back(self, newer: "Persistent") -> None:
        arrays, (places, mine) = newer._arrays, cast(tuple[np.ndarray, Tree], self._old)
        theirs = jax.tree.map(lambda leaf: leaf[places], arrays)
        put(arrays, places, mine)
        self._arrays, self._newer, self._old = arrays, None, None
        newer._arrays, newer._newer, newer._old = None, self, (places, theirs)


def put(arrays: Tree, places: Any, new: Tree) -> None:
    """Write rows to some places of a stack."""
    leaf: Any
    for leaf, rows in zip(jax.tree.leaves(arrays), jax.tree.leaves(new), strict=True):
        leaf[places] = rows


jax.tree_util.register_pytree_with_keys(
    Persistent,
    lambda versions: ([(jax.tree_util.GetAttrKey("stacked"), versions.stacked)], None),
    lambda _, children: Persistent(jax.tree.map(np.array, *children)),
    lambda versions: ([versions.stacked], None),
)
