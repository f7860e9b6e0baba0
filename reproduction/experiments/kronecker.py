"""Does a Kronecker covariance gain over a diagonal one at equal rounds, on a tenth of Fashion-MNIST?

The row standard-fmnist-heterog: ten Dirichlet clients, 784-200-100-10, five local epochs of Adam, ρ = 1/K. Each
method's δ is chosen by the validation NLL, of a tenth of every client's rows, after ten rounds of the first seed; then
three seeds on the test set, each method with its own δ and with the other's.
python -m reproduction.experiments.kronecker FOLDER > reproduction/experiments/results/kronecker.txt
"""

import sys

import numpy as np

import fedlap
from fedlap.data import fashion_mnist

DELTAS, SEEDS, SEARCHED, ROUNDS, SHOWN = (0.1, 1.0, 10.0, 100.0), (62, 63, 64), 10, 25, (5, 10, 25)
METHODS = {"diagonal": fedlap.FedLapCov, "Kronecker": fedlap.FedLapKron}


def run(method, delta, seed, rounds, folder, held_out=0.0):
    split = fedlap.dirichlet(sizes=1.0, classes=0.5)
    data = fashion_mnist(fraction=0.1, partition=split, seed=seed, data_dir=folder)
    data = data.hold_out(held_out, seed=seed) if held_out else data
    solver = fedlap.adam(epochs=5, batch=32, learning_rate=1e-3)
    algorithm = METHODS[method](delta=delta, rho=fedlap.evenly)
    return fedlap.simulate(algorithm, data, fedlap.mlp(), solver=solver, rounds=rounds, seed=seed)


def search(method, folder):
    """The δ with the least validation NLL."""
    nll = {delta: run(method, delta, SEEDS[0], SEARCHED, folder, held_out=0.1).nll[-1] for delta in DELTAS}
    print(
        f"{method}: validation NLL", ", ".join(f"{value:.4f} at {delta:g}" for delta, value in nll.items()), flush=True
    )
    return min(nll, key=nll.__getitem__)


def show(method, delta, folder):
    histories = [run(method, delta, seed, ROUNDS, folder) for seed in SEEDS]
    for r in SHOWN:
        accuracy = 100 * np.array([history.accuracy[r - 1] for history in histories])
        nll = np.array([history.nll[r - 1] for history in histories])
        print(
            f"{method}, delta {delta:g}, round {r}: accuracy {accuracy.mean():.2f} ± {accuracy.std(ddof=1):.2f}, "
            f"NLL {nll.mean():.4f} ± {nll.std(ddof=1):.4f}, seed by seed {np.round(accuracy, 2).tolist()}",
            flush=True,
        )


def main():
    (folder,) = sys.argv[1:]
    chosen = {method: search(method, folder) for method in METHODS}
    for method in METHODS:
        for delta in sorted(set(chosen.values())):
            show(method, delta, folder)


if __name__ == "__main__":
    main()
