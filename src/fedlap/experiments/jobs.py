"""A job: one run, or many runs of a small model that are one compiled program, round by round.

A batch of three takes two thirds of the time of three runs, but its program takes a third longer to compile: a few
short runs are made in turn, with the program of one, and that is compiled in less time.
"""

import functools
import hashlib
import json
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np

from fedlap.data import load
from fedlap.data.federation import Federation
from fedlap.engines import brief, small
from fedlap.errors import DataError
from fedlap.experiments.results import Curve, Result, precision
from fedlap.experiments.sweep import Cell
from fedlap.run import checkpoint as checkpoints
from fedlap.run import divergence
from fedlap.run.grid import Grid
from fedlap.run.history import History
from fedlap.run.rounds import Begun, beginning, progress
from fedlap.run.simulation import Simulation, count_weights, histories

# Of the time, this much may go into checkpoints: a kill costs the round under way, or a moment of short ones.
CHECKPOINT_SHARE = 0.05
FEDERATIONS = 3  # kept in memory by a process, for the next run on the same data
FEW, SHORT = 3, 200  # runs, and local epochs of each in all rounds together: their compilation is most of the work

# What programs share is compiled by one thread, for all: JAX's cache on disk has no lock.
_setting_up = threading.Lock()


class Advanced(NamedTuple):
    """The event after a round of a run, or of a batch of them."""

    cells: list[Cell]
    round: int
    seconds: float  # of each of them, up to here


class Finished(NamedTuple):
    """The event after the last round of a run, or of a batch of them: its results."""

    results: list[Result]
    checkpoint: Path  # of no use once the results are on disk
    diverged: tuple[str, ...] = ()  # of each run that is lost: since when, and what to change


class Conditions(NamedTuple):
    """The conditions that all runs of a call share."""

    data_dir: Path | None
    watch_train: bool
    folder: Path  # of checkpoints


def is_small(cell: Cell, conditions: Conditions) -> bool:
    """Whether a model has so few weights that runs of it are best one program."""
    federation = _federation(json.dumps(cell.spec.federation_arguments(cell.seed, conditions.data_dir)))
    return small(count_weights(cell.spec.make_model(), federation))


# What a run is made of ----------------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=FEDERATIONS)
def _federation(arguments: str) -> Federation:
    """The data set that these arguments stand for; of runs on the same data it is read once."""
    return load(**json.loads(arguments))


@contextmanager
def data_kept() -> Iterator[None]:
    """A block in which data sets are kept in memory: after it, files may have changed."""
    try:
        yield
    finally:
        _federation.cache_clear()


def _data(cell: Cell, conditions: Conditions) -> tuple[Federation, dict[str, tuple]]:
    """The federation to train on, and the sets to watch besides its test set."""
    federation = _federation(json.dumps(cell.spec.federation_arguments(cell.seed, conditions.data_dir)))
    watch = {}
    if cell.held_out:
        watch["test"] = (federation.test_inputs, federation.test_labels)
        federation = federation.hold_out(cell.held_out, cell.seed)
    if conditions.watch_train:
        rows = np.concatenate(federation.rows)
        watch["train"] = (federation.inputs[rows], federation.labels[rows])
    return federation, watch


def checkpoint_of(cells: list[Cell], conditions: Conditions) -> Path:
    """A file for these runs under way; its name is made of all that decides what they come to."""
    parts = [precision(), str(conditions.watch_train), *(f"{cell.digest} {cell.revision}" for cell in cells)]
    return conditions.folder / f"{hashlib.sha256(' '.join(parts).encode()).hexdigest()[:16]}.npz"


def _begun(run: Simulation | Grid, checkpoint: Path) -> Begun | None:
    """The state and the table to go on from. A checkpoint that is damaged, or of another version, is removed."""
    if not checkpoint.exists():
        return None
    try:
        return checkpoints.load(checkpoint, *beginning(run), run.describe())
    except DataError:
        checkpoint.unlink()
        return None


def _curves(cell: Cell, history: History) -> dict[str, Curve]:
    main = "validation" if cell.held_out else "test"
    curves = {main: Curve.of(history.accuracy, history.nll)}
    return curves | {name: Curve.of(*metrics) for name, metrics in history.watched.items()}


def _lost(cells: Iterable[Cell], ended: Iterable[History]) -> tuple[str, ...]:
    """A line for each run that diverged: since when, and what to change."""
    lost = []
    for cell, history in zip(cells, ended, strict=True):
        if history.diverged:
            assert history.simulation is not None, "a history has its run unless it was loaded or pickled"
            lost.append(f"seed {cell.seed}: {divergence.message(history.simulation, history)}")
    return tuple(lost)


# Many runs as one compiled program ----------------------------------------------------------------------------------


def batches(cells: Iterable[Cell]) -> list[list[Cell]]:
    """Jobs of as many cells as run as one."""
    return [job for grid in grids(cells) for job in (one_each(grid[0]) if _is_brief(grid) else [_members(grid)])]


def _members(grid: list[list[Cell]]) -> list[Cell]:
    return [cell for of_setting in grid for cell in of_setting]


def _is_brief(grid: list[list[Cell]]) -> bool:
    """Whether its runs are few, short, and of one shape, as they are on the same rows."""
    first = grid[0][0]
    data = {json.dumps(cell.spec.federation_arguments(cell.seed)) for cell in grid[0]}
    return len(grid) == 1 and len(grid[0]) <= FEW and first.cost <= SHORT and not first.held_out and len(data) == 1


