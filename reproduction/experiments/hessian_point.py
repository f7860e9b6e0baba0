"""FedLap-Cov: does it matter where a client takes its Hessian, at the new w_k or at w_g, where it began?

Eq. (14) has H_k at the new w_k; the words of the paper's appendix about V_k's line allow the point before. With exact
local minima, ρ = 1/K and float64, on the four hospitals: the distance of w_g from the optimum of the pooled data after
eight rounds. python -m reproduction.experiments.hessian_point
"""

from itertools import product
from typing import Any, NamedTuple

import jax
import numpy as np

import fedlap
from fedlap.algebra.vector import Vector
from fedlap.algorithms.base import Laplace, algorithm
from fedlap.data import heart

jax.config.update("jax_enable_x64", True)
ROUNDS = 8
MODEL, SOLVER = fedlap.logistic(bias=True), fedlap.newton()


@algorithm
class Before(fedlap.FedLapCov):
    """H_k at w_g in both lines."""

    def client_update(self, g, t, k):
        q = fedlap.FedLapCov.client_update(self, g, t, k)
        return Laplace(q.w, k.hessian(g.w, self.covariance))


class Two(NamedTuple):
    """A client's minimum, and the curvature of its loss there and at w_g."""

    w: Vector
    H: Any
    before: Any


@algorithm
class Mixed(fedlap.FedLapCov):
    """H_k at w_k in v_k's line and at w_g in V_k's."""

    def client_update(self, g, t, k) -> Any:  # not a Laplace, which FedLapCov's is
        q = fedlap.FedLapCov.client_update(self, g, t, k)
        return Two(q.w, q.H, k.hessian(g.w, self.covariance))

    def factor_update(self, g, t, q, k):
        new, old = (fedlap.FedLapCov.factor_update(self, g, t, Laplace(q.w, H), k) for H in (q.H, q.before))
        return new._replace(V=old.V)


class Remembering(NamedTuple):
    """A site that knows its client's last minimum."""

    v: Vector
    V: Any
    reached: Any
    w: Vector


@algorithm
class Previous(fedlap.FedLapCov):
    """H_k in both lines at the client's minimum of the round before."""

    def init(self, s, start) -> tuple[Any, Any]:  # not a DampedFactor, which FedLapCov's is
        g, t = fedlap.FedLapCov.init(self, s, start)
        return g, Remembering(*t, s.zeros)

    def client_update(self, g, t, k):
        q = fedlap.FedLapCov.client_update(self, g, t, k)
        return Laplace(q.w, k.hessian(t.w, self.covariance))

    def factor_update(self, g, t, q, k) -> Any:
        return Remembering(*fedlap.FedLapCov.factor_update(self, g, t, q, k), q.w)


def pooled(data, delta):
    """The optimum: with full covariances and ρ = 1 FedLap-Cov is Newton's method, and ends there."""
    method = fedlap.FedLapCov(delta=delta, rho=1.0, covariance="full")
    return fedlap.simulate(method, data, MODEL, solver=SOLVER, rounds=30).final.w


def distance(method, data, optimum):
    found = fedlap.simulate(method, data, MODEL, solver=SOLVER, rounds=ROUNDS).final.w
    return np.linalg.norm(found - optimum) / np.linalg.norm(optimum)


def main():
    data = heart()
    print(
        "distance from the optimum with H at w_k; how many times larger at the w_k of the round before, at w_g, "
        "and with v_k's at w_k and V_k's at w_g"
    )
    for covariance, delta in product(("diagonal", "full"), (0.1, 1.0, 10.0)):
        optimum = pooled(data, delta)
        after, *others = (
            distance(method(delta=delta, rho=fedlap.evenly, covariance=covariance), data, optimum)
            for method in (fedlap.FedLapCov, Previous, Before, Mixed)
        )
        times = ", ".join(f"{other / after:.1f}" for other in others)
        print(f"{covariance}, delta {delta:g}: {after:.1e}, {times}", flush=True)


if __name__ == "__main__":
    main()
