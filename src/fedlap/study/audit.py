"""An append-only record of everything a site has sent, each line bound to the one before it by its hash.

A line that is changed, removed or put in between breaks the chain at that place; `verify` says where.
"""

import datetime
import hashlib
import json
import os
from pathlib import Path

from ..errors import DataError
from .messages import digest, size

FIRST = "0" * 64


def append(path, member, request, reply):
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
        file.write(json.dumps(entry, sort_keys=True) + "\n")
        file.flush()
        os.fsync(file.fileno())


def verify(path):
    """The entries of a log; DataError at the first line that is not bound to the one before it."""
    entries, previous = [], FIRST
    for number, line in enumerate(Path(path).read_text(encoding="utf-8").splitlines(), 1):
        try:
            entry = json.loads(line)
            bound = entry["previous"] == previous
        except ValueError:  # cut off by a crash, before its message left; the next line is bound to it all the same
            entry, bound = {"unfinished": line}, True
        except (TypeError, KeyError) as error:
            raise DataError(f"{path}, line {number}: not an entry of an audit log ({error})") from error
        if not bound:
            raise DataError(
                f"{path}, line {number}: does not follow the line before it; something was changed or removed"
            )
        entries.append(entry)
        previous = _hash(line)
    return entries


def _last(path):
    """The hash of the last line. One half written by a power cut is completed to a line, which stays as evidence."""
    if not path.exists():
        return FIRST
    text = path.read_text(encoding="utf-8")
    if text and not text.endswith("\n"):
        with open(path, "a", encoding="utf-8") as file:
            file.write("\n")
    lines = text.splitlines()
    return _hash(lines[-1]) if lines else FIRST


def _hash(line):
    return hashlib.sha256(line.encode()).hexdigest()
