"""An append-only record of everything a site has sent, each line bound to the one before it by its hash.

The number and the hash of a line travel with the reply that it records, and the server keeps them: a log that was
shortened or written anew does not have them any more.
"""

from pathlib import Path
from typing import Any

from fedlap.errors import DataError
from fedlap.study.protocol.chained import Chain, fingerprint, line_hashes, now
from fedlap.study.protocol.messages import Recorded, Reply, Request, digest, size

CHAIN = Chain(
    frozenset("time member study run kind round facts refusal arrays bytes sha256 previous".split()),
)


def append(path: str | Path, member: str, request: Request, reply: Reply) -> Recorded:
    """Record a reply before it leaves; the line goes with it. OSError if there is no room for it."""
    time = now()
    line, previous, head = CHAIN.append(path, _entry(member, request, reply, time))
    return Recorded(line, time, previous, head)


def is_of(recorded: Recorded, request: Request, reply: Reply) -> bool:
    """Whether this is the hash of the line that records this very reply to this very request."""
    entry = {**_entry(reply.member, request, reply, recorded.time), "previous": recorded.previous}
    try:
        return fingerprint(entry) == recorded.head
    except RecursionError:  # facts in facts in facts, to no end: JSON may be read at a depth that it is not written at
        return False


def holds(path: str | Path, recorded: Recorded) -> bool:
    """Whether a log has this line, whatever follows it."""
    try:
        hashes = line_hashes(Path(path).read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return False
    return len(hashes) >= recorded.line and hashes[recorded.line - 1] == recorded.head


def verify(path: str | Path) -> list[dict[str, Any]]:
    """The entries of a log file; DataError at the first line that does not fit."""
    return chain(Path(path).read_bytes(), path)


def chain(log: bytes, name: str | Path) -> list[dict[str, Any]]:
    """The entries of a log, given as bytes; DataError at the first line that is no entry, or not bound to the last.

    What a crash left of a line before its message was sent is an entry {"unfinished": …} if one was written after it.
    """
    entries = CHAIN.entries(log, name)
    if not entries:
        raise DataError(f"{name}: empty; expected a line for every message that was sent")
    if not log.endswith(b"\n") or "unfinished" in entries[-1]:
        raise DataError(f"{name}, line {len(entries)}: not complete; the end was cut off, by a crash or by hand")
    return entries


def _entry(member: str, request: Request, reply: Reply, time: str) -> dict[str, Any]:
    return {
        "time": time,
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
    }
