"""FedDyn without weight decay on homogeneous MNIST, in the paper's grid: does it fall apart? 20 rounds, seed 62.

The paper's figure says so of one setting, which it does not name; that of `python -m reproduction figure weight-decay`
is the middle one.
Of the grid, ten epochs at the higher rate are left out.
python -m reproduction.experiments.feddyn_no_decay
"""

from itertools import product

import fedlap
from fedlap.data import homogeneous, mnist

STEPS = [(1e-3, 1), (1e-3, 5), (1e-3, 10), (1e-2, 1), (1e-2, 5)]  # learning rates and epochs


def turns(data, rate, epochs, alpha):
    """Where accuracy and NLL are best, and where they end."""
    network = fedlap.mlp(hidden=(200, 100), activation="sigmoid")
    solver = fedlap.adam(epochs=epochs, batch=32, learning_rate=rate, keep=True)
    history = fedlap.simulate(fedlap.FedDyn(alpha=alpha), data, network, solver=solver, rounds=20, seed=62)
    accuracy, best, turn = 100 * history.accuracy, history.accuracy.argmax(), history.nll.argmin()
    return (
        f"accuracy {accuracy[best]:.1f} at round {best + 1}, {accuracy[-1]:.1f} in the end; "
        f"NLL {history.nll[turn]:.3f} at round {turn + 1}, {history.nll[-1]:.3f} in the end"
    )


def main():
    data = mnist(partition=homogeneous(), preset="paper", seed=62)
    for (rate, epochs), alpha in product(STEPS, (1e-4, 1e-5, 1e-6)):
        print(f"rate {rate:g}, {epochs} epochs, alpha {alpha:g}: {turns(data, rate, epochs, alpha)}", flush=True)


if __name__ == "__main__":
    main()
