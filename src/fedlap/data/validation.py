"""Checks of a federation's arrays; every message says whose row is at fault and what was expected."""

from collections.abc import Callable, Mapping, Sequence
from numbers import Real
from typing import Annotated

import numpy as np

from fedlap.checks import is_number, whole_number
from fedlap.domains import FromRun, parameters
from fedlap.errors import ConfigError, DataError, unknown

Seed = Annotated[int, FromRun.SEED]  # of a federation that is divided anew for every seed
Where = Callable[[int], str]  # the name of a row, for a message


def floating(what: str, array: object) -> np.ndarray:
    """A read-only floating array of shape [rows, ...]; whole numbers are promoted without loss."""
    array = _numeric(what, array)
    if array.ndim < 2:
        raise DataError(f"{what}: inputs of shape {array.shape}; expected one row of features per point")
    if 0 in array.shape[1:]:
        raise DataError(f"{what}: inputs of shape {array.shape} have no features; expected at least one")
    # result_type keeps float64, and takes uint8 pixels to float32 rather than to eight bytes each.
    dtype = np.float64 if array.dtype.itemsize > 8 else np.result_type(array.dtype, np.float32)
    return read_only(array.astype(dtype, copy=False))


def label_array(what: str, array: object) -> np.ndarray:
    """Numbers of classes as a one-dimensional array, not yet checked to be classes."""
    array = _numeric(what, array)
    if array.ndim != 1:
        raise DataError(f"{what}: labels of shape {array.shape}; expected one label per row, shape (rows,)")
    return array


def read_only(array: np.ndarray) -> np.ndarray:
    """The same numbers, through a view that cannot be written to."""
    view = np.ascontiguousarray(array).view()
    view.setflags(write=False)
    return view


def same_length(what: str, inputs: np.ndarray, labels: np.ndarray) -> None:
    """Raise a DataError unless there are as many labels as rows."""
    if len(inputs) != len(labels):
        raise DataError(f"{what}: {len(inputs)} rows of inputs but {len(labels)} labels; expected as many of each")


def same_shape(what: str, inputs: np.ndarray, other: str, shape: tuple[int, ...]) -> None:
    """Raise a DataError unless rows have this shape, which those of `other` have."""
    if inputs.shape[1:] != shape:
        raise DataError(
            f"{what} has rows of shape {inputs.shape[1:]} but {other} has rows of shape {shape}; "
            "expected the same features everywhere"
        )


def same_names(what: str, names: Sequence, features: Sequence, reference: str) -> None:
    """Raise a DataError unless columns are named as those of the reference, in whatever order."""
    expected, present = set(features), set(names)
    if len(present) < len(names):
        twice = next(name for place, name in enumerate(names) if name in names[:place])
        raise DataError(f"{what}: two columns are named {twice!r}; expected unique names")
    wrong = [
        f"{verb} {listing(wrong)}"
        for verb, wrong in [
            ("lacks", [name for name in features if name not in present]),
            ("has also", [name for name in names if name not in expected]),
        ]
        if wrong
    ]
    if wrong:
        raise DataError(f"{what}: its columns are not those of {reference}: it {' and '.join(wrong)}")


def not_empty(what: str, array: np.ndarray) -> None:
    """Raise a DataError unless there is at least one row."""
    if len(array) == 0:
        raise DataError(f"{what} has no rows; expected at least one")


def finite(inputs: np.ndarray, where: Where, features: Sequence | None = None) -> None:
    """Raise a DataError for an infinity or a NaN; columns are called by their names in `features`, if they have any."""
    good = np.isfinite(inputs)
    if not good.all():
        row, *column = np.argwhere(~good)[0].tolist()
        place = column[0] if len(column) == 1 else tuple(column)
        shown = place if features is None else repr(features[column[0]])
        value = inputs[np.nonzero(~good)][0]
        raise DataError(f"{where(row)}, column {shown}: input is {value}; expected a finite number")


def class_labels(labels: np.ndarray, classes: int, where: Where, hint: str = "") -> np.ndarray:
    """Labels as int32, each one of 0 … classes − 1."""
    with np.errstate(invalid="ignore"):
        good = (labels == np.floor(labels)) & (labels >= 0) & (labels < classes)
    if not good.all():
        row = int(np.argmin(good))
        raise DataError(f"{where(row)}: label is {labels[row]}; expected a whole number from 0 to {classes - 1}{hint}")
    return read_only(labels.astype(np.int32))


