"""A round of FedLap-Cov with a Kronecker covariance against one with a diagonal, and how many numbers each sends.

    python benchmarks/kronecker.py [--data-dir FOLDER] [--epochs 5]

10 Dirichlet clients of 6,000 images in all (a tenth of Fashion-MNIST, or random pixels without a data folder), the
784-200-100-10 network, batch 32. The basis is found in the first round and every ten rounds: both kinds are timed.
"""

import argparse
import statistics
import time
from functools import partial

import jax
from mlp_round import BATCH, RATE, federation
from timing import interleave, show

import fedlap

REFRESH = 10
DIAGONAL, USUAL, TURNS = "diagonal", "Kronecker, a round as usual", "Kronecker, a round that finds a basis"


def simulation(data, algorithm, epochs):
    solver = fedlap.adam(epochs=epochs, batch=BATCH, learning_rate=RATE)
    return fedlap.Simulation.of(algorithm, data, fedlap.mlp(), solver=solver)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--data-dir")
    arguments = parser.parse_args()
    data = federation(arguments.data_dir)
    runs = {
        DIAGONAL: simulation(data, fedlap.FedLapCov(delta=1.0), arguments.epochs),
        USUAL: simulation(data, fedlap.FedLapKron(delta=1.0, refresh=REFRESH), arguments.epochs),
        TURNS: simulation(data, fedlap.FedLapKron(delta=1.0, refresh=1), arguments.epochs),
    }
    states = {name: run.step(run.step(run.init())) for name, run in runs.items()}
    works = {name: lambda n=name: jax.block_until_ready(runs[n].step(states[n])) for name in runs}
    cpu = {name: [] for name in runs}

    def timed(name):
        began = time.process_time()
        works[name]()
        cpu[name].append(time.process_time() - began)

    contestants = {name: partial(timed, name) for name in runs}
    show("one round, by the clock", interleave(contestants, arguments.repeats), DIAGONAL)
    seconds = {name: values[1:] for name, values in cpu.items()}  # without the warm-up
    show("one round, in seconds of the processor", seconds, DIAGONAL)
    rows = zip(*seconds.values(), strict=True)
    mixed = [((REFRESH - 1) * usual + turn) / REFRESH / base for base, usual, turn in rows]
    low, middle, high = min(mixed), statistics.median(mixed), max(mixed)
    print(f"over {REFRESH} rounds, by the processor: {middle:.2f} times the diagonal ({low:.2f} to {high:.2f})")

    server = states[USUAL].server
    layers = [layer["weight"] for layer in server.turn.new.tree if layer]
    sides = sum(layer.rows.size + layer.columns.size for layer in layers)
    weights = server.w.size
    print(f"numbers a client sends in a round: {2 * weights:,}; before a new basis {sides:,} more, half of them twice")
    print(f"numbers it is sent: {2 * weights:,}, and a new basis {sides:,}")


if __name__ == "__main__":
    main()
