"""A spec carried out: every algorithm and seed, into a folder that a second call can finish.

configuration.json     the resolved spec, the version and the seeds
rounds.jsonl           one line per run and round: accuracy, NLL, seconds
checkpoints/           the state of every run after its last finished round
"""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedlap import __version__
from fedlap.errors import DataError
from fedlap.experiments import spec
from fedlap.files import atomic
from fedlap.files.folders import results_folder
from fedlap.run import divergence
from fedlap.run.simulation import Simulation, histories


@dataclass(frozen=True)
class Run:
    """One algorithm with one seed, so far."""

    algorithm: str
    seed: int
    accuracy: np.ndarray
    nll: np.ndarray
    seconds: np.ndarray
    diverged: bool


def begin(experiment, folder):
    """Write down what is going to happen."""
    folder = Path(folder)
    if (folder / "configuration.json").exists():
        raise DataError(f"{folder}: holds results already; resume them or name another folder")
    results_folder(folder)
    atomic.write(folder / "configuration.json", json.dumps({"fedlap": __version__, **experiment.as_dict()}, indent=2))


def reopen(folder):
    """The spec of a folder that `begin` made."""
    path = Path(folder) / "configuration.json"
    if not path.is_file():
        what = f"it has no {path.name}" if path.parent.is_dir() else "there is no such folder"
        raise DataError(f"{folder}: cannot be resumed, {what}; expected a results folder of fedlap run")
    try:
        table = json.loads(path.read_text())
        table.pop("fedlap")
        return spec.resolve(table.pop("name"), table)
    except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
        why = f"{type(error).__name__}: {error}" if isinstance(error, KeyError) else error
        raise DataError(f"{path}: cannot be resumed ({why}); expected what fedlap run has written there") from error


def carry_out(experiment, folder, data_dir=None):
    """Yield every run after each of its rounds; finished runs and rounds are read, not run again."""
    folder = Path(folder)
    finished = []
    for name in experiment.algorithms:
        for seed in experiment.train.seeds:
            for run in _run(experiment, folder, name, seed, data_dir):
                yield run
            finished.append(run)
            _record(folder, finished)


def _run(experiment, folder, name, seed, data_dir):
    simulation = Simulation.of(
        experiment.make_algorithm(name),
        experiment.make_federation(seed, data_dir),
        experiment.make_model(),
        solver=experiment.make_solver(),
        server_solver=experiment.make_server_solver(),
        seed=seed,
        participation=experiment.train.participation,
    )
    checkpoint = folder / "checkpoints" / f"{name}-{seed}.npz"
    rounds = experiment.train.rounds
    for history in histories(simulation, rounds, checkpoint, resume=checkpoint.exists()):
        yield Run(name, seed, history.accuracy, history.nll, history.seconds, history.diverged)
    if history.diverged:
        divergence.tell(f"seed {seed}: {divergence.words(simulation, history)}")


def _record(folder, runs):
    lines = [
        json.dumps(
            {
                "algorithm": run.algorithm,
                "seed": run.seed,
                "round": number,
                "accuracy": _number(a),
                "nll": _number(n),
                "seconds": round(s, 4),
            }
        )
        for run in runs
        for number, (a, n, s) in enumerate(zip(run.accuracy, run.nll, run.seconds, strict=True), start=1)
    ]
    atomic.write(folder / "rounds.jsonl", "\n".join(lines) + "\n")


def _number(value):
    """JSON knows no NaN, which a run that diverged has."""
    return float(value) if np.isfinite(value) else None
