"""A site's table, checked: every cell of its file is held against the study, and all problems are told at once."""

import array
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedlap.data.federation import stratified
from fedlap.errors import DataError, nearest
from fedlap.sheets.problems import Problems, shown
from fedlap.sheets.sheet import NUMBER, read
from fedlap.streams import stream
from fedlap.study.table.cells import MISSING, Unfit, read_category, read_number
from fedlap.study.table.columns import LONGEST_NAME, MISSING_CATEGORY, Column
from fedlap.study.table.requirements import Requirements


@dataclass(frozen=True, eq=False)
class Checked:
    """The rows of a file that satisfy the study, column by column."""

    path: Path
    values: dict[str, np.ndarray]  # a number: float64, NaN where the mean will stand; a category: int32
    labels: np.ndarray | None  # int32; None where only predictions are wanted
    row_numbers: np.ndarray  # as a spreadsheet shows them
    dropped: np.ndarray  # the numbers of the rows that the study drops for a missing value
    missing: dict[str, int]  # empty cells of each column in the whole file, the target's too

    def __len__(self) -> int:
        return len(self.row_numbers)

    def take(self, places: np.ndarray) -> "Checked":
        """Some of the rows."""
        return replace(
            self,
            values={name: values[places] for name, values in self.values.items()},
            labels=None if self.labels is None else self.labels[places],
            row_numbers=self.row_numbers[places],
        )

    def frame(self, columns: Sequence[Column]) -> dict[str, np.ndarray]:
        """The rows as a dictionary of columns, categories in their words."""
        categories = {column.name: column.categories for column in columns if column.kind == "category"}
        return {
            name: np.array(categories[name], object)[values] if name in categories else values
            for name, values in self.values.items()
        }

    def known_labels(self) -> np.ndarray:
        """The labels of a file that was checked together with its target."""
        if self.labels is None:
            raise DataError(f"{self.path.name}: checked without its target; expected a file read by `check_file`")
        return self.labels

    def split(self, study: Requirements, member: str) -> tuple["Checked", "Checked"]:
        """The rows to train on and those to test on: the same ones whenever this member asks."""
        study.member(member)
        held = stratified(self.known_labels(), study.test_fraction, stream(study.seed, "test rows", member))
        return self.take(~held), self.take(held)

    def fingerprint(self) -> str:
        """The sha256 of the rows: two files share it if the study cannot tell them apart."""
        digest = hashlib.sha256(repr(list(self.values)).encode())
        for values in (*self.values.values(), *(() if self.labels is None else (self.labels,))):
            digest.update(f"{values.dtype.str}{values.shape}".encode())
            digest.update(np.ascontiguousarray(values).data)
        return digest.hexdigest()


def check_file(study: Requirements, path: str | Path) -> Checked:
    """A file with the target, to take part in the study."""
    checked = _check(study.columns, Path(path), study.target, study.ignored_columns)
    rows = len(checked)
    training = rows - min(round(study.test_fraction * rows), max(rows - 1, 0))
    if training < study.minimum_rows:
        raise _too_few(checked, f", {training} of them to train on", study.minimum_rows)
    return checked


def check_inputs(study: Requirements, path: str | Path) -> Checked:
    """A file of new patients: the target may be absent and is not looked at, and one row is enough."""
    return check_new_rows(study.columns, path, (study.target.name, *study.ignored_columns))


def check_rows(columns: Sequence[Column], path: str | Path, minimum_rows: int, others: Sequence[str] = ()) -> Checked:
    """A file to take part in a study that has no target; columns of the other names may be there, too."""
    checked = _check(columns, Path(path), None, others)
    if len(checked) < minimum_rows:
        raise _too_few(checked, "", minimum_rows)
    return checked


def check_new_rows(columns: Sequence[Column], path: str | Path, others: Sequence[str] = ()) -> Checked:
    """A file of new patients, of which one is enough; columns of the other names may be there, too."""
    checked = _check(columns, Path(path), None, others)
    if not len(checked) and not len(checked.dropped):
        raise DataError(f"{checked.path.name}: no rows below the header; expected one for each patient")
    return checked


