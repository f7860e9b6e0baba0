"""FedLap-Func on Fashion-MNIST 10 % homogeneous: does it matter where the server begins its argmin? Seed 62.

A step of FedLap from its last model, or FedLap's sum: python paper/experiments/func_start.py
"""

import fedlap
from fedlap.algorithm import algorithm
from fedlap.data import fashion_mnist, homogeneous

ROUNDS = (3, 5, 10, 25)


@algorithm
class FromSum(fedlap.FedLapFunc):
    """The server begins at Σ_k v_k."""

    def server_update(self, g, c, s):
        return fedlap.FedLapFunc.server_update(self, g._replace(w=s.zeros, m=s.zeros), c, s)


STARTS = {"a step of FedLap": fedlap.FedLapFunc, "FedLap's sum": FromSum}

if __name__ == "__main__":
    data = fashion_mnist(fraction=0.1, partition=homogeneous(), preset="paper", seed=62)
    network = fedlap.mlp(hidden=(200, 100), activation="sigmoid")
    solver = fedlap.adam(epochs=5, batch=32, learning_rate=1e-3, keep=True)
    print(f"delta 0.1, rounds {', '.join(map(str, ROUNDS))}")
    for tau, rate in ((1e-3, 1e-3), (1e-3, 1e-4), (1e-1, 1e-3)):
        for name, method in STARTS.items():
            history = fedlap.simulate(
                method(delta=0.1, tau=tau),
                data,
                network,
                solver=solver,
                server_solver=fedlap.descent(learning_rate=rate),
                rounds=ROUNDS[-1],
                seed=62,
            )
            line = " / ".join(f"{100 * history.accuracy[r - 3 : r].mean():.1f}" for r in ROUNDS)
            print(f"  tau {tau:g}, server's rate {rate:g}, from {name:16} {line}", flush=True)
