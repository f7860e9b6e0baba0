"""A study's run on the server's disk: one at a time, and a new one only once the old one has finished."""

import fcntl
import os
import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Protocol

from fedlap.errors import ConfigError, DataError, unknown
from fedlap.study.protocol import checkpoint
from fedlap.study.protocol.checkpoint import Progress
from fedlap.study.protocol.inquiry import Event
from fedlap.study.protocol.store import BEGINNING
from fedlap.study.protocol.terms import Terms


class Filed(Protocol):
    """A study of any kind, in its folder."""

    @property
    def path(self) -> Path: ...
    @property
    def folder(self) -> Path: ...
    @property
    def digest(self) -> str: ...


def folder(study: Filed) -> Path:
    """Where the coordinator keeps its checkpoint."""
    return study.folder / "state" / "run"


@contextmanager
def only_one(study: Filed) -> Iterator[None]:
    """Hold the run while the block lasts. Two at once would each lead the sites on from states the other never saw."""
    path = folder(study) / "lock"
    with ExitStack() as stack:
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            file = stack.enter_context(open(path, "ab"))
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # the system lets go of it however the process ends
        except BlockingIOError as error:
            raise ConfigError(
                f"{study.path}: another `fedlap study run` is at work on this study; wait for it, or stop it first"
            ) from error
        except OSError as error:
            raise ConfigError(f"{path}: cannot be written and locked ({error.strerror})") from error
        yield


def open_run(path: Path, digest: str, members: Sequence[str], tell: Callable[[Event], None]) -> Progress:
    """The run of a checkpoint, to go on with; a new one if there is none."""
    if path.exists():
        progress = checkpoint.read_progress(path)
        if progress.study != digest:
            cure = "--again starts a new run" if progress.finished else "put the other study.toml back to go on"
            raise DataError(f"{path}: a run of another study.toml, perhaps of this one before it was changed; {cure}")
        anew = "; --again starts a new run" if progress.finished else ""
        tell(Event("resumed", "resuming", note=f"{progress.round} rounds are done{anew}"))
        return progress
    progress = Progress(digest, secrets.token_hex(8), dict.fromkeys(members, BEGINNING))
    # Before the first message: a server that is stopped must find its run again, and no site a second one.
    checkpoint.write(path, progress, None)
    return progress


def check_without(names: Sequence[str], progress: Progress, members: Sequence[str], begun: bool) -> None:
    """ConfigError unless a run can go on without these members for good."""
    lost = [name for name in names if name not in progress.without]
    if not lost:
        return
    for name in lost:
        if name not in members:
            raise unknown("member", name, members)
    listed = ", ".join(lost)
    if progress.finished:
        raise ConfigError(f"the run is over, and {listed} has taken part in it; --again starts a new run")
    if not begun:
        raise ConfigError(f"the run has not begun; instead of --without, take {listed} out of members in study.toml")
    if len(members) - len({*progress.without, *lost}) < 2:
        raise ConfigError(f"without {listed} fewer than two members are left, and their model would be one's own")


def set_aside(study: Filed, terms: Terms | None = None) -> Path | None:
    """Make room for a new run: the checkpoint of a finished one is kept under its run's name, which is returned.

    The terms say how many rounds a run has; that of a regression ends when nothing moves any more.
    """
    path = folder(study) / "checkpoint.npz"
    if not path.exists():
        return None
    progress = checkpoint.read_progress(path)
    if not progress.finished and progress.study != study.digest:
        raise ConfigError(
            f"{path}: {progress.round} rounds are done of a run under another study.toml, and it has not finished; "
            "put that study.toml back to go on with it, or move this file away to give it up"
        )
    if not progress.finished:
        done = f"{progress.round} of {terms.last_round + 1}" if terms else f"{progress.round}"
        raise ConfigError(f"{path}: {done} rounds are done; leave out --again to go on")
    kept = path.with_name(f"checkpoint-{progress.run}.npz")
    os.replace(path, kept)
    checkpoint.previous(path).unlink(missing_ok=True)  # of a run that needs no going back
    return kept
