"""The runs a sweep still lacks: small models as one compiled batch, larger ones a process a core.

On an accelerator the larger ones run in turn.
"""

import hashlib
import json
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np

from fedlap import __version__
from fedlap.engines import small
from fedlap.errors import ConfigError, DataError
from fedlap.experiments.choose import winners
from fedlap.experiments.results import Curve, Result, precision, writer
from fedlap.experiments.sweep import Cell
from fedlap.experiments.workers import on_processes
from fedlap.machine import cores
from fedlap.run import checkpoint as checkpoints
from fedlap.run.grid import Grid
from fedlap.run.simulation import Simulation, histories, progress

# Of the time, this much may go into checkpoints: a kill costs the round under way, or a moment of short ones.
CHECKPOINT_SHARE = 0.05


class Planned(NamedTuple):
    """A phase, the search or the final runs, is about to begin: jobs of one cell, or of those that are one program."""

    phase: str
    jobs: list[list[Cell]]
    done: int  # cells of this phase that an earlier call finished
    workers: int
    later: list[list[Cell]] | None  # jobs of the next phase; None if this one decides which

    @property
    def cells(self):
        return [cell for job in self.jobs for cell in job]


class Advanced(NamedTuple):
    """A run, or a batch of them, has finished a round."""

    cells: list[Cell]
    round: int
    seconds: float  # of each of them, up to here


class Finished(NamedTuple):
    results: list[Result]
    checkpoint: Path  # of no use once the results are on disk


def carry_out(sweep, path, data_dir=None, jobs=None, quick=None, version=__version__):
    """Run every cell that the file does not hold yet, and say what happens: Planned, Advanced, Finished.

    `quick` is a {algorithm: settings} to train on all rows at once, without a search; `version` names
    the code in each line.
    """
    if sweep.precision not in (None, precision()):
        raise ConfigError(f"{sweep.name} is to run in {sweep.precision}, not {precision()}: JAX_ENABLE_X64=1 or 0")
    folder = Path(f"{path}.checkpoints")
    with writer(path) as (found, append):
        results = {each.cell: each for each in found if each.serves(sweep.watch_train)}
        for phase in ("search", "final") if quick is None else ("final",):
            if phase == "search":
                cells, later = sweep.search(), _missing(sweep.final(), results) if sweep.finals == "all" else None
            elif quick is None and sweep.finals == "winners":
                cells, later = sweep.final(winners(sweep.select(results.values()), sweep)), []
            else:
                cells, later = sweep.final(quick), []
            missing = _missing(cells, results)
            done = {cell.digest: cell for cell in cells if cell.digest in results}
            for job in (*_batches(cells), *_one_each(cells)):  # a process killed just after its last line leaves one
                if all(cell.digest in done for cell in job):
                    _checkpoint(job, sweep.watch_train, folder).unlink(missing_ok=True)
            workers, carry = _how(missing, data_dir, jobs, len(missing) + len(done))
            divide = _batches if carry is _in_batches else _one_each
            yield Planned(phase, divide(missing), len(done), workers, None if later is None else divide(later))
            for step in carry(missing, data_dir, sweep.watch_train, folder):
                if isinstance(step, Finished):
                    step = step._replace(results=[replace(result, fedlap=version) for result in step.results])
                    append(step.results)
                    step.checkpoint.unlink(missing_ok=True)
                    results.update({result.cell: result for result in step.results})
                yield step
        for left in folder.glob("*.part"):  # of a process that was ended while it wrote
            left.unlink()
    if folder.exists() and not any(folder.iterdir()):
        folder.rmdir()


def _missing(cells, results):
    """Each cell once that has no result."""
    return list({cell.digest: cell for cell in cells if cell.digest not in results}.values())


def _resumes(run, checkpoint):
    """Whether it can go on from there; a checkpoint that is damaged, or of another version, is of no use and goes."""
    if not checkpoint.exists():
        return False
    try:
        checkpoints.load(checkpoint, run.init(), np.zeros((0, *run.columns)), run.describe())
    except DataError:
        checkpoint.unlink()
        return False
    return True


def _checkpoint(cells, watch_train, folder):
    """A file for these runs under way; its name is made of all that decides what they come to."""
    words = " ".join([precision(), str(watch_train), *(f"{cell.digest} {cell.revision}" for cell in cells)])
    return folder / f"{hashlib.sha256(words.encode()).hexdigest()[:16]}.npz"


