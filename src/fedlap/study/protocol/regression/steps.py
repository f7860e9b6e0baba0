"""The steps of a regression on disk: at a site what it has answered, at the server what everyone has.

A step has a number, and is answered once. The same request again gets the same reply from the site's disk; another
one under the same number gets none. The server's own arithmetic follows from the replies alone: started again, it goes
through those that it has and asks for the next.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedlap.errors import ConfigError, DataError
from fedlap.study.protocol import store
from fedlap.study.protocol.messages import Arrays, Reply, Request, decode, encode, typed
from fedlap.study.protocol.refusals import Reason, Refusal
from fedlap.study.protocol.store import Store

FINISHED = "finished.npz"


@dataclass(frozen=True)
class StoredStep:
    """A step that a site has answered."""

    kind: str
    request: str  # the digest of the request
    arrays: Arrays  # of the reply


class StepStore(Store):
    """The files of one member in one run of a regression."""

    def step(self, number: int) -> StoredStep | None:
        """A step that was answered before, or None."""
        path = self._step_path(number)
        return StoredStep(*self._read(path, {"kind": str, "request": str})) if path.exists() else None

    def save_step(self, number: int, stored: StoredStep) -> None:
        """Keep a step before its reply leaves."""
        header = {**self.owner, "kind": stored.kind, "request": stored.request}
        store.write(self._step_path(number), header, stored.arrays)

    def in_order(self, number: int) -> None:
        """Refuse a step that comes before one that was answered."""
        known = [int(path.stem.removeprefix("step-")) for path in self.folder.glob("step-*.npz")]
        if not known and number > 0:
            raise Refusal(Reason.GAP, f"{self.folder}: step {number} is the first to be asked; expected step 0")
        if known and number < max(known):
            raise Refusal(Reason.LATE, f"{self.folder}: step {number} comes after step {max(known)}; expected the next")

    def finish(self) -> None:
        """Keep that the run is over."""
        store.write(self.folder / FINISHED, self.owner, {})

    def going_on(self) -> None:
        """Refuse a step of a run that is over."""
        if (self.folder / FINISHED).exists():
            raise Refusal(Reason.LATE, f"{self.folder}: the server has said that the run is over; expected no new step")

    @property
    def begun(self) -> bool:
        """Whether a step has been answered here."""
        return any(self.folder.glob("step-*.npz"))

    def _step_path(self, number: int) -> Path:
        return self.folder / f"step-{number:06d}.npz"


class Journal:
    """The replies of all members to every step of a run, at the server."""

    def __init__(self, folder: Path, study: str, run: str) -> None:
        self.folder = folder / f"steps-{run}"
        self.owner = {"study": study, "run": run}

    def replies(self, name: str, requests: Mapping[str, Request]) -> dict[str, Reply] | None:
        """The replies to these very requests; None if the step has not been done. ConfigError at a damaged file."""
        path = self._path(name)
        if not path.exists():
            return None
        try:
            header, arrays = store.read(path)
            typed(str(path), header, {"study": str, "run": str, "requests": dict})
            replies = {member: decode(array.tobytes(), Reply) for member, array in arrays.items()}
        except DataError as error:
            raise ConfigError(str(error)) from error  # of the server's own, and of no member's rows
        asked = {member: request.digest for member, request in requests.items()}
        if {key: header[key] for key in self.owner} != self.owner or header["requests"] != asked:
            raise ConfigError(
                f"{path}: replies to other requests than those that follow here; expected the versions of numpy and "
                f"scipy that the run began with. To give the run up, move {self.folder.parent} away"
            )
        return replies

    def has(self, name: str) -> bool:
        """Whether a step has been done."""
        return self._path(name).exists()

    def keep(self, name: str, requests: Mapping[str, Request], replies: Mapping[str, Reply]) -> None:
        """Keep the replies to a step."""
        asked: dict[str, Any] = {member: request.digest for member, request in requests.items()}
        arrays = {member: np.frombuffer(encode(reply), np.uint8) for member, reply in replies.items()}
        store.write(self._path(name), {**self.owner, "requests": asked}, arrays)

    def _path(self, name: str) -> Path:
        return self.folder / f"{name}.npz"
