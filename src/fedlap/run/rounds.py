"""The loop over rounds: its state and its table after each of them, and checkpoints on the way."""

import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from fedlap.domains import COUNT
from fedlap.engines.round import State
from fedlap.errors import ConfigError, DataError
from fedlap.files import PathLike
from fedlap.run import checkpoint as checkpoints


class Rounds(Protocol):
    """What the loop over rounds asks of one run, or of a grid of them."""

    @property
    def columns(self) -> tuple[int, ...]: ...
    @property
    def one_shot(self) -> bool: ...
    def init(self) -> State: ...
    def plan(self, round: int) -> Any: ...
    def step(self, state: State, plan: Any) -> State: ...
    def look(self, state: State) -> np.ndarray: ...
    def describe(self) -> dict[str, str]: ...


Begun = tuple[State, np.ndarray]  # the state and the table that rounds go on from


def beginning(run: Rounds) -> Begun:
    """The state and the empty table before the first round."""
    return run.init(), np.zeros((0, *run.columns))


def load_begun(run: Rounds, checkpoint: PathLike | None, resume: bool) -> Begun | None:
    """What a run, or a grid of them, goes on from: what is in its checkpoint if it is to be resumed, else None."""
    if resume and checkpoint is None:
        raise ConfigError("resume needs a checkpoint to resume from")
    if checkpoint is not None and not resume and Path(checkpoint).exists():
        raise DataError(f"{checkpoint}: exists already; go on from it with resume=True, remove it or name another file")
    if not resume or checkpoint is None:
        return None
    return checkpoints.load(checkpoint, *beginning(run), run.describe())


def progress(
    run: Rounds,
    rounds: int,
    checkpoint: PathLike | None = None,
    begun: Begun | None = None,
    share: float = math.inf,
) -> Iterator[Begun]:
    """The loop over rounds, of one run or of a grid of them: its state and its table after every round.

    `begun` is what it goes on from, see `load_begun`. A checkpoint is written after every round, but for short rounds
    if writing may take up a `share` of the time only.
    """
    COUNT.check("rounds", rounds)
    rounds = 1 if run.one_shot else rounds
    state, table = begun or beginning(run)
    del begun  # or all that is changed later would be remembered for it
    description = run.describe() if checkpoint is not None else {}
    if len(table):
        yield state, table
    plan, saved, took = run.plan(state.round), time.monotonic(), 0.0
    for _ in range(len(table), rounds):
        began = time.perf_counter()
        state = run.step(state, plan)
        plan = run.plan(state.round)  # drawn while the device is still at work
        metrics = run.look(state)
        seconds = np.full((1, *metrics.shape[1:]), time.perf_counter() - began)
        table = np.concatenate([table, np.concatenate([seconds, metrics])[None]])
        if checkpoint is not None and time.monotonic() - saved >= took / share:
            writing = time.monotonic()
            checkpoints.save(checkpoint, state, table, description)
            saved = time.monotonic()
            took = saved - writing
        yield state, table
