"""A first guess at a study's columns from members' files, for a person to correct."""

import math
import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import NamedTuple

from fedlap.errors import DataError, nearest, unknown
from fedlap.sheets.problems import Problems, shown
from fedlap.sheets.sheet import NUMBER, read
from fedlap.study.table.cells import is_empty
from fedlap.study.table.columns import Column, Target

MOST_CELLS = 2**25  # of a file that is drafted from: all its texts are kept at once
MOST_CATEGORIES = 20  # text of more kinds is free text or an identifier, which no model should see
MOST_CODES = 6  # whole numbers of at most so many kinds are codes, such as 0 and 1
DATE = re.compile(r"\d{4}-\d{1,2}-\d{1,2}|\d{1,2}[./]\d{1,2}[./]\d{2,4}")


class Cells(NamedTuple):
    """A file as texts, column by column; an empty text is a missing value."""

    path: Path
    columns: dict[str, list[str]]
    rows: list[int]  # their numbers, as a spreadsheet shows them


def draft_columns(path: str | Path, target: str | None = None) -> tuple[tuple[Column, ...], Target, tuple[str, ...]]:
    """Columns, target (the last column if not named) and columns to be ignored, guessed from a file."""
    path, cells, rows = read_cells(path)
    header = list(cells)
    target = header[-1] if target is None else target
    if target not in header:
        raise unknown(f"column of {path.name}", target, header)
    present = {name: [text for text in texts if text] for name, texts in cells.items()}
    classes = _kinds(present[target])
    if not 2 <= len(classes) <= MOST_CATEGORIES:
        raise DataError(
            f"{path.name}, column {target}: {len(classes)} different values; expected the classes to predict, "
            f"2 to {MOST_CATEGORIES} of them (--target names another column)"
        )
    columns, ignored = [], []
    for name in header:
        if name != target:
            column = _column(name, present[name], len(present[name]) < len(rows))
            (ignored if column is None else columns).append(name if column is None else column)
    if not columns:
        raise DataError(f"{path.name}: no column of numbers or of few categories; expected at least one")
    missing = "drop" if len(present[target]) < len(rows) else "refuse"
    return tuple(columns), Target(target, classes, missing), tuple(ignored)


def read_cells(path: str | Path) -> Cells:
    """A CSV or Parquet file as texts."""
    path = Path(path)
    problems = Problems(path)
    sheet = read(path, problems, MOST_CELLS)
    header = sheet.header
    for place, name in enumerate(header, start=1):
        if not name:
            raise DataError(f"{path.name}, row 1: column {place} of the header has no name; expected one")
    if len(header) < 2 or len(set(header)) < len(header):
        twice = next((name for place, name in enumerate(header) if name in header[:place]), None)
        found = f"two columns are named {shown(twice)}" if twice else f"{len(header)} column"
        raise DataError(f"{path.name}, row 1: {found}; expected at least two columns, with different names")
    columns: dict[str, list[str]] = {name: [] for name in header}
    numbers = []
    for number, cells in sheet.rows:
        numbers.append(number)
        for texts, cell in zip(columns.values(), cells, strict=True):
            texts.append(_text(cell))
    problems.stop()
    return Cells(path, columns, numbers)


def draft_union(files: Mapping[str, Cells], used: Collection[str]) -> tuple[Column, ...]:
    """The columns that a regression uses, from all members' files together: numbers stay numbers, codes too.

    A column that is mostly numbers is one: what else stands in it is for the check of the files to tell.
    """
    columns = []
    for name in used:
        holders = {member: cells for member, cells in files.items() if name in cells.columns}
        if len(holders) < len(files):
            lacking = [cells.path.name for member, cells in files.items() if member not in holders]
            header = sorted({other for cells in files.values() for other in cells.columns})
            near = nearest(name, [other for other in header if other != name])
            where = "no file" if not holders else ", ".join(dict.fromkeys(lacking))
            missing = f"{where} has a column {name!r}" if not holders else f"{where}: there is no column {name!r}"
            raise DataError(missing + (f"; did you mean {near!r}?" if near else f" (columns: {', '.join(header)})"))
        columns.append(_drafted(name, holders))
    return tuple(columns)


def _drafted(name: str, files: Mapping[str, Cells]) -> Column:
    texts = [text for cells in files.values() for text in cells.columns[name]]
    present = [text for text in texts if text]
    if not present:
        raise DataError(f"column {name!r} has no value in any file; leave it out of the formula")
    missing = "drop" if len(present) < len(texts) else "refuse"
    if len(set(present)) == 1:
        raise DataError(f"column {name!r} is {present[0]!r} in every row of every file; leave it out of the formula")
    numbers = [float(text) for text in present if NUMBER.fullmatch(text) and math.isfinite(float(text))]
    if 2 * len(numbers) > len(present):
        low, high = _range(numbers)
        return Column(name, "number", minimum=low, maximum=high, missing=missing)
    if all(DATE.fullmatch(text) for text in present):
        raise DataError(
            f"column {name!r} holds dates, such as {present[0]}; expected numbers or categories: "
            "make it an age, a duration or a year"
        )
    kinds = _kinds(present)
    if len(kinds) > MOST_CATEGORIES:
        identifies = " and looks like an identifier" if len(kinds) == len(present) else ""
        raise DataError(
            f"column {name!r} has {len(kinds)} different texts{identifies}; expected at most {MOST_CATEGORIES} "
            "categories: leave it out of the formula, or join some"
        )
    return Column(name, "category", categories=kinds, missing=missing)


def _range(values: list[float]) -> tuple[float, float]:
    """Rounded outwards, so that a draft does not tell everyone the exact extremes of a member's patients."""
    low, high = min(values), max(values)
    step = 10.0 ** math.floor(math.log10(max(high - low, 1e-9)))
    return round(math.floor(low / step) * step, 12), round(math.ceil(high / step) * step, 12)


def _column(name, texts, has_missing):
    missing = "drop" if has_missing else "refuse"
    kinds = _kinds(texts)
    if len(kinds) < 2:
        return None  # the same for all patients, or recorded for none
    are_numbers = all(NUMBER.fullmatch(text) and math.isfinite(float(text)) for text in texts)
    if are_numbers and not (len(kinds) <= MOST_CODES and all(float(text).is_integer() for text in kinds)):
        minimum, maximum = _range([float(text) for text in texts])
        return Column(name, "number", minimum=minimum, maximum=maximum, missing=missing)
    if len(kinds) <= MOST_CATEGORIES and (are_numbers or len(kinds) < len(texts)):
        return Column(name, "category", categories=kinds, missing=missing)
    return None


def _kinds(texts):
    return tuple(
        sorted(set(texts), key=lambda text: (float(text), text) if NUMBER.fullmatch(text) else (math.inf, text))
    )


def _text(cell):
    if is_empty(cell):
        return ""
    if isinstance(cell, bool):
        return "true" if cell else "false"
    return f"{cell:g}" if isinstance(cell, float) else str(cell).strip()
