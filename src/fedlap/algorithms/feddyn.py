"""FedDyn (Acar et al., 2021), sec. 2: ADMM with a step per client, weight decay, and a history on the server."""

from typing import Any, NamedTuple

from fedlap.algebra.hyperparameters import hyper
from fedlap.algebra.quadratic import fold, linear, square
from fedlap.algebra.vector import Vector
from fedlap.algorithms.base import Algorithm, Client, Dual, Point, algorithm


class Remembered(NamedTuple):
    """w_g, and h = 1/K Σ_k v_k/α_k, which the server can add up by itself."""

    w: Vector
    h: Vector


@algorithm
class FedDyn(Algorithm[Remembered, Dual, Point, Point]):
    """
    w_k ← argmin_w  ℓ̄_k(w) + v_kᵀw + ½α_k‖w − w_g‖² + ½λ‖w‖²,    α_k = α (N/K) / N_k
    v_k ← v_k + α_k (w_k − w_g)
    h   ← h + 1/K Σ_k (w_k − w_g),    w_g ← mean_k w_k + h         over the clients drawn

    Its fixed point minimises Σ_k ℓ_k + ½Nλ‖w‖²: the pooled optimum, whatever
    the clients' sizes.
    """

    alpha: float = hyper("positive")
    weight_decay: float = hyper("nonnegative", default=0.0)
    mean_loss = True

    def init(self, s, start):
        return Remembered(start, s.zeros), Dual(s.zeros)

    def broadcast(self, g):
        return g._replace(h=None)

    def step(self, k: Client) -> Any:
        return self.alpha / (k.share * k.count)

    def client_update(self, g, t, k):
        multiplier = fold(linear(t.v) + self.step(k) / 2 * square(around=g.w) + self.weight_decay / 2 * square())
        return Point(k.argmin(lambda w, k: k.loss(w) / k.n + multiplier(w), k.start))

    def factor_update(self, g, t, q, k):
        return Dual(t.v + self.step(k) * (q.w - g.w))

    def contribution(self, t, q, k):
        return q

    def server_update(self, g, c, s):
        mean = c.average(lambda k: k.w)
        h = g.h + s.participation * (mean - g.w)
        return Remembered(mean + h, h)
