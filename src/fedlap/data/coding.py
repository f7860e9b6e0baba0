"""Tables of several clients as numbers: what their columns are, the levels that clients agree on, and rows so coded.

A number is a column of inputs, a truth value one of zeros and ones, and a category one for each of its levels but the
first, which is all of these being zero. What clients do not agree on is an error that says whose column it is.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from decimal import Decimal
from numbers import Real
from typing import Any, NamedTuple, Self

import numpy as np

from fedlap.data import validation
from fedlap.errors import ConfigError, DataError, nearest, unknown

MOST_LEVELS = 50  # of a category that nobody has listed: more of them are names of rows
SAID = {"number": "a number", "truth": "a truth value", "category": "text"}


class Entries(NamedTuple):
    """One column of a table, no value missing."""

    kind: str  # number, truth or category
    values: np.ndarray
    declared: tuple | None = None  # the levels that its type has
    codes: bool = False  # whether its type says that numbers are levels


def entries(what: str, table: Any) -> dict[Any, Entries]:
    """The columns of a table by name; `what` is whose table it is, for a message."""
    if isinstance(table, Mapping):
        return {name: _of_objects(what, name, list(column)) for name, column in table.items()}
    import narwhals  # takes as long as NumPy to import

    try:
        frame = narwhals.from_native(table, eager_only=True)
    except narwhals.exceptions.DuplicateError as error:
        names = list(table.columns)
        twice = next(name for place, name in enumerate(names) if name in names[:place])
        raise DataError(f"{what}: two columns are named {twice!r}; expected unique names") from error
    except TypeError as error:
        kind = type(table).__name__
        cure = "; call its collect() first" if kind == "LazyFrame" else ""
        raise DataError(
            f"{what}: {kind}; expected a data frame of pandas or polars, or an Arrow table{cure}"
        ) from error
    return {name: _of_series(what, name, frame[name], narwhals) for name in frame.columns}


def _of_series(what: str, name: Any, series: Any, narwhals: Any) -> Entries:
    dtype = series.dtype
    if dtype.is_temporal():
        raise _unusable(what, name, "holds dates")
    if dtype.is_numeric() and not dtype.is_decimal() and not series.is_null().any():
        return Entries("number", _present(what, name, series.to_numpy()))
    declared = tuple(dtype.categories) if isinstance(dtype, narwhals.Enum) else None
    column = _of_objects(what, name, series.to_list(), declared)
    if column.kind != "category" and dtype in (narwhals.Categorical, narwhals.Enum):
        return column._replace(codes=True)
    return column


def _of_objects(what: str, name: Any, values: list, declared: tuple | None = None) -> Entries:
    """A column of Python's objects, which must be of one kind."""
    kinds: dict[str, int] = {}  # and the first row of each
    for row, value in enumerate(values):
        if validation.missing(value):
            raise DataError(f"{what}, row {row}: column {name!r} is missing; fill it in, or leave the row out")
        kinds.setdefault(_kind(what, name, value), row)
    if set(kinds) == {"number", "truth"}:
        kinds = {"number": 0}
    if len(kinds) > 1:
        (first, _), (second, row) = list(kinds.items())[:2]
        raise DataError(
            f"{what}, row {row}: column {name!r} is {values[row]!r}, {SAID[second]}; expected {SAID[first]}"
        )
    (kind,) = kinds or {"number": 0}
    if kind == "category":
        return Entries(kind, np.array(values, object), declared)
    return Entries(kind, np.array(values, float if kind == "number" else bool))


def _kind(what: str, name: Any, value: Any) -> str:
    if isinstance(value, (bool, np.bool_)):
        return "truth"
    if isinstance(value, (Real, Decimal)):
        return "number"
    if isinstance(value, str):
        return "category"
    raise _unusable(what, name, "holds dates" if hasattr(value, "isoformat") else f"holds a {type(value).__name__}")


def _unusable(what: str, name: Any, holds: str) -> DataError:
    return DataError(
        f"{what}: column {name!r} {holds}; expected numbers, truth values or text: make it so, or leave it out"
    )


def _present(what: str, name: Any, values: np.ndarray) -> np.ndarray:
    if values.dtype.kind == "f" and np.isnan(values).any():
        row = int(np.isnan(values).argmax())
        raise DataError(f"{what}, row {row}: column {name!r} is missing; fill it in, or leave the row out")
    return values


