"""The columns that a formula uses: what a site tells of them, what sites agree on, and a frame that stands for all.

What a site tells is plain data that JSON can carry: kinds, ranges, levels with counts. No row leaves it.
"""

import math
from collections.abc import Mapping, Sequence
from decimal import Decimal
from numbers import Real
from typing import Any, NamedTuple

import numpy as np

from fedlap.data.frames import column_names
from fedlap.data.validation import listing, missing
from fedlap.errors import ConfigError, DataError, nearest
from fedlap.regression.formulas import CLASSES, LEVELS, MOMENT, NUMBER, QUANTILES

PROBABILITIES = np.linspace(0, 1, 101)  # of the quantiles that place the knots of a spline
MOST_LEVELS = 50  # of a category that is not written C(...)
FEWEST_NAMES = 10  # as many values, all different, are names of rows

SAID = {"number": "a number", "truth": "a truth value", "category": "text", "date": "a date"}


class Values(NamedTuple):
    """A column of a frame, read: numbers are float64, truth values bool, categories texts."""

    kind: str  # number, truth, category or date; empty if all values are missing
    values: np.ndarray
    missing: np.ndarray  # [rows] bool


# At a site ------------------------------------------------------------------------------------------------------------


def describe(frame: Any, variables: Mapping[str, Sequence[str]], where: str = "the frame") -> dict[str, Any]:
    """What a site tells of its columns, as plain data; `variables` has what is needed of each.

    Quantiles are told for splines only, means for functions that centre. A column that names rows is not told at all.
    """
    names = table_columns(frame, where)
    columns = {name: _told(frame, name, needs, names, where) for name, needs in variables.items()}
    return {"rows": row_count(frame, where), "variables": columns}


def table_columns(frame: Any, where: str) -> tuple[Any, ...]:
    """The names of a frame's columns."""
    names = column_names(frame)
    if names is None:
        raise DataError(
            f"{where} is {type(frame).__name__}; expected a data frame, an Arrow table, or a dictionary of columns"
        )
    return names


def row_count(frame: Any, where: str) -> int:
    """The number of a frame's rows."""
    names = table_columns(frame, where)
    return len(array_of(frame, names[0], where)) if names else 0


def read(frame: Any, name: str, where: str) -> Values:
    """A column of a frame, with the kind that its values have."""
    if table_columns(frame, where).count(name) > 1:
        raise DataError(f"{where}: two columns are named {name!r}; expected unique names")
    array = array_of(frame, name, where)
    if len(array) != row_count(frame, where):
        raise DataError(
            f"{where}: column {name!r} has {len(array)} rows but the first column has {row_count(frame, where)}; "
            "expected as many in each"
        )
    if array.dtype.kind == "b":
        return Values("truth", array, np.zeros(len(array), bool))
    if array.dtype.kind in "iuf":
        return _numbers(array.astype(np.float64), name, where)
    if array.dtype.kind in "mM":
        gone = np.isnat(array)
        return Values("empty" if gone.all() else "date", array, gone)
    return _objects(array.astype(object), name, where)


def array_of(frame: Any, name: Any, where: str) -> np.ndarray:
    """A column as an array; a list as one of objects, where a gap or a number beside texts would become text."""
    values = frame[name]
    array = np.fromiter(values, object, len(values)) if isinstance(values, (list, tuple)) else np.asarray(values)
    if array.ndim != 1:
        raise DataError(f"{where}: column {name!r} has shape {array.shape}; expected one value a row")
    return array


def _numbers(array: np.ndarray, name: str, where: str) -> Values:
    if np.isinf(array).any():
        row = int(np.argmax(np.isinf(array)))
        raise DataError(f"{where}, row {row}: column {name!r} is {array[row]}; expected a finite number")
    gone = np.isnan(array)
    return Values("empty" if gone.all() else "number", array, gone)


def _objects(array: np.ndarray, name: str, where: str) -> Values:
    """A column of Python's objects, which must be of one kind."""
    gone = np.array([missing(value) for value in array], bool)
    kinds = {}
    for row in np.flatnonzero(~gone):
        kinds.setdefault(_kind(array[row]), int(row))
    if not kinds:
        return Values("empty", array, gone)
    if kinds.keys() == {"number", "truth"}:
        kinds.pop("truth")
    if len(kinds) > 1 or None in kinds:
        # What is not a number is at fault where there are numbers.
        kind, row = max(kinds.items(), key=lambda item: (item[0] is None, item[0] != "number", item[1]))
        others = [SAID[other] for other in kinds if other is not None and other != kind]
        raise DataError(
            f"{where}, row {row}: column {name!r} is {array[row]!r}; "
            f"expected {' or '.join(others) or 'a number, a truth value or text'} in every row, or nothing"
        )
    (kind,) = kinds
    if kind == "number":
        return _numbers(np.array([math.nan if g else float(v) for v, g in zip(array, gone, strict=True)]), name, where)
    if kind == "truth":
        return Values(kind, np.array([not g and bool(v) for v, g in zip(array, gone, strict=True)], bool), gone)
    return Values(kind, array, gone)


