"""The runs that a results file still lacks: small models as compiled batches in threads, larger ones a process a core.

On an accelerator the larger ones run in turn. A job is one run, or many runs of a small model that are one compiled
program. A batch of three takes two thirds of the time of three runs, but its program takes a third longer to compile: a
few short runs are made in turn, with the program of one, and that is compiled in less time.
"""

import functools
import hashlib
import json
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np

from fedlap import __version__
from fedlap.data import load
from fedlap.data.federation import Federation
from fedlap.engines import brief, small
from fedlap.errors import ConfigError, DataError
from fedlap.experiments.results import Result, curves, precision, writer
from fedlap.experiments.shards import Awaiting, Gathered, SweepShard, merge, others, share
from fedlap.experiments.sweep import Cell, Sweep
from fedlap.experiments.workers import on_processes, on_threads
from fedlap.machine import cores
from fedlap.run import checkpoint as checkpoints
from fedlap.run import divergence
from fedlap.run.grid import Grid
from fedlap.run.history import History
from fedlap.run.rounds import Begun, beginning, progress
from fedlap.run.simulation import Simulation, count_weights, histories
from fedlap.settings import Table

# Jobs, round by round -------------------------------------------------------------------------------------------------

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
    watch, tested = {}, federation.has_test
    if cell.held_out:
        watch |= {"test": (federation.test_inputs, federation.named(federation.test_labels))} if tested else {}
        federation = federation.hold_out(cell.held_out, cell.seed)
    if conditions.watch_train or not tested:
        rows = np.concatenate(federation.rows)
        watch["train"] = (federation.inputs[rows], federation.named(federation.labels[rows]))
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


def _lost(cells: Iterable[Cell], ended: Iterable[History]) -> tuple[str, ...]:
    """A line for each run that diverged, or whose delta did: since when, and what to change."""
    lost = []
    for cell, history in zip(cells, ended, strict=True):
        if history.diverged:
            assert history.simulation is not None, "a history has its run unless it was loaded or pickled"
            lost.append(f"seed {cell.seed}: {divergence.message(history.simulation, history)}")
        elif history.doubt:
            lost.append(f"seed {cell.seed}: {history.doubt}")
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
        Result.of(cell, curves(cell, history), seconds, classes, len(members))
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
        yield Advanced([cell], len(history.seconds), seconds)
        if not np.isfinite(history.judged.nll).all():
            break  # it will not come back
    assert history is not None, "a run has at least one round"
    result = Result.of(cell, curves(cell, history), seconds, run.federation.classes)
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


# The runner -----------------------------------------------------------------------------------------------------------


class Planned(NamedTuple):
    """The event before a phase, the search or the final runs: jobs of one cell, or of those that are one program."""

    phase: str
    jobs: list[list[Cell]]
    done: int  # cells of this phase that an earlier call finished
    workers: int  # processes; 0: compiled batches, in threads of this one
    later: list[list[Cell]] | None  # jobs of the next phase; None if this one decides which
    threads: int = 1

    @property
    def cells(self) -> list[Cell]:
        """The cells of all jobs."""
        return [cell for job in self.jobs for cell in job]


Event = Gathered | Planned | Advanced | Finished | Awaiting


def carry_out(
    sweep: Sweep,
    path: str | Path,
    data_dir: Path | None = None,
    jobs: int | None = None,
    quick: dict[str, list[Table]] | None = None,
    version: str = __version__,
    shard: SweepShard | None = None,
) -> Iterator[Event]:
    """Run every cell that the file does not hold yet, and say what happens: Planned, Advanced, Finished.

    `quick` is a {algorithm: settings} to train on all rows at once, without a search; `version` names the code in
    each line. A shard runs its own cells, into a file of its own; without one, the results of shards come first.
    """
    if sweep.precision not in (None, precision()):
        raise ConfigError(f"{sweep.name} is to run in {sweep.precision}, not {precision()}: JAX_ENABLE_X64=1 or 0")
    path = Path(path)
    own = shard.file(path) if shard else path
    conditions = Conditions(data_dir, sweep.watch_train, Path(f"{own}.checkpoints"))
    serving = lambda runs: {run.cell: run for run in runs if run.serves(sweep.watch_train)}
    with data_kept(), writer(own) as (earlier, append):
        if shard is None and (merged := merge(path, earlier, append)):
            earlier = [*earlier, *merged.results]
            yield merged
        _check_choice(sweep, conditions)
        results = serving(earlier)
        for phase in ("search", "final") if quick is None and sweep.is_grid else ("final",):
            results = serving(others(path, shard)) | results
            now = share(sweep, quick, results, shard, partial(is_small, conditions=conditions))
            later = [] if phase == "final" else None if now.awaited and not shard else _missing(now.final, results)
            cells = now.search if phase == "search" else now.final
            plan, carry = _plan(phase, cells, later, results, conditions, jobs)
            yield plan
            for step in carry:
                if isinstance(step, Finished):
                    step = step._replace(results=[replace(result, fedlap=version) for result in step.results])
                    append(step.results)
                    step.checkpoint.unlink(missing_ok=True)
                    results.update({result.cell: result for result in step.results})
                yield step
            if phase == "final" and now.awaited:
                yield Awaiting(now.awaited)
        for left in conditions.folder.glob("*.part"):  # of a process that was ended while it wrote
            left.unlink()
    if conditions.folder.exists() and not any(conditions.folder.iterdir()):
        conditions.folder.rmdir()


