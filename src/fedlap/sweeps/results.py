"""What sweeps leave behind: a file with one JSON line a cell, only ever appended to."""

import fcntl
import json
import math
import os
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import jax

from .. import __version__
from ..errors import DataError

DIGITS = 5  # of an accuracy or an NLL: enough for a test set of 10,000, and the files stay small


@dataclass(frozen=True)
class Curve:
    """Accuracy and NLL after each round; None where a run had no finite outputs."""

    accuracy: list
    nll: list

    @classmethod
    def of(cls, accuracy, nll):
        return cls(*([round(float(x), DIGITS) if math.isfinite(x) else None for x in each] for each in (accuracy, nll)))


@dataclass(frozen=True)
class Result:
    """One finished cell."""

    cell: str  # its digest
    algorithm: str
    setting: dict
    seed: int
    held_out: float
    diverged: bool
    seconds: float  # of this run; of a batch, its share
    batch: int  # how many runs were one compiled program
    fedlap: str
    spec: dict
    curves: dict[str, Curve]  # on "test", and on "validation" where rows were held out
    precision: str = "float32"

    @classmethod
    def of(cls, cell, curves, seconds, batch=1):
        return cls(
            cell.digest,
            cell.algorithm,
            cell.setting,
            cell.seed,
            cell.held_out,
            any(value is None for curve in curves.values() for value in curve.nll),
            round(seconds, 3),
            batch,
            __version__,
            cell.spec.as_dict(),
            curves,
            _precision(),
        )

    def serves(self, watch_train):
        """Whether it may stand for a run made here and now; a digest knows of neither of these."""
        return self.precision == _precision() and (not watch_train or "train" in self.curves)

    def line(self):
        return json.dumps(asdict(self), separators=(",", ":")) + "\n"


def load(path):
    """All results of a file, by digest; a last line that a killed process left unfinished does not count."""
    path = Path(path)
    if not path.exists():
        return {}
    results = {}
    for number, line in enumerate(path.read_text().splitlines(keepends=True), start=1):
        if not line.endswith("\n"):
            break
        try:
            table = json.loads(line)
            curves = {name: Curve(**curve) for name, curve in table.pop("curves").items()}
            result = Result(curves=curves, **table)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise DataError(f"{path}, line {number}: not a result of a sweep ({error})") from error
        results[result.cell] = result
    return results


@contextmanager
def writer(path):
    """A function that appends results, each whole and on disk before it returns; one writer a file."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "a+b") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise DataError(f"{path}: another sweep is writing to it; wait for it or name another file") from error
        _drop_unfinished_line(file)

        def append(results):
            file.write("".join(result.line() for result in results).encode())
            file.flush()
            os.fsync(file.fileno())

        yield append


def _precision():
    return str(jax.dtypes.canonicalize_dtype(float))


def _drop_unfinished_line(file):
    file.seek(0)
    whole = file.read().rfind(b"\n") + 1
    file.truncate(whole)
    file.seek(whole)
