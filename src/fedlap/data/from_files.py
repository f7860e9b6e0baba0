"""A federation from CSV or Parquet files, one a site: what a settings file names, read and checked as a study reads it.

[federation]
files = { north = "north.csv", south = "south.csv" }
target = "outcome"
test = 0.2
"""

import hashlib
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from fedlap.checks import is_number
from fedlap.data.federation import Federation
from fedlap.domains import Domain, FromRun, choice
from fedlap.errors import ConfigError
from fedlap.sheets.problems import Problems, shown
from fedlap.sheets.sheet import NUMBER, read


@dataclass(frozen=True)
class DataFile:
    """A file as a run knows it: by what is in it, wherever it lies."""

    path: Path = field(repr=False, compare=False)
    sha256: str

    @classmethod
    def of(cls, path: "str | Path | DataFile") -> "DataFile":
        """The file at a path."""
        if isinstance(path, DataFile):
            return path
        if not Path(path).is_file():
            raise ConfigError(f"{path}: there is no such file")
        with open(path, "rb") as content:
            return cls(Path(path), hashlib.file_digest(content, "sha256").hexdigest())


def _parse(plain: Any) -> Any:
    if not isinstance(plain, Mapping):
        return plain
    return {
        name: DataFile.of(path) if isinstance(path, (str, Path, DataFile)) else path for name, path in plain.items()
    }


FILES = Domain(
    'files by the names of their sites, such as { north = "north.csv", south = "south.csv" }',
    lambda value: (
        isinstance(value, Mapping)
        and len(value) > 0
        and all(isinstance(name, str) and isinstance(file, DataFile) for name, file in value.items())
    ),
    _parse,
    lambda value: {name: str(file.path) for name, file in value.items()},
)
TEST = Domain(
    'a file, or a fraction of each site\'s rows, such as "test.csv" or 0.2',
    lambda value: value is None or isinstance(value, DataFile) or (is_number(value) and 0 < value < 1),
    lambda plain: None if plain in (None, "none") else plain if is_number(plain) else DataFile.of(plain),
    lambda value: str(value.path) if isinstance(value, DataFile) else value,
)


def files(
    files: Annotated[Mapping[str, Any], FILES],
    target: str,
    test: Annotated[Any, TEST] = None,
    missing: Annotated[str, choice("refuse", "drop")] = "refuse",
    seed: Annotated[int, FromRun.SEED] = 0,
) -> Federation:
    """The sites' files as a federation; all columns but the target are inputs, as in `Federation.from_frames`.

    Args:
        files: a CSV or Parquet file for each site, by the site's name.
        target: the column of labels.
        test: a file of test rows, or a fraction of each site's rows to hold out.
        missing: "refuse" a row with an empty cell, or "drop" it, with a warning that says how many.
        seed: of the rows that are held out.
    """
    given = {name: DataFile.of(file).path for name, file in files.items()}
    if test is not None and not is_number(test):
        given[_TEST] = DataFile.of(test).path
    sheets = {name: _cells(path) for name, path in given.items()}
    numbers = _numbers(sheets, target)
    frames = {name: _frame(sheet, numbers, missing) for name, sheet in sheets.items()}
    others = frames.pop(_TEST, test)
    return Federation.from_frames(frames, target=target, test=others, seed=seed, name="files")


_TEST = "\0test"  # which no site is called


class _Cells(NamedTuple):
    """A file as texts and values, column by column; None is an empty cell."""

    path: Path
    columns: dict[str, list[Any]]
    rows: list[int]  # as a spreadsheet numbers them


def _cells(path: Path) -> _Cells:
    problems = Problems(path)
    sheet = read(path, problems)
    for place, name in enumerate(sheet.header):
        if not name:
            problems.add(f"column {place + 1} of the header has no name; expected one", row=1)
        elif name in sheet.header[:place]:
            problems.add("there are two columns of this name; expected one", row=1, column=name)
    problems.stop()
    columns: dict[str, list[Any]] = {name: [] for name in sheet.header}
    rows = []
    for number, cells in sheet.rows:
        rows.append(number)
        for column, cell in zip(columns.values(), cells, strict=True):
            text = cell.strip() if isinstance(cell, str) else cell
            column.append(None if text == "" else text)
    problems.stop()
    return _Cells(path, columns, rows)


def _numbers(sheets: Mapping[str, _Cells], target: str) -> set[str]:
    """The columns of numbers: those that are, in most cells of all files; of the target, in all of them."""
    found = set()
    for name in {name for sheet in sheets.values() for name in sheet.columns}:
        cells = [cell for sheet in sheets.values() for cell in sheet.columns.get(name, ()) if cell is not None]
        count = sum(map(_is_number, cells))
        if 2 * count > len(cells) and (name != target or count == len(cells)):
            found.add(name)
    return found


def _frame(sheet: _Cells, numbers: set[str], missing: str) -> dict[str, list[Any]]:
    """A file's rows as a dictionary of columns; whatever is wrong with it is told at once."""
    problems, gaps = Problems(sheet.path), set()
    for name, cells in sheet.columns.items():
        for place, (cell, row) in enumerate(zip(cells, sheet.rows, strict=True)):
            if cell is None:
                gaps.add(place)
                if missing == "refuse":
                    problems.add('the cell is empty; fill it in, or write missing = "drop"', row, name)
            elif name in numbers and not _is_number(cell):
                problems.add(f"found {shown(cell)}; expected a number, as in the column's other cells", row, name)
    problems.stop()
    if gaps:
        said = f"{sheet.path.name}: {len(gaps)} of {len(sheet.rows)} rows have an empty cell and are left out"
        warnings.warn(said, stacklevel=3)
    read_ = lambda name, cell: float(cell) if name in numbers else str(cell)
    return {
        name: [read_(name, cell) for place, cell in enumerate(cells) if place not in gaps]
        for name, cells in sheet.columns.items()
    }


def _is_number(cell: Any) -> bool:
    return NUMBER.fullmatch(cell) is not None if isinstance(cell, str) else is_number(cell)
