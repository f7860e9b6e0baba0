"""A study's run on the server's disk: one at a time, and a new one only once the old one has finished."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from fedlap.errors import ConfigError
from fedlap.study.protocol import checkpoint
from fedlap.study.protocol.terms import Agreement, Terms


def folder(study: Agreement) -> Path:
    """Where the coordinator keeps its checkpoint."""
    return study.folder / "state" / "run"


@contextmanager
def only_one(study: Agreement) -> Iterator[None]:
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


def set_aside(study: Agreement, terms: Terms) -> Path | None:
    """Make room for a new run: the checkpoint of a finished one is kept under its run's name, which is returned."""
    path = folder(study) / "checkpoint.npz"
    if not path.exists():
        return None
    progress = checkpoint.read_progress(path)
    if not progress.finished and progress.study != terms.digest:
        raise ConfigError(
            f"{path}: {progress.round} rounds are done of a run under another study.toml, and it has not finished; "
            "put that study.toml back to go on with it, or move this file away to give it up"
        )
    if not progress.finished:
        raise ConfigError(
            f"{path}: {progress.round} of {terms.last_round + 1} rounds are done; leave out --again to go on"
        )
    kept = path.with_name(f"checkpoint-{progress.run}.npz")
    os.replace(path, kept)
    return kept
