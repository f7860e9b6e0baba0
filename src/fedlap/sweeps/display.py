"""What a person sees of a sweep: what is running, what is done, and how long the rest will take."""

import time

from rich.console import Console
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from .carry import Advanced, Finished, Planned


class Estimate:
    """How long the rest will take, from what finished cells cost: by algorithm, as their steps differ in cost."""

    def __init__(self, cells, workers):
        self.waiting = {cell.digest: cell for cell in cells}
        self.costs = {cell.digest: (cell.algorithm, cell.cost) for cell in cells}
        self.workers = max(workers, 1)
        self.spent = {}  # algorithm: (seconds, cost)

    def finish(self, results):
        for result in results:
            del self.waiting[result.cell]
            algorithm, cost = self.costs[result.cell]
            seconds, done = self.spent.get(algorithm, (0.0, 0.0))
            self.spent[algorithm] = (seconds + result.seconds, done + cost)

    @property
    def seconds(self):
        """None before anything has finished."""
        if not self.spent:
            return None
        everything = tuple(map(sum, zip(*self.spent.values(), strict=True)))
        total = 0.0
        for cell in self.waiting.values():
            seconds, cost = self.spent.get(cell.algorithm, everything)
            total += cell.cost * seconds / cost
        return total / self.workers


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
        self.running, self.began, self.counts = {}, time.monotonic(), [0, 0]

    def __enter__(self):
        self.console.print(f"[bold]{self.sweep.name}[/bold]: {', '.join(self.sweep.algorithms)} → {self.path}")
        self.live = Live(self.progress, console=self.console, refresh_per_second=4)
        self.live.__enter__()
        return self

    def __exit__(self, *error):
        self.live.__exit__(*error)
        if not self.console.is_terminal:
            self.console.print()  # a bar that is written to a file leaves its line open
        finished, diverged = self.counts
        minutes = (time.monotonic() - self.began) / 60
        self.console.print(
            f"{finished} runs in {minutes:.1f} minutes, {diverged} of them diverged and are recorded so."
        )

    def show(self, event):
        if isinstance(event, Planned):
            self._plan(event)
        elif isinstance(event, Advanced):
            self.running[event.cell.digest] = f"{event.cell.algorithm} round {event.round}"
        elif isinstance(event, Finished):
            self.estimate.finish(event.results)
            for result in event.results:
                self.running.pop(result.cell, None)
            self.counts[0] += len(event.results)
            self.counts[1] += sum(result.diverged for result in event.results)
            self.progress.advance(self.bar, len(event.results))
        self.progress.update(self.bar, now=self._now())

    def _plan(self, planned):
        self.estimate = Estimate(planned.cells, planned.workers)
        how = f"{planned.workers} processes" if planned.workers else "as compiled batches"
        words = {"search": "search, rows held out", "final": "final, all rows"}[planned.phase]
        total = len(planned.cells) + planned.done
        self.bar = self.progress.add_task(words, total=total, completed=planned.done, now=how)

    def _now(self):
        left = self.estimate.seconds
        if not self.estimate.waiting:
            return "done"
        words = "time left: not known before the first run ends" if left is None else f"about {_duration(left)} left"
        return "; ".join([words, *self.running.values()])


def _duration(seconds):
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
