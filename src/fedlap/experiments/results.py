"""The folder of an experiment, which a second call can finish.

configuration.json     the resolved settings and the version
results.jsonl          one JSON line a run that has finished: its scores after every round, see results.py
results-2-of-8.jsonl   likewise, of the second of eight shards, see shards.py
results.jsonl.checkpoints/    the runs under way, each after one of its last rounds; gone when all have finished
table.md, curves.png   made from results.jsonl when all have finished
"""

import fcntl
import json
import math
import os
import socket
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields
from io import FileIO
from pathlib import Path

import jax

from fedlap import __version__, files
from fedlap.algorithms import ALGORITHMS
from fedlap.errors import ConfigError, DataError, FedlapError
from fedlap.experiments.sweep import Cell, Sweep, again
from fedlap.files import PathLike, results_folder
from fedlap.machine import cores
from fedlap.models.likelihood import categorical
from fedlap.run.divergence import ignorance, lost_since
from fedlap.run.history import TRAIN, History
from fedlap.settings import Table

# Results: one JSON line a run, only ever appended to ------------------------------------------------------------------

BEGINNING = b'{"cell":"'  # of every line
BOTH = ("accuracy", "nll")  # which every line has, however old
LARGEST = {"accuracy": 1, "brier": 2, "ece": 1, "auc": 1}
DIGITS = 5  # of a score: enough for a test set of 10,000, and the files stay small


@dataclass(frozen=True)
class Curve:
    """The scores after each round; None where a run had no finite outputs.

    No list at all is of a score that the data do not have, such as an AUC of three classes, or that is younger than the
    file.
    """

    accuracy: list[float | None]
    nll: list[float | None]
    brier: list[float | None] | None = None
    ece: list[float | None] | None = None
    auc: list[float | None] | None = None

    @classmethod
    def of(cls, accuracy: Iterable[float], nll: Iterable[float], *others: Iterable[float]) -> "Curve":
        """A curve of rounded numbers, in the order of `Metrics`."""
        further = (_rounded(numbers) for numbers in others)
        return cls(_rounded(accuracy), _rounded(nll), *(None if set(each) <= {None} else each for each in further))

    def __post_init__(self) -> None:
        known = {name: values for name, values in vars(self).items() if values is not None or name in BOTH}
        for name, values in known.items():
            if not isinstance(values, list) or not {type(value) for value in values} <= {int, float, type(None)}:
                raise ValueError(f"{name} is not a list of numbers, or null")
            if name in LARGEST and not all(0 <= value <= LARGEST[name] for value in values if value is not None):
                raise ValueError(f"{name} is not between 0 and {LARGEST[name]}")
            if len(values) != len(self.accuracy):
                raise ValueError(f"{len(self.accuracy)} rounds of accuracy, but {len(values)} of {name}")

    def as_dict(self) -> dict[str, list[float | None]]:
        """The lists by their names, of the scores that there are."""
        return {name: values for name, values in vars(self).items() if values is not None}


def _rounded(numbers: Iterable[float]) -> list[float | None]:
    return [round(float(number), DIGITS) if math.isfinite(number) else None for number in numbers]


