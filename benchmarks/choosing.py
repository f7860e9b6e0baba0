"""Which method should one take: every method of the library on two data sets, at the point and by its posterior.

    python -m benchmarks.choosing --data-dir FOLDER [--data fashion_mnist credit] [--methods fedlap_cov pvi]

Each method has four settings: two of its own number by two learning rates, or four learning rates where it has no
number. One is chosen by the accuracy on rows that each client held out (seed 62, half the rounds), and trained on all
rows with three seeds; where one of these diverges, the next best is. Posteriors are averaged over 200 draws of the
outputs, as they are and narrowed: by the number that gives the held-out rows the least NLL (`history.calibrated`),
judged after the last round. FedEP and BayesADMM are here what their defaults are not, since with these they are
FedLap-Cov. A run is a line of benchmarks/choosing.jsonl, and a second call runs what is missing. At the end it writes
docs/tables/choosing.md and docs/images/choosing.png from that file.
"""

import argparse
import itertools
import json
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

import fedlap
from benchmarks.choosing_table import survived, write
from benchmarks.timing import load
from fedlap.engines.scores import Metrics
from fedlap.run.simulation import histories

HERE = Path(__file__).parent
RESULTS = HERE / "choosing.jsonl"
ROUNDS, MARKS, SEEDS, SEARCH_SEED = 50, (5, 10, 25, 50), (62, 63, 64), 62
ADAM, SGD, IVON, COLD_IVON = (1e-3, 3e-3), (0.03, 0.1), (1e-3, 1e-2), (2e-5, 5e-5)
DRAWS: dict[str, Any] = {"link": "samples", "samples": 200, "seed": 0}  # of ten classes; the probit is off by more
FOUR = {ADAM: (3e-4, 1e-3, 3e-3, 1e-2), SGD: (0.01, 0.03, 0.1, 0.3)}


class Data(NamedTuple):
    """A data set, its model, and what is the same for all methods."""

    federation: Callable[[Path | None, int], fedlap.Federation]
    model: Any
    validation: float
    epochs: int
    batch: int
    deltas: tuple[float, float]
    strangers: Callable[[Path | None], np.ndarray] | None = None  # inputs of another data set


def _fashion(folder: Path | None, seed: int) -> fedlap.Federation:
    division = fedlap.dirichlet(sizes=1.0, classes=0.5)
    return fedlap.data.fashion_mnist(
        preset="standard", fraction=0.1, clients=10, partition=division, seed=seed, data_dir=folder
    )


def _digits(folder: Path | None) -> np.ndarray:
    return fedlap.data.mnist(preset="standard", fraction=0.1, clients=2, seed=0, data_dir=folder).test_inputs


def _credit(folder: Path | None, seed: int) -> fedlap.Federation:
    return fedlap.data.credit(preset="standard", split="heterogeneous")


DATA = {
    "fashion_mnist": Data(_fashion, fedlap.mlp(hidden=(200, 100), activation="relu"), 0.1, 5, 32, (0.1, 0.01), _digits),
    "credit": Data(_credit, fedlap.logistic(), 0.2, 10, 4, (1.0, 0.1)),
}


class Entry(NamedTuple):
    """A method, how it is made of its number, and the rates of its solver."""

    make: Callable[[Any], Any]
    numbers: tuple | None = None  # None: those of the data set's deltas; empty: it has none
    rates: tuple = ADAM


def cold(gamma: float) -> fedlap.BayesADMM:
    """As its paper runs it on these data: the loss counts a thousandfold."""
    return fedlap.BayesADMM(delta=1.0, rho=0.2, gamma=gamma, tau=1e-3, samples=1)


