"""A site's state on its own disk: one file a round, written whole or not at all, and the one before it kept.

A round is computed from the state after the last round whose answer the server has. The server says which that
was, so a reply that was lost, or came too late, costs nothing: the same round again is answered from the file,
and the next round begins at the state the server knows of, not at one it never saw.
"""

from contextlib import suppress
from pathlib import Path

from fedlap.errors import DataError
from fedlap.files import archive
from fedlap.study.protocol.refusals import Reason, Refusal, refusing

FORMAT = 1
BEGINNING = -1  # the stamp of the state before the first round


def write(path, header, arrays):
    archive.write(path, {"format": FORMAT, **header}, {f"array{name}": array for name, array in arrays.items()})


def read(path):
    """The header and the arrays of a file that `write` wrote."""
    try:
        header, arrays = archive.read(path)
        if header.pop("format", None) != FORMAT:
            raise ValueError("another format")
    except ValueError as error:
        raise DataError(f"{path}: not a readable state file ({error}); restore it from a backup") from error
    return header, {name.removeprefix("array"): array for name, array in arrays.items()}


class Store:
    """The files of one member in one run of one study."""

    def __init__(self, folder, study, member, run):
        self.folder = Path(folder) / f"{member}-{study[:12]}-{run}"
        self.owner = {"study": study, "member": member, "run": run}

    def save_setup(self, header, arrays):
        """What stays fixed for the whole run."""
        write(self.folder / "setup.npz", {**self.owner, **header}, arrays)

    def setup(self):
        """(header, arrays), or None before the run has begun here."""
        path = self.folder / "setup.npz"
        return self._read(path) if path.exists() else None

    @property
    def begun(self):
        """Whether a round has been computed here."""
        return bool(self._stamps())

    def answer(self, round, request):
        """(header, arrays) of a round that was computed before for the very same request, or None."""
        if not self._path(round).exists():
            return None
        header, arrays = self._read(self._path(round))
        return (header, arrays) if header["request"] == request else None

    def state(self, stamp, round):
        """The arrays after the round `stamp` to compute `round` from; None for the state before the first round."""
        stamps = self._stamps()
        if stamps and round < stamps[-1]:  # a message that was long under way; computing it would lose the newer state
            raise Refusal(
                Reason.LATE,
                f"{self.folder}: round {round} is over; this site has its state after round {stamps[-1]}",
            )
        if stamp == BEGINNING and (not stamps or self._read(self._path(stamps[0]))[0]["base"] == BEGINNING):
            return None
        if stamp not in stamps:
            here = f"after rounds {', '.join(map(str, stamps))}" if stamps else "before the first round only"
            raise Refusal(
                Reason.GAP,
                f"{self.folder}: round {round} is to continue from the state after round {stamp}, but this site has "
                f"its state {here}; expected a server that goes on where this site stopped, and the state folder that "
                "this member has used so far",
            )
        return self._read(self._path(stamp))[1]

    def save(self, round, base, request, header, arrays):
        """The state after a round; of older files only the one it was computed from is kept."""
        words = {**self.owner, **header, "round": round, "base": base, "request": request}
        write(self._path(round), words, arrays)
        for stamp in self._stamps():
            if stamp not in (round, base):
                with suppress(FileNotFoundError):
                    self._path(stamp).unlink()

    def _path(self, round):
        return self.folder / f"round-{round:06d}.npz"

    def _stamps(self):
        return sorted(int(path.stem.removeprefix("round-")) for path in self.folder.glob("round-*.npz"))

    def _read(self, path):
        with refusing(Reason.DAMAGED):
            header, arrays = read(path)
        for name, value in self.owner.items():
            if header.get(name) != value:
                raise Refusal(Reason.DAMAGED, f"{path}: belongs to the {name} {header.get(name)}, not to {value}")
        return header, arrays
