"""Checkpoints: a run on disk, its state, its table of metrics, and what makes it this run and no other."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from fedlap import files
from fedlap.engines.round import State
from fedlap.errors import DataError
from fedlap.files import PathLike

FORMAT = 3


def save(path: PathLike, state: State, table: np.ndarray, description: Mapping[str, Any]) -> None:
    """Replace the checkpoint."""
    arrays = {f"state{name}": np.asarray(leaf) for name, leaf in _named(state)}
    files.write_arrays(path, {"format": FORMAT, **description}, {"table": table, **arrays})


def load(path: PathLike, like: State, rows: np.ndarray, description: Mapping[str, Any]) -> tuple[State, np.ndarray]:
    """The state and the table of metrics of a checkpoint of this very run; `like` and `rows` give the shapes."""
    path = Path(path)
    if not path.exists():
        raise DataError(f"{path}: no checkpoint to resume from")
    header, table, arrays = _read(path)
    for key, value in {"format": FORMAT, **description}.items():
        if header.get(key) != value:
            difference = f"its {key} is {header.get(key)}, this run's is {value}"
            raise DataError(f"{path}: a checkpoint of another run: {difference}")
    leaves = []
    for name, leaf in _named(like):
        saved, leaf = arrays.get(f"state{name}"), np.asarray(leaf)
        if saved is None or saved.shape != leaf.shape or saved.dtype != leaf.dtype:
            problem = "missing" if saved is None else f"{saved.dtype} {saved.shape}"
            raise DataError(f"{path}: state{name} is {problem}; expected {leaf.dtype} {leaf.shape}")
        leaves.append(jax.numpy.asarray(saved))
    state = jax.tree.unflatten(jax.tree.structure(like), leaves)
    state = state._replace(round=int(state.round))
    expected = (state.round, *rows.shape[1:])
    if table.shape != expected:
        raise DataError(f"{path}: its table has shape {table.shape}; expected {expected}, a row a round")
    return state, table


def _read(path: Path) -> tuple[dict[str, Any], np.ndarray, dict[str, np.ndarray]]:
    try:
        header, arrays = files.read_arrays(path)
        return header, arrays.pop("table"), arrays
    except (OSError, ValueError, KeyError) as error:
        raise DataError(f"{path}: not a readable checkpoint ({error})") from error


def _named(state: State) -> list[tuple[str, Any]]:
    return [(jax.tree_util.keystr(path), leaf) for path, leaf in jax.tree_util.tree_leaves_with_path(state)]
