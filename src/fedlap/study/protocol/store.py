"""A site's state on its own disk: one file a round, written whole or not at all, and the one before it kept.

A round is computed from the state after the last round whose answer the server has. The server says which that
was, so a reply that was lost, or came too late, costs nothing: the same round again is answered from the file,
and the next round begins at the state the server knows of, not at one it never saw.
"""

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedlap import files
from fedlap.errors import DataError
from fedlap.study.protocol.messages import Arrays, typed
from fedlap.study.protocol.refusals import Reason, Refusal, refusing

FORMAT = 2
SETUP = "setup.npz"
BEGINNING = -1  # the stamp of the state before the first round


@dataclass(frozen=True)
class StoredSetup:
    """What stays fixed for the whole run, at one site."""

    data: str  # the fingerprint of the site's rows
    arrays: Arrays  # what all members begin with, packed


@dataclass(frozen=True)
class StoredRound:
    """The state after a round, and the reply to it."""

    round: int
    base: int  # the round whose state it was computed from
    request: str  # the digest of the request that it answers
    facts: dict
    arrays: Arrays  # the client's state, packed


def write(path: Path, header: dict[str, Any], arrays: Arrays) -> None:
    """Replace a file by one with this header and these arrays, whole or not at all."""
    files.write_arrays(path, {"format": FORMAT, **header}, arrays)


def read(path: Path) -> tuple[dict[str, Any], Arrays]:
    """The header and the arrays of a file that `write` wrote."""
    try:
        header, arrays = files.read_arrays(path)
        if header.pop("format", None) != FORMAT:
            raise ValueError("another format")
    except ValueError as error:
        raise DataError(f"{path}: not a readable state file ({error}); restore it from a backup") from error
    return header, arrays


class Store:
    """The files of one member in one run of one study."""

    def __init__(self, folder: str | Path, study: str, member: str, run: str) -> None:
        self.folder = Path(folder) / f"{member}-{study[:12]}-{run}"
        self.owner = {"study": study, "member": member, "run": run}

    def save_setup(self, setup: StoredSetup) -> None:
        """Keep what the run begins with."""
        write(self.folder / SETUP, {**self.owner, "data": setup.data}, setup.arrays)

    def setup(self) -> StoredSetup | None:
        """What the run began with, or None before it has begun here."""
        path = self.folder / SETUP
        return StoredSetup(*self._read(path, {"data": str})) if path.exists() else None

    @property
    def begun(self) -> bool:
        """Whether a round has been computed here."""
        return bool(self._stamps())

    @property
    def last(self) -> int:
        """The last round that has been computed here; BEGINNING before the first."""
        return max(self._stamps(), default=BEGINNING)

    def answer(self, round: int, request: str) -> StoredRound | None:
        """A round that was computed before for the very same request, or None."""
        if not self._path(round).exists():
            return None
        stored = self._round(round)
        return stored if stored.request == request else None

    def unanswered(self, round: int) -> None:
        """Refuse a round that was computed before: this is another request under its number."""
        if self._path(round).exists():
            raise Refusal(
                Reason.CHANGED,
                f"{self.folder}: round {round} was another request before; expected the same one again, or the next",
            )

    def state(self, stamp: int, round: int) -> Arrays | None:
        """The arrays after the round `stamp` to compute `round` from; None for the state before the first round."""
        stamps = self._stamps()
        if stamps and round < stamps[-1]:  # a message that was long under way; computing it would lose the newer state
            raise Refusal(
                Reason.LATE,
                f"{self.folder}: round {round} is over; this site has its state after round {stamps[-1]}",
            )
        if stamp == BEGINNING and (not stamps or self._round(stamps[0]).base == BEGINNING):
            return None
        if stamp not in stamps:
            here = f"after rounds {', '.join(map(str, stamps))}" if stamps else "before the first round only"
            raise Refusal(
                Reason.GAP,
                f"{self.folder}: round {round} is to continue from the state after round {stamp}, but this site has "
                f"its state {here}; expected a server that goes on where this site stopped, and the state folder that "
                "this member has used so far",
            )
        return self._round(stamp).arrays

    def save(self, stored: StoredRound) -> None:
        """Keep the state after a round; of older files only the one it was computed from stays."""
        names = ("round", "base", "request", "facts")
        header = {**self.owner, **{name: getattr(stored, name) for name in names}}
        write(self._path(stored.round), header, stored.arrays)
        for stamp in self._stamps():
            if stamp not in (stored.round, stored.base):
                with suppress(FileNotFoundError):
                    self._path(stamp).unlink()

    def _path(self, round: int) -> Path:
        return self.folder / f"round-{round:06d}.npz"

    def _stamps(self) -> list[int]:
        return sorted(int(path.stem.removeprefix("round-")) for path in self.folder.glob("round-*.npz"))

    def _round(self, round: int) -> StoredRound:
        return StoredRound(*self._read(self._path(round), {"round": int, "base": int, "request": str, "facts": dict}))

    def _read(self, path: Path, kinds: dict[str, type]) -> list[Any]:
        """The values of these fields of a file's header, and its arrays."""
        with refusing(Reason.DAMAGED):
            header, arrays = read(path)
            for name, value in self.owner.items():
                if header.get(name) != value:
                    raise DataError(f"{path}: belongs to the {name} {header.get(name)}, not to {value}")
            typed(str(path), header, {**dict.fromkeys(self.owner, str), **kinds})
        return [*(header[name] for name in kinds), arrays]
