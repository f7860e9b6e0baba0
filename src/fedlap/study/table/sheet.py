"""A CSV or Parquet file as a header and rows of cells, before anyone asks what the cells mean."""

import csv
import io
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from fedlap.errors import DataError
from fedlap.study.table.problems import Problems, shown

PARQUET = (".parquet", ".pq")
SEPARATORS = {";": "semicolons", "\t": "tabs", "|": "vertical bars"}
UNFIT = {
    b"PK\x03\x04": "a spreadsheet workbook or ZIP archive",
    b"PAR1": "a Parquet file",
    b"\xd0\xcf\x11\xe0": "a workbook",
}


class Sheet(NamedTuple):
    """Cells are text in a CSV; in a Parquet file they are None, text, numbers or whatever its types are."""

    header: list[str]
    rows: Iterator[tuple[int, list]]  # with the number that a spreadsheet shows: the header of a CSV is row 1


def read(path: str | Path, problems: Problems) -> Sheet:
    """Open a file by its ending; rows that are not as long as the header are problems and left out."""
    path = Path(path)
    if not path.exists():
        raise DataError(f"{path}: there is no such file")
    if not path.is_file():
        raise DataError(f"{path}: not a file; expected a CSV or Parquet file")
    suffix = path.suffix.lower()
    if suffix in PARQUET:
        return _read_parquet(path)
    if suffix != ".csv":
        raise DataError(f"{path}: the ending {suffix or 'is missing'}; expected .csv, or .parquet for a Parquet file")
    return _read_csv(path, problems)


def _read_csv(path, problems):
    text = _decode(path)
    if not text.strip():
        raise DataError(f"{path.name}: the file is empty; expected a header and a row for each patient")
    records = _records(path, text)
    header = [name.strip() for name in next(records)[1]]
    if len(header) == 1:
        for separator, word in SEPARATORS.items():
            if separator in header[0]:
                raise DataError(
                    f"{path.name}, row 1: the columns are separated by {word}; expected commas "
                    "(in a spreadsheet program: save as CSV, comma delimited)"
                )
    return Sheet(header, _whole_rows(records, len(header), problems))


def _decode(path):
    try:
        content = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror})") from error
    for start, what in UNFIT.items():
        if content.startswith(start):
            raise DataError(f"{path.name}: this is {what}; expected a CSV file (save or export it as CSV)")
    if content.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise DataError(
            f"{path.name}: the text is UTF-16; expected UTF-8 (in a spreadsheet program: save as CSV UTF-8)"
        )
    try:
        # A byte-order mark, which some spreadsheet programs write, is no part of the first column's name.
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        row = content[: error.start].count(b"\n") + 1
        raise DataError(
            f"{path.name}, row {row}: the byte 0x{content[error.start]:02x} is not UTF-8 text; expected UTF-8 "
            "(in a spreadsheet program: save as CSV UTF-8)"
        ) from error


def _records(path, text):
    reader, row = csv.reader(io.StringIO(text, newline=""), strict=True), 0
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


def _whole_rows(records, width, problems):
    empty = []
    for row, cells in records:
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


def _read_parquet(path):
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise DataError(
            f"{path.name}: reading Parquet needs pyarrow, which is not installed here; "
            'expected: pip install "fedlap[flower]", or a CSV file'
        ) from error
    try:
        with parquet.ParquetFile(path) as file:
            table = file.read()
    except (pyarrow.ArrowException, OSError) as error:
        raise DataError(f"{path.name}: not a readable Parquet file ({error})") from error
    columns = [column.to_pylist() for column in table.columns]
    # There is no header line here: the first patient is row 1.
    rows = ((row, list(cells)) for row, cells in enumerate(zip(*columns, strict=True), 1))
    return Sheet([name.strip() for name in table.column_names], rows)
