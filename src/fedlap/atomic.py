"""A file is replaced at once or not at all: a reader finds the old one or the new one, never half."""

import os
import shutil
import tempfile
from contextlib import contextmanager
from pathlib import Path

from .errors import DataError


@contextmanager
def replacing(path, mode=0o666):
    """A neighbour to write bytes to: once on disk it takes the place of `path`; if the block fails, it goes."""
    path = Path(path)
    unfinished = path.with_name(path.name + ".part")
    try:
        with open(unfinished, "wb", opener=lambda name, flags: os.open(name, flags, mode)) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(unfinished, path)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise
    _keep_names(path.parent)


@contextmanager
def new_folder(path):
    """A neighbour to write files to: with all of them on disk it becomes `path`; if the block fails, it goes."""
    path = Path(path)
    if path.exists():
        raise DataError(f"{path}: exists already; expected the name of a new folder")
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = Path(tempfile.mkdtemp(prefix=f"{path.name}.part-", dir=path.parent))
    try:
        yield unfinished
        os.rename(unfinished, path)
    except BaseException:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise
    _keep_names(path.parent)


def write(path, content):
    """Text or bytes as a whole file."""
    with replacing(path) as file:
        file.write(content if isinstance(content, bytes) else content.encode())


def _keep_names(folder):
    """A new name, too, must survive a power cut."""
    if os.name == "posix":
        opened = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(opened)
        finally:
            os.close(opened)
