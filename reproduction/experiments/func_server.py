"""FedLap-Func on Fashion-MNIST 10 % homogeneous: which part of it keeps it below FedLap? Seed 62.

The memory points a client sees in a step, the client's terms, the server's, how well it minimises, or raw pixels:
python -m reproduction.experiments.func_server
"""

from typing import Any

import jax

import fedlap
from fedlap.algebra.hyperparameters import hyper, hyperparameters
from fedlap.algorithms.base import AnyAlgorithm, algorithm
from fedlap.algorithms.fedlap_func import Labelled
from fedlap.data import fashion_mnist, homogeneous
from fedlap.engines import parties
from fedlap.solvers import ServerSolver

Variants = dict[
    str, tuple[AnyAlgorithm, int, ServerSolver | None]
]  # a method, memory points a step, the server's solver


@algorithm
class ServerOnly(fedlap.FedLapFunc):
    """Clients train as in FedLap."""

    def client_update(self, g, t, k):
        line_1: Any = fedlap.FedLap.client_update  # of FedLap it asks for delta only, which both have
        return line_1(self, g, t, k)


@algorithm
class ClientOnly(fedlap.FedLapFunc):
    """The server adds up as in FedLap."""

    def server_update(self, g, c, s):
        m = c.sum(lambda k: k.v)
        return Labelled(m, m, c.gather(lambda k: k.y).mass)


@algorithm
class FromGlobal(fedlap.FedLapFunc):
    """The server starts from its last model."""

    def server_update(self, g, c, s):
        return fedlap.FedLapFunc.server_update(self, g._replace(m=c.sum(lambda k: k.v)), c, s)


@hyperparameters
class GradientDescent:
    """Without Adam's steps of one size for all weights."""

    steps: int = hyper("count", static=True, default=500)
    learning_rate: float = hyper("positive", default=1e-2)

    def solve(self, function, start):
        gradient = jax.grad(function)
        return jax.lax.fori_loop(0, self.steps, lambda _, w: w - self.learning_rate * gradient(w), start)


def raw_pixels() -> Variants:
    func: dict[str, Any] = {"delta": 1e-2, "tau": 0.1}
    return {
        "FedLap": (fedlap.FedLap(delta=1e-2), 32, None),
        "FedLap-Func": (fedlap.FedLapFunc(**func), 32, None),
        "128 memory points a step": (fedlap.FedLapFunc(**func), 128, None),
        "only the server's terms": (ServerOnly(**func), 32, None),
        "only the clients' terms": (ClientOnly(**func), 32, None),
        "server's Adam, all 5,000 steps": (fedlap.FedLapFunc(**func), 32, fedlap.descent(tolerance=0.0)),
        "server's Adam from its last model": (FromGlobal(**func), 32, None),
        "server's Adam at 1e-4": (fedlap.FedLapFunc(**func), 32, fedlap.descent(learning_rate=1e-4)),
        "server by L-BFGS": (fedlap.FedLapFunc(**func), 32, fedlap.lbfgs(steps=30)),
        "server by L-BFGS, tau 0.01": (fedlap.FedLapFunc(delta=1e-2, tau=0.01), 32, fedlap.lbfgs(steps=30)),
        "server by gradient descent, tau 0.01": (fedlap.FedLapFunc(delta=1e-2, tau=0.01), 32, GradientDescent()),
    }


def scaled_pixels() -> Variants:
    variants: Variants = {f"FedLap, delta {delta}": (fedlap.FedLap(delta=delta), 32, None) for delta in (1, 0.1)}
    for delta, tau in ((1, 1), (1, 0.1), (0.1, 0.1), (0.1, 0.01)):
        variants[f"FedLap-Func, delta {delta}, tau {tau}"] = (fedlap.FedLapFunc(delta=delta, tau=tau), 32, None)
    return variants


def compare(preset, activation, keep, variants, rounds):
    data = fashion_mnist(fraction=0.1, partition=homogeneous(), preset=preset, seed=62)
    network = fedlap.mlp(hidden=(200, 100), activation=activation)
    solver = fedlap.adam(epochs=5, batch=32, learning_rate=1e-3, keep=keep)
    print(f"{preset} inputs, rounds {', '.join(map(str, rounds))}")
    for name, (method, points, server) in variants.items():
        parties.MEMORY_BATCH = points
        jax.clear_caches()  # programs of another number of points
        history = fedlap.simulate(
            method, data, network, solver=solver, server_solver=server, rounds=rounds[-1], seed=62
        )
        line = " / ".join(f"{100 * history.accuracy[r - 3 : r].mean():.1f}" for r in rounds)
        print(f"  {name:40} {line}   NLL {history.nll[-1]:.3f}", flush=True)


if __name__ == "__main__":
    compare("paper", "sigmoid", True, raw_pixels(), (5, 10, 25))
    compare("standard", "relu", False, scaled_pixels(), (3, 5, 10))
