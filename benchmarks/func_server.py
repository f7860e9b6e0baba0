"""FedLap-Func's server on the network of `mlp_round.py`: its share of a round, and the same problem in fewer weights.

    python benchmarks/func_server.py [--data-dir FOLDER] [--rounds 3]

The objective τ Σ_i ℓ(ŷ_i, w) + ½δ‖w − m‖² sees the first layer's weights W only through the M memory inputs. With
orthonormal rows Q that span them, the part of W outside of the span is that of m at the minimum, and W Qᵀ is what is
left to find: 200 × M numbers where there were 200 × 784. Both ways are timed on the problems of successive rounds, and
what they reach of the whole objective is shown.
"""

import argparse
import os

import jax
import jax.numpy as jnp
from mlp_round import BATCH, DELTA, EPOCHS, RATE, federation
from timing import interleave, show

import fedlap
from fedlap.algebra.quadratic import square
from fedlap.algebra.soft_labels import Memory
from fedlap.algebra.vector import Vector
from fedlap.engines.parties import distillation

FIRST = 1  # of the layers, after the one that flattens


class Server:
    """The server's problem of one round, as `FedLapFunc.server_update` states it."""

    def __init__(self, run, before, after):
        pool, shards = run.setup.pool, run.setup.shards
        stacked = after.clients.contribution
        self.task, self.algorithm, self.examples = run.setup.task, run.algorithm, shards.n.sum()
        self.m, self.y = stacked.v.sum(0), Memory(pool.memory, shards.places).place(stacked.y)
        self.start = before.server.w + (self.m - before.server.m)
        self.inputs = pool.memory.reshape(len(pool.memory), -1)
        self.basis = jnp.linalg.svd(self.inputs, full_matrices=False)[2]

    def objective(self, inputs, m):
        distil, posterior = distillation(self.task, inputs), self.algorithm.delta / 2 * square(around=m)
        return lambda w: (self.algorithm.tau * distil(w, self.y) + posterior(w)) / self.examples

    def value(self, w):
        return float(self.objective(self.inputs, self.m)(w))

    def whole(self, solver):
        return jax.jit(lambda: solver.solve(self.objective(self.inputs, self.m), self.start))

    def narrow(self, solver):
        first = lambda w: w.tree[FIRST]["weight"]
        put = lambda w, weight: Vector((*w.tree[:FIRST], {**w.tree[FIRST], "weight": weight}, *w.tree[FIRST + 1 :]))
        project = lambda w: put(w, first(w) @ self.basis.T)

        def work():
            m, basis = first(self.m), self.basis
            found = solver.solve(self.objective(self.inputs @ basis.T, project(self.m)), project(self.start))
            return put(found, first(found) @ basis + m - (m @ basis.T) @ basis)

        return jax.jit(work)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--data-dir")
    arguments = parser.parse_args()
    data, solver = federation(arguments.data_dir), fedlap.adam(epochs=EPOCHS, batch=BATCH, learning_rate=RATE)
    algorithm, usual = fedlap.FedLapFunc(delta=DELTA, tau=0.1), fedlap.descent()
    options = {"solver": solver, "server_solver": usual}
    run = fedlap.Simulation.of(algorithm, data, fedlap.mlp(), **options)
    alone = fedlap.Simulation.of(algorithm, data, fedlap.mlp(), **{**options, "server_solver": fedlap.descent(steps=0)})
    before = run.init()
    for number in range(1, arguments.rounds + 1):
        after = run.step(before)
        server = Server(run, before, after)
        works = {
            "whole, descent()": server.whole(usual),
            "narrow, descent()": server.narrow(usual),
            "narrow, descent(tolerance=4e-3)": server.narrow(fedlap.descent(tolerance=4e-3)),
            "narrow, descent(steps=200)": server.narrow(fedlap.descent(steps=200)),
        }
        print(f"\nround {number}: accuracy {float(run.evaluate(after).accuracy):.4f}, load {os.getloadavg()[0]:.1f}")
        print(f"{'objective at the start':44}{server.value(server.start):.6f}")
        for name, work in works.items():
            print(f"{name:44}{server.value(work()):.6f}")
        state = before
        clients = {"all clients, server idle": lambda state=state: alone.step(state)}
        finished = {name: lambda work=work: jax.block_until_ready(work()) for name, work in (clients | works).items()}
        show("seconds", interleave(finished, arguments.repeats), "all clients, server idle")
        before = after


if __name__ == "__main__":
    main()