@dataclass(frozen=True)
class Result:
    """One finished cell."""

    cell: str  # its digest
    algorithm: str
    setting: Table
    seed: int
    held_out: float
    diverged: bool
    seconds: float  # of this run; of a batch, its share
    batch: int  # how many runs were one compiled program
    fedlap: str  # which version of it, and the commit if whoever ran it said so
    spec: Table
    curves: dict[str, Curve]  # on "test", or on "train" without one, and on "validation" where rows were held out
    precision: str = "float32"
    cores: int | None = None  # that it had, which its last digits depend on; None in lines older than this
    revision: int = 1  # of the algorithm

    @classmethod
    def of(cls, cell: Cell, curves: dict[str, Curve], seconds: float, classes: int, batch: int = 1) -> "Result":
        """The result of a cell that has just run in this process."""
        nothing = ignorance(categorical, classes)
        return cls(
            cell.digest,
            cell.algorithm,
            cell.setting,
            cell.seed,
            cell.held_out,
            any(lost_since(curve.nll, nothing) is not None for curve in curves.values()),
            round(seconds, 3),
            batch,
            __version__,
            cell.spec.as_dict(),
            curves,
            precision(),
            len(cores()),
            cell.revision,
        )

    def serves(self, watch_train: bool) -> bool:
        """Whether it may stand for a run made here and now. A digest does not know of what is asked here."""
        return self.current and self.precision == precision() and (not watch_train or "train" in self.curves)

    @property
    def shown(self) -> Curve:
        """The curve that tables show: on the test set, or on the training rows where there is none."""
        return self.curves.get("test") or self.curves[TRAIN]

    @property
    def group(self) -> tuple[str, str, float]:
        """The key that the results of several seeds share."""
        return self.algorithm, json.dumps(self.setting, sort_keys=True), self.held_out

    @property
    def current(self) -> bool:
        """Whether the algorithm is still the same; tables show what ran before until it has run again."""
        try:
            return self.revision == ALGORITHMS[self.algorithm].revision
        except (KeyError, ConfigError):  # it was somebody's own, and is no longer here
            return False

    def line(self) -> str:
        """The result as a line of JSON."""
        curves = {name: curve.as_dict() for name, curve in self.curves.items()}
        return json.dumps({**vars(self), "curves": curves}, separators=(",", ":")) + "\n"

    @classmethod
    def read(cls, line: str | bytes) -> "Result":
        """The result that a line holds; a ValueError if it holds none."""
        table = json.loads(line)
        known = {field.name for field in fields(cls)}
        if not isinstance(table, dict) or not isinstance(table.get("curves"), dict) or not known >= set(table):
            raise ValueError(f"expected an object of {', '.join(sorted(known))}")
        if not {"test", TRAIN} & set(table["curves"]):
            raise ValueError("no curve on the test set, nor on the training rows where there is none")
        try:
            return cls(**{**table, "curves": {name: Curve(**curve) for name, curve in table["curves"].items()}})
        except TypeError as error:
            raise ValueError(str(error)) from error


def curves(cell: Cell, history: History) -> dict[str, Curve]:
    """The curves of a run, by the sets that they are on."""
    main = {"validation" if cell.held_out else "test": history.test} if len(history.nll) else {}
    return {name: Curve.of(*scores) for name, scores in {**main, **history.watched}.items()}


def load(path: PathLike) -> list[Result]:
    """All results of a file, in its order; a last line that a killed process left unfinished does not count.

    One that lacks only its end does: an editor may have taken it.
    """
    path = Path(path)
    if not path.exists():
        return []
    try:
        *lines, last = path.read_bytes().split(b"\n")
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}); expected a file of results") from error
    if _whole(last):
        lines.append(last)
    elif last[: len(BEGINNING)] != BEGINNING[: len(last)]:
        raise DataError(f"{path}, line {len(lines) + 1}: not a result of a sweep, nor the beginning of one")
    results = []
    for number, line in enumerate(lines, start=1):
        try:
            results.append(Result.read(line))
        except ValueError as error:
            raise DataError(f"{path}, line {number}: not a result of a sweep ({error})") from error
    return results


def _whole(line: bytes) -> bool:
    """Whether a line holds a result."""
    try:
        Result.read(line)
    except ValueError:
        return False
    return True