def _check_choice(sweep: Sweep, conditions: Conditions) -> None:
    """ConfigError if settings are to be chosen by a test set that the data do not have."""
    several = sweep.validation == 0 and any(len(sweep.settings(algorithm)) > 1 for algorithm in sweep.algorithms)
    if several and not _data(sweep.final()[0], conditions)[0].has_test:
        raise ConfigError(f"{sweep.name}: no test set to choose settings by; expected validation above 0 in [sweep]")


def _plan(
    phase: str,
    cells: list[Cell],
    later: list[Cell] | None,
    results: dict[str, Result],
    conditions: Conditions,
    jobs: int | None,
) -> tuple[Planned, Iterator[Advanced | Finished]]:
    """The plan of what a phase has left to do, and the steps of doing it.

    XLA adds up in as many parts as it has cores, so a run that is left over gets no more of them than beside the
    others: resumed, it comes to the same bits.
    """
    missing, done = _missing(cells, results), {cell.digest for cell in cells if cell.digest in results}
    for members in (*batches(cells), *one_each(cells)):  # a process killed just after its last line leaves one
        if all(cell.digest in done for cell in members):
            checkpoint_of(members, conditions).unlink(missing_ok=True)
    at_once = jobs or len(cores())
    if not missing or is_small(missing[0], conditions):
        programs, run = list(grids(missing)), partial(run_program, conditions)
        threads = max(min(at_once, len(programs)), 1)
        if threads > 1:
            # Most of a short one is compilation, and files tend to begin with the methods that compile fastest.
            cost = lambda program: sum(cell.cost for of_setting in program for cell in of_setting)
            programs = _longest_first(reversed(programs), cost)
            steps = on_threads(threads, partial(_report, run), programs)
        else:
            steps = _in_turn(run, programs)
        return Planned(phase, batches(missing), len(done), 0, _divided(later, batches), threads), steps
    run, workers = partial(run_one, conditions), 1
    if jax.default_backend() != "cpu":
        steps = _in_turn(run, missing)  # an accelerator is busy with one run, and two would fight for its memory
    else:
        shares = min(at_once, len(missing) + len(done))
        ordered = _longest_first(missing, lambda cell: cell.cost)
        workers, steps = min(shares, len(missing)), on_processes(shares, partial(_report, run), ordered)
    return Planned(phase, one_each(missing), len(done), workers, _divided(later, one_each)), steps


def _longest_first(items: Iterable, cost: Callable) -> list:
    """Begun last, a long one would run alone in the end."""
    return sorted(items, key=cost, reverse=True)


def _divided(cells: list[Cell] | None, divide: Callable) -> list[list[Cell]] | None:
    return None if cells is None else divide(cells)


def _missing(cells: Iterable[Cell], results: dict[str, Result]) -> list[Cell]:
    """The cells that have no result, each of them once."""
    return list({cell.digest: cell for cell in cells if cell.digest not in results}.values())


def _in_turn(run: Callable, items: Iterable) -> Iterator:
    for item in items:
        yield from run(item)


def _report(run: Callable, item: object, tell: Callable) -> Finished:
    """Tell the steps of `run(item)` one by one, but for the last one, which is Finished and returned."""
    finished = None
    for step in run(item):
        if finished is not None:
            tell(finished)
        finished = step if isinstance(step, Finished) else None
        if finished is None:
            tell(step)
    assert finished is not None, "the last step of a run is Finished"
    return finished
