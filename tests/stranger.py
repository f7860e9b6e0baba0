"""Consensus, ADMM over Gaussians as BayesADMM is, and Product, FedLap-Cov: no name of a state is one of fedlap's."""

from typing import Any, NamedTuple

from fedlap import Algorithm, Vector, algorithm, fold, hyper, linear, square
from fedlap.algorithms.base import Laplace


class Belief(NamedTuple):
    w: Vector
    sure: Any
    part: Any


class Term(NamedTuple):
    b: Vector
    B: Any
    part: Any


class Memory(NamedTuple):
    b: Vector
    B: Any
    part: Any
    told: Term


class Move(NamedTuple):
    b: Vector
    B: Any


@algorithm
class Consensus(Algorithm[Belief, Memory, Move, Term]):
    """
    q_k ← argmin_q ℓ_k + t_k + ½‖w − w_g‖²_{S_g}
    t_k ← t_k (q_k / q_g)^pace
    q_g ← (p_0 Π_k t_k q_k)^{1/(1 + K)}
    """

    strength: float = hyper("positive")
    pace: float = hyper("positive", default=0.3)
    shape: str = hyper("structure", static=True, default="diagonal")

    def init(self, s, start):
        nothing = 0.0 * s.identity(self.shape)
        prior = self.strength + nothing
        return Belief(s.zeros, prior, s.zero), Memory(s.zeros, nothing, s.zero, Term(s.zeros, prior, s.zero))

    def client_update(self, g, t, k):
        cavity = fold(linear(t.b) - square(t.B) / 2 + square(g.sure, around=g.w) / 2)
        w = k.argmin(lambda w, k: k.loss(w) + cavity(w), k.start)
        missing = k.hessian(w, self.shape) - t.B
        return Move(missing @ w + g.sure @ (w - g.w), missing)

    def factor_update(self, g, t, q, k):
        b, B, part = t.b + self.pace * q.b, t.B + self.pace * q.B, t.part + self.pace * (1 - t.part)
        told = Term(b + g.sure @ g.w + q.b, B + g.sure + q.B, part + k.count * g.part + 1 - t.part)
        return Memory(b, B, part, told)

    def contribution(self, t, q, k):
        return t.told

    def server_update(self, g, c, s):
        alpha = 1 / (1 + s.count)
        sure = alpha * (self.strength + c.sum(lambda k: k.B))
        return Belief(sure.solve(alpha * c.sum(lambda k: k.b), near=g.w), sure, alpha * c.mean(lambda k: k.part))

    def precision(self, g):
        return g.sure

    def precision_ahead(self, g):
        return self.strength + (g.sure - self.strength) * (1 / (g.part + (g.part == 0)))


class Sent(NamedTuple):
    v: Vector
    V: Any
    reached: Any


class Known(NamedTuple):
    w: Vector
    S: Any


@algorithm
class Product(Algorithm[Known, Sent, Laplace, Sent]):
    """
    w_k ← argmin_w ℓ_k + v_kᵀw − ½wᵀV_k w + ½‖w − w_g‖²_{S_g}
    t_k ← t_k (q_k / q_g)^pace
    q_g ← p_0 Π_k t_k
    """

    strength: float = hyper("positive")
    pace: float = hyper("positive", default=0.3)
    shape: str = hyper("structure", static=True, default="diagonal")
    curvatures = True

    def init(self, s, start):
        nothing = 0.0 * s.identity(self.shape)
        return Known(s.zeros, self.strength + nothing), Sent(s.zeros, nothing, s.zero)

    def client_update(self, g, t, k):
        cavity = fold(linear(t.v) - square(t.V) / 2 + square(g.S, around=g.w) / 2)
        w = k.argmin(lambda w, k: k.loss(w) + cavity(w), k.start)
        return Laplace(w, k.hessian(w, self.shape))

    def factor_update(self, g, t, q, k):
        v = t.v + self.pace * ((q.H - t.V) @ q.w + g.S @ (q.w - g.w))
        return Sent(v, t.V + self.pace * (q.H - t.V), t.reached + self.pace * (1 - t.reached))

    def contribution(self, t, q, k):
        return t

    def server_update(self, g, c, s):
        S = self.strength + c.sum(lambda k: k.V)
        return Known(S.solve(c.sum(lambda k: k.v), near=g.w), S)
