"""Commands for researchers: sweeps, and the paper's tables and figures."""

from pathlib import Path
from typing import Annotated

import typer

from fedlap.files.folders import results_folder

DataDir = Annotated[Path | None, typer.Option("--data-dir", help="A folder to look for data sets in first.")]
PaperDir = Annotated[Path | None, typer.Option("--paper", help="The folder paper/ of the repository; found by itself.")]
OutputDir = Annotated[Path, typer.Option("--output", help="A folder for the Markdown, CSV and PNG files.")]
CURVES = "curves"  # the figure that any row has
Jobs = Annotated[int | None, typer.Option(min=1, help="Processes for larger models; one a core if not given.")]


def sweep(
    spec: Annotated[Path, typer.Argument(help="A TOML file with a [sweep] section.")],
    algorithms: Annotated[list[str] | None, typer.Argument(help="Only these of its algorithms.")] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Change a setting, for example rounds=5; may be repeated."),
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUES", help="Only these values of an axis: epochs=1,5; may be repeated."),
    ] = None,
    output: Annotated[Path | None, typer.Option(help="The results file; results/NAME.jsonl if not given.")] = None,
    data_dir: DataDir = None,
    jobs: Jobs = None,
):
    """Run every setting and seed of a grid, once: a second call runs what is missing. Ends with a table of winners."""
    from fedlap.experiments import results
    from fedlap.experiments import sweep as cells

    wanted = cells.read(spec, algorithms or [], settings or []).narrow(only or [])
    file = output or Path("results") / f"{wanted.name}.jsonl"
    display = _carry_out(wanted, file, data_dir, jobs)
    display.table(wanted.select(results.load(file)))


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
    _carry_out(mine.sweep, file, data_dir, jobs, mine.winners if quick else None)
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


def _carry_out(sweep, file, data_dir, jobs, quick=None):
    import jax

    from fedlap.cli.display import downloading
    from fedlap.cli.sweep_display import Display
    from fedlap.data import bring
    from fedlap.experiments.runner import carry_out
    from fedlap.stopping import resumable

    with downloading() as progress:
        bring(sweep.table["federation"]["dataset"], data_dir, progress)
    if sweep.precision == "float64":
        jax.config.update("jax_enable_x64", True)
    with resumable("the same command goes on where this stopped"), Display(sweep, file) as display:
        for event in carry_out(sweep, file, data_dir, jobs, quick):
            display.show(event)
    return display


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
