"""FedDyn on Fashion-MNIST 10 % homogeneous with a weaker history on the server: 50 rounds, seed 62.

FedDyn as published adds all that clients have ever moved, on average; the authors' later code seems to add less.
python -m reproduction.experiments.feddyn_history
"""

import fedlap
from fedlap.algebra.hyperparameters import hyper
from fedlap.algorithms.base import algorithm
from fedlap.algorithms.feddyn import Remembered
from fedlap.data import fashion_mnist, homogeneous


@algorithm
class WeakerHistory(fedlap.FedDyn):
    """w_g ← mean_k w_k + s·h."""

    strength: float = hyper("positive", default=1.0)

    def server_update(self, g, c, s):
        mean = c.average(lambda k: k.w)
        h = g.h + s.participation * (mean - g.w)
        return Remembered(mean + self.strength * h, h)


def main():
    data = fashion_mnist(fraction=0.1, partition=homogeneous(), preset="paper", seed=62)
    network = fedlap.mlp(hidden=(200, 100), activation="sigmoid")
    solver = fedlap.adam(epochs=5, batch=32, learning_rate=1e-3, keep=True)
    for strength in (1.0, 0.1):
        method = WeakerHistory(alpha=1e-3, weight_decay=1e-4, strength=strength)
        history = fedlap.simulate(method, data, network, solver=solver, rounds=50, seed=62)
        line = " / ".join(f"{100 * history.accuracy[r - 3 : r].mean():.1f}" for r in (10, 25, 50))
        print(f"history times {strength}: {line}   NLL {history.nll[-1]:.3f}", flush=True)


if __name__ == "__main__":
    main()
