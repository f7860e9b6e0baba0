"""Partitioned variational inference (Ashman et al., 2022), eqs. (5) and (6), with diagonal Gaussians."""

from fedlap.algebra.damping import damping, evenly, undamped
from fedlap.algebra.gaussian import LogGaussian, expected_log_site, kl
from fedlap.algebra.hyperparameters import hyper
from fedlap.algorithms.base import Algorithm, DampedFactor, DampedGaussian, Gaussian, algorithm


@algorithm
class PVI(Algorithm[DampedGaussian, DampedFactor, Gaussian, DampedFactor]):
    """
    q_k     ← argmin_q  E_q[ℓ_k(w)] + E_q[log t_k] + KL(q ‖ q_g)
    log t_k ← log t_k + ρ (log q_k − log q_g)
    log q_g ← log p_0 + Σ_k log t_k

    In round 1 q_g is the prior. A network that begins as uncertain as that is noise, and learns nothing: then each
    q_k begins with at least `start_precision`.
    """

    delta: float = hyper("positive")
    rho: object = hyper("damping", default=evenly)
    samples: int = hyper("count", static=True, default=10)
    start_precision: float = hyper("nonnegative", default=0.0)

    def init(self, s, start):
        nothing = 0.0 * s.identity("diagonal")
        prior = self.delta + nothing
        return DampedGaussian(s.zeros, prior, prior), DampedFactor(s.zeros, nothing, s.zero)

    def broadcast(self, g):
        return g._replace(ahead=None)

    def client_update(self, g, t, k):
        def objective(q, k):
            expected_loss = q.expect(k.loss, k.noise(self.samples, q.m))
            return expected_loss + expected_log_site(q, t.v, t.V) + kl(q, g.w, g.S)

        S = g.S.at_least(self.start_precision * (k.round == 0))
        q = k.argmin(objective, LogGaussian.of(k.start, S))
        return Gaussian(q.m, q.S)

    def factor_update(self, g, t, q, k):
        rho = damping(self.rho, k)
        v, V = t.v + rho * (q.S @ q.w - g.S @ g.w), t.V + rho * (q.S - g.S)
        return DampedFactor(v, V, (1 - rho) * t.reached + rho)

    def contribution(self, t, q, k):
        return t

    def server_update(self, g, c, s):
        S = self.delta + c.sum(lambda k: k.V)
        ahead = self.delta + c.sum(lambda k: undamped(k.V, k.reached))
        return DampedGaussian(S.solve(c.sum(lambda k: k.v)), S, ahead)
