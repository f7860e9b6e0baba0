"""FedDyn on Fashion-MNIST 10 % homogeneous with w_g = 0 before the first round, as Bayes has it: 50 rounds, seed 62.

FedDyn has no prior: its w_g is the network that clients start from. From zero, all that a network is made of counts as
moved, and the first average counts twice. python -m reproduction.experiments.feddyn_start
"""

import fedlap
from fedlap.algorithms.base import Dual, algorithm
from fedlap.algorithms.feddyn import Remembered
from fedlap.data import fashion_mnist, homogeneous


@algorithm
class FromZero(fedlap.FedDyn):
    """w_g = 0 before the first round."""

    def init(self, s, start):
        return Remembered(s.zeros, s.zeros), Dual(s.zeros)


# The paper's inputs and network, and what a user would run.
INPUTS = {"paper": ("sigmoid", True), "standard": ("relu", False)}


def main():
    for preset, (activation, keep) in INPUTS.items():
        data = fashion_mnist(fraction=0.1, partition=homogeneous(), preset=preset, seed=62)
        network = fedlap.mlp(hidden=(200, 100), activation=activation)
        solver = fedlap.adam(epochs=5, batch=32, learning_rate=1e-3, keep=keep)
        for method in (fedlap.FedDyn, FromZero):
            history = fedlap.simulate(
                method(alpha=1e-2, weight_decay=1e-4), data, network, solver=solver, rounds=50, seed=62
            )
            line = " / ".join(f"{100 * history.accuracy[r - 3 : r].mean():.1f}" for r in (3, 10, 25, 50))
            print(f"{preset} inputs, {method.__name__}: {line}   NLL {history.nll[-1]:.3f}", flush=True)


if __name__ == "__main__":
    main()
