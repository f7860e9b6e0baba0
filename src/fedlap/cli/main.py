"""The command line. Everything slow is imported when a command needs it."""

import sys
import warnings
from typing import Annotated

import typer

from fedlap import __version__
from fedlap.cli import compare as compare_cli
from fedlap.cli import fit as fit_cli
from fedlap.cli import moved
from fedlap.cli import network as network_cli
from fedlap.cli import run as run_cli
from fedlap.cli import study as study_cli
from fedlap.cli.answer import AsJson, answering
from fedlap.cli.data import data_app
from fedlap.cli.help import Commands

app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_show_locals=False,  # a local variable may be a secret, or a patient
)
app.add_typer(data_app, name="data")
app.add_typer(study_cli.study_app, name="study")


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"fedlap {__version__}")
        raise typer.Exit


@app.callback()
def fedlap(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Say which version this is.")
    ] = False,
) -> None:
    """Federated learning where ADMM meets Bayes."""


for command in (fit_cli.fit, run_cli.run, run_cli.sweep, compare_cli.compare):
    app.command()(command)
for command in (network_cli.server, network_cli.node, study_cli.predict):
    app.command()(command)
for command in (network_cli.run, network_cli.demo):
    study_cli.study_app.command()(command)
for command in (moved.table, moved.figure, moved.reproduce):
    app.command(hidden=True, context_settings=moved.ANY)(command)


@app.command()
def algorithms(as_json: AsJson = False) -> None:
    """List the algorithms, their equations and their hyper-parameters."""
    import inspect

    from rich.console import Console
    from rich.markup import escape

    from fedlap.algebra.hyperparameters import options
    from fedlap.algorithms import ALGORITHMS

    console, listed = Console(highlight=False), {}
    with answering(as_json) as answer:
        for name in (*ALGORITHMS, *ALGORITHMS.installed):
            algorithm = ALGORITHMS[name]
            about = (sys.modules[algorithm.__module__].__doc__ or algorithm.__qualname__).strip().splitlines()[0]
            equations = inspect.cleandoc(algorithm.__doc__ or "no equations")
            listed[name] = {"title": about, "options": options(algorithm), "equations": equations}
            if not as_json:
                console.print(f"\n[bold]{name}[/bold]  {escape(', '.join(options(algorithm)))}")
                console.print(about, style="dim", markup=False)
                console.print(equations, markup=False)
        answer(listed)


def main() -> None:
    """The command `fedlap`."""
    run(app)


def run(commands: typer.Typer) -> None:
    """Run a command line; an error meant for the user is one line, without a traceback, and so is a full disk.

    A warning is one line, too.
    """
    from fedlap.errors import FedlapError

    warnings.formatwarning = lambda message, *_, **__: f"warning: {message}\n"
    try:
        commands()
    except FedlapError as error:
        message = str(error)
    except OSError as error:
        from fedlap.files import WriteError, in_words

        again = ", then give the same command again" if isinstance(error, WriteError) else ""
        message = in_words(error) + again
    else:
        return
    typer.secho(f"error: {message}", fg="red", err=True)
    sys.exit(2)