def _how(cells, data_dir, jobs, planned):
    """How many processes (0: all runs of a kind are one program in this one), and the function that runs them.

    `planned` is how many cells there are with those that have finished. XLA adds up in as many parts as it has cores,
    so a run that is left over gets no more of them than beside the others: resumed, it comes to the same bits.
    """
    if not cells or small(_simulation(cells[0], data_dir, False).size):
        return 0, _in_batches
    if jax.default_backend() != "cpu":
        return 1, _in_turn  # an accelerator is busy with one run, and two processes would fight for its memory
    shares = min(jobs or len(cores()), planned)
    return min(shares, len(cells)), partial(_at_once, shares)


def _data(cell, data_dir, watch_train):
    """The federation to train on, and what to watch besides its test set."""
    federation = cell.spec.make_federation(cell.seed, data_dir)
    watch = {}
    if cell.held_out:
        watch["test"] = (federation.test_inputs, federation.test_labels)
        federation = federation.hold_out(cell.held_out, cell.seed)
    if watch_train:
        rows = np.concatenate(federation.rows)
        watch["train"] = (federation.inputs[rows], federation.labels[rows])
    return federation, watch


def _curves(cell, history):
    main = "validation" if cell.held_out else "test"
    curves = {main: Curve.of(history.accuracy, history.nll)}
    return curves | {name: Curve.of(*metrics) for name, metrics in history.watched.items()}


# One compiled batch -------------------------------------------------------------------------------------------------


def _in_batches(cells, data_dir, watch_train, folder):
    for batch in _grids(cells):
        yield from _run_batch(batch, data_dir, watch_train, folder)


def _batches(cells):
    """Jobs of as many cells as are one program."""
    return [[cell for of_setting in grid for cell in of_setting] for grid in _grids(cells)]


def _one_each(cells):
    return [[cell] for cell in cells]


def _grids(cells):
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


def _run_batch(batch, data_dir, watch_train, folder):
    spec, seeds, members = batch[0][0].spec, [cell.seed for cell in batch[0]], [cell for of in batch for cell in of]
    federations, watches = zip(*(_data(cell, data_dir, watch_train) for cell in batch[0]), strict=True)
    checkpoint = _checkpoint(members, watch_train, folder)
    began = time.perf_counter()
    grid = Grid.of(
        [(of[0].spec.make_algorithm(of[0].algorithm), of[0].spec.make_solver()) for of in batch],
        federations,
        spec.make_model(),
        seeds=seeds,
        watches=watches,
        participation=spec.train.participation,
        server_solver=spec.make_server_solver(),
    )
    setting_up = time.perf_counter() - began
    for reached in progress(grid, spec.train.rounds, checkpoint, _resumes(grid, checkpoint), CHECKPOINT_SHARE):
        _, table = reached
        seconds = (setting_up + table[:, 0, 0, 0].sum()) / len(members)
        yield Advanced(members, len(table), seconds)
    ended = grid.histories(*reached)
    results = [
        Result.of(cell, _curves(cell, ended[j, cell.seed]), seconds, federations[0].classes, len(members))
        for j, of_setting in enumerate(batch)
        for cell in of_setting
    ]
    yield Finished(results, checkpoint)


# One run after the other, or a process a core -----------------------------------------------------------------------


def _in_turn(cells, data_dir, watch_train, folder):
    for cell in cells:
        yield from _run_one(cell, data_dir, watch_train, folder)


def _at_once(workers, cells, data_dir, watch_train, folder):
    """The longest first: begun last, one of them would run alone in the end."""
    cells = sorted(cells, key=lambda cell: cell.cost, reverse=True)
    yield from on_processes(workers, partial(_report, data_dir, watch_train, folder), cells)


def _report(data_dir, watch_train, folder, cell, tell):
    for step in _run_one(cell, data_dir, watch_train, folder):
        if isinstance(step, Finished):
            return step
        tell(step)


def _run_one(cell, data_dir, watch_train, folder):
    checkpoint = _checkpoint([cell], watch_train, folder)
    began = time.perf_counter()
    run = _simulation(cell, data_dir, watch_train)
    setting_up = time.perf_counter() - began
    for history in histories(run, cell.spec.train.rounds, checkpoint, _resumes(run, checkpoint), CHECKPOINT_SHARE):
        seconds = setting_up + history.seconds.sum()
        yield Advanced([cell], len(history.nll), seconds)
        if not np.isfinite(history.nll).all():
            break  # it will not come back
    yield Finished([Result.of(cell, _curves(cell, history), seconds, run.federation.classes)], checkpoint)


def _simulation(cell, data_dir, watch_train):
    federation, watch = _data(cell, data_dir, watch_train)
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
