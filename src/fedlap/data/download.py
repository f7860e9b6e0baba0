"""Downloads of published files: resumed where they stopped, checked, and only then given their names."""

import fcntl
import hashlib
import http.client
import os
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from fedlap.data.catalogue import Download
from fedlap.errors import DataError

Progress = Callable[[str, int, int], None]  # file, bytes so far, bytes in all

_CHUNK = 1 << 18
_TIMEOUT = 30  # seconds without a byte


def download(item: Download, folder: Path, progress: Progress | None = None) -> Path:
    """Bring one file into the folder, from the first of its addresses that delivers it whole.

    An interrupted transfer leaves `<file>.part`, which the next call continues. Wrong bytes leave nothing.
    """
    part, target, failures = folder / f"{item.file}.part", folder / item.file, []
    with _alone_in(folder):
        if target.exists() and _md5(target) == item.md5:  # while this one waited, another brought it
            return target
        for url in item.urls:
            try:
                _fetch(item, url, part, progress)
                os.replace(part, target)
                return target
            except (OSError, http.client.HTTPException, DataError) as error:
                failures.append(f"{url}: {error}")
    raise DataError(f"cannot download {item.file}: " + "; ".join(failures))


@contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """A lock on the folder, made if it is not there: two processes that write one `.part` would spoil it for both."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(folder, os.O_RDONLY)
    except OSError as error:
        raise DataError(f"{folder}: cannot be made ({error.strerror}); expected a folder to write to") from error
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _fetch(item: Download, url: str, part: Path, progress: Progress | None) -> None:
    begun = part.exists()
    _receive(item, url, part, progress)
    try:
        _check(item, part)
    except DataError:
        if not begun or part.exists():
            raise
        # What was continued was no beginning of this file, perhaps another address's error page: once more, from none.
        _receive(item, url, part, progress)
        _check(item, part)


def _receive(item: Download, url: str, part: Path, progress: Progress | None) -> None:
    have = part.stat().st_size if part.exists() else 0
    if have == item.size:
        return
    headers = {"User-Agent": "fedlap", "Accept-Encoding": "identity"}
    if 0 < have < item.size:
        headers["Range"] = f"bytes={have}-"
    with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=_TIMEOUT) as response:
        # A server may ignore the range and send the whole file, with status 200.
        resumed = response.status == 206 and response.headers.get("Content-Range", "").startswith(f"bytes {have}-")
        have = have if resumed else 0
        offered = response.length  # None if the server does not say
        if offered is not None and have + offered != item.size:  # a page of something else, and no reason to begin
            raise DataError(f"it has {have + offered} bytes; expected {item.size}")
        with open(part, "ab" if resumed else "wb") as file:
            while have <= item.size and (chunk := response.read(_CHUNK)):
                file.write(chunk)
                have += len(chunk)
                if progress is not None:
                    progress(item.file, min(have, item.size), item.size)


def _check(item: Download, part: Path) -> None:
    size = part.stat().st_size
    if size < item.size:
        raise DataError(f"received {size} of {item.size} bytes; run it again to continue")
    md5 = _md5(part)
    if size > item.size or md5 != item.md5:
        part.unlink()
        raise DataError(f"expected {item.size} bytes of md5 {item.md5}, received {size} of md5 {md5}; discarded")


def _md5(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "md5").hexdigest()
