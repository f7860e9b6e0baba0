"""Whether the committed results are what they say: slower than a test, and of every line."""

import json
from collections.abc import Iterator
from math import inf, log
from pathlib import Path
from statistics import median

from fedlap.errors import DataError
from fedlap.experiments import results
from fedlap.experiments.results import Result
from fedlap.experiments.spec import Spec, of_spec, resolve
from fedlap.run.divergence import lost_since
from reproduction.experiments import more_seeds
from reproduction.rows import Paper, PaperRow

CLASSES = {"heart": 2, "credit": 2}  # of the other data sets, ten
FEW, USELESS = 0.02, 0.6  # of all runs, and the accuracy that those end below


def check(paper: Paper) -> Iterator[str]:
    """A line for each file that holds; a DataError that names the file for the first that does not."""
    runs, endings = 0, []
    for path in sorted((paper.folder / "results").glob("*.jsonl")):
        row = paper.row(path.stem)
        count, lost = of_its_sweep(row, path), diverged(row, path)
        runs, endings = runs + count, endings + lost
        yield f"{path}: {count} lines, all runs of {row.spec.name}; {len(lost)} diverged"
    if len(endings) >= FEW * runs:
        raise DataError(f"{paper.folder}: {len(endings)} of {runs} runs diverged; expected fewer than {FEW:.0%}")
    if endings and median(endings) >= USELESS:
        raise DataError(f"{paper.folder}: runs that diverged end at an accuracy of {median(endings)} in the median")
    for row in (paper.row(name) for name in (*more_seeds.ROWS, *more_seeds.STANDARD) if name in paper.names):
        path = more_seeds.file_of(row)
        yield f"{path}: {further_seeds(row, path)} lines, of seeds that chose nothing"


def of_its_sweep(row: PaperRow, path: Path) -> int:
    """The number of lines: each is a run of its sweep as it stands now, and none is there twice.

    Of a cell that has run again, with a newer revision, the last line counts.
    """
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    known = {result.cell for result in row.candidates}
    for number, line in enumerate(lines, start=1):
        if line["cell"] not in known:
            raise DataError(f"{path}, line {number}: no run of {row.spec} as it stands")
    first = {}
    for number, line in enumerate(lines, start=1):
        before = first.setdefault((line["cell"], line.get("revision", 1)), number)
        if before != number:
            raise DataError(f"{path}, line {number}: the same run as line {before}")
    for result in row.candidates:
        cell = row.sweep.cell(result.algorithm, result.setting, result.seed, result.held_out)
        if of_spec(_spec(result)) != of_spec(cell.spec):
            raise DataError(f"{path}: run {result.cell} holds a spec that is not that of its cell")
    return len(lines)


def _spec(result: Result) -> Spec:
    table = dict(result.spec)
    return resolve(table.pop("name"), table)


def diverged(row: PaperRow, path: Path) -> list[float]:
    """The last accuracies of runs that fell apart: only settings on raw tabular features may, and visibly so.

    By the rule that warns a user. On images none does, though some begin at an NLL of twelve.
    """
    federation = row.sweep.table["federation"]
    nothing = log(CLASSES.get(federation["dataset"], 10))
    raw = federation["dataset"] in CLASSES and federation.get("preset") == "paper"
    lost = {}
    for result in results.load(path):
        for name, curve in result.curves.items():
            if lost_since(curve.nll, nothing) is None:
                continue
            late = [inf if value is None else value for value in curve.nll[len(curve.nll) // 2 :]]
            if not raw or max(late) <= 3 * nothing:
                raise DataError(f"{path}: run {result.cell} counts as diverged by its curve on {name}, and learns")
            lost[result.cell] = curve.accuracy[-1] or 0.0
    return list(lost.values())


def further_seeds(row: PaperRow, path: Path) -> int:
    """The number of lines of the ten further seeds: the winners' runs, no more and no fewer, and none diverged."""
    lines = results.load(path)
    seeds = {result.seed for result in row.candidates} & set(more_seeds.SEEDS)
    if seeds:
        raise DataError(f"{row.choose_from}: seeds {sorted(seeds)} chose settings; expected none of the further ones")
    wanted = {cell.digest for cell in more_seeds.sweep_of(row).final(row.winners)}
    if {result.cell for result in lines} != wanted:
        raise DataError(f"{path}: not the runs of the settings that won; expected {len(wanted)} of them")
    if any(result.diverged for result in lines):
        raise DataError(f"{path}: a run diverged; expected none")
    return len(lines)
