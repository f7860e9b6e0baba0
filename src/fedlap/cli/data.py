"""Commands for data sets: which there are, fetch them, verify them."""

from pathlib import Path
from typing import Annotated

import typer

from fedlap.cli.answer import AsJson, answering
from fedlap.cli.help import Commands

data_app = typer.Typer(
    cls=Commands, help="The data sets: which there are, fetch them, verify them.", no_args_is_help=True
)
DataDir = Annotated[Path | None, typer.Option("--data-dir", help="A folder to look for data sets in first.")]
DataSet = Annotated[str, typer.Argument(help="Its name, for example mnist: see fedlap data list.")]


@data_app.command("list")
def data_list(data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """Which data sets there are, their size and licence, and whether they are here."""
    from rich.console import Console
    from rich.table import Table

    from fedlap.cli.screen import show
    from fedlap.data import DATASETS, verify

    table, listed = Table(), {}
    for head in ("data set", "what it is", "size", "licence", "here"):
        table.add_column(head, no_wrap=head in ("data set", "size", "here"))
    for name, entry in DATASETS.items():
        problems = {status for _, status in verify(name, data_dir)} - {"ok"}
        here = "damaged" if problems - {"missing"} else "no" if problems else "bundled" if entry.bundled else "yes"
        table.add_row(name, entry.description, _size(entry.bytes), entry.licence, here)
        listed[name] = {"what": entry.description, "bytes": entry.bytes, "licence": entry.licence, "here": here}
    with answering(as_json) as answer:
        if not as_json:
            show(Console(), table)
        answer(listed)


@data_app.command("fetch")
def data_fetch(name: DataSet, data_dir: DataDir = None) -> None:
    """Download a data set from its official source, checksum it, and keep it."""
    from fedlap.cli.display import downloading
    from fedlap.data import fetch

    with downloading() as progress:
        folder = fetch(name, data_dir, progress)
    typer.echo(f"{name}: complete and verified in {folder}")


@data_app.command("verify")
def data_verify(name: DataSet, data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """Check every file of a data set against its published checksum."""
    from fedlap.data import verify

    results = verify(name, data_dir)
    with answering(as_json) as answer:
        for file, status in results:
            typer.echo(f"{status:10} {file}")
        answer({"data_set": name, "files": {str(file): status for file, status in results}})
    if any(status != "ok" for _, status in results):
        raise typer.Exit(1)


def _size(count: int) -> str:
    return f"{count / 1e6:.0f} MB" if count >= 1e6 else f"{count / 1e3:.0f} kB"
