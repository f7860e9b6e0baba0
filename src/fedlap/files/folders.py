"""Folders for results, and the one where fedlap keeps what it can make or fetch again."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fedlap.errors import DataError

PathLike = str | os.PathLike[str]


def cache_folder() -> Path:
    """`fedlap` below the platform's cache folder."""
    base = os.environ.get("LOCALAPPDATA" if os.name == "nt" else "XDG_CACHE_HOME")
    return Path(base or Path.home() / ".cache") / "fedlap"


def results_folder(path: PathLike) -> Path:
    """The folder, made if it is not there."""
    path = Path(path)
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(f"{path}: cannot be made ({error.strerror}); expected a folder to write to") from error
    return path


@contextmanager
def new_folder(path: PathLike) -> Iterator[Path]:
    """A neighbour to write files to: with all of them on disk it becomes `path`; if the block fails, it goes."""
    path = Path(path)
    if path.exists():
        raise DataError(f"{path}: exists already; expected the name of a new folder")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = Path(tempfile.mkdtemp(prefix=f"{path.name}.part-", dir=path.parent))
    except OSError as error:
        raise DataError(f"{path}: cannot be made ({error.strerror}); expected the name of a new folder") from error
    try:
        yield unfinished
        os.rename(unfinished, path)
    except BaseException:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise
