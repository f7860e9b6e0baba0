"""Files that are replaced at once or not at all, the folders they are kept in, and arrays in a file with a header."""

import errno
import hashlib
import json
import os
import shutil
import tempfile
import zipfile
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, Self

import numpy as np

from fedlap.documents import read_json
from fedlap.errors import DataError

# Folders: of results, and the one where fedlap keeps what it can make or fetch again ----------------------------------

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


# A disk that is full, read-only or gone, in words ---------------------------------------------------------------------

FULL = (errno.ENOSPC, errno.EDQUOT)
FORBIDDEN = (errno.EACCES, errno.EPERM)


class WriteError(OSError):
    """A file that could not be written: its message names the file and says what to do about it."""

    cure: str = ""

    @classmethod
    def of(cls, error: OSError, path: PathLike, size: int = 0) -> "WriteError":
        """The same error, of writing so many bytes to `path`."""
        made = cls(error.errno, error.strerror, str(path))
        made.cure = _cure(error.errno, Path(path), size)
        return made

    def __str__(self) -> str:
        return f"{self.filename}: cannot be written ({self.strerror}); {self.cure}"


@contextmanager
def writing(path: PathLike, size: int = 0) -> Iterator[None]:
    """A block that writes so many bytes to a file, or makes its folder; an error of the disk names the file."""
    try:
        yield
    except OSError as error:
        if error.errno is None or isinstance(error, WriteError):
            raise
        raise WriteError.of(error, path, size) from error


def in_words(error: OSError) -> str:
    """An error of the disk as one sentence."""
    if error.errno in (*FULL, errno.EROFS) and error.filename and not isinstance(error, WriteError):
        error = WriteError.of(error, error.filename)
    return str(error) if isinstance(error, WriteError) else f"{error.filename or 'a file'}: {error.strerror or error}"


def _cure(number: int | None, path: Path, size: int) -> str:
    """What to do about an error of writing to a file."""
    standing = next((folder for folder in path.absolute().parents if os.path.lexists(folder)), Path("/"))
    if number in FULL:
        return f"make room {f'for {size:,} bytes ' if size else ''}in {standing}, {_free(standing)}"
    if number == errno.EFBIG:
        return f"allow files of {size:,} bytes there (ulimit -f)"
    if number == errno.EROFS:
        return f"make the disk of {standing} one that can be written to; it is mounted read-only"
    if number in FORBIDDEN:
        return f"let this account write to {standing} and to what is in it"
    if number in (errno.ENOTDIR, errno.EEXIST):
        return f"expected a folder in the place of {standing}"
    if number == errno.ENOENT:
        return f"bring the folder {path.parent} back"
    return f"look after the disk of {standing}"


def _free(folder: Path) -> str:
    try:
        disk = os.statvfs(folder)
    except OSError:
        return "which is full"
    if disk.f_files and not disk.f_favail:
        return "which has no room for one more file"
    return f"where {disk.f_bavail * disk.f_frsize:,} bytes are free"


# A reader finds the old file or the new one, never half ---------------------------------------------------------------


@contextmanager
def replacing(path: PathLike, mode: int = 0o666, size: int = 0) -> Iterator[BinaryIO]:
    """A neighbour to write bytes to: once on disk it takes the place of `path`; if the block fails, it goes.

    An error of the disk names `path`, whichever write it came from, and the `size` that there must be room for.
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
        with suppress(OSError):  # the first error is the one to tell
            unfinished.unlink()
        if isinstance(error, OSError) and error.errno and error.filename in (None, str(unfinished)):
            raise WriteError.of(error, path, size) from error
        raise
    keep_name(path)


def keep_name(path: Path) -> None:
    """Have a new file's name on disk, too: it must survive a power cut as its content does."""
    if os.name == "posix":
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def write(path: PathLike, content: str | bytes) -> None:
    """Write text or bytes as a whole file."""
    content = content if isinstance(content, bytes) else content.encode()
    with replacing(path, size=len(content)) as file:
        file.write(content)


# Named arrays and a header about them in one file, never a pickle -----------------------------------------------------

HEADER = "header"
ENTRY = 280  # bytes that an array in an archive takes beside its numbers and its name


