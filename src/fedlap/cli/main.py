"""The command line. Everything slow is imported when a command needs it."""

import datetime
import sys
import warnings
from pathlib import Path
from typing import Annotated

import typer

from fedlap import __version__
from fedlap.cli import network as network_cli
from fedlap.cli import paper as paper_cli
from fedlap.cli import study as study_cli
from fedlap.cli.help import Commands

app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_show_locals=False,  # a local variable may be a secret, or a patient
)
data_app = typer.Typer(
    cls=Commands, help="The data sets: which there are, fetch them, verify them.", no_args_is_help=True
)
app.add_typer(data_app, name="data")
app.add_typer(study_cli.study_app, name="study")

DataDir = paper_cli.DataDir
DataSet = Annotated[str, typer.Argument(help="Its name, for example mnist: see fedlap data list.")]


def _version(asked: bool):
    if asked:
        typer.echo(f"fedlap {__version__}")
        raise typer.Exit


@app.callback()
def fedlap(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Say which version this is.")
    ] = False,
):
    """Federated learning where ADMM meets Bayes."""


@app.command()
def run(
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="[SPEC.toml] [ALGORITHM]...", help="What to run; all on the hospitals if not given."),
    ] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change a setting, for example delta=0.1.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option(help="The results folder; if not given, a new one in results/.")
    ] = None,
    resume: Annotated[Path | None, typer.Option(help="Finish the run in this results folder.")] = None,
    data_dir: DataDir = None,
):
    """Train, show the progress, print the table, and write a results folder."""
    from fedlap.cli.display import Display, downloading
    from fedlap.data import bring
    from fedlap.errors import ConfigError
    from fedlap.experiments import experiment, spec
    from fedlap.experiments.summary import curves, markdown, summarise
    from fedlap.files import atomic
    from fedlap.stopping import resumable

    if resume is not None:
        if words or settings or output:
            raise ConfigError("--resume takes everything from its folder; leave out the other arguments")
        folder, wanted = resume, experiment.reopen(resume)
    else:
        words = words or []
        file = words.pop(0) if words and spec.is_file(words[0]) else None
        wanted = spec.read(file, words, settings or [])
        folder = output or Path("results") / f"{wanted.name}-{datetime.datetime.now():%Y%m%d-%H%M%S}"
    with downloading() as progress:
        bring(wanted.federation["dataset"], data_dir, progress)
    if resume is None:  # only now: without its data there is nothing to resume
        experiment.begin(wanted, folder)
    with resumable(f"fedlap run --resume {folder} goes on where this stopped"):
        display = Display(wanted, folder)
        try:
            with display:
                for step in experiment.carry_out(wanted, folder, data_dir):
                    display.show(step)
        except OSError:  # no room to write it down, but what has finished is worth a look
            display.table(display.finished)
            raise
        display.table(display.runs)
        rows = summarise(display.runs, wanted.train.target_accuracy)
        atomic.write(folder / "table.md", markdown(rows, wanted.train.target_accuracy))
        curves(display.runs, wanted.name, folder / "curves.png")
    written = f"Written: {folder}/table.md, curves.png, rounds.jsonl, configuration.json"
    display.console.print(written, soft_wrap=True)  # a path in two lines is nothing to copy


for command in (paper_cli.sweep, paper_cli.reproduce, paper_cli.table, paper_cli.figure):
    app.command()(command)
for command in (network_cli.server, network_cli.node, study_cli.predict):
    app.command()(command)
for command in (network_cli.run, network_cli.demo):
    study_cli.study_app.command()(command)


@app.command()
def algorithms():
    """List the algorithms, their equations and their hyper-parameters."""
    import inspect

    from rich.console import Console
    from rich.markup import escape

    from fedlap.algebra.hyperparameters import options
    from fedlap.algorithms import ALGORITHMS

    console = Console(highlight=False)
    for name, algorithm in ALGORITHMS.items():
        title = inspect.getmodule(algorithm).__doc__.strip().splitlines()[0]
        console.print(f"\n[bold]{name}[/bold]  {escape(', '.join(options(algorithm)))}")
        console.print(title, style="dim", markup=False)
        console.print(inspect.cleandoc(algorithm.__doc__), markup=False)


@data_app.command("list")
def data_list(data_dir: DataDir = None):
    """Which data sets there are, their size and licence, and whether they are here."""
    from rich.console import Console
    from rich.table import Table

    from fedlap.cli.screen import show
    from fedlap.data import DATASETS, verify

    table = Table()
    for head in ("data set", "what it is", "size", "licence", "here"):
        table.add_column(head, no_wrap=head in ("data set", "size", "here"))
    for name, entry in DATASETS.items():
        problems = {status for _, status in verify(name, data_dir)} - {"ok"}
        here = "damaged" if problems - {"missing"} else "no" if problems else "bundled" if entry.bundled else "yes"
        table.add_row(name, entry.description, _size(entry.bytes), entry.licence, here)
    show(Console(), table)


@data_app.command("fetch")
def data_fetch(name: DataSet, data_dir: DataDir = None):
    """Download a data set from its official source, checksum it, and keep it."""
    from fedlap.cli.display import downloading
    from fedlap.data import fetch

    with downloading() as progress:
        folder = fetch(name, data_dir, progress)
    typer.echo(f"{name}: complete and verified in {folder}")


@data_app.command("verify")
def data_verify(name: DataSet, data_dir: DataDir = None):
    """Check every file of a data set against its published checksum."""
    from fedlap.data import verify

    results = verify(name, data_dir)
    for file, status in results:
        typer.echo(f"{status:10} {file}")
    if any(status != "ok" for _, status in results):
        raise typer.Exit(1)


def _size(count):
    return f"{count / 1e6:.0f} MB" if count >= 1e6 else f"{count / 1e3:.0f} kB"


def main():
    """Run the command line; an error meant for the user is one line, without a traceback, and so is a full disk.

    A warning is one line, too.
    """
    from fedlap.errors import FedlapError

    warnings.formatwarning = lambda message, *_, **__: f"warning: {message}\n"
    try:
        app()
    except FedlapError as error:
        message = str(error)
    except OSError as error:
        message = f"{error.filename or 'a file'}: {error.strerror or error}"
    else:
        return
    typer.secho(f"error: {message}", fg="red", err=True)
    sys.exit(2)
