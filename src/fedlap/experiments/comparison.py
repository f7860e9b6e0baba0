"""Results of several runs side by side: what they have in common is left out, what differs is a column."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedlap.errors import DataError
from fedlap.experiments import results
from fedlap.experiments.plots import Line, accuracy_and_nll
from fedlap.experiments.results import Curve, Result
from fedlap.experiments.summary import LAST, Text, caption, spread
from fedlap.run import saved
from fedlap.run.saved import TRAIN
from fedlap.settings import Table

SCORES = ("accuracy", "nll", "brier", "ece", "auc")
HEADS = {"accuracy": "accuracy %", "nll": "NLL", "brier": "Brier", "ece": "ECE", "auc": "AUC"}


@dataclass(frozen=True)
class Compared:
    """One method with one setting in one run, and its seeds."""

    run: str
    method: str
    settings: Table  # flat: "solver.epochs", and the method's own by their names
    curves: list[Curve]  # on the test set, one a seed; on the training rows where there is none
    seconds: float | None  # the mean of a run
    diverged: int  # of these seeds
    tested: bool = True  # whether there is a test set

    @property
    def rounds(self) -> int:
        """The most rounds of a seed."""
        return max(len(curve.nll) for curve in self.curves)

    def score(self, name: str) -> tuple[float, float] | None:
        """Mean and standard deviation over seeds of the last three rounds; None of a score that is not there."""
        known = [values for curve in self.curves if (values := getattr(curve, name)) is not None]
        if len(known) < len(self.curves):
            return None
        return spread([_end(values) for values in known])

    def as_dict(self) -> Table:
        """All of it as JSON could hold it."""
        scores = {name: self.score(name) for name in SCORES}
        return {
            "run": self.run,
            "method": self.method,
            "settings": self.settings,
            "rounds": self.rounds,
            "seeds": len(self.curves),
            "diverged": self.diverged,
            "scores_on": "test" if self.tested else TRAIN,
            "seconds": self.seconds,
            **{name: None if of is None else {"mean": of[0], "deviation": of[1]} for name, of in scores.items()},
            "curves": [curve.as_dict() for curve in self.curves],
        }


def read(paths: Sequence[Path]) -> list[Compared]:
    """What is in some results folders, results files and folders of saved histories, in their order."""
    labels = _labels(paths)
    return [each for path, label in zip(paths, labels, strict=True) for each in _read(path, label)]


def differing(rows: Sequence[Compared]) -> list[str]:
    """The settings that are not the same in all rows; one that only some methods have is compared among these."""
    names = dict.fromkeys(name for row in rows for name in row.settings)
    unlike = lambda values: any(value != values[0] for value in values[1:])
    return [name for name in names if unlike([row.settings[name] for row in rows if name in row.settings])]


def as_text(rows: Sequence[Compared]) -> Text:
    """The table: runs, methods, what differs, and every score that one of them has."""
    settings = differing(rows)
    runs = len({row.run for row in rows}) > 1
    scores = [name for name in SCORES if any(row.score(name) is not None for row in rows)]
    timed = any(row.seconds is not None for row in rows)
    heads = [*(["run"] if runs else []), "algorithm", *(["setting"] if settings else [])]
    heads += [HEADS[name] for name in scores] + ["rounds", "seeds"] + (["seconds"] if timed else [])
    lines = []
    for row in rows:
        own = ", ".join(f"{name} {_word(row.settings[name])}" for name in settings if name in row.settings)
        names = [*([row.run] if runs else []), _named(row, rows), *([own or "–"] if settings else [])]
        seconds = [] if not timed else ["–" if row.seconds is None else f"{row.seconds:.1f}"]
        lines.append([*names, *(_cell(row, name) for name in scores), str(row.rounds), str(len(row.curves)), *seconds])
    return Text(caption(max(len(row.curves) for row in rows), any(row.tested for row in rows)), heads, lines)


def draw(rows: Sequence[Compared], path: Path) -> Path:
    """The curves of accuracy and NLL, as a PNG."""
    settings, runs = differing(rows), len({row.run for row in rows}) > 1
    lines = []
    for row in rows:
        own = ", ".join(f"{name} {_word(row.settings[name])}" for name in settings if name in row.settings)
        label = ": ".join(filter(None, (row.run if runs else "", ", ".join(filter(None, (_named(row, rows), own))))))
        lines.append(Line(label, [curve.accuracy for curve in row.curves], [curve.nll for curve in row.curves]))
    of = "test" if any(row.tested for row in rows) else "training"
    return accuracy_and_nll(lines, "mean and spread over seeds", path, of=of)


def _read(path: Path, label: str) -> list[Compared]:
    if (path / saved.DESCRIPTION).is_file():
        method, scores, seconds, tested = saved.curves(path)
        return [Compared(label, method, {}, [Curve.of(*scores)], float(np.sum(seconds)), 0, tested)]
    file = path / results.RESULTS if path.is_dir() else path
    if not file.is_file():
        reason = "holds no results" if path.is_dir() else "there is no such file or folder"
        expected = f"a folder with {results.RESULTS} or {saved.DESCRIPTION}, or a file of results"
        raise DataError(f"{path}: {reason}; expected {expected}")
    found = [result for result in results.load(file) if result.held_out == 0]
    if not found:
        raise DataError(f"{file}: holds no run on all rows yet; expected at least one that has finished")
    groups: dict[tuple, list[Result]] = {}
    for result in found:
        groups.setdefault((*result.group, result.revision), []).append(result)
    return [_compared(label, runs) for runs in groups.values()]


def _compared(label: str, runs: list[Result]) -> Compared:
    first, seconds = runs[0], [run.seconds for run in runs]
    curves = [run.shown for run in runs]
    own = first.spec["algorithms"][first.algorithm]
    others = {key: value for key, value in first.spec.items() if isinstance(value, dict) and key != "algorithms"}
    settings = {**dict(_flat(others)), **dict(_flat(own))}
    settings.pop("train.seeds", None)
    lost = sum(run.diverged for run in runs)
    tested = all("test" in run.curves for run in runs)
    return Compared(label, first.algorithm, settings, curves, sum(seconds) / len(seconds), lost, tested)


def _flat(table: Mapping[str, Any], prefix: str = "") -> Iterable[tuple[str, Any]]:
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


def _labels(paths: Sequence[Path]) -> list[str]:
    """What tells runs apart: the names of their folders, or all of the path where two are the same."""
    names = [path.stem if path.suffix == ".jsonl" else path.resolve().name for path in paths]
    return [str(path) if names.count(name) > 1 else name for path, name in zip(paths, names, strict=True)]


def _end(values: list[float | None]) -> float:
    last = values[-LAST:]
    return float(np.mean([value for value in last if value is not None])) if None not in last and last else np.nan


def _cell(row: Compared, name: str) -> str:
    if row.diverged:
        return f"{row.diverged} of {len(row.curves)} diverged" if name == "accuracy" else "–"
    score = row.score(name)
    if score is None or not np.isfinite(score[0]):
        return "–"
    scale, digits = (100, 1) if name == "accuracy" else (1, 3)
    mean, deviation = (f"{scale * value:.{digits}f}" for value in score)
    return f"{mean} ({deviation})" if len(row.curves) > 1 else mean


def _named(row: Compared, rows: Sequence[Compared]) -> str:
    """A row's method; beside others that have a test set it says that it has none, as its scores flatter."""
    return row.method if row.tested or not any(each.tested for each in rows) else f"{row.method} (training rows)"


def _word(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
