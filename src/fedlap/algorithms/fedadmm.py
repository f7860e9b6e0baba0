"""FedADMM, eq. (2): consensus by multipliers."""

from fedlap.algebra.hyperparameters import hyper
from fedlap.algebra.quadratic import fold, linear, square
from fedlap.algorithms.base import Algorithm, Dual, Point, algorithm


@algorithm
class FedADMM(Algorithm[Point, Dual, Point, Point]):
    """
    w_k ← argmin_w  ℓ̄_k(w) + v_kᵀw + ½α‖w − w_g‖²
    v_k ← v_k + α (w_k − w_g)
    w_g ← 1/K Σ_k [w_k + v_k/α]

    Its fixed point minimises Σ_k ℓ̄_k: a small client counts as much as a large
    one. With uneven clients that is not the pooled optimum; FedDyn's is.
    """

    alpha: float = hyper("positive")
    mean_loss = True

    def init(self, s, start):
        return Point(start), Dual(s.zeros)

    def client_update(self, g, t, k):
        multiplier = fold(linear(t.v) + self.alpha / 2 * square(around=g.w))
        return Point(k.argmin(lambda w, k: k.loss(w) / k.n + multiplier(w), k.start))

    def factor_update(self, g, t, q, k):
        return Dual(t.v + self.alpha * (q.w - g.w))

    def contribution(self, t, q, k):
        return Point(q.w + t.v / self.alpha)

    def server_update(self, g, c, s):
        return Point(c.mean(lambda k: k.w))
