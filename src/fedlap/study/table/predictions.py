"""Probabilities as a table: one line for each row of the patients' file, found again by its number."""

import csv
import io
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fedlap import files
from fedlap.study.table.table import Checked


def write(path: str | Path, classes: Sequence[str], checked: Checked, probabilities: np.ndarray) -> None:
    """Write the probabilities of a file's rows; rows that the study drops are there too, with empty cells."""
    path = Path(path)
    lines = {row: [""] * len(classes) for row in checked.dropped.tolist()}
    for row, values in zip(checked.row_numbers.tolist(), probabilities.tolist(), strict=True):
        lines[row] = [f"{value:.6f}" for value in values]
    path.parent.mkdir(parents=True, exist_ok=True)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["row", *(f"probability_{name}" for name in classes)])
    writer.writerows([row, *lines[row]] for row in sorted(lines))
    files.write(path, text.getvalue())
