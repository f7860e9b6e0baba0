"""Where each member's audit log stood when it last replied, kept by the server in a file of the same kind.

The server is a witness, no judge: a log that does not go on where it stood is announced and written down, and the study
goes on.
"""

import os
from collections.abc import Iterable
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple

from fedlap.errors import ConfigError, DataError
from fedlap.study.protocol import audit
from fedlap.study.protocol.chained import Chain, line_hashes, now
from fedlap.study.protocol.messages import HASH, Recorded, Reply, Request

FILE = "audit-heads.jsonl"
CHAIN = Chain(frozenset("time member study run kind round line head doubt previous".split()))


class Doubt(StrEnum):
    """What can be wrong with the place of a reply in its member's audit log, in fixed words."""

    BACKWARDS = "its audit log does not go on where it stood; lines were removed, or it was begun or written anew"
    ANOTHER = "the line of its audit log is not of this reply"
    UNRECORDED = "it has sent what its audit log does not record"


class Head(NamedTuple):
    """A line of a member's audit log: its number and its hash."""

    line: int
    head: str

    def __str__(self) -> str:
        return f"{self.line}:{self.head}"

    @classmethod
    def read(cls, text: str) -> "Head":
        """The head in a text, as a coordinator passes it on."""
        line, _, head = text.partition(":")
        if not (line.isascii() and line.isdigit() and 0 < len(line) < 16 and int(line) and HASH.fullmatch(head)):
            raise ConfigError(f"the head {text[:100]!r}; expected LINE:FINGERPRINT as the server shows it, or its file")
        return cls(int(line), head)


class Heads:
    """The file of all members' heads, one line a reply."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._last: dict[str, Head] | None = None  # read before the first reply

    def take(self, member: str, request: Request, reply: Reply) -> Doubt | None:
        """Keep where a member's log stands with this reply; what is doubtful about it, if anything is."""
        if reply.recorded is None and not (reply.facts or reply.arrays):
            return None  # a refusal that there was no room to record
        if self._last is None:
            self._last = last(self._entries())
        doubt = _doubt(request, reply, self._last.get(member))
        line, head = (reply.recorded.line, reply.recorded.head) if reply.recorded else (0, "")
        about = {name: getattr(request, name) for name in ("study", "run", "kind", "round")}
        place = {"line": line, "head": head, "doubt": doubt or ""}
        CHAIN.append(self.path, {"time": now(), "member": member, **about, **place})
        if doubt in (None, Doubt.BACKWARDS):
            self._last[member] = Head(line, head)
        return doubt

    def _entries(self) -> list[dict[str, Any]]:
        try:
            return entries(self.path) if self.path.exists() else []
        except DataError as error:  # of the server's own, and of no member's
            raise ConfigError(f"{error}; to begin a new file of heads, move this one away") from error


def entries(path: str | Path) -> list[dict[str, Any]]:
    """What stands in a file of heads; DataError at the first line that does not fit."""
    found = [entry for entry in CHAIN.entries(Path(path).read_bytes(), path) if "unfinished" not in entry]
    kinds = {"member": str, "line": int, "head": str, "doubt": str}
    for entry in found:
        if any(type(entry[name]) is not kind for name, kind in kinds.items()):
            raise DataError(f"{path}: not a file of the heads of audit logs")
    return found


def last(entries: Iterable[dict[str, Any]]) -> dict[str, Head]:
    """Where each member's log stood at its last reply."""
    sure = [entry for entry in entries if entry["doubt"] in ("", Doubt.BACKWARDS)]
    return {entry["member"]: Head(entry["line"], entry["head"]) for entry in sure}


def known(text: str, member: str) -> list[Head]:
    """What the server knows of a member's log: one head in a text, or all that stand in its file."""
    if not os.path.isfile(text):
        return [Head.read(text)]
    found = [entry for entry in entries(text) if entry["member"] == member and entry["line"]]
    if not found:
        raise DataError(f"{text}: nothing of {member}; expected the server's heads of its log")
    return [Head(entry["line"], entry["head"]) for entry in found if entry["doubt"] != Doubt.ANOTHER]


def check(log: bytes, name: str | Path, heads: Iterable[Head]) -> None:
    """DataError unless a site's audit log has every line that the server knows of."""
    hashes = line_hashes(log)
    for head in heads:
        if head.line > len(hashes):
            raise DataError(
                f"{name}: ends with line {len(hashes)}, but the server has the fingerprint of line {head.line}; "
                "lines were removed from the end"
            )
        if hashes[head.line - 1] != head.head:
            raise DataError(
                f"{name}, line {head.line}: not the one that the server has the fingerprint of; the log was written "
                "anew, or is of another member"
            )


def _doubt(request: Request, reply: Reply, before: Head | None) -> Doubt | None:
    recorded = reply.recorded
    if recorded is None:
        return Doubt.UNRECORDED
    if not audit.is_of(recorded, request, reply):
        return Doubt.ANOTHER
    return None if before is None or _goes_on(recorded, before) else Doubt.BACKWARDS


def _goes_on(recorded: Recorded, before: Head) -> bool:
    """Whether a line can follow another in one log; between them may be lines whose replies were lost on the way."""
    if recorded.line == before.line + 1:
        return recorded.previous == before.head
    return recorded.line > before.line or (recorded.line, recorded.head) == before
