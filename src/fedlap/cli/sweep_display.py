"""What a person sees of a sweep: what is running, what is done, and how long the rest will take."""

import time
from typing import NamedTuple

from rich import box
from rich.console import Console
from rich.live import Live
from rich.table import Table

from fedlap.cli import screen
from fedlap.experiments import winners
from fedlap.experiments.runner import Advanced, Finished, Planned

LOG_SECONDS = 60  # between two lines where there is no terminal to draw a bar on


class Kind(NamedTuple):
    """What decides the price of a job's steps. Epochs do, as some servers cost as much after one as after ten."""

    algorithm: str
    epochs: int

    @classmethod
    def of(cls, job):
        return cls(job[0].algorithm, job[0].epochs)


class Reached(NamedTuple):
    """How far a job has come, and where it was first seen: until then it also did what is done once."""

    kind: "Kind"
    first: tuple[float, float]  # seconds and cost
    last: tuple[float, float]

    @property
    def since(self):
        """Seconds and cost of the rounds between."""
        return self.last[0] - self.first[0], self.last[1] - self.first[1]


class Estimate:
    """How long the rest will take: what jobs so far took once, set-up and compilation, and what a round costs.

    A job is a run, or many runs that are one program.
    """

    def __init__(self):
        self.jobs, self.workers = {}, 1  # those left, by the digest of their first cell
        self.reached = {}  # those that have begun, likewise

    def plan(self, jobs, workers):
        """What is left to do, and how many of them run at a time."""
        self.jobs, self.workers = {job[0].digest: job for job in jobs}, max(workers, 1)

    def advance(self, event):
        self._reach(event.cells, event.round, event.seconds)

    def finish(self, results):
        job = self.jobs.pop(results[0].cell)
        rounds = max(len(curve.nll) for curve in results[0].curves.values())  # fewer than planned, if it diverged
        self._reach(job, rounds, results[0].seconds)

    def _reach(self, job, round, seconds):
        now = seconds * len(job), _cost(job) * round / job[0].rounds
        before = self.reached.get(job[0].digest)
        self.reached[job[0].digest] = Reached(Kind.of(job), before.first if before else now, now)

    @property
    def seconds(self):
        """None before the second round of anything, or its end: until then nobody knows how much was done once."""
        prices = {kind: self._prices(kind) for kind in map(Kind.of, self.jobs.values())}
        if None in prices.values():
            return None
        left = [0.0]
        for digest, job in self.jobs.items():
            once, price = prices[Kind.of(job)]
            reached = self.reached.get(digest)
            left.append(once + _cost(job) * price if reached is None else (_cost(job) - reached.last[1]) * price)
        return max(sum(left) / self.workers, max(left))  # the last run has no help from other processes

    def _prices(self, kind):
        """Seconds that a job takes once, and for a unit of cost; if none of its kind has come so far, of its algorithm
        with other epochs, or else of all."""
        seen = [each for each in self.reached.values() if each.since[1] > 0]
        alike = [each for each in seen if each.kind.algorithm == kind.algorithm]
        mine = [each for each in alike if each.kind == kind] or alike or seen
        if not mine:  # jobs of one round, which tell the two apart by no second one
            ended = [each.last for digest, each in self.reached.items() if digest not in self.jobs]
            seconds, costs = zip(*ended, strict=True) if ended else ((), ())
            return (0.0, sum(seconds) / sum(costs)) if ended else None
        price = sum(each.since[0] for each in mine) / sum(each.since[1] for each in mine)
        once = [max(seconds - cost * price, 0.0) for seconds, cost in (each.first for each in mine)]
        return sum(once) / len(once), price


def _cost(job):
    return sum(cell.cost for cell in job)


class Display:
    """Shows the events of `carry_out`."""

    def __init__(self, sweep, path):
        self.sweep, self.path, self.console = sweep, path, Console()
        self.progress = screen.bars(self.console, 22)
        self.running, self.began, self.counts, self.estimate = {}, time.monotonic(), [0, 0], Estimate()
        self.logged = -LOG_SECONDS

    def __enter__(self):
        self.console.print(f"[bold]{self.sweep.name}[/bold]: {', '.join(self.sweep.algorithms)} → {self.path}")
        self.live = Live(self.progress, console=self.console, refresh_per_second=4)
        self.live.__enter__()
        return self

    def __exit__(self, *error):
        self.live.__exit__(*error)
        if not self.progress.tasks:
            return  # nothing had begun, and the error says why
        if not self.console.is_terminal:
            self.console.print()  # a bar that is written to a file leaves its line open
        finished, diverged = self.counts
        minutes = (time.monotonic() - self.began) / 60
        lost = f", {diverged} of them diverged and are recorded so" if diverged else ""
        self.console.print(f"{finished} runs in {minutes:.1f} minutes{lost}.")

    def table(self, results):
        """The winners, once all has run."""
        found = winners.winners(self.sweep, results)
        if not found:
            return
        title = winners.words(self.sweep, found)
        table = Table(title=title, box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
        for head in winners.HEADS:
            is_words = head in ("algorithm", "setting")
            table.add_column(head, no_wrap=head != "setting", justify="left" if is_words else "right")
        for winner in found:
            table.add_row(*winners.cells(winner))
        screen.show(self.console, table)

    def show(self, event):
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
        self.progress.update(self.bar, now=self._now())
        task = self.progress.tasks[self.bar]
        if not self.console.is_terminal and task.total and time.monotonic() - self.logged >= LOG_SECONDS:
            self.logged = time.monotonic()
            self._log(task)

    def _log(self, task):
        """One line for a log file, where a bar shows only in the end."""
        words = f"{time.strftime('%H:%M:%S')} {task.description}: {task.completed} of {task.total} runs; {self._now()}"
        self.console.print(words, soft_wrap=True, highlight=False)

    def _plan(self, planned):
        self.left = len(planned.cells)
        self.estimate.plan(planned.jobs + (planned.later or []), planned.workers)
        self.until = "" if planned.later is not None else " of the search; its winners run then"
        how = f"{planned.workers} processes" if planned.workers else "as compiled batches"
        words = {"search": "search, rows held out", "final": "final, all rows"}[planned.phase]
        total = len(planned.cells) + planned.done
        self.bar = self.progress.add_task(words, total=total, completed=planned.done, now=how)

    def _now(self):
        left = self.estimate.seconds
        if not self.left:
            return "done"
        about = "time left: not known before the second round ends"
        words = about if left is None else f"about {_duration(left)} left{self.until}"
        return "; ".join([words, *self.running.values()])


def _duration(seconds):
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
