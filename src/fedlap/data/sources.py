"""Find, check and fetch the files of a data set.

A file is searched for in these folders, and taken from the first that has it:

    1. the data folder that was passed     2. the data folder in the environment variable FEDLAP_DATA
    3. fedlap's cache                      4. where the operating system installs it

each as <folder>/<data set>/<file> or <folder>/<file>, plain, gzipped or xz-compressed. What is found is
compared with the publisher's checksum each time it is read: that takes a tenth of a second, and a damaged
file costs a day.
"""

import hashlib
import os
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Annotated

from fedlap.data import formats as files
from fedlap.data.catalogue import BUNDLED, Content, Dataset, dataset
from fedlap.data.download import Progress, download
from fedlap.domains import FromRun
from fedlap.errors import DataError
from fedlap.files.folders import cache_folder

Folder = str | os.PathLike[str]
DataFolder = Annotated[Folder | None, FromRun.DATA_DIR]


def read(name: str, data_dir: Folder | None = None) -> dict[str, bytes]:
    """The checked contents of all files of a data set, by file name; files found nowhere are downloaded."""
    return {item.content.name: item.data for item in _complete(dataset(name), data_dir, progress=None)}


def bring(name: str, data_dir: Folder | None = None, progress: Progress | None = None) -> None:
    """Download what `read` would have to, so that somebody can watch."""
    _complete(dataset(name), data_dir, progress)


def _complete(known: Dataset, data_dir: Folder | None, progress: Progress | None) -> list["_Found"]:
    folders = places(known, data_dir)
    found = _examine(known, folders)
    missing = [item.content for item in found if item.path is None]
    if missing:
        _download(known, missing, _cache(known), folders, progress)
        found = _examine(known, folders)
    _raise_first(known, found)
    return found


def fetch(name: str, data_dir: Folder | None = None, progress: Progress | None = None) -> Path:
    """Make sure a data set is there and undamaged, and return the folder that holds it.

    Args:
        name: a name in `DATASETS`.
        data_dir: the data folder to bring it to; if not given, the cache, unless it is somewhere already.
        progress: called with (file, bytes so far, bytes in all) while a file arrives.
    """
    known = dataset(name)
    if data_dir is None or known.bundled:
        folders, target = places(known), _cache(known)
    else:
        folders = _within(known, Path(data_dir).expanduser())
        target = folders[0]
    wrong = [item.content for item in _examine(known, folders) if item.problem]
    if wrong:
        _download(known, wrong, target, folders, progress)
    found = _examine(known, folders)
    _raise_first(known, found)
    path, *_ = (item.path for item in found if item.path)
    return path.parent


def verify(name: str, data_dir: Folder | None = None) -> list[tuple[str, str]]:
    """Each file of a data set, its path or its name if it is nowhere, with "ok" or what is wrong with it."""
    known = dataset(name)
    return [
        (str(item.path or item.content.name), item.problem or "ok") for item in _examine(known, places(known, data_dir))
    ]


def places(known: Dataset, data_dir: Folder | None = None) -> list[Path]:
    """The folders a data set is searched for in, best first."""
    if data_dir is not None and not Path(data_dir).expanduser().is_dir():
        raise DataError(f"data folder {data_dir}: no such folder")
    if known.bundled:
        return [BUNDLED]
    folders = []
    for folder in (data_dir, os.environ.get("FEDLAP_DATA")):
        if folder:
            folders += _within(known, Path(folder).expanduser())
    return [*folders, _cache(known), *map(Path, known.system_folders)]


def _within(known: Dataset, folder: Path) -> list[Path]:
    return [folder / known.folder, folder]


def _cache(known: Dataset) -> Path:
    return cache_folder() / "data" / known.folder


@dataclass(frozen=True)
class _Found:
    content: Content
    path: Path | None
    data: bytes = b""
    problem: str = ""


def _examine(known: Dataset, folders: Iterable[Path]) -> list[_Found]:
    located = [(content, _locate(known, content, folders)) for content in known.contents]
    found = []
    # Together by path: an archive holds several contents and is uncompressed once.
    for path, group in groupby(located, key=lambda pair: pair[1]):
        contents = [content for content, _ in group]
        if path is None:
            found += [_Found(content, None, problem="missing") for content in contents]
            continue
        try:
            loaded = _load(known, path, contents)
        except DataError as error:
            problem = str(error).removeprefix(f"{path}: ")
            found += [_Found(content, path, problem=problem) for content in contents]
            continue
        found += [_compare(content, path, data) for content, data in zip(contents, loaded, strict=True)]
    return found


def _locate(known: Dataset, content: Content, folders: Iterable[Path]) -> Path | None:
    archives = [item.file for item in known.downloads if known.archive_folder and content.name in item.contents]
    spellings = [content.name + suffix for suffix in ("", ".gz", ".xz")]
    for folder in folders:
        loose = [inner / name for inner in (folder, folder / known.archive_folder) for name in spellings]
        for path in (*loose, *(folder / name for name in archives)):
            try:
                if path.is_file():
                    return path
            except PermissionError as error:
                raise DataError(f"{folder}: cannot be read ({error.strerror}); expected a folder of yours") from error
    return None


def _load(known: Dataset, path: Path, contents: list[Content]) -> list[bytes]:
    if any(item.file == path.name for item in known.downloads if known.archive_folder):
        names = [f"{known.archive_folder}/{content.name}" for content in contents]
        members = files.read_members(path, names)
        return [members[name] for name in names]
    return [files.read_content(path) for _ in contents]


def _compare(content: Content, path: Path, data: bytes) -> _Found:
    sha256 = hashlib.sha256(data).hexdigest()
    if len(data) == content.size and sha256 == content.sha256:
        return _Found(content, path, data)
    problem = (
        f"damaged, or not the published {content.name}; expected {content.size} bytes of sha256 "
        f"{content.sha256} once uncompressed, found {len(data)} of {sha256}"
    )
    return _Found(content, path, problem=problem)


def _raise_first(known: Dataset, found: list[_Found]) -> None:
    remedy = "install fedlap again" if known.bundled else f"delete the file, then run `fedlap data fetch {known.name}`"
    for item in found:
        if item.problem:
            raise DataError(f"{item.path}: {item.problem}; {remedy}")


def _download(
    known: Dataset, wanted: list[Content], target: Path, folders: list[Path], progress: Progress | None
) -> None:
    names = {content.name for content in wanted}
    if known.bundled:
        raise DataError(
            f"{known.name}: {', '.join(sorted(names))} missing or damaged in the package; install fedlap again"
        )
    try:
        for item in known.downloads:
            if names.intersection(item.contents):
                download(item, target, progress)
    except DataError as error:
        raise DataError(
            f"{known.name} is not on this machine and cannot be downloaded.\n"
            f"  Looked in: {', '.join(map(str, folders))}\n"
            f"  Needed: {', '.join(item.file for item in known.downloads)}\n"
            f"  {error}\n"
            "  To fix: put the files in a folder and name it with --data-dir (data_dir=) or FEDLAP_DATA, "
            f"or run `fedlap data fetch {known.name}` where there is a network."
        ) from error
