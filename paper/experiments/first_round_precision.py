"""FedLap-Cov on Fashion-MNIST 10 % homogeneous: S_g = δI in round 1, as in the equations, or 0, as the authors have it.

About the one cell of that row which is outside: python paper/experiments/first_round_precision.py [SEED …]
"""

import sys

import numpy as np

import fedlap
from fedlap.algorithm import Gaussian, Site, algorithm
from fedlap.data import fashion_mnist, homogeneous


@algorithm
class FromZero(fedlap.FedLapCov):
    """The same, except that the first round knows no prior."""

    def init(self, s):
        nothing = 0.0 * s.identity(self.covariance)
        return Gaussian(s.zeros, nothing), Site(s.zeros, nothing)


def main(seeds):
    network = fedlap.mlp(hidden=(200, 100), activation="sigmoid")
    solver = fedlap.adam(epochs=5, batch=32, learning_rate=1e-3, keep=True)
    for method in (fedlap.FedLapCov(delta=1e-3), FromZero(delta=1e-3)):
        lines = []
        for seed in seeds:
            data = fashion_mnist(fraction=0.1, partition=homogeneous(), preset="paper", seed=seed)
            accuracy = fedlap.simulate(method, data, network, solver=solver, rounds=25, seed=seed).accuracy
            lines.append([100 * accuracy[r - 3 : r].mean() for r in (10, 25)])
        mean, deviation = np.mean(lines, axis=0), np.std(lines, axis=0)
        print(method, " / ".join(f"{m:.1f}({d:.1f})" for m, d in zip(mean, deviation, strict=True)), flush=True)


if __name__ == "__main__":
    main([int(word) for word in sys.argv[1:]] or [62, 63, 64])
