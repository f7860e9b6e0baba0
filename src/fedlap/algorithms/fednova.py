"""FedNova (Wang et al., 2020): FedAvg that does not mind how many steps each client takes."""

from typing import Any, NamedTuple

from fedlap.algebra.hyperparameters import hyper
from fedlap.algebra.quadratic import square
from fedlap.algebra.vector import Vector
from fedlap.algorithms.base import Algorithm, Nothing, Point, algorithm


class Step(NamedTuple):
    """d_k, how far one of a client's steps leads, and a_k, how many it has taken."""

    d: Vector
    a: Any


class CountedStep(NamedTuple):
    """The same, and the number of examples behind it."""

    d: Vector
    a: Any
    n: Any


@algorithm
class FedNova(Algorithm[Point, Nothing, Step, CountedStep]):
    """
    w_k ← argmin_w  ℓ̄_k(w) + ½α‖w − w_g‖²
    d_k ← (w_g − w_k) / a_k
    w_g ← w_g − (Σ_k p_k a_k) Σ_k p_k d_k,    p_k = N_k / Σ_k N_k

    a_k is ‖a_k‖₁, a client's effective steps: their number, or more where
    momentum lengthens them, or less where the proximal term undoes some. In
    FedAvg a client that takes more steps weighs more, and the fixed point is
    that of another objective.
    """

    alpha: float | None = hyper("optional positive", default=None)
    mean_loss = True

    def init(self, s, start):
        return Point(start), Nothing()

    def client_update(self, g, t, k):
        near = (lambda w: 0.0) if self.alpha is None else self.alpha / 2 * square(around=g.w)
        w = k.argmin(lambda w, k: k.loss(w) / k.n + near(w), k.start)
        a = k.effective_steps(self.alpha)
        return Step((g.w - w) / a, a)

    def factor_update(self, g, t, q, k):
        return t

    def contribution(self, t, q, k):
        return CountedStep(q.d, q.a, k.n)

    def server_update(self, g, c, s):
        steps = c.average(lambda k: k.a, weights=lambda k: k.n)
        return Point(g.w - steps * c.average(lambda k: k.d, weights=lambda k: k.n))
