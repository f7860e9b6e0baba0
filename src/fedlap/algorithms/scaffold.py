"""SCAFFOLD (Karimireddy et al., 2020): FedAvg whose steps are corrected by what all clients' gradients are."""

from typing import Any, NamedTuple

from fedlap.algebra.hyperparameters import choice, hyper
from fedlap.algebra.quadratic import linear
from fedlap.algebra.vector import Vector
from fedlap.algorithms.base import Algorithm, Point, algorithm


class Steered(NamedTuple):
    """w_g, and c: the control variate of all clients together."""

    w: Vector
    c: Vector


class Control(NamedTuple):
    """c_k, an estimate of the gradient of client k's mean loss."""

    c: Vector


class Corrected(NamedTuple):
    """w_k and c_k, and the client's share of the data."""

    w: Vector
    c: Vector
    share: Any


@algorithm
class SCAFFOLD(Algorithm[Steered, Control, Point, Corrected]):
    """
    w_k ← argmin_w  ℓ̄_k(w) + (c − c_k)ᵀw        from w_g: a step is w − η (∇ℓ̄_k − c_k + c)
    c_k ← ∇ℓ̄_k(w_g)                             control = "gradient", the paper's option I
    c_k ← c_k − c + (w_g − w_k) / (η ‖a_k‖₁)     control = "steps", option II; ‖a_k‖₁ is the number of steps
    w_g ← w_g + η_g Σ_k N_k (w_k − w_g) / Σ_k N_k      over the clients drawn
    c   ← Σ_k (N_k/N) c_k                         over all clients, of each the last

    Its fixed point minimises Σ_k ℓ_k: the pooled optimum, however many steps a
    client takes. The paper's clients weigh alike; here they weigh by N_k.
    Of networks take "steps": it knows the slope along all of a client's steps, and
    "gradient" only where they begin, which may be too far away.
    """

    control: str = hyper(choice("gradient", "steps"), static=True, default="gradient")
    server_rate: float = hyper("positive", default=1.0)
    mean_loss = True

    def init(self, s, start):
        return Steered(start, s.zeros), Control(s.zeros)

    def client_update(self, g, t, k):
        drift = linear(g.c - t.c)
        return Point(k.argmin(lambda w, k: k.loss(w) / k.n + drift(w), k.start))

    def factor_update(self, g, t, q, k):
        if self.control == "gradient":
            return Control(k.gradient(g.w) / k.n)
        return Control(t.c - g.c + (g.w - q.w) / (k.rate * k.effective_steps()))

    def contribution(self, t, q, k):
        return Corrected(q.w, t.c, k.share)

    def server_update(self, g, c, s):
        mean = c.average(lambda k: k.w, weights=lambda k: k.share)
        return Steered(g.w + self.server_rate * (mean - g.w), c.sum(lambda k: k.share * k.c))
