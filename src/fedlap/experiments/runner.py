"""The runs that a results file still lacks: small models as compiled batches in threads, larger ones a process a core.

On an accelerator the larger ones run in turn.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import jax

from fedlap import __version__
from fedlap.errors import ConfigError
from fedlap.experiments.jobs import (
    Advanced,
    Conditions,
    Finished,
    batches,
    checkpoint_of,
    data_kept,
    grids,
    is_small,
    one_each,
    run_one,
    run_program,
)
from fedlap.experiments.results import Result, precision, writer
from fedlap.experiments.summary import winners
from fedlap.experiments.sweep import Cell, Sweep
from fedlap.experiments.workers import on_processes, on_threads
from fedlap.machine import cores
from fedlap.settings import Table


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


def carry_out(
    sweep: Sweep,
    path: str | Path,
    data_dir: Path | None = None,
    jobs: int | None = None,
    quick: dict[str, list[Table]] | None = None,
    version: str = __version__,
) -> Iterator[Planned | Advanced | Finished]:
    """Run every cell that the file does not hold yet, and say what happens: Planned, Advanced, Finished.

    `quick` is a {algorithm: settings} to train on all rows at once, without a search; `version` names
    the code in each line.
    """
    if sweep.precision not in (None, precision()):
        raise ConfigError(f"{sweep.name} is to run in {sweep.precision}, not {precision()}: JAX_ENABLE_X64=1 or 0")
    conditions = Conditions(data_dir, sweep.watch_train, Path(f"{path}.checkpoints"))
    with data_kept(), writer(path) as (earlier, append):
        results = {result.cell: result for result in earlier if result.serves(sweep.watch_train)}
        for phase in ("search", "final") if quick is None and sweep.is_grid else ("final",):
            if phase == "search":
                cells, later = sweep.search(), _missing(sweep.final(), results) if sweep.finals == "all" else None
            elif quick is None and sweep.finals == "winners":
                cells, later = sweep.final(winners(sweep.select(results.values()), sweep)), []
            else:
                cells, later = sweep.final(quick), []
            plan, carry = _plan(phase, cells, later, results, conditions, jobs)
            yield plan
            for step in carry:
                if isinstance(step, Finished):
                    step = step._replace(results=[replace(result, fedlap=version) for result in step.results])
                    append(step.results)
                    step.checkpoint.unlink(missing_ok=True)
                    results.update({result.cell: result for result in step.results})
                yield step
        for left in conditions.folder.glob("*.part"):  # of a process that was ended while it wrote
            left.unlink()
    if conditions.folder.exists() and not any(conditions.folder.iterdir()):
        conditions.folder.rmdir()


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
