"""Memory points: which inputs the clients and the server share for FedLap-Func."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np

from fedlap.streams import stream


class Holdings(Protocol):
    """What is asked of a federation: who holds which rows of one pool."""

    @property
    def clients(self) -> Sequence[str]: ...
    @property
    def inputs(self) -> np.ndarray: ...
    @property
    def labels(self) -> np.ndarray: ...
    @property
    def rows(self) -> Sequence[np.ndarray]: ...
    @property
    def sizes(self) -> np.ndarray: ...
    @property
    def classes(self) -> int: ...
    @property
    def public(self) -> np.ndarray | None: ...


class MemoryPoints(NamedTuple):
    """All clients' points. Studies send and store it, each array under the name of its field."""

    inputs: np.ndarray  # [M, ...]
    mine: np.ndarray  # [K, m] places of each client's points in `inputs`
    weights: np.ndarray  # [K, m] how many examples a point stands for, N_kc / M_kc; 0 is padding


def draw_memory(federation: Holdings, per_class: int, seed: int) -> MemoryPoints:
    """`per_class` random points of each class a client has; or the federation's public inputs, shared by all.

    A public point belongs to no class, so a client's N_k examples are spread evenly over them.
    """
    count = len(federation.clients)
    if per_class and federation.public is not None:
        size = len(federation.public)
        places = np.tile(np.arange(size, dtype=np.int32), (count, 1))
        return MemoryPoints(federation.public, places, np.repeat(federation.sizes[:, None] / size, size, axis=1))
    chosen = [
        choose_points(federation.labels[rows], federation.classes, per_class, seed, name)
        for name, rows in zip(federation.clients, federation.rows, strict=True)
    ]
    inputs = [federation.inputs[rows[places]] for rows, (places, _) in zip(federation.rows, chosen, strict=True)]
    return join_points(inputs, [weights for _, weights in chosen])


def choose_points(
    labels: np.ndarray, classes: int, per_class: int, seed: int, name: str
) -> tuple[np.ndarray, np.ndarray]:
    """Which of a client's rows it shows to the others, and how many of its examples each stands for."""
    rng = stream(seed, "memory", name)
    members = [np.flatnonzero(labels == label) for label in range(classes)]
    chosen = [rng.permutation(rows)[:per_class] for rows in members]
    weights = [
        np.full(len(points), len(rows) / max(1, len(points))) for points, rows in zip(chosen, members, strict=True)
    ]
    return np.concatenate(chosen), np.concatenate(weights)


def join_points(inputs: Sequence[np.ndarray], weights: Sequence[np.ndarray]) -> MemoryPoints:
    """All clients' points one after the other; a client with fewer than the most is padded with weightless ones."""
    sizes = list(map(len, weights))
    places, padded = np.zeros((len(sizes), max(sizes)), np.int32), np.zeros((len(sizes), max(sizes)))
    for k, (begin, size) in enumerate(zip(np.cumsum([0, *sizes]), sizes, strict=False)):
        places[k, :size], padded[k, :size] = np.arange(begin, begin + size), weights[k]
    return MemoryPoints(np.concatenate(inputs), places, padded)
