"""FedDyn without weight decay on homogeneous MNIST, in the paper's grid: does it fall apart? 20 rounds, seed 62.

The paper's figure says so of one setting, which it does not name; `fedlap figure weight-decay` has the middle one.
python paper/experiments/feddyn_no_decay.py
"""

import fedlap
from fedlap.data import homogeneous, mnist


def main():
    data = mnist(partition=homogeneous(), preset="paper", seed=62)
    network = fedlap.mlp(hidden=(200, 100), activation="sigmoid")
    for rate in (1e-3, 1e-2):
        for epochs in (1, 5, 10):
            solver = fedlap.adam(epochs=epochs, batch=32, learning_rate=rate, keep=True)
            for alpha in (1e-4, 1e-5, 1e-6):
                history = fedlap.simulate(fedlap.FedDyn(alpha=alpha), data, network, solver=solver, rounds=20, seed=62)
                best, turn = history.accuracy.argmax(), history.nll.argmin()
                print(
                    f"rate {rate:g}, {epochs} epochs, alpha {alpha:g}: accuracy {100 * history.accuracy[best]:.1f} at "
                    f"round {best + 1}, {100 * history.accuracy[-1]:.1f} in the end; NLL {history.nll[turn]:.3f} at "
                    f"round {turn + 1}, {history.nll[-1]:.3f} in the end",
                    flush=True,
                )


if __name__ == "__main__":
    main()
