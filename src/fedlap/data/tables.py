"""The bundled tables as text, and the split of their rows that the package carries."""

import json

import numpy as np

from fedlap.data import sources
from fedlap.data.catalogue import BUNDLED

MISSING = "?"


def read_table(dataset: str, file: str) -> tuple[np.ndarray, np.ndarray]:
    """All values of a bundled file as text [rows, columns], and which rows are test rows.

    The split is scikit-learn's, made once by tools/rebuild_bundled_data.py: row numbers cannot change under a
    new version of it, and users need not install it.
    """
    lines = sources.read(dataset, only=(file,))[file].decode("ascii").splitlines()
    values = np.array([line.split(",") for line in lines])
    numbers = json.loads((BUNDLED / "splits.json").read_text("ascii"))[file]
    return values, np.isin(np.arange(1, len(values) + 1), numbers)


def indicators(column: np.ndarray, drop_first: bool) -> np.ndarray:
    """One 0/1 column for each value, in sorted order; the first may be dropped, being 1 minus the others."""
    levels = np.unique(column)
    return (column[:, None] == levels[1 if drop_first else 0 :]).astype(np.float64)


def standardise(train: np.ndarray, *tables: np.ndarray) -> tuple[np.ndarray, ...]:
    """The tables with the mean and deviation of the first one; its constant columns are only centred."""
    mean, deviation = train.mean(axis=0), train.std(axis=0)
    scale = np.where(deviation > 0, deviation, 1)
    return tuple((table - mean) / scale for table in (train, *tables))
