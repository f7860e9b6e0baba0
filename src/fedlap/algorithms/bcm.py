"""The Bayesian committee machine (Tresp, 2000), eq. (3): every client's posterior, multiplied once."""

from fedlap.algebra.hyperparameters import hyper
from fedlap.algebra.quadratic import square
from fedlap.algorithms.base import Algorithm, Factor, Gaussian, Laplace, algorithm


@algorithm
class BCM(Algorithm[Gaussian, Factor, Laplace, Factor]):
    """
    w_k ← argmin_w  ℓ_k(w) + ½δ‖w‖²,    S_k = H_k(w_k) + δI        Laplace's p_k
    v_k ← S_k w_k,                      V_k ← S_k − δI = H_k       t_k = p_k / p_0
    w_g ← S_g⁻¹ Σ_k v_k,                S_g = δI + Σ_k V_k          p_0 Π_k t_k
    """

    delta: float = hyper("positive")
    covariance: str = hyper("structure", static=True, default="diagonal")
    curvatures = True
    one_shot = True

    def init(self, s, start):
        nothing = 0.0 * s.identity(self.covariance)
        return Gaussian(s.zeros, self.delta + nothing), Factor(s.zeros, nothing)

    def broadcast(self, g):
        return g._replace(S=None)

    def client_update(self, g, t, k):
        prior = self.delta / 2 * square()
        w = k.argmin(lambda w, k: k.loss(w) + prior(w), k.start)
        return Laplace(w, k.hessian(w, self.covariance))

    def factor_update(self, g, t, q, k):
        return Factor((q.H + self.delta) @ q.w, q.H)

    def contribution(self, t, q, k):
        return t

    def server_update(self, g, c, s):
        S = self.delta + c.sum(lambda k: k.V)
        return Gaussian(S.solve(c.sum(lambda k: k.v)), S)
