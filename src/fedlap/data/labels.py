"""Labels of any kind, and the classes that they stand for.

Inside, classes are 0 … C − 1; what the user calls them is remembered beside. What the labels alone do not say, such as
a class that no client has, is asked for and never guessed.
"""

from collections.abc import Iterable, Mapping, Set
from numbers import Real

import numpy as np

from fedlap.checks import whole_number
from fedlap.data import validation
from fedlap.errors import ConfigError, DataError

KINDS = "expected a whole number, a string or a boolean"
LARGEST = 2**53  # above it, not every whole number is a float


def read(what: str, labels: object) -> np.ndarray:
    """Labels in one of three forms: booleans, whole numbers, or strings, which are objects."""
    try:
        array = np.asarray(labels)
    except ValueError as error:
        raise DataError(f"{what}: labels of different lengths; expected one label per row, shape (rows,)") from error
    if array.dtype.kind == "U" and not isinstance(labels, np.ndarray):
        array = np.asarray(labels, object)  # of ["yes", nan], NumPy makes two strings
    if array.ndim != 1:
        raise DataError(f"{what}: labels of shape {array.shape}; expected one label per row, shape (rows,)")
    if array.dtype.kind == "O":
        array = _same_kind(what, array)
    if array.dtype.kind in "UT":
        array = array.astype(object)
    if array.dtype.kind in "uf":
        array = _whole_numbers(what, array)
    if array.dtype.kind not in "buiO":
        raise DataError(f"{what}: labels of type {array.dtype}; {KINDS}")
    return array


def names_of(clients: Mapping[str, np.ndarray], classes: object) -> tuple[int, tuple | None]:
    """How many classes there are, and their labels in order, or None if these are 0 … C − 1.

    `clients` are the labels of each client, by what it is called in a message; `classes` is what the user says of
    them: how many there are, a list of them, or nothing.
    """
    if classes is None:
        names = _implied(clients)
    elif isinstance(classes, Iterable) and not isinstance(classes, (str, bytes, Mapping, Set)):
        names = _listed(classes)
    else:
        names = _counted(clients, whole_number("classes", classes, least=2))
    if isinstance(names, range) or (names == tuple(range(len(names))) and not isinstance(names[0], bool)):
        return len(names), None
    return len(names), names


def encode(what: str, labels: np.ndarray, classes: int, names: tuple | None, hint: str = "") -> np.ndarray:
    """The number of each label's class, int32."""
    if names is not None:
        numbers = {name: number for number, name in enumerate(names)}
        labels = labels.tolist()
        codes = np.array([numbers.get(label, -1) for label in labels], np.int32)
        if codes.min(initial=0) < 0:
            row = int(np.argmin(codes))
            raise DataError(
                f"{what}, row {row}: label is {labels[row]!r}; expected one of {validation.listing(names)}{hint}"
            )
        return codes
    if labels.dtype.kind == "O":
        raise DataError(f"{what}, row 0: label is {labels[0]!r}; expected a whole number from 0 to {classes - 1}{hint}")
    return validation.class_labels(labels, classes, lambda row: f"{what}, row {row}", hint)


def checked_names(names: Iterable | None, classes: int) -> tuple | None:
    """The labels of a federation's classes: one for each."""
    if names is None:
        return None
    names = _listed(names)
    if len(names) != classes:
        raise ConfigError(f"class_names are {validation.listing(names)}; expected {classes}, one for each class")
    return names


