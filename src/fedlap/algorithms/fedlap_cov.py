"""FedLap-Cov, eqs. (12), (14) and (21): FedLap with a covariance, diagonal or full."""

from fedlap.algebra.damping import damping, evenly, undamped
from fedlap.algebra.evidence import first, kept, prior
from fedlap.algebra.hyperparameters import hyper
from fedlap.algebra.quadratic import fold, linear, square
from fedlap.algorithms.base import Algorithm, DampedFactor, DampedGaussian, Laplace, algorithm


@algorithm
class FedLapCov(Algorithm[DampedGaussian, DampedFactor, Laplace, DampedFactor]):
    """
    w_k ← argmin_w  ℓ_k(w) + v_kᵀw − ½wᵀV_k w + ½‖w − w_g‖²_{S_g},   S_k = H_k(w_k) − V_k + S_g
    v_k ← v_k + ρ (S_k w_k − S_g w_g),                                 V_k ← (1 − ρ) V_k + ρ H_k
    w_g ← S_g⁻¹ Σ_k v_k,                                               S_g = δI + Σ_k V_k

    ρ = 1/K, the default, or N_k/N: safe with every covariance and model, as w_g is an average of what clients ask for.
    ρ = 1: Newton's method, with covariance="full" and a convex loss. A diagonal does not know that correlated features
    share a correction, every client makes it in full, and w_g diverges.
    δ: a number, or "evidence": the server's δ ← γ/‖w_g‖², γ = P − δ tr S_g⁻¹ without the lag; not for networks.
    S_g lags: after R rounds it has the part 1 − (1 − ρ)^R of every H_k; history.precision has all of it.
    """

    delta: object = hyper("prior")
    rho: object = hyper("damping", default=evenly)
    covariance: str = hyper("structure", static=True, default="diagonal")
    curvatures = True

    def init(self, s, start):
        nothing = 0.0 * s.identity(self.covariance)
        delta = first(self.delta, s.zeros)
        S = delta + nothing
        return DampedGaussian(s.zeros, S, S, kept(self.delta, delta)), DampedFactor(s.zeros, nothing, s.zero)

    def broadcast(self, g):
        return g._replace(ahead=None, delta=None)

    def client_update(self, g, t, k):
        cavity = fold(linear(t.v) - square(t.V) / 2 + square(g.S, around=g.w) / 2)
        w = k.argmin(lambda w, k: k.loss(w) + cavity(w), k.start)
        return Laplace(w, k.hessian(w, self.covariance))

    def factor_update(self, g, t, q, k):
        # Without S_k itself: where S_g is large, S_k − S_g would lose V_k to rounding, and with it its sign.
        rho = damping(self.rho, k)
        v = t.v + rho * ((q.H - t.V) @ q.w + g.S @ (q.w - g.w))
        return DampedFactor(v, (1 - rho) * t.V + rho * q.H, (1 - rho) * t.reached + rho)

    def contribution(self, t, q, k):
        return t

    def server_update(self, g, c, s):
        delta = prior(self.delta, g)
        S = delta + c.sum(lambda k: k.V)
        ahead = delta + c.sum(lambda k: undamped(k.V, k.reached))
        return DampedGaussian(S.solve(c.sum(lambda k: k.v), near=g.w), S, ahead, kept(self.delta, delta))
