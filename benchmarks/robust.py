"""What [robust] costs when all members are honest, and what it holds when one of four is not.

python benchmarks/robust.py [--algorithm fedlap_cov] [--rounds 20] [--seeds 3]

The four bundled hospitals in one process, real sites and a real coordinator. The optimum is where the unbounded run of
the same seed is after three times the rounds; a distance to it is of weights, in parts of its own length. A dishonest
cleveland asks, in every round and with much precision, for the opposite of the model as it was trained so far.
"""

import argparse
import dataclasses
import sys
import tempfile
import time
import tomllib
from pathlib import Path

import numpy as np

from fedlap.study.agreement import example
from fedlap.study.agreement.contract import resolve
from fedlap.study.protocol.coordinator import Coordinator
from fedlap.study.protocol.line import weights
from fedlap.study.protocol.site import Site

LIAR = "cleveland"


class Hospitals:
    """All sites in one process; `lie(arrays)` changes what cleveland sends."""

    def __init__(self, study, files, folder, lie):
        self.sites = {name: Site.of(study, name, path, folder / name) for name, path in files.items()}
        self.lie = lie

    def exchange(self, requests, seconds, resend):
        for name, request in requests.items():
            reply = self.sites[name].answer(request)
            if self.lie and request.kind == "train" and name == LIAR:
                reply = dataclasses.replace(reply, arrays=self.lie(request.arrays, reply.arrays))
            yield name, reply


def pull_away(broadcast, arrays):
    """A factor that asks for minus the model, as sure as 10,000 patients would be; without a precision, for -10."""
    lied, sure = dict(arrays), any(name.startswith(".V") for name in arrays)
    for name, array in arrays.items():
        if name.startswith(".V"):
            lied[name] = np.full_like(array, 1e4)
        elif name.startswith(".v"):
            w = broadcast[name.replace(".v", ".w", 1)]
            lied[name] = (-1e4 * (w + 1)).astype(array.dtype) if sure else np.full_like(array, -10)
    return lied


def run(files, algorithm, rounds, seed, bound, lie=None):
    """The outcome of one run, and how many seconds a round took."""
    text = example.example_study(rounds=rounds, algorithm={"name": algorithm, "delta": 1.0})
    table = tomllib.loads(text)
    table["study"]["seed"] = seed
    if bound is not None:
        table["robust"] = {"bound": bound}
    with tempfile.TemporaryDirectory(prefix="fedlap-robust-") as name:
        folder = Path(name)
        study = resolve(table, folder / "study.toml")
        began = time.perf_counter()
        outcome = Coordinator.of(study, Hospitals(study, files, folder, lie), folder / "server").run()
        return outcome, (time.perf_counter() - began) / rounds


def main(arguments):
    with tempfile.TemporaryDirectory(prefix="fedlap-robust-") as name:
        files = example.example_files(name)
        print(f"{arguments.algorithm}, {arguments.rounds} rounds, seeds 0 to {arguments.seeds - 1}; mean (spread)\n")
        heads = ("accuracy", "NLL", "from the optimum", "announced", "s a round")
        print(f"{'':34}" + "".join(f"{head:>20}" for head in heads))
        optima = [
            weights(run(files, arguments.algorithm, 3 * arguments.rounds, seed, None)[0].server)
            for seed in range(arguments.seeds)
        ]
        for who, lie in (("all honest", None), (f"{LIAR} lies", pull_away)):
            for bound in (None, 10.0, 3.0, 1.0):
                found = []
                for seed, optimum in enumerate(optima):
                    outcome, seconds = run(files, arguments.algorithm, arguments.rounds, seed, bound, lie)
                    score, away = outcome.history[-1].score, weights(outcome.server) - optimum
                    distance = np.linalg.norm(away) / np.linalg.norm(optimum)
                    said = sum(len(report.outside) for report in outcome.history)
                    found.append((score.accuracy, score.nll, distance, said, seconds))
                cells = [f"{np.mean(column):.4g} ({np.std(column):.2g})" for column in zip(*found, strict=True)]
                label = f"{who}, {'no bound' if bound is None else f'bound = {bound:g}'}"
                print(f"{label:34}" + "".join(f"{cell:>20}" for cell in cells))
                sys.stdout.flush()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--algorithm", default="fedlap_cov")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seeds", type=int, default=3)
    main(parser.parse_args())
