"""Commands for researchers: the paper's tables and figures."""

from pathlib import Path
from typing import Annotated

import typer

from fedlap.cli.data import DataDir
from fedlap.cli.run import Jobs, watch
from fedlap.files.folders import results_folder

PaperDir = Annotated[Path | None, typer.Option("--paper", help="The folder paper/ of the repository; found by itself.")]
OutputDir = Annotated[Path, typer.Option("--output", help="A folder for the Markdown, CSV and PNG files.")]
CURVES = "curves"  # the figure that any row has


def table(
    number: Annotated[str, typer.Argument(help="1 to 5, two-points, or standard.")],
    output: OutputDir = Path("results/paper"),
    paper: PaperDir = None,
):
    """Ours beside the paper's, from the results in the repository; also as Markdown, CSV and a picture."""
    from fedlap.paper.rows import Paper

    _show(Paper.find(paper), number, None, output)


def figure(
    name: Annotated[str, typer.Argument(help="curves, weight-decay or two-clients.")],
    row: Annotated[str | None, typer.Argument(help="For curves: which row, for example fmnist-heterog.")] = None,
    output: OutputDir = Path("results/paper"),
    paper: PaperDir = None,
):
    """Draw a figure from the results in the repository; its numbers also as Markdown and CSV."""
    from fedlap.errors import ConfigError, unknown
    from fedlap.paper import figures
    from fedlap.paper.rows import Paper

    if name not in (CURVES, *figures.FIGURES):
        raise unknown("figure", name, (CURVES, *figures.FIGURES))
    found = Paper.find(paper)
    if name != CURVES:
        if row is not None:
            raise ConfigError(f"figure {name} has its own rows; expected none, not {row!r}")
        return _draw(figures.FIGURES[name], found, output / name)
    if row is None:
        raise ConfigError(f"figure curves needs a row: one of {', '.join(found.names)}")
    _draw(figures.curves, found.row(row), output / f"curves-{row}")


def reproduce(
    row: Annotated[str, typer.Argument(help="A row of the paper's tables, for example flamby.")],
    quick: Annotated[bool, typer.Option(help="Only the settings that won before, without a search.")] = False,
    output: OutputDir = Path("results/reproduce"),
    paper: PaperDir = None,
    data_dir: DataDir = None,
    jobs: Jobs = None,
):
    """Run a row from nothing and print it beside the paper's."""
    from dataclasses import replace

    from fedlap.errors import DataError
    from fedlap.paper.figures import FIGURES, ROWS
    from fedlap.paper.rows import Paper
    from fedlap.paper.tables import tables_of

    found = Paper.find(paper)
    mine = found.row(row)
    file = output / f"{row}{'-quick' if quick else ''}.jsonl"
    if quick and not mine.candidates:
        raise DataError(f"{mine.choose_from}: no results to take the winning settings from; leave out --quick")
    watch(mine.sweep, file, data_dir, jobs, mine.winners if quick else None)
    fresh = replace(found, fresh={row: file}, chosen_anew=not quick)
    for number in tables_of(found, row):
        _show(fresh, number, row, output)
    if row in ROWS:
        _draw(FIGURES[ROWS[row]], fresh, output / ROWS[row])


def _draw(figure, of, stem):
    """A figure of a row, or of the paper: as PNG, its words as Markdown and on the screen, its numbers as CSV."""
    from fedlap.files import atomic
    from fedlap.paper import write

    results_folder(stem.parent)
    drawn = figure(of, Path(f"{stem}.png"))
    lines = "\n".join(drawn.words)
    listed = "\n".join(f"- {words}" for words in drawn.words)
    typer.echo(lines)
    atomic.write(Path(f"{stem}.md"), f"# {drawn.title}\n\n![{drawn.title}]({stem.name}.png)\n\n{listed}\n")
    atomic.write(Path(f"{stem}.csv"), write.csv_text(drawn.columns, drawn.numbers))
    typer.echo(f"Written: {stem}.png, .md, .csv")


def _show(paper, number, row, output):
    from rich.console import Console

    from fedlap.cli.screen import show
    from fedlap.errors import DataError
    from fedlap.files import atomic
    from fedlap.paper import screen, write
    from fedlap.paper.picture import picture
    from fedlap.paper.tables import entries

    found = entries(paper, number, row)
    if not any(spread for entry in found for spread in entry.ours.values()):
        rows = ", ".join(dict.fromkeys(entry.row.name for entry in found))
        where = paper.folder / "results"
        raise DataError(f"{where}: no results for table {number} yet; fedlap reproduce ROW makes them (rows: {rows})")
    stem = results_folder(output) / (f"table-{number}" if row is None else f"{row}-table-{number}")
    console = Console(highlight=False)
    console.print(f"[bold]{write.title(number)}[/bold]")
    console.print(screen.legend(found), style="dim")
    for table in screen.tables(found, number):
        show(console, table, names=2)
    for line in screen.settings(found):
        console.print(line)
    written = {".md": write.markdown(found, number), ".csv": write.as_csv(found, number)}
    for ending, text in written.items():
        atomic.write(Path(f"{stem}{ending}"), text)
    if any(entry.published for entry in found):  # otherwise there is nothing to draw ours against
        written[".png"] = picture(found, number, Path(f"{stem}.png"))
    where = f"{stem}{', '.join(written)}"
    console.print(f"Written, with the settings that come nearest to the paper's: {where}", soft_wrap=True)