METHODS = {
    "fedavg": Entry(lambda _: fedlap.FedAvg(), ()),
    "fedprox": Entry(lambda alpha: fedlap.FedProx(alpha=alpha), (0.1, 0.01)),
    "fedadmm": Entry(lambda alpha: fedlap.FedADMM(alpha=alpha), (0.1, 0.01)),
    "feddyn": Entry(lambda alpha: fedlap.FedDyn(alpha=alpha, weight_decay=1e-5), (1e-2, 1e-3)),
    "scaffold": Entry(lambda _: fedlap.SCAFFOLD(), (), SGD),
    "scaffold steps": Entry(lambda _: fedlap.SCAFFOLD(control="steps"), (), SGD),
    "fednova": Entry(lambda _: fedlap.FedNova(), (), SGD),
    "fedopt adam": Entry(lambda rate: fedlap.FedOpt(learning_rate=rate, rule="adam"), (0.01, 0.03)),
    "fedopt yogi": Entry(lambda rate: fedlap.FedOpt(learning_rate=rate, rule="yogi"), (0.01, 0.03)),
    "fedopt adagrad": Entry(lambda rate: fedlap.FedOpt(learning_rate=rate, rule="adagrad"), (0.03, 0.3)),
    "bcm": Entry(lambda delta: fedlap.BCM(delta=delta)),
    "pvi": Entry(lambda delta: fedlap.PVI(delta=delta, samples=1)),
    "pvi sharp start": Entry(lambda delta: fedlap.PVI(delta=delta, samples=1, start_precision=1e4)),
    "fedep shared": Entry(lambda delta: fedlap.FedEP(delta=delta, shared=True)),
    "bayes_admm": Entry(lambda delta: fedlap.BayesADMM(delta=delta, gamma=1.0)),
    "bayes_admm ivon": Entry(lambda delta: fedlap.BayesADMM(delta=delta, samples=1), None, IVON),
    "bayes_admm ivon cold": Entry(cold, (1e-3, 0.1), COLD_IVON),
    "fedlap": Entry(lambda delta: fedlap.FedLap(delta=delta)),
    "fedlap_func": Entry(lambda delta: fedlap.FedLapFunc(delta=delta, tau=0.1, memory=1)),
    "fedlap_cov": Entry(lambda delta: fedlap.FedLapCov(delta=delta)),
    "fedlap_cov evidence": Entry(lambda _: fedlap.FedLapCov(delta="evidence"), ()),
    "fedlap_cov_func": Entry(lambda delta: fedlap.FedLapCovFunc(delta=delta, tau=0.1, memory=1)),
    "fedlap_kron": Entry(lambda delta: fedlap.FedLapKron(delta=delta)),
    "fedlap_cov full": Entry(lambda delta: fedlap.FedLapCov(delta=delta, covariance="full")),
}
NETWORKS, SMALL = "fashion_mnist", "credit"
ONLY = {
    "pvi sharp start": NETWORKS,
    "bayes_admm ivon cold": NETWORKS,
    "fedlap_kron": NETWORKS,
    "fedlap_cov full": SMALL,
}


class Setting(NamedTuple):
    """One of a method's four settings."""

    number: float | None
    rate: float


def settings(method: str, data: str) -> list[Setting]:
    """The four settings of a method."""
    entry = METHODS[method]
    numbers = DATA[data].deltas if entry.numbers is None else entry.numbers
    if not numbers:
        return [Setting(None, rate) for rate in FOUR[entry.rates]]
    return [Setting(number, rate) for number, rate in itertools.product(numbers, entry.rates)]


ivon_of_the_paper = partial(fedlap.ivon, cosine=ROUNDS, keep=True)


def solver(method: str, data: Data, rate: float) -> Any:
    """The clients' solver of a method."""
    kinds = {ADAM: fedlap.adam, SGD: fedlap.sgd, IVON: fedlap.ivon, COLD_IVON: ivon_of_the_paper}
    return kinds[METHODS[method].rates](epochs=data.epochs, batch=data.batch, learning_rate=rate)


def simulation(method: str, data: str, setting: Setting, federation: fedlap.Federation, seed: int) -> fedlap.Simulation:
    """The run of a method with one setting."""
    about = DATA[data]
    return fedlap.Simulation.of(
        METHODS[method].make(setting.number),
        federation,
        about.model,
        solver=solver(method, about, setting.rate),
        server_solver=fedlap.annealed(steps=200, turns=1),
        seed=seed,
    )


