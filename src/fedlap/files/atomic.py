"""Files that are replaced at once or not at all: a reader finds the old one or the new one, never half."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from fedlap.files.folders import PathLike


@contextmanager
def replacing(path: PathLike, mode: int = 0o666) -> Iterator[BinaryIO]:
    """A neighbour to write bytes to: once on disk it takes the place of `path`; if the block fails, it goes.

    An error of the disk names `path`, whichever write it came from.
    """
    path = Path(path)
    unfinished = path.with_name(path.name + ".part")
    try:
        with open(unfinished, "wb", opener=lambda name, flags: os.open(name, flags, mode)) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(unfinished, path)
    except BaseException as error:
        unfinished.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.errno and error.filename in (None, str(unfinished)):
            error.filename = str(path)
        raise
    if os.name == "posix":  # the new name, too, must survive a power cut
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def write(path: PathLike, content: str | bytes) -> None:
    """Write text or bytes as a whole file."""
    with replacing(path) as file:
        file.write(content if isinstance(content, bytes) else content.encode())
