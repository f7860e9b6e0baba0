"""FedLap-Func: does it matter where the server begins its argmin? python -m reproduction.experiments.func_start

At a step of FedLap from its last model, or at FedLap's sum. On UCI Credit, where Newton finds the argmin itself, three
seeds; on Fashion-MNIST 10 % homogeneous, seed 62.
"""

import numpy as np

import fedlap
from fedlap.algorithms.base import algorithm
from fedlap.data import credit, fashion_mnist, homogeneous
from fedlap.solvers import ServerSolver


@algorithm
class FromSum(fedlap.FedLapFunc):
    """The server begins at Σ_k v_k."""

    def server_update(self, g, c, s):
        return fedlap.FedLapFunc.server_update(self, g._replace(w=s.zeros, m=s.zeros), c, s)


STARTS = {"from a step of FedLap": fedlap.FedLapFunc, "from FedLap's sum": FromSum}


def at(history, rounds):
    return [100 * history.accuracy[round - 3 : round].mean() for round in rounds]


def on_credit(rounds=(10, 25, 50)):
    model, solver = fedlap.logistic(bias=False), fedlap.adam(epochs=10, batch=4, learning_rate=1e-3, keep=True)
    print(f"UCI Credit, ten epochs, rounds {', '.join(map(str, rounds))}")
    for delta in (0.1, 1.0, 10.0):
        servers: dict[str, tuple[type[fedlap.FedLapFunc], ServerSolver]] = {
            name: (method, fedlap.descent()) for name, method in STARTS.items()
        }
        servers["by Newton"] = (fedlap.FedLapFunc, fedlap.newton())
        for name, (method, server) in servers.items():
            found = []
            for seed in (62, 63, 64):
                options = {"solver": solver, "server_solver": server, "rounds": rounds[-1], "seed": seed}
                data = credit(preset="paper", seed=seed)
                found.append(at(fedlap.simulate(method(delta=delta), data, model, **options), rounds))
            means, deviations = np.mean(found, 0), np.std(found, 0)
            line = " / ".join(f"{mean:.1f}({by:.1f})" for mean, by in zip(means, deviations, strict=True))
            print(f"  delta {delta:g}, {name:22} {line}", flush=True)


def on_fashion_mnist(rounds=(3, 5, 10, 25)):
    data = fashion_mnist(fraction=0.1, partition=homogeneous(), preset="paper", seed=62)
    model = fedlap.mlp(hidden=(200, 100), activation="sigmoid")
    solver = fedlap.adam(epochs=5, batch=32, learning_rate=1e-3, keep=True)
    print(f"Fashion-MNIST 10 %, delta 0.1, rounds {', '.join(map(str, rounds))}")
    for tau, rate in ((1e-3, 1e-3), (1e-3, 1e-4), (1e-1, 1e-3)):
        for name, method in STARTS.items():
            options = {"solver": solver, "server_solver": fedlap.descent(learning_rate=rate), "seed": 62}
            history = fedlap.simulate(method(delta=0.1, tau=tau), data, model, rounds=rounds[-1], **options)
            line = " / ".join(f"{value:.1f}" for value in at(history, rounds))
            print(f"  tau {tau:g}, server's rate {rate:g}, {name:22} {line}", flush=True)


if __name__ == "__main__":
    on_credit()
    on_fashion_mnist()
