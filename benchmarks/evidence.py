"""δ by the evidence against a grid of δ: where it ends, and what that costs in accuracy and NLL.

    python benchmarks/evidence.py [--data-dir FOLDER] [--only heart credit fashion] [--seeds 62 63 64]

FedLap-Cov with ρ = 1/K and the standard inputs. A run that is in benchmarks/evidence.jsonl is not made again. Accuracy
and NLL are on the test set, the mean of the last three rounds; so the best of the grid is chosen by the test set, which
nobody can do. Fashion-MNIST's tuned δ is the one that validation chose, see reproduction/specs.

    python benchmarks/evidence.py --count [--data-dir FOLDER] [--seeds 62]

How many weights data determine, γ = Σ_i λ_i/(λ_i + δ), as a diagonal counts them, a diagonal in the eigenbasis of the
layers (FedLapKron), and as many as N rows of C classes could at most with the same trace T of H: with r = N(C − 1),
rT/(T + rδ). Of the network on Fashion-MNIST after 12 rounds at δ = 1.
"""

import argparse
import json
import time
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np

import fedlap

RESULTS = Path(__file__).resolve().parent / "evidence.jsonl"
STARTS = ("evidence", {"rule": "evidence", "start": 0.01}, {"rule": "evidence", "start": 100.0}, "evidence by layer")


class Task(NamedTuple):
    """A data set, a model, and the δ that are tried beside the evidence."""

    load: object
    model: object
    solver: object
    rounds: int
    covariances: tuple
    deltas: tuple
    rules: tuple = STARTS


TASKS = {
    "heart": Task(
        lambda seed, folder: fedlap.data.heart(preset="standard"),
        fedlap.logistic(bias=True),
        fedlap.adam(epochs=10, batch=4, learning_rate=1e-2),
        20,
        ("diagonal", "full"),
        (0.01, 0.1, 1.0, 3.0, 10.0, 30.0, 100.0),
    ),
    "credit": Task(
        lambda seed, folder: fedlap.data.credit(preset="standard", split="heterogeneous", seed=seed),
        fedlap.logistic(bias=True),
        fedlap.adam(epochs=20, batch=4, learning_rate=1e-3),
        50,
        ("diagonal", "full"),
        (0.1, 1.0, 10.0),
    ),
    "fashion": Task(
        lambda seed, folder: fedlap.data.fashion_mnist(
            preset="standard",
            fraction=0.1,
            clients=10,
            partition=fedlap.dirichlet(sizes=1.0, classes=0.5),
            seed=seed,
            data_dir=folder,
        ),
        fedlap.mlp(hidden=(200, 100), activation="relu"),
        fedlap.adam(epochs=5, batch=32, learning_rate=1e-3),
        50,
        ("diagonal",),
        (1.0,),
        ("evidence", "evidence by layer"),
    ),
}


def rule_of(delta):
    """The hyper-parameter that a plain value stands for."""
    return fedlap.evidence(start=delta["start"]) if isinstance(delta, dict) else delta


def one(name, covariance, delta, seed, folder):
    """A run as one line of results."""
    task = TASKS[name]
    began = time.perf_counter()
    history = fedlap.simulate(
        fedlap.FedLapCov(delta=rule_of(delta), covariance=covariance),
        task.load(seed, folder),
        task.model,
        solver=task.solver,
        rounds=task.rounds,
        seed=seed,
    )
    of = {"data": name, "covariance": covariance, "delta": delta, "seed": seed}
    curves = {"accuracy": history.accuracy, "nll": history.nll}
    found = {key: None if history.diverged else float(curve[-3:].mean()) for key, curve in curves.items()}
    return {**of, **found, "chosen": history.delta, "seconds": round(time.perf_counter() - began, 1)}


def show(lines):
    """The table: mean and standard deviation over seeds."""
    print("| data | covariance | delta | seeds | accuracy | NLL | delta at the end |\n|" + " --- |" * 7)
    groups = {}
    for line in lines:
        groups.setdefault((line["data"], line["covariance"], json.dumps(line["delta"])), []).append(line)
    for (data, covariance, delta), runs in groups.items():
        group = [line for line in runs if line["nll"] is not None]
        seeds = f"{len(runs)}" if len(group) == len(runs) else f"{len(group)} of {len(runs)}, the others diverged"
        spread = lambda key: np.array([line[key] for line in group])  # noqa: B023
        accuracy, nll = 100 * spread("accuracy"), spread("nll")
        chosen = [line["chosen"] for line in group if line["chosen"] is not None]
        if chosen and isinstance(chosen[0], dict):
            ends = ", ".join(f"{key} {np.mean([each[key] for each in chosen]):.3g}" for key in chosen[0])
        else:
            ends = f"{np.mean(chosen):.4g} ({np.std(chosen):.2g})" if chosen else ""
        print(
            f"| {data} | {covariance} | {delta} | {seeds} | {accuracy.mean():.1f} ({accuracy.std():.1f}) | "
            f"{nll.mean():.4f} ({nll.std():.4f}) | {ends} |"
        )


def count(seed, folder):
    """The table of γ, and of the δ that MacKay's step would take from there."""
    task, delta = TASKS["fashion"], 1.0
    federation = task.load(seed, folder)
    print("| covariance | \\|w\\|² | trace of H | delta | counted | at most | gamma/\\|w\\|² |\n|" + " --- |" * 7)
    for algorithm in (fedlap.FedLapCov(delta=delta), fedlap.FedLapKron(delta=delta)):
        run = fedlap.Simulation.of(algorithm, federation, task.model, solver=task.solver, seed=seed)
        state = run.init()
        for _ in range(12):
            state = run.step(state)
        flat = lambda tree: np.concatenate([np.ravel(leaf).astype(float) for leaf in jax.tree.leaves(tree)])
        h, square = flat(state.server.ahead) - delta, float((flat(state.server.w) ** 2).sum())
        most = int(federation.sizes.sum()) * (federation.classes - 1)
        for other in (1.0, 10.0, 100.0):
            gamma, bound = (h / (h + other)).sum(), most * h.sum() / (h.sum() + most * other)
            numbers = f"{square:.0f} | {h.sum():.3g} | {other:g} | {gamma:.0f} | {bound:.0f} | {gamma / square:.1f}"
            print(f"| {type(algorithm).__name__} | {numbers} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path, help="where the data sets are")
    parser.add_argument("--only", nargs="*", choices=TASKS, default=list(TASKS))
    parser.add_argument("--seeds", nargs="*", type=int, default=[62, 63, 64])
    parser.add_argument("--count", action="store_true", help="show how many weights are counted, and train no further")
    options = parser.parse_args()
    if options.count:
        return count(options.seeds[0], options.data_dir)
    lines = [json.loads(line) for line in RESULTS.read_text().splitlines()] if RESULTS.exists() else []
    known = {json.dumps([line[key] for key in ("data", "covariance", "delta", "seed")]) for line in lines}
    for name in options.only:
        task = TASKS[name]
        for seed in options.seeds:
            for covariance in task.covariances:
                for delta in (*task.rules, *task.deltas):
                    if json.dumps([name, covariance, delta, seed]) not in known:
                        lines.append(one(name, covariance, delta, seed, options.data_dir))
                        with RESULTS.open("a") as file:
                            file.write(json.dumps(lines[-1]) + "\n")
    show(lines)


if __name__ == "__main__":
    main()
