"""BayesADMM (Möllenhoff, Swaroop, Doshi-Velez and Khan, 2026): ADMM whose variables are Gaussians."""

from typing import Any, NamedTuple

from fedlap.algebra.damping import damping, evenly, undamped
from fedlap.algebra.gaussian import LogGaussian, expected_log_site, kl
from fedlap.algebra.hyperparameters import hyper
from fedlap.algebra.quadratic import fold, linear, square
from fedlap.algebra.vector import Vector
from fedlap.algorithms.base import Algorithm, DampedFactor, Factor, algorithm


class PartialGaussian(NamedTuple):
    """N(w, S⁻¹), and the part that S has by now of the curvatures that it moves to."""

    w: Vector
    S: Any
    reached: Any  # on average
    alike: Any  # 1 while it is the same part of every client's, or else 0; the server's own


class SplitFactor(NamedTuple):
    """A DampedFactor, and the term of the server's sum, in which the local model is, too."""

    v: Vector
    V: Any
    reached: Any
    term: DampedFactor


@algorithm
class BayesADMM(Algorithm[PartialGaussian, SplitFactor, Factor, DampedFactor]):
    """
    q_k ← argmin_q  E_q[ℓ_k(w)]/τ + E_q[log t_k] + ρ KL(q ‖ q_g)
    t_k ← t_k (q_k / q_g)^γρ
    q_g ← (p_0 Π_k t_k q_k^β)^α,    α = 1/(1 + ρK) unless given,  β = (1 − α)/(αK), then ρ

    samples=0, the delta method: the loss at the mean, and its curvature there; S_k = S_g + (H_k(w_k)/τ − V_k)/ρ at
        w_k ← argmin_w  ℓ_k(w)/τ + v_kᵀw − ½wᵀV_k w + ½ρ‖w − w_g‖²_{S_g}.
    samples=1 or more: E_q by so many draws, of diagonal Gaussians; with solver=ivon() as the paper runs it.
    α = ρ = τ = 1 is PVI, and with the delta method FedLap-Cov; γ is what they call ρ. Wherever γρK = 1, as it is unless
    said otherwise, α does not matter: the mean of q_k and p_0 Π t_k are then one. With ρ = 1/K, γ = 1 and full
    covariances, quadratics take one round. ρ ≥ 1 and γ ≤ 1/(ρK) keep ρS_g above every V_k; elsewhere a client's argmin
    may not exist, unless its loss is quadratic.
    S_g lags; history.precision has no lag where all clients have come equally far, and is S_g where they have not, as
    with participation below 1 or γ by share: what each has yet to say is then not known to the server.
    """

    delta: float = hyper("positive")
    rho: float = hyper("positive", default=1.0)
    gamma: object = hyper("damping", default=evenly)
    tau: float = hyper("positive", default=1.0)
    alpha: float | None = hyper("optional positive", default=None)
    covariance: str = hyper("structure", static=True, default="diagonal")
    samples: int = hyper("whole", static=True, default=0)

    def alpha_beta(self, k: Any) -> tuple[Any, Any]:
        alpha = 1 / (1 + self.rho * k.count) if self.alpha is None else self.alpha
        return alpha, (1 - alpha) / (alpha * k.count)

    def init(self, s, start):
        nothing = 0.0 * s.identity(self.covariance)
        prior, (_, beta) = self.delta + nothing, self.alpha_beta(s)
        term = DampedFactor(s.zeros, beta * prior, s.zero)
        return PartialGaussian(s.zeros, prior, s.zero, s.zero + 1), SplitFactor(s.zeros, nothing, s.zero, term)

    def broadcast(self, g):
        return g._replace(alike=None)

    def client_update(self, g, t, k):
        def objective(q, k):
            expected_loss = q.expect(k.loss, k.noise(self.samples, q.m))
            return expected_loss + self.tau * (expected_log_site(q, t.v, t.V) + self.rho * kl(q, g.w, g.S))

        if self.samples:
            q = k.argmin(objective, LogGaussian.of(k.start, g.S))
            return Factor(self.rho * (q.S @ q.m - g.S @ g.w), self.rho * (q.S - g.S))  # (q_k / q_g)^ρ
        cavity = self.tau * fold(linear(t.v) - square(t.V) / 2 + self.rho / 2 * square(g.S, around=g.w))
        w = k.argmin(lambda w, k: k.loss(w) + cavity(w), k.start)
        missing = k.hessian(w, self.covariance) / self.tau - t.V
        return Factor(missing @ w + self.rho * (g.S @ (w - g.w)), missing)

    def factor_update(self, g, t, q, k):
        gamma, (_, beta) = damping(self.gamma, k), self.alpha_beta(k)
        v, V, reached = t.v + gamma * q.v, t.V + gamma * q.V, t.reached + gamma * (1 - t.reached)
        term = DampedFactor(
            v + beta * (g.S @ g.w + q.v / self.rho),
            V + beta * (g.S + q.V / self.rho),
            reached + beta * (k.count * g.reached + (1 - t.reached) / self.rho),
        )
        return SplitFactor(v, V, reached, term)

    def contribution(self, t, q, k):
        return t.term

    def server_update(self, g, c, s):
        alpha, _ = self.alpha_beta(s)
        S = alpha * (self.delta + c.sum(lambda k: k.V))
        reached, squares = c.mean(lambda k: k.reached), c.mean(lambda k: k.reached * k.reached)
        alike = g.alike * (squares - reached * reached <= 1e-6 * squares)  # where rounding alone tells them apart
        return PartialGaussian(S.solve(alpha * c.sum(lambda k: k.v), near=g.w), S, alpha * reached, alike)

    def precision_ahead(self, g):
        return self.delta + undamped(g.S - self.delta, g.alike * g.reached + (1 - g.alike))

    @property
    def divides(self):
        return self.alpha == 1  # else q_k are in the sum, which know of who has left
