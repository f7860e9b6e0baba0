"""The commands: tables, figures, rows run again, and the pages made from them."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from fedlap import files
from fedlap.cli.data import DataDir
from fedlap.cli.help import Commands
from fedlap.cli.run import Jobs, watch
from fedlap.cli.screen import show
from fedlap.errors import ConfigError, DataError, unknown
from fedlap.experiments import sweep as sweeps
from fedlap.files import results_folder
from reproduction import check as checks
from reproduction import figures, screen, write
from reproduction import pages as written_pages
from reproduction.commit import version
from reproduction.picture import picture
from reproduction.rows import Paper, PaperRow
from reproduction.tables import entries, tables_of

Folder = Annotated[
    Path | None, typer.Option("--folder", help="Another folder with published.toml, specs/ and results/.")
]
OutputDir = Annotated[Path, typer.Option("--output", help="A folder for the Markdown, CSV and PNG files.")]
RowName = Annotated[str, typer.Argument(help="A row of the paper's tables, for example flamby.")]
CURVES = "curves"  # the figure that any row has

app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_show_locals=False,
)


@app.callback()
def reproduction() -> None:
    """The tables and figures of "Connecting Federated ADMM to Bayes", ours beside theirs."""


@app.command()
def table(
    number: Annotated[str, typer.Argument(help="1 to 5, two-points, or standard.")],
    output: OutputDir = Path("results/paper"),
    folder: Folder = None,
) -> None:
    """Ours beside the paper's, from the results in the repository; also as Markdown, CSV and a picture."""
    _show(Paper.find(folder), number, None, output)


@app.command()
def figure(
    name: Annotated[str, typer.Argument(help="curves, weight-decay or two-clients.")],
    row: Annotated[str | None, typer.Argument(help="For curves: which row, for example fmnist-heterog.")] = None,
    output: OutputDir = Path("results/paper"),
    folder: Folder = None,
) -> None:
    """Draw a figure from the results in the repository; its numbers also as Markdown and CSV."""
    if name not in (CURVES, *figures.FIGURES):
        raise unknown("figure", name, (CURVES, *figures.FIGURES))
    paper = Paper.find(folder)
    if name != CURVES:
        if row is not None:
            raise ConfigError(f"figure {name} has its own rows; expected none, not {row!r}")
        return _draw(figures.FIGURES[name], paper, output / name)
    if row is None:
        raise ConfigError(f"figure curves needs a row: one of {', '.join(paper.names)}")
    _draw(figures.curves, paper.row(row), output / f"curves-{row}")


@app.command()
def row(
    name: RowName,
    quick: Annotated[bool, typer.Option(help="Only the settings that won before, without a search.")] = False,
    output: OutputDir = Path("results/reproduce"),
    folder: Folder = None,
    data_dir: DataDir = None,
    jobs: Jobs = None,
) -> None:
    """Run a row from nothing and print it beside the paper's."""
    paper = Paper.find(folder)
    wanted = paper.row(name)
    file = output / f"{name}{'-quick' if quick else ''}.jsonl"
    if quick and not wanted.candidates:
        raise DataError(f"{wanted.choose_from}: no results to take the winning settings from; leave out --quick")
    watch(wanted.sweep, file, data_dir, jobs, wanted.winners if quick else None, version())
    fresh = replace(paper, fresh={name: file}, chosen_anew=not quick)
    for number in tables_of(paper, name):
        _show(fresh, number, name, output)
    if name in figures.ROWS:
        _draw(figures.FIGURES[figures.ROWS[name]], fresh, output / figures.ROWS[name])


@app.command()
def grid(
    name: RowName,
    algorithms: Annotated[list[str] | None, typer.Argument(help="Only these of its algorithms.")] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUES", help="Only these values of an axis: epochs=1,5; may be repeated."),
    ] = None,
    folder: Folder = None,
    data_dir: DataDir = None,
    jobs: Jobs = None,
) -> None:
    """Run what a row's grid, or a part of it, lacks in the repository's results, and add it there."""
    wanted = Paper.find(folder).row(name)
    part = sweeps.read(wanted.spec, algorithms or []).narrow(only or [])
    watch(part, wanted.report_from, data_dir, jobs, version=version())


@app.command()
def pages() -> None:
    """Bring docs/tables, the pictures and the tables in other pages up to the results in the repository."""
    for path in written_pages.write_all():
        typer.echo(f"Written: {path}")


@app.command()
def check(folder: Folder = None) -> None:
    """Check every line of the results: that it is a run of its row as it stands, and whether it diverged."""
    for line in checks.check(Paper.find(folder)):
        typer.echo(line)


def _draw(figure: Callable[[Any, Path], figures.Drawn], subject: Paper | PaperRow, stem: Path) -> None:
    """A figure as PNG, its words as Markdown and on the screen, its numbers as CSV."""
    results_folder(stem.parent)
    drawn = figure(subject, Path(f"{stem}.png"))
    typer.echo("\n".join(drawn.words))
    listed = "\n".join(f"- {words}" for words in drawn.words)
    files.write(Path(f"{stem}.md"), f"# {drawn.title}\n\n![{drawn.title}]({stem.name}.png)\n\n{listed}\n")
    files.write(Path(f"{stem}.csv"), write.csv_text(drawn.columns, drawn.numbers))
    typer.echo(f"Written: {stem}.png, .md, .csv")


def _show(paper: Paper, number: str, row: str | None, output: Path) -> None:
    """A table on the screen, and as Markdown, CSV and a picture."""
    cells = entries(paper, number, row)
    if not any(spread for entry in cells for spread in entry.ours.values()):
        rows = ", ".join(dict.fromkeys(entry.row.name for entry in cells))
        where, command = paper.folder / "results", "python -m reproduction grid ROW"
        raise DataError(f"{where}: no results for table {number} yet; {command} makes them (rows: {rows})")
    stem = results_folder(output) / (f"table-{number}" if row is None else f"{row}-table-{number}")
    console = Console(highlight=False)
    console.print(f"[bold]{write.title(number)}[/bold]")
    console.print(screen.legend(cells), style="dim")
    for part in screen.tables(cells, number):
        show(console, part, names=2)
    for line in screen.settings(cells):
        console.print(line)
    texts = {".md": write.markdown(cells, number), ".csv": write.as_csv(cells, number)}
    for ending, text in texts.items():
        files.write(Path(f"{stem}{ending}"), text)
    endings = [*texts]
    if any(entry.published for entry in cells):  # otherwise there is nothing to draw ours against
        picture(cells, number, Path(f"{stem}.png"))
        endings.append(".png")
    where = f"{stem}{', '.join(endings)}"
    console.print(f"Written, with the settings that come nearest to the paper's: {where}", soft_wrap=True)
