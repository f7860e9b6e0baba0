"""A run on disk: arrays by name and a few words about what they are, in one file, replaced atomically."""

import json
import os
from pathlib import Path

import jax
import numpy as np

from .errors import DataError

FORMAT = 2


def save(path, state, table, description):
    """Write to a neighbour, force it to disk, rename: a reader finds the old file or the new one, never half."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    arrays = {f"state{name}": np.asarray(leaf) for name, leaf in _named(state)}
    header = np.frombuffer(json.dumps({"format": FORMAT, **description}).encode(), np.uint8)
    unfinished = path.with_name(path.name + ".part")
    with open(unfinished, "wb") as file:
        np.savez(file, header=header, table=table, **arrays)
        file.flush()
        os.fsync(file.fileno())
    os.replace(unfinished, path)


def load(path, like, rows, description):
    """The state and the table of metrics of a checkpoint of this very run; `like` and `rows` give the shapes."""
    path = Path(path)
    if not path.exists():
        raise DataError(f"{path}: no checkpoint to resume from")
    header, table, arrays = _read(path)
    for key, value in {"format": FORMAT, **description}.items():
        if header.get(key) != value:
            other = f"its {key} is {header.get(key)}, this run's is {value}"
            raise DataError(f"{path}: a checkpoint of another run: {other}")
    leaves = []
    for name, leaf in _named(like):
        saved, leaf = arrays.get(f"state{name}"), np.asarray(leaf)
        if saved is None or saved.shape != leaf.shape or saved.dtype != leaf.dtype:
            found = "missing" if saved is None else f"{saved.dtype} {saved.shape}"
            raise DataError(f"{path}: state{name} is {found}; expected {leaf.dtype} {leaf.shape}")
        leaves.append(jax.numpy.asarray(saved))
    state = jax.tree.unflatten(jax.tree.structure(like), leaves)
    state = state._replace(round=int(state.round))
    expected = (state.round, *rows.shape[1:])
    if table.shape != expected:
        raise DataError(f"{path}: its table has shape {table.shape}; expected {expected}, a row a round")
    return state, table


def _read(path):
    try:
        with open(path, "rb") as opened, np.load(opened, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        header, table = json.loads(arrays["header"].tobytes()), arrays["table"]
    except Exception as error:  # a damaged archive fails in a dozen ways, each an exception of its own
        raise DataError(f"{path}: not a readable checkpoint ({error})") from error
    if not isinstance(header, dict):
        raise DataError(f"{path}: not a checkpoint: it does not say of what")
    return header, table, arrays


def _named(state):
    return [(jax.tree_util.keystr(path), leaf) for path, leaf in jax.tree_util.tree_leaves_with_path(state)]
