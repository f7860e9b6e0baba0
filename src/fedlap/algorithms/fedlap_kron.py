"""FedLap-Cov, eqs. (12), (14) and (21), with a Kronecker covariance: diagonal in an eigenbasis of the layers."""

from typing import Any, NamedTuple

from fedlap.algebra.damping import damping, evenly, undamped
from fedlap.algebra.hyperparameters import hyper
from fedlap.algebra.kronecker import Kronecker, Rotated, Sites, Turn, either
from fedlap.algebra.quadratic import fold, linear, square
from fedlap.algebra.symmetric import unless
from fedlap.algebra.vector import Vector
from fedlap.algorithms.base import Algorithm, Laplace, algorithm


class TurnedGaussian(NamedTuple):
    """N(w, S⁻¹) with a diagonal S in the basis U = turn.new, and how to come there from the basis before."""

    w: Vector
    S: Any
    ahead: Any  # S without the lag of damping; the server's own
    turn: Turn
    odd: Any  # the parity of U: every client has this basis or the one before
    ask: Any  # whether clients are to say what the next basis is found from
    left: Any  # rounds until they are asked; the server's own


class TurnedFactor(NamedTuple):
    """log t(w) = vᵀx − ½xᵀVx, x = Uᵀw, in the basis of that parity, and what the next one is found from."""

    v: Vector
    V: Any
    reached: Any
    odd: Any
    moments: Kronecker  # zeros, which need not be sent, unless `told`
    told: Any


@algorithm
class FedLapKron(Algorithm[TurnedGaussian, TurnedFactor, Laplace, TurnedFactor]):
    """
    x_k ← argmin_x  ℓ_k(Ux) + v_kᵀx − ½xᵀV_k x + ½‖x − x_g‖²_{S_g},    x_g = Uᵀw_g,   H_k = diag Uᵀ∇²ℓ_k(Ux_k)U
    v_k ← v_k + ρ ((H_k − V_k) x_k + S_g (x_k − x_g)),                  V_k ← (1 − ρ) V_k + ρ H_k
    w_g ← U S_g⁻¹ Σ_k v_k,                                              S_g = δI + Σ_k V_k
    U   ← eigenvectors of Σ_k B_k ⊗ those of Σ_k A_k,                   A_k = Σ aaᵀ, B_k = Σ ggᵀ of every layer

    a are a layer's inputs, g the gradients at its outputs. U is found after round 1 and every `refresh` rounds, once
    all clients have the one before. V_k is then its own diagonal in the new U, and v_k such that ∇log t_k(w_g), hence
    w_g, stays. Sent are 2P numbers, and A_k and B_k if U is due. Dense layers are turned; other weights are not.
    refresh = 0: U = I for good, which is FedLap-Cov with a diagonal.
    """

    delta: float = hyper("positive")
    rho: object = hyper("damping", default=evenly)
    refresh: int = hyper("whole", static=True, default=10)
    curvatures, matrices = True, True

    def init(self, s, start):
        nothing, U = 0.0 * s.identity("diagonal"), s.basis()
        prior, ask = self.delta + nothing, s.zero + (self.refresh > 0)
        g = TurnedGaussian(s.zeros, prior, prior, Turn.of(U, U, s.zeros), s.zero, ask, s.zero)
        return g, TurnedFactor(s.zeros, nothing, s.zero, s.zero, 0.0 * U, s.zero)

    def broadcast(self, g):
        return g._replace(ahead=None, left=None)

    def client_update(self, g, t, k):
        U, (v, V) = g.turn.new, g.turn.site(t.odd == g.odd, t.v, t.V)
        cavity = fold(linear(v) - square(V) / 2 + square(g.S, around=U.T @ g.w) / 2)
        at, start = k.turned(U), unless(k.round > 0, U.T @ g.w, lambda: U.T @ k.start)
        x = k.argmin(lambda x, k: k.loss(at(x)) + cavity(x), start)
        return Laplace(x, k.hessian(at(x), "diagonal"))

    def factor_update(self, g, t, q, k):
        U, (v, V), rho = g.turn.new, g.turn.site(t.odd == g.odd, t.v, t.V), damping(self.rho, k)
        v = v + rho * ((q.H - V) @ q.w + g.S @ (q.w - U.T @ g.w))
        moments = unless(g.ask <= 0, 0.0 * U, lambda: k.moments(U @ q.w, U))
        return TurnedFactor(v, (1 - rho) * V + rho * q.H, (1 - rho) * t.reached + rho, g.odd, moments, g.ask)

    def contribution(self, t, q, k):
        return t

    def server_update(self, g, c, s):
        site = lambda k: Sites(k.v, k.V, undamped(k.V, k.reached), k.told, 1.0)
        even, odd = c.sum(lambda k: (k.odd == 0) * site(k)), c.sum(lambda k: (k.odd == 1) * site(k))
        moments, (now, late) = c.sum(lambda k: k.moments), either(g.odd > 0, (odd, even), (even, odd))
        known = now + unless(late.count == 0, late, lambda: late.turned(g.turn))
        w, kept = g.turn.new @ (self.delta + known.V).solve(known.v), known.told < s.count
        turn = unless(kept, g.turn, lambda: Turn.of(g.turn.new, moments.eigenbasis(), w))
        V, ahead = unless(kept, (known.V, known.ahead), lambda: (turn.diagonal(known.V), turn.diagonal(known.ahead)))
        left = either(g.left > 0, g.left - 1, g.left)
        odd, left = either(kept, (g.odd, left), (1 - g.odd, s.zero + self.refresh - 1))
        ask = s.zero + (left <= 0) * (self.refresh > 0)
        return TurnedGaussian(w, self.delta + V, self.delta + ahead, turn, odd, ask, left)

    def own_part(self, g, t):
        return g.turn.site(t.odd == g.odd, t.v, t.V)[1]

    def precision(self, g):
        return Rotated(g.turn.new, g.S)

    def precision_ahead(self, g):
        return Rotated(g.turn.new, g.ahead)
