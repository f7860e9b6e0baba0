"""What a person sees while something runs, and the table at its end. Nothing is kept here."""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

from rich import box
from rich.console import Console
from rich.live import Live
from rich.progress import BarColumn, DownloadColumn, Progress, Task, TextColumn
from rich.table import Table

from fedlap.cli import screen
from fedlap.experiments.results import Result
from fedlap.experiments.runner import Advanced, Event, Finished, Planned
from fedlap.experiments.shards import Awaiting, Gathered
from fedlap.experiments.summary import TEXTS, Text
from fedlap.experiments.sweep import Cell, Sweep

# How long the rest of some runs will take -----------------------------------------------------------------------------

Job = Sequence[Cell]  # one run, or many that are one program


class JobKind(NamedTuple):
    """What decides the price of a job's steps. Epochs do, as some servers cost as much after one as after ten."""

    algorithm: str
    epochs: int

    @classmethod
    def of(cls, job: Job) -> "JobKind":
        """The kind of a job."""
        return cls(job[0].algorithm, job[0].epochs)


class Reached(NamedTuple):
    """How far a job has come, and where it was first seen: until then it also did what is done once."""

    kind: JobKind
    first: tuple[float, float]  # seconds and cost
    last: tuple[float, float]

    @property
    def since(self) -> tuple[float, float]:
        """Seconds and cost of the rounds between."""
        return self.last[0] - self.first[0], self.last[1] - self.first[1]


class Estimate:
    """How long the rest will take: what jobs so far took once, set-up and compilation, and what a round costs.

    A job is a run, or many runs that are one program.
    """

    def __init__(self) -> None:
        self.jobs: dict[str, Job] = {}  # those left, by the digest of their first cell
        self.reached: dict[str, Reached] = {}  # those that have begun, likewise
        self.workers = 1

    def plan(self, jobs: Sequence[Job], workers: int) -> None:
        """What is left to do, and how many of them run at a time."""
        self.jobs, self.workers = {job[0].digest: job for job in jobs}, max(workers, 1)

    def advance(self, event: Advanced) -> None:
        """Take in that a job has finished a round."""
        self._reach(event.cells, event.round, event.seconds)

    def finish(self, results: Sequence[Result]) -> None:
        """Take in that a job has ended."""
        job = self.jobs.pop(results[0].cell)
        rounds = max(len(curve.nll) for curve in results[0].curves.values())  # fewer than planned, if it diverged
        self._reach(job, rounds, results[0].seconds)

    def _reach(self, job: Job, round: int, seconds: float) -> None:
        now = seconds * len(job), _cost(job) * round / job[0].rounds
        before = self.reached.get(job[0].digest)
        self.reached[job[0].digest] = Reached(JobKind.of(job), before.first if before else now, now)

    @property
    def seconds(self) -> float | None:
        """None before the second round of anything, or its end: until then nobody knows how much was done once."""
        prices = {kind: self._prices(kind) for kind in map(JobKind.of, self.jobs.values())}
        left = [0.0]
        for digest, job in self.jobs.items():
            known = prices[JobKind.of(job)]
            if known is None:
                return None
            once, price = known
            reached = self.reached.get(digest)
            left.append(once + _cost(job) * price if reached is None else (_cost(job) - reached.last[1]) * price)
        return max(sum(left) / self.workers, max(left))  # the last run has no help from other processes

    def _prices(self, kind: JobKind) -> tuple[float, float] | None:
        """Seconds that a job takes once, and for a unit of cost; if none of its kind has come so far, of its algorithm
        with other epochs, or else of all."""
        seen = [each for each in self.reached.values() if each.since[1] > 0]
        alike = [each for each in seen if each.kind.algorithm == kind.algorithm]
        similar = [each for each in alike if each.kind == kind] or alike or seen
        if not similar:  # jobs of one round, which tell the two apart by no second one
            ended = [each.last for digest, each in self.reached.items() if digest not in self.jobs]
            seconds, costs = zip(*ended, strict=True) if ended else ((), ())
            return (0.0, sum(seconds) / sum(costs)) if ended else None
        price = sum(each.since[0] for each in similar) / sum(each.since[1] for each in similar)
        once = [max(seconds - cost * price, 0.0) for seconds, cost in (each.first for each in similar)]
        return sum(once) / len(once), price


def _cost(job: Job) -> float:
    return sum(cell.cost for cell in job)


# Displays -------------------------------------------------------------------------------------------------------------

DRAWN_SECONDS = 0.1  # between two texts beside a bar: rounds may be shorter, and nobody sees each
LOG_SECONDS = 60  # between two lines where there is no terminal to draw a bar on