# What clients agree on ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Coding:
    """The columns that clients agree on, and of those that are categories the levels, the first being the reference."""

    target: str  # which is not looked at in new rows
    columns: tuple
    levels: Mapping[Any, tuple]

    @property
    def features(self) -> tuple:
        """The names of the inputs: each number, and each level but the reference."""
        names = []
        for name in self.columns:
            names += [f"{name}={level}" for level in self.levels[name][1:]] if name in self.levels else [name]
        return tuple(names)

    def coded(self, what: str, table: Any, reference: str) -> dict[Any, np.ndarray]:
        """The inputs of a table's rows, by the names of the features; `reference` is whose columns are expected."""
        return self.code(what, entries(what, table), reference)

    def code(self, what: str, table: Mapping[Any, Entries], reference: str) -> dict[Any, np.ndarray]:
        """The same of a table that has been read."""
        names = [name for name in table if name != self.target]
        validation.same_names(what, names, self.columns, reference)
        features: dict[Any, np.ndarray] = {}
        for name in self.columns:
            if name in self.levels:
                place = self._places(what, name, table[name].values.tolist())
                features |= {f"{name}={level}": place == k for k, level in enumerate(self.levels[name]) if k > 0}
            elif table[name].kind == "category":
                value = table[name].values[0]
                raise DataError(f"{what}, row 0: column {name!r} is {value!r}; expected a number, as {reference} has")
            else:
                features[name] = table[name].values
        return features

    def _places(self, what: str, name: Any, values: list) -> np.ndarray:
        levels = {level: place for place, level in enumerate(self.levels[name])}
        for row, value in enumerate(values):
            if value not in levels:
                near = nearest(str(value), [str(level) for level in levels])
                hint = f"; did you mean {near!r}?" if near else ""
                raise DataError(
                    f"{what}, row {row}: column {name!r} is {value!r}; expected one of "
                    f"{validation.listing(list(levels))}{hint}"
                )
        return np.array([levels[value] for value in values], int)

    def as_dict(self) -> dict[str, Any]:
        """The coding as data that JSON carries."""
        return {**asdict(self), "levels": [[name, list(levels)] for name, levels in self.levels.items()]}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """The coding that `as_dict` made data of."""
        levels = {name: tuple(each) for name, each in data["levels"]}
        return cls(data["target"], tuple(data["columns"]), levels)


def agree(tables: Mapping[str, Mapping[Any, Entries]], target: str, said: Mapping[Any, Sequence]) -> Coding:
    """The coding of tables by whose they are; `said` has the levels of columns that are categories, if the user knows.

    Unsaid, all tables must have the same levels: by their type, or in their rows.
    """
    for owner, table in tables.items():
        if target not in table:
            near = nearest(target, [str(name) for name in table])
            hint = f"; did you mean {near!r}?" if near else f" among {validation.listing(list(table))}"
            raise DataError(f"{owner} has no column {target!r}, the target{hint}")
        if not len(table[target].values):
            raise DataError(f"{owner} has no rows; expected at least one")
    first, *others = tables
    columns = tuple(name for name in tables[first] if name != target)
    for owner in others:
        validation.same_names(owner, [name for name in tables[owner] if name != target], columns, first)
    for name in said:
        if name not in columns:
            raise unknown("column in categories", str(name), [str(column) for column in columns])
    if not columns:
        raise DataError(f"{first} has no column beside the target {target!r}; expected inputs")
    levels = {}
    for name in columns:
        column = {owner: table[name] for owner, table in tables.items()}
        if name in said:
            levels[name] = _listed(name, said[name])
        elif owner := next((owner for owner, each in column.items() if each.codes), None):
            found = sorted(set().union(*(each.values.tolist() for each in column.values())), key=str)
            raise DataError(
                f"{owner}: column {name!r} is a category of numbers; expected text, or "
                f"categories={{{name!r}: [{validation.listing(found)}]}}, or a column of plain numbers"
            )
        elif _same_kind(name, column) == "category":
            levels[name] = _same_levels(name, column)
    coding = Coding(target, columns, levels)
    twice = [name for place, name in enumerate(coding.features) if name in coding.features[:place]]
    if twice:
        raise DataError(f"two columns of inputs would be named {twice[0]!r}; rename a column, or a level")
    return coding


def _listed(name: Any, levels: Sequence) -> tuple:
    if isinstance(levels, str) or len(levels) < 2 or len(set(levels)) < len(levels):
        raise ConfigError(f"categories: the levels of {name!r} are {levels!r}; expected at least two, each once")
    return tuple(levels)


def _same_kind(name: Any, column: Mapping[str, Entries]) -> str:
    (first, kind), *others = ((owner, "category" if c.kind == "category" else "number") for owner, c in column.items())
    for owner, other in others:
        if other != kind:
            value = column[owner].values[0]
            raise DataError(
                f"{owner}: column {name!r} is {SAID[other]}, such as {value!r}, but that of {first} is {SAID[kind]}; "
                f"expected one kind, or categories={{{name!r}: [...]}} with all levels"
            )
    return kind


def _same_levels(name: Any, column: Mapping[str, Entries]) -> tuple:
    first, *others = (each.declared for each in column.values())
    if first is not None and all(declared == first for declared in others):
        return _several(name, first)
    present = {owner: set(each.values.tolist()) for owner, each in column.items()}
    every = sorted(set().union(*present.values()))
    cure = f"pass categories={{{name!r}: [{validation.listing(every)}]}}, or what of it is right"
    for owner, levels in present.items():
        for other, known in present.items():
            if more := sorted(levels - known):
                row = column[owner].values.tolist().index(more[0])
                raise DataError(
                    f"{owner}, row {row}: column {name!r} is {more[0]!r}, which no row of {other} has; if it is meant, "
                    f"{cure}"
                )
    if len(every) > MOST_LEVELS:
        raise DataError(
            f"column {name!r} has {len(every)} levels, and at most {MOST_LEVELS} are a category unless you say so; "
            "leave it out if it names rows, or pass categories= with all levels"
        )
    return _several(name, tuple(every))


def _several(name: Any, levels: tuple) -> tuple:
    if len(levels) < 2:
        raise DataError(
            f"column {name!r} is {', '.join(map(repr, levels))} in every row of every client and says nothing; "
            "leave it out, or pass categories= with all levels"
        )
    return levels
