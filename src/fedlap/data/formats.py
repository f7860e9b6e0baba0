"""Readers of the published file formats; a file that is not what it should be is an error that names it."""

import gzip
import lzma
import math
import tarfile
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fedlap.errors import DataError

_DAMAGE = (EOFError, gzip.BadGzipFile, zlib.error, lzma.LZMAError, tarfile.TarError)
_CIFAR_RECORD = 1 + 3 * 32 * 32


def read_content(path: Path) -> bytes:
    """All bytes of a file, uncompressed if it is gzip or xz.

    The first bytes decide, not the suffix: browsers store .gz files uncompressed under their old name.
    """
    try:
        content = path.read_bytes()
        if content.startswith(b"\x1f\x8b"):
            return gzip.decompress(content)
        if content.startswith(b"\xfd7zXZ\0"):
            return lzma.decompress(content)
    except _DAMAGE as error:
        raise DataError(f"{path}: damaged or truncated compressed data ({error}); expected a complete file") from error
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror})") from error
    return content


def read_members(path: Path, names: Sequence[str]) -> dict[str, bytes]:
    """The named files of a tar archive, compressed or not, in one pass and without unpacking it to disk."""
    contents: dict[str, bytes] = {}
    try:
        with tarfile.open(path, "r|*") as archive:
            for member in archive:
                name = member.name.removeprefix("./")
                if name in names and member.isfile() and (file := archive.extractfile(member)) is not None:
                    contents[name] = file.read()
    except _DAMAGE as error:
        raise DataError(f"{path}: damaged or truncated archive ({error}); expected a complete file") from error
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror or error})") from error
    for name in names:
        if name not in contents:
            raise DataError(f"{path}: no file {name} in this archive; expected {', '.join(names)}")
    return contents


def idx_array(content: bytes, source: object, dimensions: int) -> np.ndarray:
    """An array in IDX format: two zero bytes, the type, the number of dimensions, their sizes, the values."""
    expected = bytes((0, 0, 8, dimensions))
    if content[:4] != expected:
        raise DataError(
            f"{source}: not an IDX file of {dimensions}-dimensional bytes; "
            f"expected it to start with {expected.hex(' ')}, found {content[:4].hex(' ') or 'nothing'}"
        )
    start = 4 + 4 * dimensions
    if len(content) < start:
        raise DataError(f"{source}: truncated header; expected {start} bytes, found {len(content)}")
    shape = tuple(np.frombuffer(content[4:start], ">u4").tolist())
    size = math.prod(shape)
    if len(content) != start + size:
        problem = "truncated" if len(content) < start + size else "bytes after the end"
        raise DataError(
            f"{source}: {problem}; expected {start + size} bytes for an array of shape {shape}, found {len(content)}"
        )
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape)


def cifar_arrays(content: bytes, source: object) -> tuple[np.ndarray, np.ndarray]:
    """Images [N, 32, 32, 3] and labels [N] in CIFAR-10's format: a label, then red, green and blue planes."""
    if len(content) == 0 or len(content) % _CIFAR_RECORD:
        raise DataError(
            f"{source}: {len(content)} bytes; expected a whole number of records of {_CIFAR_RECORD} bytes, at least one"
        )
    records = np.frombuffer(content, np.uint8).reshape(-1, _CIFAR_RECORD)
    labels = records[:, 0]
    if labels.max() > 9:
        record = int(np.argmax(labels > 9))
        raise DataError(f"{source}, record {record}: label is {labels[record]}; expected 0 to 9")
    # Laid out anew while they are bytes: later, every pass in the old order is over four times as much.
    return np.ascontiguousarray(records[:, 1:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)), labels
