"""`fedlap compare`: results side by side."""

from pathlib import Path
from typing import Annotated

import typer

from fedlap.cli.answer import AsJson, answering


def compare(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUNS", help="Folders of fedlap run, files of results, saved histories.")
    ],
    plot: Annotated[Path | None, typer.Option(metavar="FILE.png", help="Draw the curves into this file.")] = None,
    as_json: AsJson = False,
) -> None:
    """Set results side by side: what differs in their settings, and their scores on the test set."""
    from rich.console import Console

    from fedlap.cli.display import show_table
    from fedlap.errors import ConfigError
    from fedlap.experiments import comparison

    if plot is not None and plot.suffix != ".png":
        raise ConfigError(f"--plot {plot}: expected a name that ends in .png")
    with answering(as_json) as answer:
        rows = comparison.read(runs)
        if not as_json:
            show_table(Console(), comparison.as_text(rows))
        if plot is not None:
            typer.echo(f"Written: {comparison.draw(rows, plot)}")
        answer({"differs": comparison.differing(rows), "rows": [row.as_dict() for row in rows]})