def search(method: str, data: str, setting: Setting, federation: fedlap.Federation) -> dict[str, Any]:
    """Accuracy and NLL on rows that clients held out, the mean of the last three rounds of half of them."""
    run = simulation(method, data, setting, federation.hold_out(DATA[data].validation, SEARCH_SEED), SEARCH_SEED)
    *_, last = histories(run, ROUNDS // 2)
    return {"accuracy": float(np.mean(last.accuracy[-3:])), "nll": float(np.mean(last.nll[-3:]))}


def final(
    method: str, data: str, setting: Setting, federation: fedlap.Federation, seed: int, strangers: np.ndarray | None
) -> dict[str, Any]:
    """The scores at some rounds, at the point and by the posterior; seconds, numbers sent, and strangers told apart."""
    run = simulation(method, data, setting, federation, seed)
    marks: dict[str, Any] = {}
    inputs, labels = federation.test
    for history in histories(run, ROUNDS):
        done = len(history.nll)
        if done in MARKS or (run.one_shot and done == 1):
            marks[str(done)] = scores(history, inputs, labels)
    found = {"marks": marks, "seconds": float(np.median(history.seconds)), "sent": sent(run, history.state)}
    if strangers is not None:
        lost = not np.isfinite(history.nll[-1])
        told_apart = lambda way: np.nan if lost else auroc(*(doubt(history, x, way) for x in (inputs, strangers)))
        found["strangers"] = {name: told_apart(way) for name, way in ways(history).items()}
    return found


def ways(history: fedlap.History) -> dict[str, bool]:
    """At the point, and by the posterior of those who have one."""
    return {"point": False} | ({} if history.precision is None else {"posterior": True})


def narrow(method: str, data: str, setting: Setting, federation: fedlap.Federation) -> dict[str, Any]:
    """By how much the posterior is to be narrowed, by rows that clients held out; by none where there is no posterior.

    One that is not finite, and one of a run that is lost, stays as it is.
    """
    held = federation.hold_out(DATA[data].validation, SEARCH_SEED)
    run = simulation(method, data, setting, held, SEARCH_SEED)
    *_, last = histories(run, ROUNDS // 2)
    if last.precision is None or not np.isfinite(last.nll[-1]):
        return {"narrowing": None}
    return {"narrowing": last.calibrated(*held.test, **DRAWS).narrowing}


def final_narrowed(
    method: str,
    data: str,
    setting: Setting,
    federation: fedlap.Federation,
    seed: int,
    strangers: np.ndarray | None,
    by: float,
) -> dict[str, Any]:
    """The scores of the narrowed posterior after the last round, and strangers told apart."""
    *_, last = histories(simulation(method, data, setting, federation, seed), ROUNDS)
    history, (inputs, labels) = last.narrowed(by), federation.test
    found: dict[str, Any] = {"narrowed": history.evaluate(inputs, labels, posterior=True, **DRAWS)._asdict()}
    if strangers is not None:
        found["strangers"] = auroc(doubt(history, inputs, True), doubt(history, strangers, True))
    return found


def scores(history: fedlap.History, inputs: np.ndarray, labels: np.ndarray) -> dict[str, Any]:
    """Accuracy, NLL, Brier and ECE at the point, and averaged over the posterior where there is one; NaN once lost."""
    if not np.isfinite(history.nll[-1]):
        return {name: dict.fromkeys(Metrics._fields, np.nan) for name in ways(history)}
    scored = lambda way: history.evaluate(inputs, labels, posterior=way, **(DRAWS if way else {}))
    return {name: scored(way)._asdict() for name, way in ways(history).items()}


def doubt(history: fedlap.History, inputs: np.ndarray, posterior: bool) -> np.ndarray:
    """The entropy of each row's probabilities."""
    p = history.predict(inputs, posterior=True, **DRAWS) if posterior else history.predict(inputs)
    return -np.sum(p * np.log(np.maximum(p, np.finfo(p.dtype).tiny)), axis=1)


def sent(run: fedlap.Simulation, state: Any) -> dict[str, int]:
    """How many numbers a client sends and receives in a round."""
    count = lambda tree: sum(int(np.size(leaf)) for leaf in jax.tree.leaves(tree))
    up = count(state.clients.contribution) // len(run.federation.clients)
    return {"up": up, "down": count(run.algorithm.broadcast(state.server))}


def auroc(known: np.ndarray, strange: np.ndarray) -> float:
    """The chance that a stranger is the more uncertain of a pair."""
    from scipy.stats import rankdata

    ranks = rankdata(np.concatenate([known, strange]))[len(known) :]
    return float((ranks.sum() - len(strange) * (len(strange) + 1) / 2) / (len(known) * len(strange)))


# The file of results --------------------------------------------------------------------------------------------------


def read() -> list[dict[str, Any]]:
    """All runs so far."""
    return [json.loads(line) for line in RESULTS.read_text().splitlines()] if RESULTS.exists() else []


def keep(data: str, method: str, setting: Setting, kind: str, seed: int, work: Callable[[], dict]) -> dict[str, Any]:
    """A run of the file; one that is not there is made and appended."""
    said = {"data": data, "method": method, "setting": setting._asdict(), "kind": kind, "seed": seed}
    for line in read():
        if {key: line[key] for key in said} == said:
            return line
    began = time.perf_counter()
    line = {**said, **work(), "took": round(time.perf_counter() - began, 1), "load": load()}
    with open(RESULTS, "a") as file:
        file.write(json.dumps(line) + "\n")
    print(f"{data}, {method}, {tuple(setting)}, {kind} {seed}: {line['took']} s", flush=True)
    return line


def ranked(lines: list[tuple[Setting, dict[str, Any]]]) -> list[Setting]:
    """The best accuracy on held-out rows first; ties go to the smaller NLL. Where all diverged, the first stands."""
    alive = [(setting, line) for setting, line in lines if np.isfinite(line["nll"])]
    ordered = sorted(alive, key=lambda pair: (-pair[1]["accuracy"], pair[1]["nll"]))
    return [setting for setting, _ in ordered or lines[:1]]


def carry_out(method: str, data: str, folder: Path | None, strangers: np.ndarray | None) -> None:
    """Search among a method's settings, then train the best with every seed; what is in the file is not done again.

    Of a posterior also by how much to narrow it, and what it says then.
    """
    made = partial(DATA[data].federation, folder)
    found = []
    for setting in settings(method, data):
        work = partial(search, method, data, setting, made(SEARCH_SEED))
        found.append((setting, keep(data, method, setting, "search", SEARCH_SEED, work)))
    order = ranked(found)
    for best in order:
        works = [(seed, partial(final, method, data, best, made(seed), seed, strangers)) for seed in SEEDS]
        if survived([keep(data, method, best, "final", seed, work) for seed, work in works]):
            break
    else:
        return  # all are lost, and there is no posterior to narrow
    by = keep(data, method, best, "narrow", SEARCH_SEED, partial(narrow, method, data, best, made(SEARCH_SEED)))
    for seed in SEEDS if by["narrowing"] is not None else ():
        work = partial(final_narrowed, method, data, best, made(seed), seed, strangers, by["narrowing"])
        keep(data, method, best, "narrowed", seed, work)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--data", nargs="+", choices=DATA, default=list(DATA))
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--table", action="store_true", help="only write the table of what is there")
    arguments = parser.parse_args()
    for data in [] if arguments.table else arguments.data:
        strangers = DATA[data].strangers
        others = None if strangers is None else strangers(arguments.data_dir)
        for method in arguments.methods:
            if ONLY.get(method, data) == data:
                carry_out(method, data, arguments.data_dir, others)
    write(read(), HERE.parent)


if __name__ == "__main__":
    main()
