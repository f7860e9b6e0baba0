"""Made-up results of the paper's rows, for the tests of its reproduction."""

import itertools
import json
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path

from fedlap.experiments.results import Curve, Result
from fedlap.experiments.sweep import Cell
from reproduction.rows import HERE, Paper, PaperRow

PUBLISHED = (
    '[rows]\nrow = { title = "A row", minutes = 7 }\n'
    '[table1.row]\n"3" = { fedavg = [50.0, 1.0], fedlap = [70.0, 1.0] }\n'
)
SPEC = (
    '[federation]\ndataset = "heart"\n[model]\nname = "logistic"\n[train]\nrounds = 3\nseeds = [1, 2]\n'
    "[algorithms]\nfedavg = {}\nfedlap = {}\n[sweep.every]\nepochs = [1, 5]\n[sweep.fedlap]\ndelta = [1.0]\n"
)


def paper_of_one_row(folder: Path) -> Paper:
    """A paper of one row, with results of FedAvg: two settings on two seeds."""
    for name in ("results", "specs"):
        (folder / name).mkdir()
    (folder / "published.toml").write_text(PUBLISHED)
    (folder / "specs/row.toml").write_text(SPEC)
    row = Paper.find(folder).row("row")
    # By the test set one epoch is better (60 against 50 per cent), by the rows held out five are.
    level = {(1, "test"): 0.6, (5, "test"): 0.5, (1, "validation"): 0.2, (5, "validation"): 0.3}

    def curves(cell: Cell) -> dict[str, Curve]:
        names = ("test", "validation") if cell.held_out else ("test",)
        off = 0.01 if cell.seed == 2 else -0.01
        return {name: Curve([level[cell.setting["epochs"], name] + off] * 3, [1.0] * 3) for name in names}

    cells = itertools.chain(row.sweep.search(), row.sweep.final())
    make_up(row, (cell for cell in cells if cell.algorithm == "fedavg"), curves)
    return Paper.find(folder)


def paper_without_results(folder: Path) -> Paper:
    """All rows of the paper with the numbers it prints, of which nothing has run."""
    shutil.copytree(HERE / "specs", folder / "specs")
    shutil.copy(HERE / "published.toml", folder)
    (folder / "results").mkdir()
    return Paper.find(folder)


def make_up(
    row: PaperRow, cells: Iterable[Cell], curves: Callable[[Cell], dict[str, Curve]], file: Path | None = None
) -> None:
    """Write results with these curves for these cells of a row: to its own file, unless another is named."""
    lines = [Result.of(cell, curves(cell), 2.0, classes=10).line() for cell in cells]
    (file or row.report_from).write_text("".join(lines))


def change_lines(path: Path, change: Callable[[dict], dict | None]) -> None:
    """Write every line of a results file anew as `change` makes it; None leaves it out."""
    lines = [change(json.loads(line)) for line in path.read_text().splitlines()]
    path.write_text("".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines if line is not None))
