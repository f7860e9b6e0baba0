"""FedProx on MNIST homogeneous with a norm that is not squared: 20 rounds, seed 62.

By its equation even the smallest alpha of the paper's grid slows clients down. The authors' later code has the plain
norm, whose pull does not grow with the distance. python -m reproduction.experiments.fedprox_norm
"""

import jax.numpy as jnp

import fedlap
from fedlap.algebra.quadratic import square
from fedlap.algorithms.base import Point, algorithm
from fedlap.data import homogeneous, mnist


@algorithm
class PlainNorm(fedlap.FedProx):
    """w_k ← argmin_w  ℓ̄_k(w) + ½α‖w − w_g‖."""

    def client_update(self, g, t, k):
        squared = square(around=g.w)
        near = lambda w: self.alpha / 2 * jnp.sqrt(squared(w) + 1e-12)  # it has a gradient at w_g too
        return Point(k.argmin(lambda w, k: k.loss(w) / k.n + near(w), k.start))


def main():
    data = mnist(partition=homogeneous(), preset="paper", seed=62)
    network = fedlap.mlp(hidden=(200, 100), activation="sigmoid")
    solver = fedlap.adam(epochs=5, batch=32, learning_rate=1e-3, keep=True)
    for method in (fedlap.FedProx(alpha=1e-2), PlainNorm(alpha=1e-2), PlainNorm(alpha=1e-1)):
        accuracy = fedlap.simulate(method, data, network, solver=solver, rounds=20, seed=62).accuracy
        print(method, " / ".join(f"{100 * accuracy[r - 3 : r].mean():.1f}" for r in (10, 20)), flush=True)


if __name__ == "__main__":
    main()
