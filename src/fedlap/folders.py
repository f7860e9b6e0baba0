"""Folders for results, and the one where fedlap keeps what it can make or fetch again."""

import os
from pathlib import Path

from .errors import DataError


def cache_folder() -> Path:
    """`fedlap` below the platform's cache folder."""
    base = os.environ.get("LOCALAPPDATA" if os.name == "nt" else "XDG_CACHE_HOME")
    return Path(base or Path.home() / ".cache") / "fedlap"


def results_folder(path) -> Path:
    """The folder, made if it is not there."""
    path = Path(path)
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(f"{path}: cannot be made ({error.strerror}); expected a folder to write to") from error
    return path
