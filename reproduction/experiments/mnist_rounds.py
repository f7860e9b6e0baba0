"""FedLap on homogeneous MNIST: how many rounds to 97.5 % with more epochs or a higher rate, both in the paper's grid?

The tables have five epochs and a rate of 1e-3, carried over from Fashion-MNIST. Seed 62:
python -m reproduction.experiments.mnist_rounds
"""

import fedlap
from fedlap.data import homogeneous, mnist

ROUNDS, TARGET = 12, 0.975


def main():
    data = mnist(partition=homogeneous(), preset="paper", seed=62)
    network = fedlap.mlp(hidden=(200, 100), activation="sigmoid")
    for rate in (1e-3, 1e-2):
        for epochs in (5, 10):
            solver = fedlap.adam(epochs=epochs, batch=32, learning_rate=rate, keep=True)
            history = fedlap.simulate(fedlap.FedLap(delta=0.1), data, network, solver=solver, rounds=ROUNDS, seed=62)
            reached = next((r for r, accuracy in enumerate(history.accuracy, start=1) if accuracy >= TARGET), None)
            words = f"{epochs} epochs at {rate:g}: {100 * TARGET:g} % after {reached} rounds"
            print(f"{words}; at round 10 {100 * history.accuracy[7:10].mean():.1f}", flush=True)


if __name__ == "__main__":
    main()