class Display:
    """Shows the events of `carry_out`: what is running, what is done, and how long the rest will take."""

    def __init__(self, sweep: Sweep, path: Path) -> None:
        self.sweep, self.path, self.console = sweep, path, Console()
        self.progress = screen.bars(self.console, 22 if sweep.is_grid else len("runs"))
        self.running, self.began, self.counts, self.estimate = {}, time.monotonic(), [0, 0], Estimate()
        self.logged = self.drawn = -math.inf

    def __enter__(self) -> "Display":
        algorithms, seeds = ", ".join(self.sweep.algorithms), ", ".join(map(str, self.sweep.final_seeds))
        runs = "" if self.sweep.is_grid else f"; seeds {seeds}"
        self.console.print(f"[bold]{self.sweep.name}[/bold]: {algorithms}{runs} → {self.path}")
        self.live = Live(self.progress, console=self.console, refresh_per_second=4)
        self.live.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.live.__exit__(kind, error, trace)
        if not self.progress.tasks:
            return  # nothing had begun, and the error says why
        if not self.console.is_terminal:
            self.console.print()  # a bar that is written to a file leaves its line open
        finished, diverged = self.counts
        duration = _duration(time.monotonic() - self.began)
        lost = f", {diverged} of them diverged and are recorded so" if diverged else ""
        self.console.print(f"{finished} runs in {duration}{lost}.")

    def show(self, event: Event) -> None:
        """Take in an event."""
        if isinstance(event, (Gathered, Awaiting)):
            self.console.print(_of_shards(event), soft_wrap=True, highlight=False)
            return
        if isinstance(event, Planned):
            self._plan(event)
        elif isinstance(event, Advanced):
            self.estimate.advance(event)
            first, *others = event.cells
            many = f", {1 + len(others)} runs" if others else ""
            self.running[first.digest] = f"{first.algorithm}{many}, round {event.round}"
        elif isinstance(event, Finished):
            self.estimate.finish(event.results)
            for result in event.results:
                self.running.pop(result.cell, None)
            self.counts[0] += len(event.results)
            self.counts[1] += sum(result.diverged for result in event.results)
            self.left -= len(event.results)
            self.progress.advance(self.bar, len(event.results))
        if not isinstance(event, Advanced) or time.monotonic() - self.drawn >= DRAWN_SECONDS:
            self.drawn = time.monotonic()
            self.progress.update(self.bar, now=self._now())
        task = self.progress.tasks[self.bar]
        if not self.console.is_terminal and task.total and time.monotonic() - self.logged >= LOG_SECONDS:
            self.logged = time.monotonic()
            self._log(task)

    def _log(self, task: Task) -> None:
        """One line for a log file, where a bar shows only in the end."""
        line = f"{time.strftime('%H:%M:%S')} {task.description}: {task.completed} of {task.total} runs; {self._now()}"
        self.console.print(line, soft_wrap=True, highlight=False)

    def _plan(self, planned: Planned) -> None:
        self.left = len(planned.cells)
        self.estimate.plan(planned.jobs + (planned.later or []), planned.workers or planned.threads)
        self.until = "" if planned.later is not None else " of the search; its winners run then"
        how = f"{planned.workers} processes" if planned.workers else "as compiled batches"
        phase = {"search": "search, rows held out", "final": "final, all rows"}[planned.phase]
        total = len(planned.cells) + planned.done
        description = phase if self.sweep.is_grid else "runs"
        self.bar = self.progress.add_task(description, total=total, completed=planned.done, now=how)

    def _now(self) -> str:
        left = self.estimate.seconds
        if not self.left:
            return "done"
        about = "time left: not known before the second round ends"
        remaining = about if left is None else f"about {_duration(left)} left{self.until}"
        return "; ".join([remaining, *self.running.values()])


def _of_shards(event: Gathered | Awaiting) -> str:
    """A line about shards."""
    if isinstance(event, Awaiting):
        return (
            f"The winners are not known yet: {event.runs} runs of the search are left to other shards. When these have "
            "finished, the same command carries out its share of the winners' runs on all rows."
        )
    lines = [f"{len(event.results)} runs of {len(event.shards)} shards put together."]
    if event.absent:
        lines.append(f"No results of shard {', '.join(map(str, event.absent))}: what is missing runs here.")
    if useless := sum(not result.serves(watch_train=False) for result in event.results):
        lines.append(f"{useless} of them are in another precision or of an earlier revision, and do not count here.")
    return " ".join(lines)


def show_table(console: Console, text: Text) -> None:
    """A table of words, as wide as the screen allows; on a narrow one calibration is a table by itself."""
    whole = _drawn(text)
    for table in [whole] if screen.fits(console, whole) else map(_drawn, text.parts()):
        screen.show(console, table, names=2 if text.heads[0] == "run" else 1)


def _drawn(text: Text) -> Table:
    table = Table(title=text.title or None, box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    for head in text.heads:
        table.add_column(head, no_wrap=head != "setting", justify="left" if head in TEXTS else "right")
    for row in text.rows:
        table.add_row(*row)
    return table


@contextmanager
def downloading() -> Iterator[Callable]:
    """A callback (file, bytes so far, bytes in all) that draws a bar per file."""
    with Progress(TextColumn("{task.description}"), BarColumn(), DownloadColumn()) as progress:
        bars = {}

        def report(file: object, done: int, total: int) -> None:
            if file not in bars:
                bars[file] = progress.add_task(str(file), total=total)
            progress.update(bars[file], completed=done, total=total)

        yield report


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
