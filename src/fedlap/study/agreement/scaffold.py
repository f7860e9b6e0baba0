"""A new study's folder: its file, its certificates and its keys, all or nothing."""

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from fedlap.documents import parse_toml
from fedlap.errors import ConfigError
from fedlap.study.agreement.contract import CommonStudy, Study, read_table, resolve
from fedlap.study.agreement.keys import make_authority, make_member, write_new

if TYPE_CHECKING:
    from fedlap.study.agreement.regression import RegressionStudy

AnyStudy = TypeVar("AnyStudy", bound=CommonStudy)


def new_study(folder: str | Path, text: str) -> Study:
    """Write the folder of the study that the text describes; it appears complete, or not at all."""
    return _new(Path(folder), text, resolve)


def new_regression(folder: str | Path, text: str) -> "RegressionStudy":
    """Write the folder of the regression that the text describes; it appears complete, or not at all."""
    from fedlap.study.agreement.regression import resolve_regression

    return _new(Path(folder), text, resolve_regression)


def new_from(folder: str | Path, path: str | Path) -> CommonStudy:
    """Write the folder of the study in a file, of either kind; only a copy of the file gets there."""
    table, path = read_table(path)
    make = new_regression if "regression" in table else new_study
    return make(folder, path.read_text(encoding="utf-8-sig"))


def _new(folder: Path, text: str, resolve: Callable[[dict[str, Any], Path], AnyStudy]) -> AnyStudy:
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"{folder} exists already; expected the name of a new folder: nothing is ever overwritten")
    study = resolve(parse_toml(text, folder / "study.toml"), folder / "study.toml")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        unfinished = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
        try:
            _fill(unfinished, study, text)
            os.replace(unfinished, folder)
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)
    except OSError as error:
        raise ConfigError(f"{folder}: cannot be written ({error.strerror})") from error
    return study


def _fill(folder, study, text):
    folder.chmod(0o755)  # the private keys in it are their owner's alone all the same
    write_new(folder / "study.toml", text.encode())
    make_authority(folder, [study.host])
    for member in study.members:
        make_member(folder, member.name)
