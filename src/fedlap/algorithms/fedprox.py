"""FedProx (Li et al., 2020): FedAvg that stays near the global weights."""

from fedlap.algebra.hyperparameters import hyper
from fedlap.algebra.quadratic import square
from fedlap.algorithms.base import Algorithm, Counted, Nothing, Point, algorithm


@algorithm
class FedProx(Algorithm[Point, Nothing, Point, Counted]):
    """
    w_k ← argmin_w  ℓ̄_k(w) + ½α‖w − w_g‖²
    w_g ← Σ_k N_k w_k / Σ_k N_k
    """

    alpha: float = hyper("nonnegative")
    mean_loss = True

    def init(self, s, start):
        return Point(start), Nothing()

    def client_update(self, g, t, k):
        near = self.alpha / 2 * square(around=g.w)
        return Point(k.argmin(lambda w, k: k.loss(w) / k.n + near(w), k.start))

    def factor_update(self, g, t, q, k):
        return t

    def contribution(self, t, q, k):
        return Counted(q.w, k.n)

    def server_update(self, g, c, s):
        return Point(c.average(lambda k: k.w, weights=lambda k: k.n))
