"""FedLap-Func, eq. (17): FedLap that also sends what its model says about a few shared inputs."""

from typing import Any, NamedTuple

from fedlap.algebra.damping import by_share, damping
from fedlap.algebra.hyperparameters import hyper
from fedlap.algebra.quadratic import fold, linear, square
from fedlap.algebra.soft_labels import Distilled, SoftLabels
from fedlap.algebra.vector import Vector
from fedlap.algorithms.base import Algorithm, Point, algorithm


class Labelled(NamedTuple):
    """w_g; m = Σ_k v_k, where FedLap would be; the weight of each memory point, zero until its owner has spoken."""

    w: Vector
    m: Vector
    mass: Any


class LabelledDual(NamedTuple):
    """log t(w) = δvᵀw − Σ_i τ_i ℓ(ŷ_i, w)."""

    v: Vector
    y: SoftLabels


@algorithm
class FedLapFunc(Algorithm[Labelled, LabelledDual, Point, LabelledDual]):
    """
    w_k ← argmin_w  ℓ_k(w) + δ v_kᵀw + ½δ‖w − w_g‖² − Σ_{M_k} τ_i ℓ(ŷ_i, w) + Σ_k' Σ_{M_k'} τ_i ℓ(ŷ_{i,g}, w)
    v_k ← v_k + ρ (w_k − w_g),    ŷ_i ← f(x_i; w_k)
    w_g ← argmin_w  Σ_k [Σ_{M_k} τ_i ℓ(ŷ_i, w) − δ v_kᵀw] + ½δ‖w‖²,    τ_i = τ N_kc / M_kc
    """

    delta: float = hyper("positive")
    tau: float = hyper("nonnegative", default=1.0)
    rho: object = hyper("damping", default=by_share)
    memory: int = hyper("whole", static=True, default=1)
    revision = 2  # 1 began the server's argmin at m

    def init(self, s, start):
        return Labelled(s.zeros, s.zeros, s.silence.mass), LabelledDual(s.zeros, s.unlabelled)

    def broadcast(self, g):
        return g._replace(m=None)

    def client_update(self, g, t, k):
        cavity = fold(self.delta * linear(t.v) + self.delta / 2 * square(around=g.w))
        y = k.everyone(g.w, g.mass) - k.own(t.y)
        return Point(k.argmin(lambda w, k: k.loss(w) + cavity(w) + self.tau * k.distil(w, y), k.start))

    def factor_update(self, g, t, q, k):
        return LabelledDual(t.v + damping(self.rho, k) * (q.w - g.w), k.soften(q.w))

    def contribution(self, t, q, k):
        return t

    def server_update(self, g, c, s):
        m, y = c.sum(lambda k: k.v), c.gather(lambda k: k.y)
        posterior = self.delta / 2 * square(around=m)
        # From FedLap's step, w_g + Σ_k ρ (w_k − w_g). Part of the model is in the labels, so m alone may be a poor one.
        w = s.argmin(Distilled(self.tau, s.distil, y, posterior), g.w + (m - g.m))
        return Labelled(w, m, y.mass)
