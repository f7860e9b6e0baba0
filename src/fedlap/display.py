"""What a person sees while something runs."""

from contextlib import contextmanager

from rich import box
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from .algorithms import ALGORITHMS
from .report import cells, heads


class Display:
    """A progress bar per algorithm while an experiment runs, then its table."""

    def __init__(self, spec, folder):
        self.spec, self.folder, self.console = spec, folder, Console()
        self.latest = {}
        self.bars = {}
        self.progress = Progress(
            TextColumn("{task.description:<16}"),
            BarColumn(bar_width=30),
            MofNCompleteColumn(),
            TextColumn("{task.fields[now]}"),
            TimeElapsedColumn(),
            console=self.console,
        )

    def __enter__(self):
        train = self.spec.train
        self.console.print(
            f"[bold]{self.spec.name}[/bold]: {len(self.spec.algorithms)} algorithms, seeds {list(train.seeds)}, "
            f"{train.rounds} rounds → {self.folder}"
        )
        for name in self.spec.algorithms:
            total = len(train.seeds) * train.rounds_of(ALGORITHMS[name])
            self.bars[name] = self.progress.add_task(name, total=total, now="", start=False)
        self._begin(next(iter(self.bars)))
        self.progress.start()
        return self

    def __exit__(self, kind, *_):
        self.progress.stop()
        if kind is KeyboardInterrupt:
            self.console.print(f"Interrupted; fedlap run --resume {self.folder} goes on where this stopped.")

    def _begin(self, name):
        self.progress.start_task(self.bars[name])
        self.progress.update(self.bars[name], now="compiling …")

    @property
    def runs(self):
        return list(self.latest.values())

    def show(self, run):
        """One more round of one run."""
        self.latest[run.algorithm, run.seed] = run
        done = sum(len(r.accuracy) for r in self.runs if r.algorithm == run.algorithm)
        numbers = f"accuracy {100 * run.accuracy[-1]:5.1f} %  NLL {run.nll[-1]:.3f}"
        now = f"seed {run.seed}  {'diverged' if run.diverged else numbers}"
        self.progress.update(self.bars[run.algorithm], completed=done, now=now)
        names = list(self.bars)
        following = names[names.index(run.algorithm) + 1 :]
        if following and self.progress.tasks[self.bars[run.algorithm]].finished:
            self._begin(following[0])

    def table(self, rows, target):
        title = "test set: mean (standard deviation) over seeds, last three rounds"
        table = Table(title=title, box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
        for head in heads(target):
            table.add_column(head, no_wrap=True, justify="left" if head == "algorithm" else "right")
        for row in rows:
            table.add_row(*cells(row, target))
        self.console.print(table)
        self.console.print(f"Written: {self.folder}/table.md, curves.png, rounds.jsonl, configuration.json")


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
