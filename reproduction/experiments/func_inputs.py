"""FedLap-Func against FedLap in the first rounds, Fashion-MNIST 10 % homogeneous: is it the pixels, ReLU, or Adam?

From the paper's inputs and network to the standard ones, one thing at a time, three seeds:
python -m reproduction.experiments.func_inputs
"""

import numpy as np

import fedlap
from fedlap.data import fashion_mnist, homogeneous

ROUNDS = (3, 5, 10)
# Pixels as recorded or scaled, the activation, and whether Adam keeps its moments.
STEPS = (
    ("paper", "sigmoid", True),
    ("standard", "sigmoid", True),
    ("standard", "relu", True),
    ("standard", "relu", False),
)
OTHERS = (("paper", "relu", True), ("paper", "sigmoid", False))
METHODS = {"FedLap": fedlap.FedLap(delta=1), "FedLap-Func": fedlap.FedLapFunc(delta=1, tau=0.1)}


def line(method, preset, activation, keep):
    network = fedlap.mlp(hidden=(200, 100), activation=activation)
    solver = fedlap.adam(epochs=5, batch=32, learning_rate=1e-3, keep=keep)
    found = []
    for seed in (62, 63, 64):
        data = fashion_mnist(fraction=0.1, partition=homogeneous(), preset=preset, seed=seed)
        accuracy = fedlap.simulate(method, data, network, solver=solver, rounds=ROUNDS[-1], seed=seed).accuracy
        found.append([100 * accuracy[r - 3 : r].mean() for r in ROUNDS])
    return np.mean(found, axis=0), np.std(found, axis=0)


if __name__ == "__main__":
    print(f"mean(standard deviation) of three seeds at rounds {', '.join(map(str, ROUNDS))}")
    for preset, activation, keep in STEPS + OTHERS:
        print(f"{preset} pixels, {activation}, Adam {'kept' if keep else 'afresh'}")
        for name, method in METHODS.items():
            mean, deviation = line(method, preset, activation, keep)
            shown = " / ".join(f"{m:.1f}({d:.1f})" for m, d in zip(mean, deviation, strict=True))
            print(f"  {name:12} {shown}", flush=True)
