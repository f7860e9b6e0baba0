"""Shards: the parts of a sweep that separate processes carry out, on one machine or on many, each into its own file.

results.jsonl          of the whole sweep; a call without a shard puts in it what the shards have, each run once
results-2-of-8.jsonl   of the second of eight shards; no other process writes to it

Which runs a shard has is decided by the sweep alone, so that shards need not know of each other. Only the runs on all
rows of the winners need the search of all shards.
"""

import fcntl
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from fedlap.errors import ConfigError, DataError
from fedlap.experiments.results import Result, load
from fedlap.experiments.summary import winners
from fedlap.experiments.sweep import Cell, Sweep
from fedlap.settings import Table

# A shard and its file -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, order=True)
class SweepShard:
    """One of so many parts of a sweep, counted from 1."""

    count: int
    number: int

    @classmethod
    def parse(cls, text: str) -> "SweepShard":
        """The shard that `2/8` stands for."""
        match = re.fullmatch(r"([0-9]{1,6})/([0-9]{1,6})", text)
        number, count = map(int, match.groups()) if match else (0, 0)
        if not 1 <= number <= count:
            raise ConfigError(f"--shard {text}: expected NUMBER/COUNT with a number from 1 to the count, as in 2/8")
        return cls(count, number)

    def file(self, path: Path) -> Path:
        """The results of this shard, beside those of the whole sweep."""
        return path.with_name(f"{path.stem}-{self.number}-of-{self.count}{path.suffix}")

    def __str__(self) -> str:
        return f"{self.number} of {self.count}"


def found(path: Path) -> dict[SweepShard, Path]:
    """The files of shards that lie beside a file of results, whatever the number of shards was."""
    name = re.compile(rf"{re.escape(path.stem)}-([0-9]{{1,6}})-of-([0-9]{{1,6}}){re.escape(path.suffix)}")
    beside = path.parent.iterdir() if path.parent.is_dir() else ()
    matches = {each: match for each in beside if (match := name.fullmatch(each.name))}
    return dict(sorted((SweepShard(int(match[2]), int(match[1])), each) for each, match in matches.items()))


# The runs of a shard --------------------------------------------------------------------------------------------------

Units = list[list[Cell]]  # cells that stay together


def deal(stages: Iterable[Units], shard: SweepShard) -> list[Cell]:
    """The cells of a shard: of each stage the longest unit first, each to the shard with the least to do so far.

    A later stage changes nothing about an earlier one: it may become known when that has run. No cell is dealt twice.
    """
    loads, dealt, mine = [0.0] * shard.count, set(), []
    for units in stages:
        fresh = []
        for unit in units:
            cells = {cell.digest: cell for cell in unit if cell.digest not in dealt}
            dealt |= set(cells)
            fresh.append((sum(cell.cost for cell in cells.values()), cells.values()))
        for cost, cells in sorted(fresh, key=lambda item: -item[0]):
            least = loads.index(min(loads))
            loads[least] += cost
            if least == shard.number - 1:
                mine += cells
    return mine


class Share(NamedTuple):
    """The cells of a sweep, or of a shard of it, in each phase: as far as they are known."""

    search: list[Cell]
    final: list[Cell]
    awaited: int  # runs of the search, of any shard, that are missing to name the winners; 0 if they are in `final`


def share(
    sweep: Sweep,
    quick: dict[str, list[Table]] | None,
    results: Mapping[str, Result],
    shard: SweepShard | None,
    small: Callable[[Cell], bool],
) -> Share:
    """The cells that follow from the results so far; of a shard, its own.

    `quick` is a {algorithm: settings} to train on all rows at once, without a search; `small` says of a cell whether
    runs of its model are best one program.
    """
    alone = {name: sweep.settings(name) for name in sweep.algorithms if len(sweep.settings(name)) == 1}
    search, awaited = sweep.search() if quick is None else [], 0
    if quick is not None or sweep.finals == "all":
        chosen = quick
    else:
        awaited = len({cell.digest for cell in search} - set(results))
        chosen = alone if awaited else winners(sweep.select(results.values()), sweep)
    final = sweep.final(chosen)
    if shard is None:
        return Share(search, final, awaited)
    known = lambda cell: sweep.finals == "all" or cell.algorithm in alone  # without a search
    stages = [*search, *filter(known, final)], [cell for cell in final if not known(cell)]
    mine = deal([_units(cells, shard.count, small) for cells in stages], shard)
    return Share([cell for cell in mine if cell.held_out], [cell for cell in mine if not cell.held_out], awaited)


def _units(cells: list[Cell], count: int, small: Callable[[Cell], bool]) -> Units:
    """Cells that are best together: the seeds of a setting of a small model, if every shard can have a setting."""
    units: dict[tuple, list[Cell]] = {}
    for cell in cells:
        units.setdefault((cell.algorithm, cell.held_out, repr(cell.setting)), []).append(cell)
    return list(units.values()) if len(units) >= count and small(cells[0]) else [[cell] for cell in cells]


# The results of all shards --------------------------------------------------------------------------------------------


class Gathered(NamedTuple):
    """The event of results of shards that were put into the file of the whole sweep."""

    shards: tuple[SweepShard, ...]  # that have a file
    results: list[Result]  # that were new

    @property
    def absent(self) -> tuple[SweepShard, ...]:
        """The shards that have no file, of every number of shards of which some have."""
        counts = sorted({shard.count for shard in self.shards})
        wanted = (SweepShard(count, number) for count in counts for number in range(1, count + 1))
        return tuple(shard for shard in wanted if shard not in self.shards)


class Awaiting(NamedTuple):
    """The event of a shard that has done its part, while the winners depend on what other shards have not done."""

    runs: int  # of the search that are missing


def others(path: Path, shard: SweepShard | None) -> list[Result]:
    """The results in the files of all others, who may be at work on them; a call without a shard has merged them."""
    if shard is None:
        return []
    return [run for file in (path, *found(path).values()) if file != shard.file(path) for run in load(file)]


def merge(path: Path, earlier: Iterable[Result], append: Callable[[Iterable[Result]], None]) -> Gathered | None:
    """Append to a file of results those of shards that it lacks, each run once; None if there are no shards."""
    files, known, fresh = found(path), {_key(run) for run in earlier}, {}
    for shard, file in files.items():
        for run in _ended(shard, file):
            if _key(run) not in known:
                fresh.setdefault(_key(run), run)
    if fresh:
        append(fresh.values())
    return Gathered(tuple(files), list(fresh.values())) if files else None


def _key(run: Result) -> tuple:
    """All that makes two results of one cell two results."""
    return run.cell, run.precision, run.revision, frozenset(run.curves)


def _ended(shard: SweepShard, file: Path) -> list[Result]:
    """The results of a shard that nobody carries out at the moment."""
    with open(file, "rb") as opened:
        try:
            fcntl.flock(opened, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError as error:
            raise DataError(f"{file}: shard {shard} is still at work on it; wait for it, then try again") from error
        return load(file)
