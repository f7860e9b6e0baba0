"""Files that are only ever added to: lines of JSON, each bound to the one before it by its hash.

A line that is changed, removed or put in between breaks the chain at that place. No line is bound to the last one:
that it was changed, that whole lines were removed from the end, or that all were written anew from some place on, shows
only to who has noted a line's number and hash elsewhere.
"""

import datetime
import hashlib
import json
import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from fedlap import files
from fedlap.errors import DataError

FIRST = "0" * 64


class AddedLine(NamedTuple):
    """A line that was added: its number, from 1, its hash, and that of the line before it."""

    line: int
    previous: str
    head: str


@dataclass(frozen=True)
class Chain:
    """Files whose entries have at least these fields, a time and the hash `previous` among them."""

    fields: frozenset[str]

    def append(self, path: str | Path, entry: dict[str, Any]) -> AddedLine:
        """Add an entry, and have it on disk; where that fails, nothing of it stays.

        A line half written by a power cut is completed to a line, which stays as evidence.
        """
        path = Path(path)
        with files.writing(path):
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            with open(os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600), "r+b", buffering=0) as file:
                log = file.readall()
                end = b"" if log.endswith(b"\n") or not log else b"\n"
                previous = line_hash(log.removesuffix(b"\n").rpartition(b"\n")[2]) if log else FIRST
                line = _line({**entry, "previous": previous})
                _add(path, file.fileno(), len(log), end + line + b"\n")
            if not log:
                files.keep_name(path)
        return AddedLine(log.count(b"\n") + len(end) + 1, previous, line_hash(line))

    def entries(self, log: bytes, name: str | Path) -> list[dict[str, Any]]:
        """The entries of a file; DataError at the first line that is no entry, or not bound to the one before it.

        What a crash left of a line is an entry {"unfinished": …}.
        """
        *lines, rest = log.split(b"\n")
        lines += [rest] if rest else []
        entries, previous = [], FIRST
        for number, line in enumerate(lines, 1):
            entry = self._entry(line)
            if entry is None:
                raise DataError(f"{name}, line {number}: not an entry of an audit log")
            if entry.get("previous", previous) != previous:
                follows = f"follow line {number - 1}" if number > 1 else "begin a log"
                raise DataError(f"{name}, line {number}: does not {follows}; something was changed, removed or put in")
            entries.append(entry)
            previous = line_hash(line)
        return entries

    def _entry(self, line: bytes) -> dict[str, Any] | None:
        """What stands in a line, if it is one that `append` has written or begun to write."""
        try:
            entry = json.loads(line.decode())
        except (ValueError, RecursionError):
            begun = line.rstrip(b"\0")  # what a file system may show of bytes that a power cut kept from the disk
            beginning = f'{{"{min(self.fields)}": '.encode()  # names are sorted
            written = line and (begun.startswith(beginning) or beginning.startswith(begun))
            return {"unfinished": line.decode(errors="replace")} if written else None
        if not isinstance(entry, dict) or not entry.keys() >= self.fields or _line(entry) != line:
            return None
        return entry if _is_time(entry["time"]) else None


def now() -> str:
    """The time of an entry."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")


def fingerprint(entry: dict[str, Any]) -> str:
    """The hash of an entry's line: the next line has it, and with it all that stands before is fixed."""
    return line_hash(_line(entry))


def line_hashes(log: bytes) -> list[str]:
    """The hash of each line of a file."""
    return [line_hash(line) for line in log.removesuffix(b"\n").split(b"\n")] if log else []


def line_hash(line: bytes) -> str:
    """The hash of a line without its end."""
    return hashlib.sha256(line).hexdigest()


def _add(path: Path, descriptor: int, length: int, data: bytes) -> None:
    """Add bytes to a file of this length, all or none."""
    try:
        with files.writing(path, len(data)):
            written = 0
            while written < len(data):
                written += os.write(descriptor, data[written:])
            os.fsync(descriptor)
    except OSError:
        with suppress(OSError):  # then the next line completes it
            os.ftruncate(descriptor, length)
        raise


def _line(entry: dict[str, Any]) -> bytes:
    return json.dumps(entry, sort_keys=True).encode()


def _is_time(text: Any) -> bool:
    try:
        return bool(datetime.datetime.fromisoformat(text))
    except (TypeError, ValueError):
        return False
