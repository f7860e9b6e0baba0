"""FedEP and FedSEP (Guo et al., 2023): expectation propagation, the tilted moments by Laplace's approximation."""

from typing import Any, NamedTuple

from fedlap.algebra.damping import damping, evenly, undamped
from fedlap.algebra.hyperparameters import hyper
from fedlap.algebra.quadratic import fold, linear, square
from fedlap.algebra.vector import Vector
from fedlap.algorithms.base import Algorithm, DampedFactor, Laplace, algorithm


class SteppedGaussian(NamedTuple):
    """N(w, S⁻¹), S without the lag of damping, which is the server's own, and of a shared factor the part reached."""

    w: Vector
    S: Any
    ahead: Any
    reached: Any


@algorithm
class FedEP(Algorithm[SteppedGaussian, DampedFactor, Laplace, DampedFactor]):
    """
    w_k ← argmin_w  ℓ_k(w) − log(q_g/t_k)(w),   S_k = H_k(w_k) + S_g − V_k     the mode of exp(−ℓ_k) q_g/t_k
    t_k ← t_k (q_k / q_g)^ρ
    q_g ← q_g^(1−η) (p_0 Π_k t_k)^η

    With η = 1 this is FedLap-Cov, line by line: EP with Laplace's moments is what FedLap-Cov comes to from PVI. What
    it has beside that are η, a step of the server, and shared=True, stochastic EP (FedSEP): all clients have one
    factor in common, (q_g/p_0)^(1/K), and remember none of their own; those drawn speak for all K.
    FedSEP is exact on quadratics with full covariances, elsewhere if clients are alike: each then takes its own out.
    The paper's server adds η Σ_k log(q_k/q_g) to log q_g; that would leave η in the answer, δI + η Σ_k H_k.
    """

    delta: float = hyper("positive")
    rho: object = hyper("damping", default=evenly)
    eta: float = hyper("positive", default=1.0)
    shared: bool = hyper("truth", static=True, default=False)
    covariance: str = hyper("structure", static=True, default="diagonal")

    def init(self, s, start):
        nothing = 0.0 * s.identity(self.covariance)
        S = self.delta + nothing
        prior = SteppedGaussian(s.zeros, S, S, s.zero if self.shared else None)
        return prior, self.factor(prior, DampedFactor(s.zeros, nothing, s.zero), s)

    def broadcast(self, g):
        return g._replace(ahead=None)

    def factor(self, g: SteppedGaussian, t: DampedFactor, k: Any) -> DampedFactor:
        """t_k, the client's own or the one that all share."""
        return DampedFactor(g.S @ g.w / k.count, (g.S - self.delta) / k.count, g.reached) if self.shared else t

    def client_update(self, g, t, k):
        t = self.factor(g, t, k)
        cavity = fold(linear(t.v) - square(t.V) / 2 + square(g.S, around=g.w) / 2)
        w = k.argmin(lambda w, k: k.loss(w) + cavity(w), k.start)
        return Laplace(w, k.hessian(w, self.covariance))

    def factor_update(self, g, t, q, k):
        t, rho = self.factor(g, t, k), damping(self.rho, k)
        v = t.v + rho * ((q.H - t.V) @ q.w + g.S @ (q.w - g.w))
        return DampedFactor(v, (1 - rho) * t.V + rho * q.H, (1 - rho) * t.reached + rho)

    def contribution(self, t, q, k):
        return t

    def server_update(self, g, c, s):
        total = (lambda term: s.count * c.average(term)) if self.shared else c.sum
        S = (1 - self.eta) * g.S + self.eta * (self.delta + total(lambda k: k.V))
        v = (1 - self.eta) * (g.S @ g.w) + self.eta * total(lambda k: k.v)
        w = S.solve(v, near=g.w)
        if not self.shared:
            return SteppedGaussian(w, S, self.delta + c.sum(lambda k: undamped(k.V, k.reached)), None)
        reached = (1 - self.eta) * g.reached + self.eta * c.average(lambda k: k.reached)
        return SteppedGaussian(w, S, self.delta + undamped(S - self.delta, reached), reached)

    @property
    def divides(self):
        return self.eta == 1 and not self.shared
