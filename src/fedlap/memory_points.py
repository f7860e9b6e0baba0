"""Which inputs the clients and the server share for FedLap-Func."""

from typing import NamedTuple

import numpy as np

from .streams import stream


class MemoryPoints(NamedTuple):
    inputs: np.ndarray  # [M, ...]
    mine: np.ndarray  # [K, m] places of each client's points in `inputs`
    weights: np.ndarray  # [K, m] how many examples a point stands for, N_kc / M_kc; 0 is padding


def draw_memory(federation, per_class, seed):
    """`per_class` random points of each class a client has; or the federation's public inputs, shared by all.

    A public point belongs to no class, so a client's N_k examples are spread evenly over them.
    """
    count = len(federation.clients)
    if per_class and federation.public is not None:
        size = len(federation.public)
        mine = np.tile(np.arange(size, dtype=np.int32), (count, 1))
        return MemoryPoints(federation.public, mine, np.repeat(federation.sizes[:, None] / size, size, axis=1))
    rows, owners, weights = [], [], []
    for k, (name, own) in enumerate(zip(federation.clients, federation.rows, strict=True)):
        rng = stream(seed, "memory", name)
        for label in range(federation.classes):
            of_class = own[federation.labels[own] == label]
            chosen = rng.permutation(of_class)[:per_class]
            rows.extend(chosen)
            owners.extend([k] * len(chosen))
            weights.extend([len(of_class) / max(1, len(chosen))] * len(chosen))
    width = np.bincount(owners, minlength=count).max() if owners else 0
    mine, padded = np.zeros((count, width), np.int32), np.zeros((count, width))
    filled = [0] * count
    for place, (k, weight) in enumerate(zip(owners, weights, strict=True)):
        mine[k, filled[k]], padded[k, filled[k]] = place, weight
        filled[k] += 1
    return MemoryPoints(federation.inputs[np.array(rows, int)], mine, padded)
