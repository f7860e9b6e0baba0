"""A first guess at a study's columns from one member's file, for a person to correct."""

import math
from pathlib import Path

from fedlap.errors import DataError, unknown
from fedlap.study.table.cells import NUMBER, is_empty
from fedlap.study.table.columns import Column, Target
from fedlap.study.table.problems import Problems
from fedlap.study.table.sheet import read

MOST_CATEGORIES = 20  # text of more kinds is free text or an identifier, which no model should see
MOST_CODES = 6  # whole numbers of at most so many kinds are codes, such as 0 and 1


def draft_columns(path: str | Path, target: str | None = None) -> tuple[tuple[Column, ...], Target, tuple[str, ...]]:
    """Columns, target (the last column if not named) and columns to be ignored, guessed from a file."""
    path = Path(path)
    problems = Problems(path)
    sheet = read(path, problems)
    rows = [cells for _, cells in sheet.rows]
    problems.stop()
    header = sheet.header
    for place, name in enumerate(header, start=1):
        if not name:
            raise DataError(f"{path.name}, row 1: column {place} of the header has no name; expected one")
    if len(header) < 2 or len(set(header)) < len(header):
        raise DataError(f"{path.name}, row 1: {header}; expected at least two columns, with different names")
    target = header[-1] if target is None else target
    if target not in header:
        raise unknown(f"column of {path.name}", target, header)
    cells = {name: [_text(row[place]) for row in rows] for place, name in enumerate(header)}
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


def _column(name, texts, has_missing):
    missing = "drop" if has_missing else "refuse"
    kinds = _kinds(texts)
    if len(kinds) < 2:
        return None  # the same for all patients, or recorded for none
    are_numbers = all(NUMBER.fullmatch(text) and math.isfinite(float(text)) for text in texts)
    if are_numbers and not (len(kinds) <= MOST_CODES and all(float(text).is_integer() for text in kinds)):
        values = [float(text) for text in texts]
        low, high = min(values), max(values)
        # Rounded outwards, so that the draft does not tell everyone the exact extremes of one member's patients.
        step = 10.0 ** math.floor(math.log10(max(high - low, 1e-9)))
        minimum, maximum = math.floor(low / step) * step, math.ceil(high / step) * step
        return Column(name, "number", minimum=round(minimum, 12), maximum=round(maximum, 12), missing=missing)
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
