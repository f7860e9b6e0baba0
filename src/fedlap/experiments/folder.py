"""The folder of an experiment, which a second call can finish.

configuration.json     the resolved settings and the version
results.jsonl          one JSON line a run that has finished: accuracy and NLL after every round, see results.py
results.jsonl.checkpoints/    the runs under way, each after one of its last rounds; gone when all have finished
table.md, curves.png   made from results.jsonl when all have finished
"""

import json
from pathlib import Path

from fedlap import __version__
from fedlap.errors import DataError
from fedlap.experiments import sweep as cells
from fedlap.experiments.sweep import Sweep
from fedlap.files import atomic
from fedlap.files.folders import results_folder

CONFIGURATION, RESULTS, TABLE, CURVES = "configuration.json", "results.jsonl", "table.md", "curves.png"


def begin(sweep: Sweep, folder: Path) -> None:
    """Make the folder of an experiment, and write down in it what is going to happen."""
    if (folder / CONFIGURATION).exists():
        raise DataError(f"{folder}: holds results already; resume them or name another folder")
    results_folder(folder)
    atomic.write(folder / CONFIGURATION, json.dumps({"fedlap": __version__, **sweep.as_dict()}, indent=2))


def reopen(folder: Path) -> Sweep:
    """The experiment of a folder that `begin` made."""
    path = folder / CONFIGURATION
    if not path.is_file():
        reason = f"it has no {path.name}" if folder.is_dir() else "there is no such folder"
        raise DataError(f"{folder}: cannot be resumed, {reason}; expected a results folder of fedlap run")
    try:
        table = json.loads(path.read_text())
        table.pop("fedlap")
        return cells.again(table)
    except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
        reason = f"{type(error).__name__}: {error}" if isinstance(error, KeyError) else error
        raise DataError(f"{path}: cannot be resumed ({reason}); expected what fedlap run has written there") from error
