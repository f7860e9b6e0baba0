"""Tables with named columns, such as data frames, Arrow tables and dictionaries, as arrays.

Columns are matched by name: two tables of the same columns in another order are the same data. No library of tables is
imported; a table is whatever has names of columns, and gives a column for each of them.
"""

from collections.abc import Mapping
from numbers import Real
from typing import Any

import numpy as np

from fedlap.data import validation
from fedlap.data.coding import Coding
from fedlap.errors import DataError


def column_names(inputs: object) -> tuple | None:
    """The names of a table's columns; None if it is no table."""
    if isinstance(inputs, Mapping):
        return tuple(inputs)
    for attribute in ("column_names", "columns"):  # Arrow's `columns` are the columns themselves
        names = getattr(inputs, attribute, None)
        if names is not None and not callable(names):
            return tuple(names)
    return None


def matched(what: str, inputs: Any, features: tuple | None, reference: str) -> Any:
    """A table as an array, its columns in the order of `features`, which the reference has; an array as it is."""
    names = column_names(inputs)
    if names is None:
        if features is None:
            return inputs
        raise DataError(
            f"{what} has no column names but {reference} has; expected columns {validation.listing(features)}"
        )
    if features is None:
        raise DataError(f"{what} has column names but {reference} has none; expected names everywhere, or arrays")
    validation.same_names(what, names, features, reference)
    columns = [_column(what, name, inputs[name]) for name in features]
    for name, column in zip(features, columns, strict=True):
        if len(column) != len(columns[0]):
            raise DataError(
                f"{what}: column {name!r} has {len(column)} rows but column {features[0]!r} has {len(columns[0])}; "
                "expected as many in each"
            )
    return np.stack(columns, axis=1) if columns else np.zeros((0, 0))


def read(
    what: str, inputs: Any, shape: tuple[int, ...], features: tuple | None, reference: str, coding: Coding | None = None
) -> np.ndarray:
    """Inputs as an array of rows of one shape, in their one form.

    The columns of a table are matched by name, after they were coded as those of the clients if these were. Those of an
    array have no names, and are taken to be in the order of `features`.
    """
    names = column_names(inputs)
    if coding is not None and features is not None and names is not None and set(names) != set(features):
        inputs = coding.coded(what, inputs, reference)
    if features is None or column_names(inputs) is not None:
        inputs = matched(what, inputs, features, reference)
    inputs = validation.floating(what, inputs)
    validation.same_shape(what, inputs, reference, shape)
    validation.finite(inputs, lambda row: f"{what}, row {row}", features)
    return inputs


def _column(what: str, name: object, values: Any) -> np.ndarray:
    column = np.asarray(values)
    if column.ndim != 1:
        raise DataError(f"{what}: column {name!r} has shape {column.shape}; expected one number a row")
    if column.dtype.kind == "O":
        column = _numbers(what, name, column)
    if column.dtype.kind not in "buif":
        raise DataError(f"{what}: column {name!r} has values of type {column.dtype}; expected numbers")
    return column


def _numbers(what: str, name: object, column: np.ndarray) -> np.ndarray:
    """A column of objects as numbers, such as one with gaps; a gap is a NaN."""
    for row, value in enumerate(column):
        if not validation.missing(value) and not isinstance(value, (Real, np.bool_)):
            raise DataError(f"{what}, row {row}: column {name!r} is {value!r}; expected a number")
    return np.array([np.nan if validation.missing(value) else float(value) for value in column])
