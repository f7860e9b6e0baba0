"""A CSV or Parquet file as a header and rows of cells, before anyone asks what the cells mean.

Rows are read one after the other, and a file says beforehand how large it is: a small file may stand for a table that
no memory holds.
"""

import csv
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from fedlap.errors import DataError
from fedlap.sheets.parquet import parquet_rows
from fedlap.sheets.problems import Problems, shown

NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)  # a cell that holds one
PARQUET = (".parquet", ".pq")
SEPARATORS = {";": "semicolons", "\t": "tabs", "|": "vertical bars"}
UNFIT = {
    b"PK\x03\x04": "a spreadsheet workbook or ZIP archive",
    b"PAR1": "a Parquet file",
    b"\xd0\xcf\x11\xe0": "a workbook",
    b"\x1f\x8b": "a file compressed with gzip",
    b"BZh": "a file compressed with bzip2",
    b"\xfd7zXZ": "a file compressed with xz",
    b"\x28\xb5\x2f\xfd": "a file compressed with zstd",
}
COMPRESSED = (".gz", ".bz2", ".xz", ".zst", ".zip")
MOST_CELLS = 2**28  # rows times columns
MOST_BYTES = 2**33
LONGEST_LINE = 2**24  # characters
WIDEST = 100_000  # columns of a file, also of those that nobody reads


class Sheet(NamedTuple):
    """Cells are text in a CSV; in a Parquet file they are None, text, numbers or truth values."""

    header: list[str]
    rows: Iterator[tuple[int, list]]  # with the number that a spreadsheet shows: the header of a CSV is row 1


def read(path: str | Path, problems: Problems, most: int = MOST_CELLS) -> Sheet:
    """Open a file of at most so many cells by its ending; rows that are not as long as the header are problems."""
    path = Path(path)
    if not path.exists():
        raise DataError(f"{path}: there is no such file")
    if not path.is_file():
        raise DataError(f"{path}: not a file; expected a CSV or Parquet file")
    suffix = path.suffix.lower()
    if suffix not in (".csv", *PARQUET):
        cure = " (unpack it first)" if suffix in COMPRESSED else ""
        found = suffix or "is missing"
        raise DataError(f"{path}: the ending {found}; expected .csv, or .parquet for a Parquet file{cure}")
    if (size := path.stat().st_size) > MOST_BYTES:
        raise DataError(f"{path.name}: {size:,} bytes; expected at most {MOST_BYTES:,}")
    if suffix == ".csv":
        return _read_csv(path, problems, most)
    header, rows = parquet_rows(path, problems, lambda rows, columns: _check_cells(path, rows, columns, most))
    return Sheet(header, rows)


def _check_cells(path, rows, columns, most):
    if columns > WIDEST:
        raise DataError(f"{path.name}: {columns:,} columns; expected at most {WIDEST:,}")
    if rows * columns > most:
        raise DataError(
            f"{path.name}: {rows:,} rows of {columns:,} columns; expected at most {most:,} cells in all "
            "(leave out columns that nobody reads, or rows)"
        )


def _read_csv(path, problems, most):
    _refuse_other_kinds(path)
    records = _records(path, _lines(path))
    first = next(records, None)
    # Empty lines before the end of an empty file, or before a header, which must be the first line.
    if first is None or (not any(cell.strip() for cell in first[1]) and _is_blank(records)):
        raise DataError(f"{path.name}: the file is empty; expected a header and a row for each patient")
    header = [name.strip() for name in first[1]]
    _check_cells(path, 1, len(header), most)
    if len(header) == 1:
        for separator, word in SEPARATORS.items():
            if separator in header[0]:
                raise DataError(
                    f"{path.name}, row 1: the columns are separated by {word}; expected commas "
                    "(in a spreadsheet program: save as CSV, comma delimited)"
                )
    return Sheet(header, _whole_rows(path, records, len(header), problems, most))


def _is_blank(records):
    return not any(cell.strip() for _, cells in records for cell in cells)


def _refuse_other_kinds(path):
    with _readable(path), open(path, "rb") as file:
        start = file.read(8)
    for beginning, what in UNFIT.items():
        if start.startswith(beginning):
            raise DataError(f"{path.name}: this is {what}; expected a CSV file (save or export it as CSV)")
    if start.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise DataError(
            f"{path.name}: the text is UTF-16; expected UTF-8 (in a spreadsheet program: save as CSV UTF-8)"
        )


def _lines(path):
    """The lines of a file, with their ends."""
    number = 0
    try:
        # A byte-order mark, which some spreadsheet programs write, is no part of the first column's name.
        with _readable(path), open(path, encoding="utf-8-sig", newline="") as file:
            while line := file.readline(LONGEST_LINE + 1):
                number += 1
                if len(line) > LONGEST_LINE:
                    raise DataError(
                        f"{path.name}, line {number}: more than {LONGEST_LINE:,} characters; expected a line for each "
                        "patient"
                    )
                yield line
    except UnicodeDecodeError as error:
        row = number + 1 + error.object[: error.start].count(b"\n")
        raise DataError(
            f"{path.name}, row {row}: the byte 0x{error.object[error.start]:02x} is not UTF-8 text; expected UTF-8 "
            "(in a spreadsheet program: save as CSV UTF-8)"
        ) from error


@contextmanager
def _readable(path):
    try:
        yield
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror})") from error


def _records(path, lines):
    reader, row = csv.reader(lines, strict=True), 0
    while True:
        row += 1
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            raise DataError(
                f"{path.name}, row {row}: cannot be read ({error}); expected cells separated by commas, "
                "and quotation marks in pairs"
            ) from error
        yield row, cells


def _whole_rows(path, records, width, problems, most):
    empty = []
    for row, cells in records:
        _check_cells(path, row, width, most)
        if not any(cell.strip() for cell in cells):
            empty.append(row)  # a problem if anything follows: many programs end a file with empty lines
            continue
        for number in empty:
            problems.add("an empty line; expected a row for each patient and no empty lines between", number)
        empty = []
        if len(cells) != width:
            problems.add(
                f"{len(cells)} cells, the first {shown(cells[0])}; expected {width}, one for each column of the header",
                row,
            )
        else:
            yield row, cells
