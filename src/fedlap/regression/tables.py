"""Results as pandas' tables. pandas is an extra, imported where a table is asked for."""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fedlap.errors import ConfigError

if TYPE_CHECKING:
    import pandas as pd

Index = Sequence[Any]  # names; pairs of them where there are two levels
CURE = 'pip install "fedlap[stats]"'


def pandas() -> Any:
    """The library; an error that says how to get it if it is not here."""
    try:
        import pandas
    except ImportError as error:
        raise ConfigError(f"regressions need pandas and formulaic, which are not here; {CURE}") from error
    return pandas


def series(values: Iterable[float], index: Index) -> "pd.Series":
    """Numbers with names."""
    return pandas().Series(np.asarray(values, float), index=labels(index))


def frame(
    values: np.ndarray | Mapping[str, Any], index: Iterable[Any], columns: Index, levels: Sequence[str] | None = None
) -> "pd.DataFrame":
    """Rows and columns with names; `levels` are the names of the rows' own levels."""
    if isinstance(values, np.ndarray):
        return pandas().DataFrame(values, index=labels(index, levels), columns=labels(columns))
    return pandas().DataFrame(dict(values), index=labels(index, levels))[list(columns)]


def labels(index: Iterable[Any], levels: Sequence[str] | None = None) -> Any:
    """An index; pairs make one of two levels."""
    entries = list(index)
    if entries and isinstance(entries[0], tuple):
        flat = [tuple(_flat(entry)) for entry in entries]
        return pandas().MultiIndex.from_tuples(flat, names=levels if levels and len(levels) == len(flat[0]) else None)
    return pandas().Index(entries)


def _flat(entry: tuple) -> Iterable[Any]:
    for part in entry:
        if isinstance(part, tuple):
            yield from _flat(part)
        else:
            yield part
