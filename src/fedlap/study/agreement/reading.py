"""A study of either kind, as its file says: a model that predicts, or a regression."""

from pathlib import Path
from typing import TYPE_CHECKING

from fedlap.study.agreement.contract import Study, read_table, resolve

if TYPE_CHECKING:
    from fedlap.study.agreement.regression import RegressionStudy


def read_study(path: str | Path) -> "Study | RegressionStudy":
    """The study in a file, or in the study.toml of a folder; one with a section [regression] is a regression."""
    table, path = read_table(path)
    if "regression" not in table:
        return resolve(table, path)
    from fedlap.study.agreement.regression import resolve_regression

    return resolve_regression(table, path)
