"""FedLap-Func's server on the network of `mlp_round.py`: its share of a round, and what it reaches of its objective.

    python benchmarks/func_server.py [--data-dir FOLDER] [--rounds 3] [--busy 1] [--curves 10]

The objective τ Σ_i ℓ(ŷ_i, w) + ½δ‖w − m‖² is solved by `descent()` in all weights, and by `annealed()` in those that
the M memory inputs can see. First the problems of successive rounds: the value that each reaches, and their seconds.
Then whole rounds, as the engine runs them, with either solver and with a server that does next to nothing: what is
between is the server's share. With --busy, so many processes compute meanwhile and never stop. With --curves, instead
of all that, accuracy and loss of so many rounds, three seeds, side by side.
"""

import argparse
import contextlib
import dataclasses
import os
import statistics
import subprocess
import sys

import jax
from mlp_round import BATCH, DELTA, EPOCHS, RATE, federation
from timing import interleave, show

import fedlap
from fedlap.algebra.quadratic import square
from fedlap.algebra.soft_labels import Distilled, Memory
from fedlap.engines import parties
from fedlap.engines.parties import distillation

SOLVERS = {"descent()": fedlap.descent(), "annealed()": fedlap.annealed()}
NEARLY_EXACT = {"annealed(tolerance=1e-4)": fedlap.annealed(tolerance=1e-4, turns=100)}
IDLE = "server idle"


class Problem:
    """The server's problem of one round, as `FedLapFunc.server_update` states it."""

    def __init__(self, run, before, after):
        stacked, shards = after.clients.contribution, run.setup.shards
        memory = Memory(run.setup.pool.memory, shards.places)
        self.setup, self.m, self.n = run.setup, stacked.v.sum(0), shards.n.sum()
        self.start = before.server.w + (self.m - before.server.m)
        distil = distillation(run.setup.task, memory.inputs)
        posterior = run.algorithm.delta / 2 * square(around=self.m)
        self.objective = Distilled(run.algorithm.tau, distil, memory.place(stacked.y), posterior)

    def value(self, w):
        return float(self.objective(w) / self.n)

    def solved_by(self, solver):
        setup = dataclasses.replace(self.setup, method=self.setup.method._replace(server_solver=solver))
        return jax.jit(lambda: parties.server(setup, self.m, 1.0).argmin(self.objective, self.start))


def simulation(data, server_solver, model, seed=0):
    solver = fedlap.adam(epochs=EPOCHS, batch=BATCH, learning_rate=RATE)
    algorithm = fedlap.FedLapFunc(delta=DELTA, tau=0.1)
    return fedlap.Simulation.of(algorithm, data, model, solver=solver, server_solver=server_solver, seed=seed)


def finished(work):
    return lambda: jax.block_until_ready(work())


def problems(data, rounds, repeats):
    """What each solver reaches of the objective, and its seconds; 5,000 steps of `descent` are the reference."""
    run = simulation(data, SOLVERS["descent()"], fedlap.mlp())
    before = run.init()
    for number in range(1, rounds + 1):
        after = run.step(before)
        problem = Problem(run, before, after)
        works = {name: finished(problem.solved_by(solver)) for name, solver in SOLVERS.items()}
        first = problem.value(problem.start)
        best = problem.value(problem.solved_by(fedlap.descent(tolerance=0.0))())
        print(f"\nround {number}: objective at the start {first:.6f}, after 5,000 steps of descent {best:.6f}")
        for name, work in works.items():
            value = problem.value(work())
            print(f"{name:44}{value:.6f}, {(value - best) / (first - best):.2%} of all gain short")
        show("the server's problem", interleave(works, repeats), "descent()")
        before = after


def shares(data, rounds, repeats):
    """The part of a round that is the server's: what a round takes longer than one whose server is idle."""
    solvers = {IDLE: fedlap.descent(steps=0), **SOLVERS}
    runs = {name: simulation(data, solver, fedlap.mlp()) for name, solver in solvers.items()}
    state = runs["descent()"].init()
    for number in range(1, rounds + 1):
        works = {name: finished(lambda run=run, state=state: run.step(state)) for name, run in runs.items()}
        seconds = interleave(works, repeats)
        show(f"round {number}, all of it, load {os.getloadavg()[0]:.1f}", seconds, IDLE)
        for name in SOLVERS:
            parts = [1 - idle / whole for idle, whole in zip(seconds[IDLE], seconds[name], strict=True)]
            low, middle, high = statistics.quantiles(parts, n=4)
            print(f"{name:44}the server's share {middle:.0%} ({low:.0%} – {high:.0%})")
        state = runs["descent()"].step(state)


def curves(data, rounds):
    """Accuracy and loss round by round, three seeds, with either solver, and nearer to the minimiser than both."""
    for network, model in (("mlp", fedlap.mlp()), ("logistic", fedlap.logistic())):
        print(f"\n{network}: accuracy and loss in rounds {rounds // 2} and {rounds}")
        for seed in range(3):
            for name, solver in {**SOLVERS, **NEARLY_EXACT}.items():
                run = simulation(data, solver, model, seed)
                state, seen = run.init(), []
                for _ in range(rounds):
                    state = run.step(state)
                    seen.append(run.evaluate(state))
                said = (f"{float(e.accuracy):.4f} {float(e.nll):.4f}" for e in (seen[rounds // 2 - 1], seen[-1]))
                print(f"seed {seed}, {name:36}{'    '.join(said)}", flush=True)


@contextlib.contextmanager
def busy(count):
    """A block during which so many processes want a core each."""
    others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for process in others:
            process.kill()
            process.wait()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--busy", type=int, default=0)
    parser.add_argument("--curves", type=int, default=0)
    parser.add_argument("--data-dir")
    arguments = parser.parse_args()
    data = federation(arguments.data_dir)
    if arguments.curves:
        curves(data, arguments.curves)
        return
    with busy(arguments.busy):
        problems(data, arguments.rounds, arguments.repeats)
        shares(data, arguments.rounds, arguments.repeats)


if __name__ == "__main__":
    main()