def write_arrays(path: PathLike, header: Mapping[str, Any], arrays: Mapping[str, Any]) -> None:
    """Write the header, which is JSON, and the arrays; missing folders are made, for the user alone.

    Arrays are made of what is given one at a time: together they may be larger than memory.
    """
    path = Path(path)
    everything = {HEADER: np.frombuffer(json.dumps(header).encode(), np.uint8), **arrays}
    size = sum(getattr(array, "nbytes", 0) + ENTRY + 2 * len(name) for name, array in everything.items())
    with writing(path, size):
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with replacing(path, mode=0o600, size=size) as file, ArchiveWriter(file) as archive:
        for name, array in everything.items():
            archive.add(name, np.asarray(array))


class ArchiveWriter:
    """An .npz file that is written array after array, and given up without a second error if one cannot be written."""

    def __init__(self, file: BinaryIO) -> None:
        self._zip = zipfile.ZipFile(file, "w", zipfile.ZIP_STORED, allowZip64=True)

    def add(self, name: str, array: np.ndarray) -> None:
        with self._zip.open(f"{name}.npy", "w", force_zip64=True) as entry:
            np.lib.format.write_array(entry, array, allow_pickle=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type | None, *_: object) -> None:
        if kind is None:
            return self._zip.close()
        with suppress(Exception):  # an archive whose disk is full cannot be closed, either
            self._zip.close()
        return None


def read_arrays(path: PathLike) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """The header and the arrays; OSError if the file cannot be opened, ValueError whatever is wrong with it."""
    with reading_arrays(path) as (header, arrays):
        return header, dict(arrays)


@contextmanager
def reading_arrays(path: PathLike) -> Iterator[tuple[dict[str, Any], Mapping[str, np.ndarray]]]:
    """The header, and arrays that are read when they are asked for; errors as those of `read_arrays`."""
    with open(path, "rb") as opened:
        with _sound():
            file = np.load(opened, allow_pickle=False)
            header = json.loads(file[HEADER].tobytes())
        if not isinstance(header, dict):
            raise ValueError("it does not say what it is of")
        yield header, ArchiveReader(file)


class ArchiveReader(Mapping[str, np.ndarray]):
    """The arrays of an .npz file that is open, each read when it is asked for."""

    def __init__(self, file: Any) -> None:
        self._zip, self._names = file.zip, {name: None for name in file.files if name != HEADER}

    def __getitem__(self, name: str) -> np.ndarray:
        if name not in self._names:
            raise KeyError(name)
        with _sound(), self._zip.open(f"{name}.npy") as entry:  # NumPy would look through all names for each
            return np.lib.format.read_array(entry, allow_pickle=False)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


@contextmanager
def _sound() -> Iterator[None]:
    """A damaged archive fails in a dozen ways, each an exception of its own: here they are all a ValueError."""
    try:
        yield
    except Exception as error:
        raise ValueError(str(error)) from error


# A folder of two files: one in JSON that says what it is, and arrays beside it that it knows by its hash --------------


def read_description(path: Path, formats: Collection[int], thing: str, state: str) -> dict[str, Any]:
    """The JSON file of a thing in a state, such as a history that is saved, if it is of one of these formats."""
    try:
        description = read_json(path)
    except OSError as error:
        expected = f"expected the folder of a {state} {thing}"
        raise DataError(f"{path}: cannot be read ({error.strerror}); {expected}") from error
    except ValueError as error:
        raise DataError(f"{path}: not JSON ({error})") from error
    number = description.get("format") if isinstance(description, dict) else None
    if number not in list(formats):  # a list compares: what stands in a file need not have a hash
        readable = f"format{'s' if len(formats) > 1 else ''} {' and '.join(map(str, formats))}"
        raise DataError(f"{path}: a {thing} of format {number!r}; this fedlap reads {readable}")
    return description


def read_described(path: Path, sha256: str, description: str) -> bytes:
    """The bytes of the other file, if they are those that the file named `description` was written for."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror})") from error
    if hashlib.sha256(content).hexdigest() != sha256:
        raise DataError(f"{path}: not the file that {description} was written for; it is damaged, or of another run")
    return content