def client_names(names: Sequence[str], count: int) -> tuple[str, ...]:
    """Unique names, one for each client."""
    if count == 0:
        raise DataError("a federation of no clients; expected at least one")
    if len(names) != count:
        raise DataError(f"{len(names)} names for {count} clients; expected one name for each")
    seen = set()
    for position, name in enumerate(names):
        if not isinstance(name, str) or not name:
            raise DataError(f"the name of client {position} is {name!r}; expected a non-empty string")
        if name in seen:
            raise DataError(f"two clients are named {name!r}; expected unique names")
        seen.add(name)
    return tuple(names)


def feature_names(names: Sequence | None, inputs: np.ndarray) -> tuple | None:
    """The names of the columns of a table of inputs, one for each."""
    if names is None:
        return None
    names = tuple(names)
    if inputs.shape[1:] != (len(names),):
        raise DataError(f"{len(names)} names of features for inputs of shape {inputs.shape[1:]}; expected one each")
    return names


def row_numbers(names: Sequence[str], rows: Sequence[object], size: int) -> tuple[np.ndarray, ...]:
    """Row numbers of each client as int32: in the pool, at least one each, and none used twice."""
    owner = np.full(size, -1, np.int32)
    checked = []
    for client, client_rows in enumerate(rows):
        what = f"client {names[client]!r}"
        numbers = np.asarray(client_rows)
        if numbers.ndim == 1:
            not_empty(what, numbers)
        if numbers.ndim != 1 or not np.issubdtype(numbers.dtype, np.integer):
            raise DataError(
                f"{what}: rows are {numbers.dtype} of shape {numbers.shape}; expected a list of row numbers"
            )
        outside = (numbers < 0) | (numbers >= size)
        if outside.any():
            raise DataError(f"{what}: row number {numbers[outside][0]}; expected 0 to {size - 1}, the rows of the pool")
        unique, counts = np.unique(numbers, return_counts=True)
        taken = unique[(owner[unique] >= 0) | (counts > 1)]
        if len(taken):
            other = int(owner[taken[0]]) if owner[taken[0]] >= 0 else client
            raise DataError(
                f"row {taken[0]} of the pool is given to client {names[other]!r} and again to {what}; "
                "expected each row at most once"
            )
        owner[numbers] = client
        checked.append(read_only(numbers.astype(np.int32)))
    return tuple(checked)


def known_options(function: Callable, options: Mapping[str, object]) -> None:
    """Raise a ConfigError for an option that a function does not have, or needs and does not get."""
    arguments = parameters(function)
    for name in options:
        if name not in arguments:
            raise unknown(f"option of {function.__name__}", name, arguments)
    for name, parameter in arguments.items():
        if parameter.default is parameter.empty and name not in options:
            raise ConfigError(f"{function.__name__} needs the option {name!r}")


def fraction_of_rows(value: object) -> float:
    """A setting that says how much of something to take, as a float."""
    if not (is_number(value) and 0 < value <= 1):
        raise ConfigError(f"fraction is {value!r}; expected a number above 0, at most 1")
    return float(value)


def generator(seed: object) -> np.random.Generator:
    """The random generator of a seed."""
    return np.random.default_rng(whole_number("seed", seed, least=0))


def missing(value: object) -> bool:
    """Whether an object stands for no value: None, NaN, or what tables have for them."""
    nan = isinstance(value, Real) and value != value
    return value is None or nan or type(value).__name__ in ("NAType", "NaTType")


def listing(names: Sequence, shown: int = 10) -> str:
    """Names for a message, the first of them if they are many."""
    more = ", …" if len(names) > shown else ""
    return ", ".join(repr(name) for name in names[:shown]) + more


def _numeric(what: str, array: object) -> np.ndarray:
    try:
        array = np.asarray(array)
    except ValueError as error:
        raise DataError(f"{what}: rows of different lengths; expected a rectangular array") from error
    if not (np.issubdtype(array.dtype, np.floating) or array.dtype.kind in "bui"):
        raise DataError(f"{what}: values of type {array.dtype}; expected real numbers")
    return array