def _kind(value: object) -> str | None:
    if isinstance(value, (bool, np.bool_)):
        return "truth"
    if isinstance(value, (Real, Decimal)):
        return "number"
    if isinstance(value, str):
        return "category"
    return "date" if hasattr(value, "isoformat") or hasattr(value, "total_seconds") else None


def _told(frame: Any, name: str, needs: Sequence[str], names: tuple[Any, ...], where: str) -> dict[str, Any]:
    if name not in names:
        return {"kind": "absent", "near": nearest(name, [str(each) for each in names])}
    kind, values, gone = read(frame, name, where)
    told: dict[str, Any] = {"kind": kind, "missing": int(gone.sum())}
    present = values[~gone]
    if kind == "number":
        told |= {"count": len(present), "min": float(present.min()), "max": float(present.max())}
        told["sum"] = float(present.sum())
        if MOMENT in needs:
            told["squares"] = float(((present - present.mean()) ** 2).sum())
        if QUANTILES in needs:
            told["quantiles"] = np.quantile(present, PROBABILITIES).tolist()
    if kind == "category" or (kind == "number" and {LEVELS, CLASSES} & set(needs)):
        levels, counts = np.unique(present, return_counts=True)
        if NUMBER in needs and kind == "category":  # an error, whose message shows some
            levels, counts = levels[:FEWEST_NAMES], counts[:FEWEST_NAMES]
        told |= {"levels": levels.tolist(), "counts": counts.tolist()}
        if kind == "category":
            row = next((int(r) for r in np.flatnonzero(~gone) if not _is_number(values[r])), int(np.argmin(gone)))
            told["first"] = [row, values[row]]  # that is no number, if the column should be one
        if len(levels) > MOST_LEVELS:
            _check_levels(name, told["levels"], sum(told["counts"]), needs, where)
    return told


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def _check_levels(name: str, levels: list[Any], count: int, needs: Sequence[str], where: str) -> None:
    """Raise a DataError for levels that make no category."""
    if CLASSES in needs:
        if len(levels) > MOST_LEVELS:
            raise DataError(f"{where}: outcome {name!r} has {len(levels)} different values; expected a few classes")
    elif len(levels) == count >= FEWEST_NAMES:
        raise DataError(
            f"{where}: all {count} values of column {name!r} are different, as {listing(levels, 3)}; "
            "expected a category, not a name for every row"
        )
    elif len(levels) > MOST_LEVELS and LEVELS not in needs:
        raise DataError(
            f"{where}: column {name!r} is text with {len(levels)} levels, as {listing(levels, 3)}; "
            f"expected at most {MOST_LEVELS}. If it is to be a category, write C({name}) in the formula"
        )


# At the server --------------------------------------------------------------------------------------------------------