@contextmanager
def writer(path: PathLike) -> Iterator[tuple[list[Result], Callable[[Iterable[Result]], None]]]:
    """The results in a file, and a function that appends further ones, each whole and on disk before it returns.

    One writer a file.
    """
    path = Path(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        opened = open(path, "a+b", buffering=0)  # a buffer would be written once more when the file is closed
    except OSError as error:
        raise DataError(f"{path}: cannot be written ({error.strerror}); expected a file of results") from error
    with opened as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise DataError(f"{path}: another process is writing to it; wait for it or name another file") from error
        results = load(path)  # first of all: a file of anything else stays as it is
        _end_last_line(file)

        def append(results: Iterable[Result]) -> None:
            left, before = "".join(result.line() for result in results).encode(), file.seek(0, os.SEEK_END)
            try:
                while left:
                    left = left[file.write(left) :]
                os.fsync(file.fileno())
            except OSError as error:
                file.truncate(before)  # all runs of a batch or none: the rest of one would be another batch
                error.filename = str(path)
                raise

        yield results, append


def precision() -> str:
    """The precision in which this process computes, "float32" or "float64"."""
    return str(jax.dtypes.canonicalize_dtype(float))


def _end_last_line(file: FileIO) -> None:
    """Give a last line without its end one if it is whole, otherwise drop it."""
    file.seek(0)
    content = file.read()
    ended = content.rfind(b"\n") + 1
    if _whole(content[ended:]):
        file.write(b"\n")
    else:
        file.truncate(ended)
        file.seek(ended)


# The folder -----------------------------------------------------------------------------------------------------------

CONFIGURATION, RESULTS, TABLE, CURVES = "configuration.json", "results.jsonl", "table.md", "curves.png"


def begin(sweep: Sweep, folder: Path) -> None:
    """Make the folder of an experiment, and write down in it what is going to happen."""
    if (folder / CONFIGURATION).exists():
        raise DataError(f"{folder}: holds results already; resume them or name another folder")
    _write_down(sweep, folder)


@contextmanager
def taken_back(folder: Path | None) -> Iterator[None]:
    """A block of work in a new folder, if any, that goes again if the work is refused before there is any to resume.

    So the command that is put right may name the same folder. Other files in it stay, and then the folder does.
    """
    try:
        yield
    except FedlapError:
        if folder is not None and not any(map(_holds_work, folder.glob(f"{Path(RESULTS).stem}*"))):
            for name in (CONFIGURATION, RESULTS):
                (folder / name).unlink(missing_ok=True)
            with suppress(OSError):
                folder.rmdir()
        raise


def _holds_work(path: Path) -> bool:
    """Whether results are in a file, of all runs or of a shard, or checkpoints in a folder."""
    return path.is_dir() or path.stat().st_size > 0


def join(sweep: Sweep, folder: Path) -> None:
    """Begin the experiment of a folder, unless a shard has; an error if the folder is of another experiment."""
    if not (folder / CONFIGURATION).exists():
        _write_down(sweep, folder)
    theirs, ours = (json.dumps(each.as_dict(), sort_keys=True) for each in (reopen(folder), sweep))
    if theirs != ours:
        raise DataError(f"{folder}: holds results of other settings than these; name another folder")


def _write_down(sweep: Sweep, folder: Path) -> None:
    """Write the configuration; shards that begin at the same time, on any machine, write the same one after another."""
    results_folder(folder)
    unique = folder / f"{CONFIGURATION}.{socket.gethostname()}-{os.getpid()}"
    files.write(unique, json.dumps({"fedlap": __version__, **sweep.as_dict()}, indent=2))
    os.replace(unique, folder / CONFIGURATION)


def reopen(folder: Path) -> Sweep:
    """The experiment of a folder that `begin` made."""
    path = folder / CONFIGURATION
    if not path.is_file():
        reason = f"it has no {path.name}" if folder.is_dir() else "there is no such folder"
        raise DataError(f"{folder}: cannot be resumed, {reason}; expected a results folder of fedlap run")
    try:
        table = json.loads(path.read_text())
        table.pop("fedlap")
        return again(table)
    except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
        reason = f"{type(error).__name__}: {error}" if isinstance(error, KeyError) else error
        raise DataError(f"{path}: cannot be resumed ({reason}); expected what fedlap run has written there") from error
