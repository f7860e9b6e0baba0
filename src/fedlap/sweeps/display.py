"""What a person sees of a sweep: what is running, what is done, and how long the rest will take."""

import time

from rich.console import Console
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from .carry import Advanced, Finished, Planned

LOG_SECONDS = 60  # between two lines where there is no terminal to draw a bar on


class Estimate:
    """How long the rest will take, from what rounds cost so far: by algorithm, as their steps differ in cost."""

    def __init__(self):
        self.waiting, self.workers = {}, 1
        self.reached = {}  # of cells that have begun: their algorithm, seconds, cost up to here

    def plan(self, cells, workers):
        """What is left to do, and how many of them run at a time."""
        self.waiting, self.workers = {cell.digest: cell for cell in cells}, max(workers, 1)

    def advance(self, event):
        for cell in event.cells:
            self._reach(cell, event.round, event.seconds)

    def finish(self, results):
        for result in results:
            rounds = max(len(curve.nll) for curve in result.curves.values())  # fewer than planned, if it diverged
            self._reach(self.waiting.pop(result.cell), rounds, result.seconds)

    def _reach(self, cell, round, seconds):
        self.reached[cell.digest] = (cell.algorithm, seconds, cell.cost * round / cell.rounds)

    @property
    def seconds(self):
        """None before the first round of anything."""
        if not self.reached:
            return None
        left = [0.0]
        for digest, cell in self.waiting.items():
            _, _, done = self.reached.get(digest, (None, 0.0, 0.0))
            left.append((cell.cost - done) * self._price(cell.algorithm))
        return max(sum(left) / self.workers, max(left))  # the last run has no help from other processes

    def _price(self, algorithm):
        """Seconds for a unit of cost; of all algorithms if this one has not begun."""
        mine = [each for each in self.reached.values() if each[0] == algorithm] or self.reached.values()
        _, seconds, costs = zip(*mine, strict=True)
        return sum(seconds) / sum(costs)


class Display:
    """Shows the events of `carry_out`."""

    def __init__(self, sweep, path):
        self.sweep, self.path, self.console = sweep, path, Console()
        self.progress = Progress(
            TextColumn("{task.description:<24}"),
            BarColumn(bar_width=30),
            MofNCompleteColumn(),
            TextColumn("{task.fields[now]}"),
            TimeElapsedColumn(),
            console=self.console,
        )
        self.running, self.began, self.counts, self.estimate = {}, time.monotonic(), [0, 0], Estimate()
        self.logged = -LOG_SECONDS

    def __enter__(self):
        self.console.print(f"[bold]{self.sweep.name}[/bold]: {', '.join(self.sweep.algorithms)} → {self.path}")
        self.live = Live(self.progress, console=self.console, refresh_per_second=4)
        self.live.__enter__()
        return self

    def __exit__(self, kind, *rest):
        self.live.__exit__(kind, *rest)
        if not self.progress.tasks:
            return  # nothing had begun, and the error says why
        if not self.console.is_terminal:
            self.console.print()  # a bar that is written to a file leaves its line open
        finished, diverged = self.counts
        minutes = (time.monotonic() - self.began) / 60
        lost = f", {diverged} of them diverged and are recorded so" if diverged else ""
        self.console.print(f"{finished} runs in {minutes:.1f} minutes{lost}.")
        if kind is KeyboardInterrupt:
            self.console.print("Interrupted; the same command goes on where this stopped.")

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
        self.estimate.plan(planned.cells + (planned.later or []), planned.workers)
        self.until = "" if planned.later is not None else " of the search; its winners run then"
        how = f"{planned.workers} processes" if planned.workers else "as compiled batches"
        words = {"search": "search, rows held out", "final": "final, all rows"}[planned.phase]
        total = len(planned.cells) + planned.done
        self.bar = self.progress.add_task(words, total=total, completed=planned.done, now=how)

    def _now(self):
        left = self.estimate.seconds
        if not self.left:
            return "done"
        about = "time left: not known before the first round ends"
        words = about if left is None else f"about {_duration(left)} left{self.until}"
        return "; ".join([words, *self.running.values()])


def _duration(seconds):
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
