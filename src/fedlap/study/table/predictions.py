"""Predictions as a table: one line for each row of the patients' file, found again by its number."""

import csv
import io
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fedlap import files
from fedlap.study.table.table import Checked


def write(path: str | Path, classes: Sequence[str], checked: Checked, probabilities: Sequence[np.ndarray]) -> None:
    """Write the probabilities of a file's rows; rows that the study drops are there too, with empty cells.

    `probabilities` are [rows, classes], alone or with the lower and the upper end of their intervals.
    """
    names = [f"probability_{name}{end}" for end in ("", "_lower", "_upper")[: len(probabilities)] for name in classes]
    write_columns(path, names, checked, np.concatenate(probabilities, 1), ".6f")


def write_columns(path: str | Path, names: Sequence[str], checked: Checked, values: np.ndarray, form: str) -> None:
    """Write columns [rows, names] of numbers in this form; rows that the study drops have empty cells."""
    path = Path(path)
    lines = {row: [""] * len(names) for row in checked.dropped.tolist()}
    for row, cells in zip(checked.row_numbers.tolist(), values.tolist(), strict=True):
        lines[row] = [format(value, form) for value in cells]
    path.parent.mkdir(parents=True, exist_ok=True)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["row", *names])
    writer.writerows([row, *lines[row]] for row in sorted(lines))
    files.write(path, text.getvalue())
