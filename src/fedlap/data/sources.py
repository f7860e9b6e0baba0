"""The files of a data set: found, checked and fetched.

A file is searched for in these folders, and taken from the first that has it:

    1. the data folder that was passed     2. the data folder in the environment variable FEDLAP_DATA
    3. fedlap's cache                      4. where the operating system installs it

each as <folder>/<data set>/<file> or <folder>/<file>, plain, gzipped or xz-compressed. What is found is
compared with the publisher's checksum each time it is read: that takes a tenth of a second, and a damaged
file costs a day.
"""

import hashlib
import os
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Annotated

from fedlap.data import formats as files
from fedlap.data.catalogue import BUNDLED, Content, Dataset, dataset
from fedlap.data.download import Progress, download
from fedlap.domains import FromRun
from fedlap.errors import DataError
from fedlap.files import cache_folder

Folder = str | os.PathLike[str]
DataFolder = Annotated[Folder | None, FromRun.DATA_DIR]


def read(name: str, data_dir: Folder | None = None, only: Collection[str] = ()) -> dict[str, bytes]:
    """The checked contents of a data set's files, all or only these, by name; those found nowhere are downloaded."""
    bring(name, data_dir)
    data_set = dataset(name)
    if only:
        data_set = replace(data_set, contents=tuple(content for content in data_set.contents if content.name in only))
    copies = _examine(data_set, places(data_set, data_dir))
    _raise_first(data_set, copies)
    return {copy.content.name: copy.data for copy in copies}


def bring(name: str, data_dir: Folder | None = None, progress: Progress | None = None) -> None:
    """Download the files of a data set that are nowhere, so that somebody can watch; `read` checks them."""
    data_set = dataset(name)
    folders = places(data_set, data_dir)
    missing = [content for content in data_set.contents if _locate(data_set, content, folders) is None]
    if missing:
        _download(data_set, missing, _cache(data_set), folders, progress)


def fetch(name: str, data_dir: Folder | None = None, progress: Progress | None = None) -> Path:
    """Make sure a data set is there and undamaged, and return the folder that holds it.

    Args:
        name: a name in `DATASETS`.
        data_dir: the data folder to bring it to; if not given, the cache, unless it is somewhere already.
        progress: called with (file, bytes so far, bytes in all) while a file arrives.
    """
    data_set = dataset(name)
    if data_dir is None or data_set.bundled:
        folders, target = places(data_set), _cache(data_set)
    else:
        folders = _within(data_set, Path(data_dir).expanduser())
        target = folders[0]
    wrong = [copy.content for copy in _examine(data_set, folders) if copy.problem]
    if wrong:
        _download(data_set, wrong, target, folders, progress)
    copies = _examine(data_set, folders)
    _raise_first(data_set, copies)
    path, *_ = (copy.path for copy in copies if copy.path)
    return path.parent


def verify(name: str, data_dir: Folder | None = None) -> list[tuple[str, str]]:
    """Each file of a data set, its path or its name if it is nowhere, with "ok" or what is wrong with it."""
    data_set = dataset(name)
    return [
        (str(copy.path or copy.content.name), copy.problem or "ok")
        for copy in _examine(data_set, places(data_set, data_dir))
    ]


def places(data_set: Dataset, data_dir: Folder | None = None) -> list[Path]:
    """The folders a data set is searched for in, best first."""
    if data_dir is not None and not Path(data_dir).expanduser().is_dir():
        raise DataError(f"data folder {data_dir}: no such folder")
    if data_set.bundled:
        return [BUNDLED]
    folders = []
    for folder in (data_dir, os.environ.get("FEDLAP_DATA")):
        if folder:
            folders += _within(data_set, Path(folder).expanduser())
    return [*folders, _cache(data_set), *map(Path, data_set.system_folders)]


def _within(data_set: Dataset, folder: Path) -> list[Path]:
    return [folder / data_set.folder, folder]


def _cache(data_set: Dataset) -> Path:
    return cache_folder() / "data" / data_set.folder


@dataclass(frozen=True)
class _Copy:
    """A content of a data set as it is on this machine: where, its bytes, and what is wrong with it."""

    content: Content
    path: Path | None
    data: bytes = b""
    problem: str = ""


def _examine(data_set: Dataset, folders: Iterable[Path]) -> list[_Copy]:
    located = [(content, _locate(data_set, content, folders)) for content in data_set.contents]
    copies = []
    # Together by path: an archive holds several contents and is uncompressed once.
    for path, group in groupby(located, key=lambda pair: pair[1]):
        contents = [content for content, _ in group]
        if path is None:
            copies += [_Copy(content, None, problem="missing") for content in contents]
            continue
        try:
            loaded = _load(data_set, path, contents)
        except DataError as error:
            problem = str(error).removeprefix(f"{path}: ")
            copies += [_Copy(content, path, problem=problem) for content in contents]
            continue
        copies += [_compare(content, path, data) for content, data in zip(contents, loaded, strict=True)]
    return copies


def _locate(data_set: Dataset, content: Content, folders: Iterable[Path]) -> Path | None:
    archives = [item.file for item in data_set.downloads if data_set.archive_folder and content.name in item.contents]
    spellings = [content.name + suffix for suffix in ("", ".gz", ".xz")]
    for folder in folders:
        loose = [inner / name for inner in (folder, folder / data_set.archive_folder) for name in spellings]
        for path in (*loose, *(folder / name for name in archives)):
            try:
                if path.is_file():
                    return path
            except PermissionError as error:
                raise DataError(f"{folder}: cannot be read ({error.strerror}); expected a folder of yours") from error
    return None


def _load(data_set: Dataset, path: Path, contents: list[Content]) -> list[bytes]:
    if any(item.file == path.name for item in data_set.downloads if data_set.archive_folder):
        names = [f"{data_set.archive_folder}/{content.name}" for content in contents]
        members = files.read_members(path, names)
        return [members[name] for name in names]
    return [files.read_content(path) for _ in contents]


def _compare(content: Content, path: Path, data: bytes) -> _Copy:
    sha256 = hashlib.sha256(data).hexdigest()
    if len(data) == content.size and sha256 == content.sha256:
        return _Copy(content, path, data)
    problem = (
        f"damaged, or not the published {content.name}; expected {content.size} bytes of sha256 "
        f"{content.sha256} once uncompressed, found {len(data)} of {sha256}"
    )
    return _Copy(content, path, problem=problem)


def _raise_first(data_set: Dataset, copies: list[_Copy]) -> None:
    remedy = (
        "install fedlap again" if data_set.bundled else f"delete the file, then run `fedlap data fetch {data_set.name}`"
    )
    for copy in copies:
        if copy.problem:
            raise DataError(f"{copy.path}: {copy.problem}; {remedy}")


def _download(
    data_set: Dataset, needed: list[Content], target: Path, folders: list[Path], progress: Progress | None
) -> None:
    names = {content.name for content in needed}
    if data_set.bundled:
        raise DataError(
            f"{data_set.name}: {', '.join(sorted(names))} missing or damaged in the package; install fedlap again"
        )
    try:
        for item in data_set.downloads:
            if names.intersection(item.contents):
                download(item, target, progress)
    except DataError as error:
        raise DataError(
            f"{data_set.name} is not on this machine and cannot be downloaded.\n"
            f"  Looked in: {', '.join(map(str, folders))}\n"
            f"  Needed: {', '.join(item.file for item in data_set.downloads)}\n"
            f"  {error}\n"
            "  To fix: put the files in a folder and name it with --data-dir (data_dir=) or FEDLAP_DATA, "
            f"or run `fedlap data fetch {data_set.name}` where there is a network."
        ) from error
