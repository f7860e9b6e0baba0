"""An append-only record of everything a site has sent, each line bound to the one before it by its hash.

A line that is changed, removed or put in between breaks the chain at that place; `verify` says where. No line is
bound to the last one: that it was changed, that whole lines were removed from the end, or that all were written anew
from some place on, shows only to who has noted a `fingerprint` elsewhere.
"""

import datetime
import hashlib
import json
import os
from pathlib import Path
from typing import Any

from fedlap.errors import DataError
from fedlap.study.protocol.messages import Reply, Request, digest, size

FIRST = "0" * 64
FIELDS = {*"time member study run kind round facts refusal arrays bytes sha256 previous".split()}
BEGINNING = b'{"arrays": {'  # of a line: names are sorted


def append(path: str | Path, member: str, request: Request, reply: Reply) -> None:
    """Record a reply before it leaves."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    entry = {
        "time": datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds"),
        "member": member,
        "study": request.study,
        "run": request.run,
        "kind": request.kind,
        "round": request.round,
        "facts": reply.facts,
        "refusal": reply.refusal,
        "arrays": {name: f"{array.dtype} {list(array.shape)}" for name, array in reply.arrays.items()},
        "bytes": size(reply.arrays),
        "sha256": digest(reply.arrays),
        "previous": _last(path),
    }
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "a", encoding="utf-8") as file:
        file.write(_line(entry) + "\n")
        file.flush()
        os.fsync(file.fileno())


def verify(path: str | Path) -> list[dict[str, Any]]:
    """The entries of a log file; DataError at the first line that does not fit."""
    return chain(Path(path).read_bytes(), path)


def chain(log: bytes, name: str | Path) -> list[dict[str, Any]]:
    """The entries of a log, given as bytes; DataError at the first line that is no entry, or not bound to the last.

    What a crash left of a line before its message was sent is an entry {"unfinished": …} if one was written after it.
    """
    *lines, rest = log.split(b"\n")
    lines += [rest] if rest else []
    if not lines:
        raise DataError(f"{name}: empty; expected a line for every message that was sent")
    entries, previous = [], FIRST
    for number, line in enumerate(lines, 1):
        entry = _entry(line)
        if entry is None:
            raise DataError(f"{name}, line {number}: not an entry of an audit log")
        if entry.get("previous", previous) != previous:
            follows = f"follow line {number - 1}" if number > 1 else "begin a log"
            raise DataError(f"{name}, line {number}: does not {follows}; something was changed, removed or put in")
        entries.append(entry)
        previous = _hash(line)
    if rest or "unfinished" in entries[-1]:
        raise DataError(f"{name}, line {len(lines)}: not complete; the end was cut off, by a crash or by hand")
    return entries


def fingerprint(entry: dict[str, Any]) -> str:
    """The hash of an entry's line: the next line has it, and with it all that stands before is fixed."""
    return _hash(_line(entry).encode())


def _entry(line):
    """What stands in a line, if it is one that `append` has written or begun to write."""
    try:
        entry = json.loads(line.decode())
    except (ValueError, RecursionError):
        begun = line.rstrip(b"\0")  # what a file system may show of bytes that a power cut kept from the disk
        written = line and (begun.startswith(BEGINNING) or BEGINNING.startswith(begun))
        return {"unfinished": line.decode(errors="replace")} if written else None
    if not isinstance(entry, dict) or not entry.keys() >= FIELDS or _line(entry).encode() != line:
        return None
    return entry if _is_time(entry["time"]) else None


def _is_time(text):
    try:
        return bool(datetime.datetime.fromisoformat(text))
    except (TypeError, ValueError):
        return False


def _last(path):
    """The hash of the last line. One half written by a power cut is completed to a line, which stays as evidence."""
    log = path.read_bytes() if path.exists() else b""
    if log and not log.endswith(b"\n"):
        with open(path, "ab") as file:
            file.write(b"\n")
    return _hash(log.removesuffix(b"\n").rpartition(b"\n")[2]) if log else FIRST


def _line(entry):
    return json.dumps(entry, sort_keys=True)


def _hash(line):
    return hashlib.sha256(line).hexdigest()
