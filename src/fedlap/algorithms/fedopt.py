"""FedOpt (Reddi et al., 2021): FedAvg whose server takes the clients' average change for a gradient."""

from typing import Any, NamedTuple

from fedlap.algebra.hyperparameters import choice, hyper
from fedlap.algebra.vector import Vector
from fedlap.algorithms.base import Algorithm, Counted, Nothing, Point, algorithm


class Adaptive(NamedTuple):
    """w_g, and the server's own: m, how it has moved, and v, how far, squared; None where nothing asks for it."""

    w: Vector
    m: Any
    v: Any


@algorithm
class FedOpt(Algorithm[Adaptive, Nothing, Point, Counted]):
    """
    w_k ← argmin_w  ℓ̄_k(w)
    Δ   ← Σ_k N_k (w_k − w_g) / Σ_k N_k                 over the clients drawn
    m   ← β₁ m + (1 − β₁) Δ
    v   ← β₂ v + (1 − β₂) Δ²                            rule = "adam": FedAdam
    v   ← v − (1 − β₂) Δ² sign(v − Δ²)                  "yogi": FedYogi
    v   ← v + Δ²                                        "adagrad": FedAdagrad
    w_g ← w_g + η m / (√v + τ),  from v = τ²;  w_g + η m  with "sgd"

    With "sgd", η = 1 and β₁ = 0 it is FedAvg, to which Adagrad and Yogi tend as
    η = 2τ → ∞. Moments are the paper's, and not optax's: its Adam and Yogi correct
    for their start, and its Adagrad has √(v + τ) in place of √v + τ.
    """

    learning_rate: float = hyper("positive")
    rule: str = hyper(choice("adam", "yogi", "adagrad", "sgd"), static=True, default="adam")
    beta1: float = hyper("fraction", default=0.9)
    beta2: float = hyper("fraction", default=0.99)
    tau: float = hyper("positive", default=1e-3)
    mean_loss = True

    def init(self, s, start):
        return Adaptive(start, s.zeros, None if self.rule == "sgd" else s.zeros + self.tau**2), Nothing()

    def broadcast(self, g):
        return g._replace(m=None, v=None)

    def client_update(self, g, t, k):
        return Point(k.argmin(lambda w, k: k.loss(w) / k.n, k.start))

    def factor_update(self, g, t, q, k):
        return t

    def contribution(self, t, q, k):
        return Counted(q.w, k.n)

    def server_update(self, g, c, s):
        change = c.average(lambda k: k.w, weights=lambda k: k.n) - g.w
        m = self.beta1 * g.m + (1 - self.beta1) * change
        if self.rule == "sgd":
            return Adaptive(g.w + self.learning_rate * m, m, None)
        v = self.spread(g.v, change.times(change))
        steps = v.map(lambda v: self.learning_rate / (v**0.5 + self.tau))
        return Adaptive(g.w + steps.times(m), m, v)

    def spread(self, v: Vector, square: Vector) -> Vector:
        if self.rule == "adagrad":
            return v + square
        if self.rule == "adam":
            return self.beta2 * v + (1 - self.beta2) * square
        sign = (v - square).map(lambda x: 1.0 * (x > 0) - 1.0 * (x < 0))
        return v - (1 - self.beta2) * square.times(sign)
