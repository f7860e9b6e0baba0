"""Checkpoints: a run on disk, its state, its table of metrics, and what makes it this run and no other."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.tree_util import GetAttrKey, SequenceKey

from fedlap import files
from fedlap.engines.clients import Clients
from fedlap.engines.round import State
from fedlap.errors import DataError
from fedlap.files import PathLike

FORMAT = 5


def save(path: PathLike, state: State, table: np.ndarray, description: Mapping[str, Any]) -> None:
    """Replace the checkpoint."""
    named = [(jax.tree_util.keystr(place), leaf) for place, leaf in jax.tree_util.tree_leaves_with_path(state)]
    arrays = {f"state{name}": leaf for name, leaf in named}
    files.write_arrays(path, {"format": FORMAT, **description}, {"table": table, **arrays})


def load(path: PathLike, like: State, rows: np.ndarray, description: Mapping[str, Any]) -> tuple[State, np.ndarray]:
    """The state and the table of metrics of a checkpoint of this very run; `like` and `rows` give the shapes."""
    path = Path(path)
    if not path.exists():
        raise DataError(f"{path}: no checkpoint to resume from")
    try:
        with files.reading_arrays(path) as (header, arrays):
            _check_same(path, header, description)
            state, table = _state(path, arrays, like), arrays["table"]
    except DataError:
        raise
    except (OSError, ValueError, KeyError) as error:
        raise DataError(f"{path}: not a readable checkpoint ({error})") from error
    expected = (state.round, *rows.shape[1:])
    if table.shape != expected:
        raise DataError(f"{path}: its table has shape {table.shape}; expected {expected}, a row a round")
    return state, table


def _check_same(path: Path, header: Mapping[str, Any], description: Mapping[str, Any]) -> None:
    for key, value in {"format": FORMAT, **description}.items():
        if header.get(key) != value:
            difference = f"its {key} is {header.get(key)}, this run's is {value}"
            raise DataError(f"{path}: a checkpoint of another run: {difference}")


def _state(path: Path, arrays: Mapping[str, np.ndarray], like: State) -> State:
    """The state in these arrays; of clients who are kept one by one, one at a time is read and put where they are."""

    def read(place: tuple, leaf: Any) -> jax.Array:
        name = f"state{jax.tree_util.keystr(place)}"
        saved, wanted = arrays.get(name), np.asarray(leaf)
        if saved is None or saved.shape != wanted.shape or saved.dtype != wanted.dtype:
            other = "missing, as in a run of another engine, or with other devices or memory"
            problem = other if saved is None else f"{saved.dtype} {saved.shape}"
            raise DataError(f"{path}: {name} is {problem}; expected {wanted.dtype} {wanted.shape}")
        return jax.numpy.asarray(saved)

    def restored(tree: Any, *at: Any) -> Any:
        if isinstance(tree, Clients):
            return tree.of([tree.keep(restored(client, *at, SequenceKey(k))) for k, client in enumerate(tree)])
        return jax.tree_util.tree_map_with_path(lambda place, leaf: read((*at, *place), leaf), tree)

    fields = {field: restored(part, GetAttrKey(field)) for field, part in like._asdict().items()}
    return State(**fields)._replace(round=int(fields["round"]))
