"""FedLap, eq. (9): a Laplace version of PVI with isotropic Gaussians, line by line ADMM."""

from fedlap.algebra.damping import by_share, damping
from fedlap.algebra.hyperparameters import hyper
from fedlap.algebra.quadratic import fold, linear, square
from fedlap.algorithms.base import Algorithm, Dual, Point, algorithm


@algorithm
class FedLap(Algorithm[Point, Dual, Point, Dual]):
    """
    w_k ← argmin_w  ℓ_k(w) + δ v_kᵀw + ½δ‖w − w_g‖²
    v_k ← v_k + ρ (w_k − w_g)
    w_g ← Σ_k v_k
    """

    delta: float = hyper("positive")
    rho: object = hyper("damping", default=by_share)

    def init(self, s, start):
        return Point(s.zeros), Dual(s.zeros)

    def client_update(self, g, t, k):
        cavity = fold(self.delta * linear(t.v) + self.delta / 2 * square(around=g.w))
        return Point(k.argmin(lambda w, k: k.loss(w) + cavity(w), k.start))

    def factor_update(self, g, t, q, k):
        return Dual(t.v + damping(self.rho, k) * (q.w - g.w))

    def contribution(self, t, q, k):
        return t

    def server_update(self, g, c, s):
        return Point(c.sum(lambda k: k.v))
