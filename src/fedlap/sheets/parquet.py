"""A Parquet file as a header and rows of cells, read batch by batch.

What a file says of itself is looked at first: a billion equal values take no room in it. A text that many rows share
is made once. Times become text by Arrow's own rules, as Python's have no nanoseconds and end with the year 9999.
Columns of lists, tables or bytes are not read at all, for they are no cells.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fedlap.errors import DataError
from fedlap.sheets.problems import Problems

BATCH = 2**14  # rows that are decoded at a time
MOST_BYTES = 2**33  # of what a file holds, uncompressed

Row = tuple[int, list]  # its number, and its cells


def parquet_rows(path: Path, problems: Problems, check: Callable[[int, int], None]) -> tuple[list[str], Iterator[Row]]:
    """The header and the rows; `check(rows, columns)` may refuse a file of so many before they are decoded."""
    arrow, parquet = _library(path)
    with _readable(path, arrow), parquet.ParquetFile(path) as file:
        about, schema = file.metadata, file.schema_arrow
        header = [name.strip() for name in schema.names]
        check(about.num_rows, len(header))
        size = sum(about.row_group(place).total_byte_size for place in range(about.num_row_groups))
        if size > MOST_BYTES:
            raise DataError(f"{path.name}: {size:,} bytes once uncompressed; expected at most {MOST_BYTES:,}")
    if len(set(schema.names)) < len(header):  # which of the two is meant cannot be said; the header is told as it is
        return header, iter(())
    return header, _rows(path, schema, header, problems, check)


def _rows(path, schema, header, problems, check):
    arrow, parquet = _library(path)
    kinds = {name: _kind(arrow, schema.field(name).type) for name in schema.names}
    texts = [name for name, kind in kinds.items() if kind == "text"]
    wanted = [name for name, kind in kinds.items() if kind is not None]
    number = 0  # there is no header line here: the first patient is row 1
    with _readable(path, arrow), parquet.ParquetFile(path, read_dictionary=texts) as file:
        for batch in file.iter_batches(BATCH, columns=wanted):  # of no columns, it has rows all the same
            length = batch.num_rows
            columns = []
            for name, shown_as in zip(schema.names, header, strict=True):
                kind = kinds[name]
                if kind is None:
                    columns.append([f"<{schema.field(name).type}>"] * length)
                else:
                    columns.append(_cells(arrow, batch.column(name), kind, number, shown_as, problems))
            check(number + length, len(header))
            for cells in zip(*columns, strict=True):
                number += 1
                yield number, list(cells)


def _kind(arrow, type_):
    """How a column becomes cells: as it is, as text, as a time, or (None) not at all."""
    types = arrow.types
    if types.is_dictionary(type_):
        return _kind(arrow, type_.value_type)
    if types.is_string(type_) or types.is_large_string(type_):
        return "text"
    if types.is_temporal(type_):
        return "time"
    plain = (types.is_boolean, types.is_integer, types.is_floating, types.is_decimal, types.is_null)
    return "plain" if any(is_of(type_) for is_of in plain) else None


def _cells(arrow, column, kind, before, name, problems):
    """The cells of a batch of a column; `before` rows came before it."""
    encoded = arrow.types.is_dictionary(column.type)
    if kind != "text":
        column = column.dictionary_decode() if encoded else column
        return column.to_pylist() if kind == "plain" else _times(arrow, column)
    if not encoded:
        column = column.dictionary_encode()
    used = column.indices.unique().drop_null()
    raw = column.dictionary.take(used).cast(arrow.large_binary()).to_pylist()
    texts = dict(zip(used.to_pylist(), map(_decode, raw), strict=True))
    cells = [None if place is None else texts[place] for place in column.indices.to_pylist()]
    if None in texts.values():
        for place, (index, text) in enumerate(zip(column.indices.to_pylist(), cells, strict=True), before + 1):
            if index is not None and text is None:
                problems.add("the text is not UTF-8; expected UTF-8 (write the file anew)", place, name)
    return cells


def _decode(raw):
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return None


def _times(arrow, column):
    if arrow.types.is_timestamp(column.type):
        column = column.cast(arrow.timestamp(column.type.unit))  # as the file has it: its zone may be unknown here
    if arrow.types.is_duration(column.type):  # a number with its unit, for it is no number of the study's
        counts = column.cast(arrow.int64()).to_pylist()
        return [None if count is None else f"{count} {column.type.unit}" for count in counts]
    return column.cast(arrow.string()).to_pylist()


def _library(path):
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise DataError(
            f"{path.name}: reading Parquet needs pyarrow, which is not installed here; "
            'expected: pip install "fedlap[flower]", or a CSV file'
        ) from error
    return pyarrow, parquet


@contextmanager
def _readable(path: Path, arrow: Any) -> Iterator[None]:
    """An error of the library as one in words; the names of columns, too, may be no UTF-8."""
    try:
        yield
    except DataError:
        raise
    except (arrow.ArrowException, OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path.name}: not a readable Parquet file ({str(error)[:200]})") from error