def _too_few(checked, training, minimum):
    return DataError(
        f"{checked.path.name}: {len(checked)} usable rows ({len(checked.dropped)} dropped for missing values)"
        f"{training}; "
        f"expected at least {minimum} (minimum_rows of the study): "
        "sums over fewer would tell too much about single patients"
    )


def _check(wanted, path, target, others):
    problems = Problems(path)
    sheet = read(path, problems)
    places = _places([column.name for column in (*wanted, *((target,) if target else ()))], others, sheet, problems)
    problems.stop()
    columns = [(column, places[column.name]) for column in wanted]
    # Arrays, not lists: a number of Python's takes four times the room.
    values = {column.name: array.array("d" if column.kind == "number" else "i") for column in wanted}
    missing = dict.fromkeys(places, 0)
    labels, numbers, drops = array.array("i"), array.array("q"), array.array("b")
    for row, cells in sheet.rows:
        drop = False
        for column, place in columns:
            value, drop_here = _input(column, cells[place], row, problems, missing)
            values[column.name].append(value)
            drop |= drop_here
        if target:
            label, drop_here = _label(target, cells[places[target.name]], row, problems, missing)
            labels.append(label)
            drop |= drop_here
        numbers.append(row)
        drops.append(drop)
    problems.stop()
    rows, dropped = np.array(numbers, int), np.array(drops, bool)
    kinds = {column.name: np.float64 if column.kind == "number" else np.int32 for column in wanted}
    return Checked(
        path=path,
        values={name: np.array(column, kinds[name])[~dropped] for name, column in values.items()},
        labels=np.array(labels, np.int32)[~dropped] if target else None,
        row_numbers=rows[~dropped],
        dropped=rows[dropped],
        missing=missing,
    )


def _places(wanted, others, sheet, problems):
    """Where each column that is wanted stands in the file."""
    header = sheet.header
    if header and all(NUMBER.fullmatch(name) for name in header):
        problems.add(f"the values {', '.join(map(shown, header[:3]))} …; expected the names of the columns", row=1)
        return {}
    known, seen = {*wanted, *others}, set()
    absent = [name for name in wanted if name not in set(header)]
    for place, name in enumerate(header):
        if not name:
            problems.add(f"column {place + 1} of the header has no name; expected one of the study's columns", row=1)
        elif name in seen:
            problems.add("there are two columns of this name; expected one", row=1, column=name)
        elif name not in known:
            problems.add(_Stranger(name, absent), row=1, column=name)
        seen.add(name)
    for name in absent:
        problems.add("the column is missing; expected it in the header", row=1, column=name)
    places = {name: place for place, name in enumerate(header)}
    return {name: places[name] for name in wanted if name in places}


class _Stranger(NamedTuple):
    """A column that the study does not have; as text, with the one that may be meant."""

    name: str
    absent: list[str]

    def __str__(self) -> str:
        near = nearest(self.name, self.absent) if len(self.name) <= LONGEST_NAME else None
        hint = f"; did you mean {near!r}?" if near else ""
        return f"the study has no such column{hint} (remove it, or list it in the study's ignored_columns)"


def _input(column, cell, row, problems, missing):
    """A cell's value and whether the study drops its row."""
    is_number = column.kind == "number"
    try:
        value = read_number(cell, column) if is_number else read_category(cell, column.categories)
    except Unfit as unfit:
        problems.add(unfit, row, column.name)
        return -1, False
    if value is not MISSING:
        return value, False
    missing[column.name] += 1
    if column.missing == "refuse":
        problems.add(f"the cell is empty; expected {column.expected()}", row, column.name)
    if column.missing == "category":
        return column.categories.index(MISSING_CATEGORY), False
    return (np.nan if is_number else -1), column.missing == "drop"


def _label(target, cell, row, problems, missing):
    try:
        label = read_category(cell, target.classes)
    except Unfit as unfit:
        problems.add(unfit, row, target.name)
        return -1, False
    if label is not None:
        return label, False
    missing[target.name] += 1
    if target.missing == "refuse":
        problems.add(f"the cell is empty; expected {target.expected()}", row, target.name)
    return -1, target.missing == "drop"
