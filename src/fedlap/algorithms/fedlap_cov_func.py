"""FedLap-Cov-Func: both parents at once, as App. C says can be derived; see docs/fedlap-cov-func.md."""

from typing import Any, NamedTuple

from fedlap.algebra.damping import damping, evenly, undamped
from fedlap.algebra.evidence import first, kept, prior
from fedlap.algebra.hyperparameters import hyper
from fedlap.algebra.quadratic import fold, linear, square
from fedlap.algebra.soft_labels import Distilled, SoftLabels
from fedlap.algebra.vector import Vector
from fedlap.algorithms.base import Algorithm, Laplace, algorithm


class LabelledGaussian(NamedTuple):
    """N(w, S⁻¹); m = S⁻¹Σ_k v_k, where FedLap-Cov would be; the weight of each memory point, as in FedLap-Func."""

    w: Vector
    S: Any  # without the memory points, which speak for themselves
    m: Vector
    mass: Any
    precision: Any  # with them
    ahead: Any  # with them, and without the lag of damping
    delta: Any = None  # where the evidence has chosen it


class LabelledFactor(NamedTuple):
    """log t(w) = vᵀw − ½wᵀVw − Σ_i τ_i ℓ(ŷ_i, w)."""

    v: Vector
    V: Any
    y: SoftLabels
    reached: Any  # 1 − Π(1 − ρ)


@algorithm
class FedLapCovFunc(Algorithm[LabelledGaussian, LabelledFactor, Laplace, LabelledFactor]):
    """
    w_k ← argmin_w  ℓ_k(w) + v_kᵀw − ½wᵀV_k w + ½‖w − w_g‖²_{S_g}
                    − Σ_{M_k} τ_i ℓ(ŷ_i, w) + Σ_k' Σ_{M_k'} τ_i ℓ(ŷ_{i,g}, w)
    H_k = [∇²ℓ_k(w_k) − H^{M_k}(w_k)]₊,   S_k = H_k − V_k + S_g       what function space says is not said twice
    v_k ← v_k + ρ (S_k w_k − S_g w_g),    V_k ← (1 − ρ) V_k + ρ H_k,    ŷ_i ← f(x_i; w_k)
    w_g ← argmin_w  Σ_k [Σ_{M_k} τ_i ℓ(ŷ_i, w) − v_kᵀw] + ½wᵀS_g w,    S_g = δI + Σ_k V_k
    """

    delta: object = hyper("prior")
    tau: float = hyper("nonnegative", default=1.0)
    rho: object = hyper("damping", default=evenly)
    covariance: str = hyper("structure", static=True, default="diagonal")
    memory: int = hyper("whole", static=True, default=1)
    curvatures, revision = True, 2  # revision 1 began the server's argmin at m

    def init(self, s, start):
        nothing, delta = 0.0 * s.identity(self.covariance), first(self.delta, s.zeros)
        S = delta + nothing
        g = LabelledGaussian(s.zeros, S, s.zeros, s.silence.mass, S, S, kept(self.delta, delta))
        return g, LabelledFactor(s.zeros, nothing, s.unlabelled, s.zero)

    def broadcast(self, g):
        return g._replace(m=None, precision=None, ahead=None, delta=None)

    def client_update(self, g, t, k):
        cavity = fold(linear(t.v) - square(t.V) / 2 + square(g.S, around=g.w) / 2)
        y = k.everyone(g.w, g.mass) - k.own(t.y)
        w = k.argmin(lambda w, k: k.loss(w) + cavity(w) + self.tau * k.distil(w, y), k.start)
        H = k.hessian(w, self.covariance) - self.tau * k.memory_hessian(w, self.covariance)
        return Laplace(w, H.positive_part())

    def factor_update(self, g, t, q, k):
        rho = damping(self.rho, k)
        v = t.v + rho * ((q.H - t.V) @ q.w + g.S @ (q.w - g.w))  # without S_k, as in FedLap-Cov
        return LabelledFactor(v, (1 - rho) * t.V + rho * q.H, k.soften(q.w), (1 - rho) * t.reached + rho)

    def contribution(self, t, q, k):
        return t

    def server_update(self, g, c, s):
        delta, v, y = prior(self.delta, g), c.sum(lambda k: k.v), c.gather(lambda k: k.y)
        S = delta + c.sum(lambda k: k.V)
        m = S.solve(v, near=g.m)
        w = s.argmin(Distilled(self.tau, s.distil, y, square(S, around=m) / 2), g.w + (m - g.m))
        memory, H = self.tau * s.memory_hessian(w, y.mass, self.covariance), c.sum(lambda k: undamped(k.V, k.reached))
        return LabelledGaussian(w, S, m, y.mass, S + memory, delta + H + memory, kept(self.delta, delta))
