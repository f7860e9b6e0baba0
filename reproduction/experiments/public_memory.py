"""FedLap-Func with inputs that nobody owns: digits, or noise, in place of the clients' own points.

A tenth of Fashion-MNIST among ten Dirichlet clients, the standard MLP, five local epochs of Adam; δ = 0.1, τ = 0.1,
nothing tuned; three seeds. Own points are one for each class that a client has, some 80 in all; public ones are 100.
python -m reproduction.experiments.public_memory FOLDER > reproduction/experiments/results/public_memory.txt
"""

import dataclasses
import sys

import numpy as np

import fedlap
from fedlap.data import fashion_mnist, mnist

SEEDS, ROUNDS, SHOWN, POINTS = (62, 63, 64), 25, (3, 5, 10, 25), 100
FUNC = fedlap.FedLapFunc(delta=0.1, tau=0.1, memory=1)


def digits(shape, seed, folder):
    """Test digits, which are no articles of clothing."""
    return mnist(fraction=0.1, seed=seed, data_dir=folder).test_inputs[:POINTS]


def pixels(shape, seed, folder):
    """Noise, even in [0, 1]."""
    return np.random.default_rng(seed).uniform(size=(POINTS, *shape))


WAYS = {
    "FedLap, no memory": (fedlap.FedLap(delta=0.1), None),
    "FedLap-Func, the clients' own points": (FUNC, None),
    "FedLap-Func, public digits": (FUNC, digits),
    "FedLap-Func, public noise": (FUNC, pixels),
}


def run(algorithm, public, seed, folder):
    split = fedlap.dirichlet(sizes=1.0, classes=0.5)
    data = fashion_mnist(fraction=0.1, partition=split, seed=seed, data_dir=folder)
    if public is not None:
        data = dataclasses.replace(data, public=public(data.inputs.shape[1:], seed, folder))
    solver = fedlap.adam(epochs=5, batch=32, learning_rate=1e-3)
    options = {"solver": solver, "server_solver": fedlap.annealed(steps=200, turns=1)}
    return fedlap.simulate(algorithm, data, fedlap.mlp(), rounds=ROUNDS, seed=seed, **options)


def main():
    (folder,) = sys.argv[1:]
    for name, (algorithm, public) in WAYS.items():
        histories = [run(algorithm, public, seed, folder) for seed in SEEDS]
        for r in SHOWN:
            accuracy = 100 * np.array([history.accuracy[r - 1] for history in histories])
            nll = np.array([history.nll[r - 1] for history in histories])
            print(
                f"{name}, round {r}: accuracy {accuracy.mean():.2f} ± {accuracy.std(ddof=1):.2f}, "
                f"NLL {nll.mean():.4f} ± {nll.std(ddof=1):.4f}, seed by seed {np.round(accuracy, 2).tolist()}",
                flush=True,
            )


if __name__ == "__main__":
    main()
