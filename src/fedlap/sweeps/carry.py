"""The runs a sweep still lacks: small models as one compiled batch, larger ones a process a core."""

import itertools
import json
import multiprocessing
import os
import threading
import time
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from multiprocessing.managers import SyncManager
from pathlib import Path
from queue import Empty
from typing import NamedTuple

import jax
import numpy as np

from ..engines import vectorised
from ..grid import simulate_grid
from ..processors import cores, stay_on
from ..simulation import Simulation, histories
from .cells import Cell
from .choose import winners
from .results import Curve, Result, load, writer

CHECKPOINT_SECONDS = 60  # what a killed process may lose of a long run
LOOK_SECONDS = 0.5  # between two looks at what the processes are doing


class Planned(NamedTuple):
    """A phase, the search or the final runs, is about to begin with these cells."""

    phase: str
    cells: list[Cell]
    done: int  # cells of this phase that an earlier call finished
    workers: int


class Advanced(NamedTuple):
    """A long run has finished a round."""

    cell: Cell
    round: int


class Finished(NamedTuple):
    results: list[Result]


def carry_out(sweep, path, data_dir=None, jobs=None, quick=None):
    """Run every cell that the file does not hold yet, and say what happens: Planned, Advanced, Finished.

    `quick` is a {algorithm: settings} to train on all rows at once, without a search.
    """
    with writer(path) as append:
        results = load(path)
        for phase in ("search", "final") if quick is None else ("final",):
            if phase == "search":
                cells = sweep.search()
            elif quick is None and sweep.finals == "winners":
                cells = sweep.final(winners(results.values(), sweep))
            else:
                cells = sweep.final(quick)
            distinct = {cell.digest: cell for cell in cells}
            missing = [cell for digest, cell in distinct.items() if digest not in results]
            workers = _workers(missing, data_dir, jobs)
            yield Planned(phase, missing, len(distinct) - len(missing), workers)
            if workers == 0:
                steps = _in_batches(missing, data_dir, sweep.watch_train)
            else:
                steps = _on_processes(missing, data_dir, sweep.watch_train, workers, Path(f"{path}.checkpoints"))
            for step in steps:
                if isinstance(step, Finished):
                    append(step.results)
                    results.update({result.cell: result for result in step.results})
                yield step


def _workers(cells, data_dir, jobs):
    """How many processes; 0 if the model is so small that all runs are one program."""
    if not cells:
        return 0
    if _simulation(cells[0], data_dir, False).engine is vectorised:
        return 0
    return min(jobs or len(cores()), len(cells))


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


def _in_batches(cells, data_dir, watch_train):
    for batch in _batches(cells):
        yield Finished(_run_batch(batch, data_dir, watch_train))


def _batches(cells):
    """Cells as [settings][seeds], all of one program: settings differ in numbers only, and have the same seeds."""
    programs = {}
    for cell in cells:
        method = (cell.spec.algorithm(cell.algorithm), cell.spec.make_solver())
        program = (cell.held_out, cell.algorithm, jax.tree.structure(method))
        setting = json.dumps(cell.setting, sort_keys=True)
        programs.setdefault(program, {}).setdefault(setting, []).append(cell)
    for settings in programs.values():
        alike = {}
        for of_setting in settings.values():
            alike.setdefault(tuple(cell.seed for cell in of_setting), []).append(of_setting)
        yield from alike.values()


def _run_batch(batch, data_dir, watch_train):
    spec, seeds = batch[0][0].spec, [cell.seed for cell in batch[0]]
    federations, watches = zip(*(_data(cell, data_dir, watch_train) for cell in batch[0]), strict=True)
    began = time.perf_counter()
    found = simulate_grid(
        [(of[0].spec.algorithm(of[0].algorithm), of[0].spec.make_solver()) for of in batch],
        federations,
        spec.make_model(),
        rounds=spec.train.rounds,
        seeds=seeds,
        watches=watches,
        participation=spec.train.participation,
        server_solver=spec.make_server_solver(),
    )
    count = len(batch) * len(seeds)
    seconds = (time.perf_counter() - began) / count
    return [
        Result.of(cell, _curves(cell, found[j, cell.seed]), seconds, count)
        for j, of_setting in enumerate(batch)
        for cell in of_setting
    ]


# A process a core ---------------------------------------------------------------------------------------------------


def _on_processes(cells, data_dir, watch_train, workers, folder):
    context = multiprocessing.get_context("spawn")
    manager = SyncManager(ctx=context)
    manager.start(_end_with_parent)
    with manager:
        free, news = manager.Queue(), manager.Queue()
        for core in itertools.islice(itertools.cycle(cores()), workers):
            free.put(core)
        with ProcessPoolExecutor(workers, context, initializer=_begin, initargs=(free,)) as pool:
            by_digest = {cell.digest: cell for cell in cells}
            waiting = {pool.submit(_run_one, cell, data_dir, watch_train, folder, news) for cell in cells}
            try:
                while waiting:
                    done, waiting = wait(waiting, timeout=LOOK_SECONDS, return_when=FIRST_COMPLETED)
                    for digest, round in _drain(news):
                        yield Advanced(by_digest[digest], round)
                    if done:
                        yield Finished([future.result() for future in done])
            except BaseException:
                for process in list(pool._processes.values()):
                    process.terminate()  # what they were at is in their checkpoints
                pool.shutdown(wait=False, cancel_futures=True)
                raise
    if folder.exists() and not any(folder.iterdir()):
        folder.rmdir()


def _begin(free):
    _end_with_parent()
    stay_on(free.get())


def _end_with_parent():
    """No process outlives the sweep, even one that was killed."""
    parent = multiprocessing.parent_process()
    threading.Thread(target=lambda: (parent.join(), os._exit(1)), daemon=True).start()


def _drain(queue):
    while True:
        try:
            yield queue.get_nowait()
        except Empty:
            return


def _run_one(cell, data_dir, watch_train, folder, news):
    checkpoint = folder / f"{cell.digest}.npz"
    began = time.perf_counter()
    run = _simulation(cell, data_dir, watch_train)
    steps = histories(run, cell.spec.train.rounds, checkpoint, resume=checkpoint.exists(), every=CHECKPOINT_SECONDS)
    for history in steps:
        news.put((cell.digest, len(history.nll)))
        if history.diverged:
            break  # it will not come back
    earlier = max(0.0, history.seconds.sum() - (time.perf_counter() - began))  # rounds of a process that was stopped
    result = Result.of(cell, _curves(cell, history), time.perf_counter() - began + earlier)
    checkpoint.unlink(missing_ok=True)
    return result


def _simulation(cell, data_dir, watch_train):
    federation, watch = _data(cell, data_dir, watch_train)
    return Simulation.of(
        cell.spec.algorithm(cell.algorithm),
        federation,
        cell.spec.make_model(),
        solver=cell.spec.make_solver(),
        server_solver=cell.spec.make_server_solver(),
        seed=cell.seed,
        participation=cell.spec.train.participation,
        watch=watch,
    )