def run_program(conditions: Conditions, grid: list[list[Cell]]) -> Iterator[Advanced | Finished]:
    """The runs of one program: side by side, or one after the other where that takes less time."""
    return _run_in_turn(conditions, grid[0]) if _is_brief(grid) else _run_batch(conditions, grid)


def grids(cells: Iterable[Cell]) -> Iterator[list[list[Cell]]]:
    """Cells as [settings][seeds], all of one program: settings differ in numbers only, and have the same seeds."""
    programs = {}
    for cell in cells:
        method = (cell.spec.make_algorithm(cell.algorithm), cell.spec.make_solver())
        server = json.dumps(cell.spec.server_solver, sort_keys=True)  # one for all runs of a program
        program = (cell.held_out, cell.algorithm, jax.tree.structure(method), server)
        setting = json.dumps(cell.setting, sort_keys=True)
        programs.setdefault(program, {}).setdefault(setting, []).append(cell)
    for settings in programs.values():
        alike = {}
        for of_setting in settings.values():
            alike.setdefault(tuple(cell.seed for cell in of_setting), []).append(of_setting)
        yield from alike.values()


def _run_batch(conditions: Conditions, batch: list[list[Cell]]) -> Iterator[Advanced | Finished]:
    """The steps of a batch, given as [settings][seeds]: Advanced after every round, then Finished."""
    members = _members(batch)
    checkpoint = checkpoint_of(members, conditions)
    with _setting_up:
        began = time.perf_counter()
        grid = _grid(conditions, batch)
        begun = _begun(grid, checkpoint)
        grid.look(grid.init())  # compiled once for all batches
        setting_up = time.perf_counter() - began
    reached, seconds = begun or beginning(grid), 0.0
    for reached in progress(grid, members[0].spec.train.rounds, checkpoint, begun, CHECKPOINT_SHARE):
        _, table = reached
        seconds = (setting_up + table[:, 0, 0, 0].sum()) / len(members)
        yield Advanced(members, len(table), seconds)
    histories = grid.histories(*reached)
    ended = [histories[j, cell.seed] for j, of_setting in enumerate(batch) for cell in of_setting]
    classes = grid.runs[0][0].federation.classes
    results = [
        Result.of(cell, _curves(cell, history), seconds, classes, len(members))
        for cell, history in zip(members, ended, strict=True)
    ]
    yield Finished(results, checkpoint, _lost(members, ended))


def _grid(conditions: Conditions, batch: list[list[Cell]]) -> Grid:
    spec = batch[0][0].spec
    federations, watches = zip(*(_data(cell, conditions) for cell in batch[0]), strict=True)
    return Grid.of(
        [(of[0].spec.make_algorithm(of[0].algorithm), of[0].spec.make_solver()) for of in batch],
        federations,
        spec.make_model(),
        seeds=[cell.seed for cell in batch[0]],
        watches=watches,
        participation=spec.train.participation,
        server_solver=spec.make_server_solver(),
    )


# A run by itself ----------------------------------------------------------------------------------------------------


def one_each(cells: Iterable[Cell]) -> list[list[Cell]]:
    """Jobs of one cell each."""
    return [[cell] for cell in cells]


def run_one(conditions: Conditions, cell: Cell) -> Iterator[Advanced | Finished]:
    """The steps of one run: Advanced after every round, then Finished."""
    began = time.perf_counter()
    run = _simulation(conditions, cell)
    yield from _rounds(conditions, cell, run, time.perf_counter() - began)


def _run_in_turn(conditions: Conditions, cells: list[Cell]) -> Iterator[Advanced | Finished]:
    for cell in cells:
        began = time.perf_counter()
        run = replace(_simulation(conditions, cell), engine=brief)
        if cell is cells[0]:
            with _setting_up:
                run.look(run.init())  # compiled once for all runs
        yield from _rounds(conditions, cell, run, time.perf_counter() - began)


def _rounds(conditions: Conditions, cell: Cell, run: Simulation, setting_up: float) -> Iterator[Advanced | Finished]:
    """The rounds of one run, which took so many seconds to set up."""
    checkpoint = checkpoint_of([cell], conditions)
    begun = _begun(run, checkpoint)
    history, seconds = None, 0.0
    for history in histories(run, cell.spec.train.rounds, checkpoint, begun, CHECKPOINT_SHARE):
        seconds = setting_up + history.seconds.sum()
        yield Advanced([cell], len(history.nll), seconds)
        if not np.isfinite(history.nll).all():
            break  # it will not come back
    assert history is not None, "a run has at least one round"
    result = Result.of(cell, _curves(cell, history), seconds, run.federation.classes)
    yield Finished([result], checkpoint, _lost([cell], [history]))


def _simulation(conditions: Conditions, cell: Cell) -> Simulation:
    federation, watch = _data(cell, conditions)
    return Simulation.of(
        cell.spec.make_algorithm(cell.algorithm),
        federation,
        cell.spec.make_model(),
        solver=cell.spec.make_solver(),
        server_solver=cell.spec.make_server_solver(),
        seed=cell.seed,
        participation=cell.spec.train.participation,
        watch=watch,
    )