def merge(name: str, needs: Sequence[str], told: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """What sites agree on for a column, from what each told of it."""
    _check_present(name, told)
    told = {site: each for site, each in told.items() if each["kind"] != "empty"}
    if not told:
        raise DataError(f"column {name!r} has no value at any site; expected values at one of them")
    first = next(iter(told))
    kind = told[first]["kind"]
    for site, each in told.items():
        if each["kind"] != kind:
            raise _disagreement(name, first, site, told)
    _check_kind(name, kind, needs, first, told[first])
    merged: dict[str, Any] = {"kind": kind}
    if kind == "number":
        count = sum(each["count"] for each in told.values())
        mean = math.fsum(each["sum"] for each in told.values()) / count
        merged |= {"count": count, "mean": mean}
        merged |= {"min": min(each["min"] for each in told.values()), "max": max(each["max"] for each in told.values())}
        if MOMENT in needs:
            apart = (
                each["squares"] + each["count"] * (each["sum"] / each["count"] - mean) ** 2 for each in told.values()
            )
            merged["squares"] = math.fsum(apart)
        if QUANTILES in needs:
            merged["quantiles"] = _pooled_quantiles([(each["count"], each["quantiles"]) for each in told.values()])
    if any("levels" in each for each in told.values()):
        levels = sorted({level for each in told.values() for level in each["levels"]})
        _check_levels(name, levels, sum(sum(each["counts"]) for each in told.values()), needs, "all sites together")
        if kind == "number" and all(level.is_integer() and abs(level) < 2**53 for level in levels):
            levels = [int(level) for level in levels]
        merged["levels"] = levels
    elif kind == "truth" and {LEVELS, CLASSES} & set(needs):
        merged["levels"] = [False, True]
    return merged


def _check_present(name: str, told: Mapping[str, Mapping[str, Any]]) -> None:
    absent = [site for site, each in told.items() if each["kind"] == "absent"]
    if absent:
        near = next((told[site]["near"] for site in absent if told[site]["near"]), None)
        hint = f"; did you mean {near!r}?" if near else ""
        place = (
            "any site" if len(absent) == len(told) else f"{'sites' if len(absent) > 1 else 'site'} {listing(absent)}"
        )
        raise DataError(f"there is no column {name!r} at {place}{hint}")


def _disagreement(name: str, first: str, second: str, told: Mapping[str, Mapping[str, Any]]) -> DataError:
    kinds = {told[site]["kind"]: site for site in (second, first)}
    if kinds.keys() == {"number", "category"}:
        row, value = told[kinds["category"]]["first"]
        return DataError(
            f"site {kinds['category']!r}, row {row}: column {name!r} is {value!r}; "
            f"expected a number, which it is at site {kinds['number']!r}, or nothing"
        )
    return DataError(
        f"column {name!r} is {SAID[told[first]['kind']]} at site {first!r} but {SAID[told[second]['kind']]} at site "
        f"{second!r}; expected the same everywhere"
    )


def _check_kind(name: str, kind: str, needs: Sequence[str], site: str, told: Mapping[str, Any]) -> None:
    if kind == "date":
        raise DataError(
            f"column {name!r} is a date at site {site!r}; expected a number, such as the days or years since a day "
            "that is the same at every site"
        )
    if kind == "category" and NUMBER in needs:
        row, value = told["first"]
        raise DataError(f"site {site!r}, row {row}: column {name!r} is {value!r}; expected a number")
    if QUANTILES in needs and LEVELS in needs:
        raise ConfigError(
            f"column {name!r} is in a spline without given knots and in C(...); expected knots=[...], or one of the two"
        )


def _pooled_quantiles(told: list[tuple[int, list[float]]]) -> list[float]:
    """The quantiles of all rows, nearly: each site's stand for as many of its rows, the first and last for half."""
    share = np.full(len(PROBABILITIES), 1.0)
    share[[0, -1]] = 0.5
    values = np.concatenate([quantiles for _, quantiles in told])
    weights = np.concatenate([count * share for count, _ in told])
    order = np.argsort(values, kind="stable")
    values, weights = values[order], weights[order]
    middles = (np.cumsum(weights) - weights / 2) / weights.sum()
    pooled = np.interp(PROBABILITIES, middles, values)
    pooled[[0, -1]] = values[[0, -1]]
    return pooled.tolist()


# Frames for formulaic -------------------------------------------------------------------------------------------------


def template(variables: Mapping[str, Mapping[str, Any]]) -> Any:
    """A frame that has all levels of categories, and numbers over their range, or as their quantiles are."""
    import pandas

    rows = max([len(PROBABILITIES), *(len(each.get("levels", ())) for each in variables.values())])
    even = np.linspace(0, 1, rows)
    columns = {}
    for name, each in variables.items():
        if "levels" in each or each["kind"] == "truth":
            levels = each.get("levels", [False, True])
            values = np.array([levels[row % len(levels)] for row in range(rows)], object)
        elif "quantiles" in each:
            values = np.interp(even, PROBABILITIES, each["quantiles"])
        else:
            values = np.linspace(each["min"], each["max"], rows)
        columns[name] = _series(each, values)
    return pandas.DataFrame(columns, index=pandas.RangeIndex(rows))


def conform(
    name: str, variable: Mapping[str, Any], column: Values, kept: np.ndarray, where: str, numbers: np.ndarray
) -> Any:
    """The kept rows of a site's column, in the kind and with the levels that were agreed on; all rows have numbers."""
    kind, values, gone = column
    if kind not in (variable["kind"], "empty"):
        row = int(np.argmin(gone))
        raise DataError(
            f"{where}, row {numbers[row]}: column {name!r} is {_shown(values[row])!r}; "
            f"expected {SAID[variable['kind']]}, as in the model"
        )
    if kind != "empty" and "levels" in variable:
        known = np.isin(values[kept], np.array(variable["levels"], values.dtype))
        if not known.all():
            row = int(kept[np.argmin(known)])
            raise DataError(
                f"{where}, row {numbers[row]}: column {name!r} is {_shown(values[row])!r}, a level that no site had; "
                f"expected one of {listing(variable['levels'])}"
            )
    return _series(variable, values[kept])


def _shown(value: Any) -> Any:
    """A value as Python's own, whose text does not name NumPy; a whole number has no decimals."""
    value = value.item() if isinstance(value, np.generic) else value
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _series(variable: Mapping[str, Any], values: np.ndarray) -> Any:
    """Values as a column of pandas whose type says the same to formulaic at every site."""
    import pandas

    if variable["kind"] == "category":
        return pandas.Series(pandas.Categorical(values, categories=variable["levels"]))
    if variable["kind"] == "truth":
        return pandas.Series(values.astype(bool))
    whole = "levels" in variable and all(isinstance(level, int) for level in variable["levels"])
    return pandas.Series(values.astype(np.float64).astype(np.int64 if whole else np.float64))


def pooled_moments(variable: Mapping[str, Any], centre: float | None, ddof: float) -> tuple[float, float]:
    """The mean of a column over all sites, and its spread around a centre, which is the mean if none is given."""
    mean, count = variable["mean"], variable["count"]
    apart = 0.0 if centre is None else count * (mean - centre) ** 2
    return mean, math.sqrt((variable["squares"] + apart) / (count - ddof)) if count > ddof else math.nan