def _implied(clients: Mapping[str, np.ndarray]) -> tuple | range:
    """The labels that clients have, if they leave no doubt about which classes there are."""
    (first, labels), *rest = clients.items()
    for what, others in rest:
        if (labels.dtype.kind == "O") != (others.dtype.kind == "O"):
            kinds = ["strings" if array.dtype.kind == "O" else "numbers" for array in (others, labels)]
            raise DataError(f"{what}: labels are {kinds[0]} but those of {first} are {kinds[1]}; expected one kind")
    if all(labels.dtype.kind == "b" for labels in clients.values()):
        return (False, True)
    distinct = _distinct(clients)
    rows = sum(map(len, clients.values()))
    if distinct[0] == 0:
        return _without_gaps(distinct, rows)
    if 0 in distinct[1:]:
        what, row = next((what, int(row)) for what, array in clients.items() for row in np.flatnonzero(array < 0)[:1])
        raise DataError(
            f"{what}, row {row}: label is {clients[what][row]}, beside labels from 0 on; expected 0, 1, 2, …; pass "
            f"classes=[{validation.listing(distinct)}] if it is a class"
        )
    if len(distinct) < 2:
        raise DataError(
            f"all labels are {distinct[0]!r}; expected at least two classes; pass classes= with all of them"
        )
    # Identifiers passed by mistake would otherwise ask for gigabytes of class counts.
    if len(distinct) > max(1000, rows / 2):
        raise DataError(
            f"{len(distinct)} different labels in {rows} rows; expected classes; pass classes= if it is meant"
        )
    return tuple(distinct)


def _without_gaps(distinct: list, rows: int) -> range:
    largest = distinct[-1]
    if largest >= max(1000, rows):
        raise DataError(
            f"the largest label, {largest:g}, implies more classes than there are labels ({rows}); "
            "expected labels 0, 1, 2, …; pass classes= if it is meant"
        )
    if len(distinct) <= largest:
        gap = next(number for number, label in enumerate(distinct) if number != label)
        raise DataError(
            f"labels are {validation.listing(distinct)}, and no client has {gap}; expected 0, 1, 2, … without a gap; "
            f"pass classes={largest + 1} if {gap} is a class, or a list of all labels, classes=[…]"
        )
    return range(max(2, largest + 1))


def _listed(classes: Iterable) -> tuple:
    try:
        names = tuple(read("classes", list(classes)).tolist())
    except DataError as error:
        raise ConfigError(str(error)) from error
    if len(names) < 2:
        raise ConfigError(f"classes are {list(names)}; expected at least two labels")
    seen = set()
    for name in names:
        if name in seen:
            raise ConfigError(f"classes has {name!r} twice; expected each label once")
        seen.add(name)
    return names


def _counted(clients: Mapping[str, np.ndarray], count: int) -> tuple | range:
    """The labels of so many classes: 0 … C − 1, or all that clients have if these are strings."""
    if all(labels.dtype.kind == "b" for labels in clients.values()) and count == 2:
        return (False, True)
    if any(labels.dtype.kind != "O" for labels in clients.values()):
        return range(count)
    distinct = _distinct(clients)
    if len(distinct) != count:
        raise DataError(
            f"labels are {validation.listing(distinct)} but classes is {count}; pass classes= with a list of all labels"
        )
    return tuple(distinct)


def _distinct(clients: Mapping[str, np.ndarray]) -> list:
    return sorted(set().union(*(labels.tolist() for labels in clients.values())))


def _same_kind(what: str, array: np.ndarray) -> np.ndarray:
    """Objects as strings, booleans or numbers."""
    for row, label in enumerate(array):
        if validation.missing(label) or not isinstance(label, (str, Real, np.bool_)):
            raise DataError(f"{what}, row {row}: label is {label!r}; {KINDS}")
        if isinstance(label, str) != isinstance(array[0], str):
            raise DataError(f"{what}, row {row}: label is {label!r} but row 0 has {array[0]!r}; expected one kind")
    if isinstance(array[0], str):
        return array
    numbers = np.array(array.tolist())
    return numbers.astype(float) if numbers.dtype.kind == "O" else numbers  # Python's largest numbers stay objects


def _whole_numbers(what: str, array: np.ndarray) -> np.ndarray:
    """Numbers as int64; an error for one that is not whole."""
    with np.errstate(invalid="ignore"):
        good = (array == np.floor(array)) & (np.abs(array) < LARGEST)
    if not good.all():
        row = int(np.argmin(good))
        regression = "; this looks like a regression" if np.isfinite(array[row]) and array[row] % 1 else ""
        raise DataError(f"{what}, row {row}: label is {array[row]}; {KINDS}{regression}")
    return array.astype(np.int64)
