"""FedAvg (McMahan et al., 2017): train locally, average."""

from fedlap.algorithms.base import Algorithm, Counted, Nothing, Point, algorithm


@algorithm
class FedAvg(Algorithm[Point, Nothing, Point, Counted]):
    """
    w_k ← argmin_w  ℓ̄_k(w)
    w_g ← Σ_k N_k w_k / Σ_k N_k
    """

    mean_loss = True

    def init(self, s, start):
        return Point(start), Nothing()

    def client_update(self, g, t, k):
        return Point(k.argmin(lambda w, k: k.loss(w) / k.n, k.start))

    def factor_update(self, g, t, q, k):
        return t

    def contribution(self, t, q, k):
        return Counted(q.w, k.n)

    def server_update(self, g, c, s):
        return Point(c.average(lambda k: k.w, weights=lambda k: k.n))
