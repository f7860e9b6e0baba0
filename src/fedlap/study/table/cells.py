"""Cells of a table: the number or category that one holds, or in words what is wrong with it."""

import re
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any

from fedlap.errors import nearest
from fedlap.sheets.problems import shown
from fedlap.sheets.sheet import NUMBER
from fedlap.study.table.columns import LARGEST, LONGEST_NAME, Column, one_of

GROUPED = re.compile(r"[+-]?\d{1,3}([ ,.'’\u00a0\u202f]\d{3})+([.,]\d+)?")
DECIMAL_COMMA = re.compile(r"[+-]?\d*,\d+([eE][+-]?\d+)?")
WORDS_FOR_MISSING = {"na", "n/a", "n.a.", "nan", "null", "none", "nil", "?", "-", "--", ".", "missing", "unknown"}
MISSING = None  # what the readers below return for an empty cell


class Unfit(Exception):
    """A cell that cannot be what its column is; the message is 'found X; expected Y', put in words when it is read."""

    def __init__(self, message: Callable[[], str]) -> None:
        super().__init__()
        self.message = message

    def __str__(self) -> str:
        return self.message()


def is_empty(cell: Any) -> bool:
    """Whether a cell holds nothing but spaces: a missing value."""
    return cell is None or (isinstance(cell, str) and not cell.strip())


def read_number(cell: Any, column: Column) -> float | None:
    """The number in a cell, checked against the column's range."""
    if is_empty(cell):
        return MISSING
    value = _number(cell, column)
    if not abs(value) <= LARGEST:  # nor NaN, which compares with nothing
        raise Unfit(lambda: f"found {shown(cell)}; expected {column.expected()}, or an empty cell if it is missing")
    if not column.minimum <= value <= column.maximum:
        raise Unfit(lambda: f"found {shown(cell)}; expected {column.expected()}")
    return value


def read_category(cell: Any, choices: Sequence[str]) -> int | None:
    """The place of a cell's text among the choices."""
    if is_empty(cell):
        return MISSING
    text = _text(cell)
    if text in choices:
        return choices.index(text)
    raise Unfit(lambda: f"found {shown(text)}; expected {one_of(choices)}{_hint_for_category(text, choices)}")


def _number(cell, column):
    if isinstance(cell, (int, float, Decimal)) and not isinstance(cell, bool):
        return float(cell)
    text = str(cell).strip()
    if isinstance(cell, str) and NUMBER.fullmatch(text):
        return float(text)
    raise Unfit(lambda: f"found {shown(text)}; expected {column.expected()}{_hint_for_number(text)}")


def _hint_for_category(text, choices):
    near = nearest(text, choices) if len(text) <= LONGEST_NAME else None
    return f" (did you mean {near!r}?)" if near else _hint_for_missing(text)


def _hint_for_number(text):
    if DECIMAL_COMMA.fullmatch(text) or GROUPED.fullmatch(text):
        return " (write a decimal point, not a comma, and nothing between thousands: 1234.5)"
    return _hint_for_missing(text)


def _hint_for_missing(text):
    return " (leave the cell empty if the value is missing)" if text.lower() in WORDS_FOR_MISSING else ""


def _text(cell):
    """A category as text, also where a Parquet file holds codes as numbers or truth values."""
    if isinstance(cell, bool):
        return "true" if cell else "false"
    if isinstance(cell, float) and cell.is_integer():
        return str(int(cell))
    return str(cell).strip()
