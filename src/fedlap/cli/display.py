"""What a person sees while something runs."""

from collections import Counter
from contextlib import contextmanager

from rich import box
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn
from rich.table import Table

from fedlap.algorithms import ALGORITHMS
from fedlap.cli import screen
from fedlap.experiments.summary import caption, cells, heads, summarise


class Display:
    """A progress bar per algorithm while an experiment runs, then its table."""

    def __init__(self, spec, folder):
        self.spec, self.folder, self.console = spec, folder, Console()
        self.latest = {}
        self.bars = {}
        self.progress = screen.bars(self.console, 16)

    def __enter__(self):
        train = self.spec.train
        self.console.print(
            f"[bold]{self.spec.name}[/bold]: {len(self.spec.algorithms)} algorithms, seeds {list(train.seeds)}, "
            f"{train.rounds} rounds → {self.folder}"
        )
        for name in self.spec.algorithms:
            total = len(train.seeds) * self._rounds(name)
            self.bars[name] = self.progress.add_task(name, total=total, now="", start=False)
        self._begin(next(iter(self.bars)))
        self.progress.start()
        return self

    def __exit__(self, *_):
        self.progress.stop()

    def _rounds(self, algorithm):
        return self.spec.train.rounds_of(ALGORITHMS[algorithm])

    def _begin(self, name):
        self.progress.start_task(self.bars[name])
        self.progress.update(self.bars[name], now="compiling …")

    @property
    def runs(self):
        return list(self.latest.values())

    @property
    def finished(self):
        """The runs of those algorithms all of whose seeds have ended."""
        ended = [run for run in self.runs if run.diverged or len(run.accuracy) == self._rounds(run.algorithm)]
        counts = Counter(run.algorithm for run in ended)
        return [run for run in ended if counts[run.algorithm] == len(self.spec.train.seeds)]

    def show(self, run):
        """One more round of one run."""
        self.latest[run.algorithm, run.seed] = run
        done = sum(len(each.accuracy) for each in self.runs if each.algorithm == run.algorithm)
        accuracy, nll = f"{100 * run.accuracy[-1]:5.1f} %", f"{run.nll[-1]:.3f}"
        brief = self.console.width < screen.MIDDLE
        numbers = f"{accuracy} {nll}" if brief else f"accuracy {accuracy}  NLL {nll}"
        now = "diverged" if run.diverged else numbers
        now = now if brief else f"seed {run.seed}  {now}"
        self.progress.update(self.bars[run.algorithm], completed=done, now=now)
        names = list(self.bars)
        following = names[names.index(run.algorithm) + 1 :]
        if following and self.progress.tasks[self.bars[run.algorithm]].finished:
            self._begin(following[0])

    def table(self, runs):
        """What these came to; nothing of none."""
        if not runs:
            return
        target = self.spec.train.target_accuracy
        title = caption(len(self.spec.train.seeds))
        table = Table(title=title, box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
        for head in heads(target):
            table.add_column(head, no_wrap=True, justify="left" if head == "algorithm" else "right")
        for row in summarise(runs, target):
            table.add_row(*cells(row, target))
        screen.show(self.console, table)


@contextmanager
def downloading():
    """A callback (file, bytes so far, bytes in all) that draws a bar per file."""
    with Progress(TextColumn("{task.description}"), BarColumn(), DownloadColumn()) as progress:
        bars = {}

        def report(file, done, total):
            if file not in bars:
                bars[file] = progress.add_task(str(file), total=total)
            progress.update(bars[file], completed=done, total=total)

        yield report
