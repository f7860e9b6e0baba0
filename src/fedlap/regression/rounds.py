"""The rounds of a regression: FedLap-Cov with full covariances and ρ = 1, and a proof at its end.

A site's factor t_k = (v_k, V_k) is the second-order expansion of its loss, at the point that its own rows and what
the others know ask for. So it is a study-level estimate V_k⁻¹v_k with precision V_k: the sum of the first factors is a
meta-analysis, and where nothing moves any more the sum is the expansion of the pooled loss at its optimum.

Sites also say their true loss and score at w_g: the run has converged when Newton's decrement, made of these, is
nothing, and steps back where the pooled loss did not fall.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

import numpy as np
from scipy.linalg import cho_factor, cho_solve

from fedlap.regression.objective import Expansion, Loss

TOLERANCE = 1e-9  # of Newton's decrement: how far, in standard errors, the optimum still is
CLOSE = 1e-4  # the same, where a site's own search may end: its factor is an expansion wherever it is taken
LIMIT, LOCAL_LIMIT = 30, 50  # rounds; steps of a site's own search
START = 1.0  # precision of the prior before the first round, on standardised columns: it is in no answer
FLAT = 1e-5  # of an eigenvalue of S_g: a direction about which the rows say nothing


class Broadcast(NamedTuple):
    """What every site is sent: the weights, their precision, and whether sites may search on their own."""

    w: np.ndarray
    S: np.ndarray
    search: bool = True


class SiteFactor(NamedTuple):
    """The natural parameters of a site's factor, exp(vᵀw − ½wᵀVw)."""

    v: np.ndarray
    V: np.ndarray


class Answer(NamedTuple):
    """What a site sends back: its loss and score at the weights of the broadcast, and its new factor."""

    loss: float
    score: np.ndarray  # the gradient of its loss
    factor: SiteFactor


class Belief(NamedTuple):
    """What is known of the weights before, a normal density; no precision is no knowledge."""

    mean: np.ndarray
    precision: np.ndarray  # [P, P]

    def loss(self, w: np.ndarray) -> float:
        """The negative logarithm of its density, but for a constant."""
        return float((w - self.mean) @ self.precision @ (w - self.mean) / 2)


class Round(NamedTuple):
    """What one round has shown: the pooled loss and Newton's decrement at its weights, and how it went."""

    loss: float
    decrement: float
    note: str = ""


class Optimum(NamedTuple):
    """Where the rounds ended."""

    w: np.ndarray
    S: np.ndarray
    factors: dict[str, SiteFactor]
    losses: dict[str, float]
    scores: dict[str, np.ndarray]
    rounds: list[Round]
    converged: bool


class FlatError(ArithmeticError):
    """The rows say nothing about a direction of the weights: the loss falls along it for ever, or does not change."""

    def __init__(self, direction: np.ndarray, w: np.ndarray) -> None:
        super().__init__("the loss has no optimum")
        self.direction, self.w = direction, w


def no_prior(size: int) -> Belief:
    """Nothing is known of the weights."""
    return Belief(np.zeros(size), np.zeros((size, size)))


def nothing(size: int) -> SiteFactor:
    """The factor of a site that has said nothing yet."""
    return SiteFactor(np.zeros(size), np.zeros((size, size)))


# The site ------------------------------------------------------------------------------------------------------------


def answer(objective: Loss, g: Broadcast, t: SiteFactor) -> Answer:
    """
    w_k ← argmin_w  ℓ_k(w) + v_kᵀw − ½wᵀV_k w + ½‖w − w_g‖²_{S_g}
    V_k ← ∇²ℓ_k(w_k),        v_k ← V_k w_k − ∇ℓ_k(w_k)
    """
    here = objective.expand(g.w)
    finite = np.isfinite(here.loss) and np.isfinite(here.hessian).all()  # else the server steps back
    w, there = _search(objective, g, t, here) if g.search and finite else (g.w, here)
    return Answer(here.loss, here.gradient, SiteFactor(there.hessian @ w - there.gradient, there.hessian))


def _search(objective: Loss, g: Broadcast, t: SiteFactor, here: Expansion) -> tuple[np.ndarray, Expansion]:
    """Newton's method on the site's problem, from w_g, as far as its own expansion is worth something."""
    others, pull = g.S - t.V, t.v - t.V @ g.w
    cost = lambda loss, w: loss + (w - g.w) @ (pull + others @ (w - g.w) / 2)
    w, value = g.w, here.loss
    for _ in range(LOCAL_LIMIT):
        gradient = here.gradient + pull + others @ (w - g.w)
        step = -solve(here.hessian + others, gradient)
        slope = float(gradient @ step)
        if not slope < -(CLOSE**2):
            break
        length = 1.0
        while not cost(objective.loss(w + length * step), w + length * step) <= value + 1e-4 * length * slope:
            length /= 2
            if length < 1e-6:
                return w, here
        there = objective.expand(w + length * step)
        if not np.isfinite(there.hessian).all():
            break
        w, here = w + length * step, there
        value = cost(here.loss, w)
    return w, here


# The server ----------------------------------------------------------------------------------------------------------


Ask = Callable[[Mapping[str, Loss], Broadcast, Mapping[str, SiteFactor]], dict[str, Answer]]


def in_turn(sites: Mapping[str, Loss], g: Broadcast, factors: Mapping[str, SiteFactor]) -> dict[str, Answer]:
    """The answers of sites in this process; `factors` are what the server has of them, and each remembers its own."""
    return {name: answer(loss, g, factors[name]) for name, loss in sites.items()}


def maximise(
    sites: Mapping[str, Loss],
    prior: Belief,
    begin: Broadcast | None = None,
    known: Mapping[str, SiteFactor] | None = None,
    ask: Ask = in_turn,
) -> Optimum:
    """
    S_g ← P_0 + Σ_k V_k,        w_g ← S_g⁻¹ (P_0 m_0 + Σ_k v_k)

    until the decrement √(∇ℓᵀ S_g⁻¹ ∇ℓ) of the pooled loss at w_g is nothing. `begin` and `known` go on from another
    run: its weights, and the factors that sites remember.
    """
    size = len(prior.mean)
    g = begin or Broadcast(prior.mean, START * np.eye(size) + prior.precision)
    accepted: dict[str, SiteFactor] = dict(known) if known is not None else {name: nothing(size) for name in sites}
    rounds: list[Round] = []
    best, best_loss, newton, careful = g.w, np.inf, g.w, False
    while True:
        answers = ask(sites, g, accepted)
        loss = sum(each.loss for each in answers.values()) + prior.loss(g.w)
        if not loss <= best_loss + 1e-12 * abs(best_loss) + 1e-12:
            if len(rounds) == LIMIT:
                return _ended(g, answers, rounds, False)
            rounds.append(
                Round(loss, np.nan, "the loss rose: half the step" if careful else "the loss rose: Newton's step")
            )
            g = Broadcast((best + g.w) / 2 if careful else newton, g.S, search=False)
            careful = True
            continue
        factors = {name: each.factor for name, each in answers.items()}
        score = total(each.score for each in answers.values()) + prior.precision @ (g.w - prior.mean)
        S = prior.precision + total(t.V for t in factors.values())
        convex = _is_convex(S, g.w)
        decrement = float(np.sqrt(max(score @ solve(S, score), 0)))
        rounds.append(Round(loss, decrement))
        stalled = len(rounds) > 3 and decrement < 1e3 * TOLERANCE and decrement > rounds[-2].decrement / 2
        there = convex and (decrement < TOLERANCE or stalled)
        if there or len(rounds) == LIMIT:
            return _ended(g._replace(S=S), answers, rounds, there)
        best, best_loss, accepted = g.w, loss, factors
        newton = g.w - solve(S, score)  # downhill, whatever the sites have searched for
        careful = careful or not convex
        aim = prior.precision @ prior.mean + total(t.v for t in factors.values())
        g = Broadcast(newton if careful else g.w + solve(S, aim - S @ g.w), S, search=not careful)


def _ended(g: Broadcast, answers: dict[str, Answer], rounds: list[Round], converged: bool) -> Optimum:
    return Optimum(
        g.w,
        g.S,
        {name: each.factor for name, each in answers.items()},
        {name: each.loss for name, each in answers.items()},
        {name: each.score for name, each in answers.items()},
        rounds,
        converged,
    )


def _is_convex(S: np.ndarray, w: np.ndarray) -> bool:
    """Whether the pooled loss curves upwards everywhere; an error if along some direction it does not curve at all."""
    values, vectors = np.linalg.eigh(S)
    flattest = np.abs(values).argmin()
    if not abs(values[flattest]) > FLAT:
        raise FlatError(vectors[:, flattest], w)
    return bool(values[0] > 0)


def total(parts: Iterable[np.ndarray]) -> np.ndarray:
    """The sum of what sites have sent."""
    return np.sum(list(parts), axis=0)


def solve(S: np.ndarray, b: np.ndarray) -> np.ndarray:
    """S⁻¹b; where S is not positive definite, of the nearest matrix that is."""
    try:
        return cho_solve(cho_factor(S), b)
    except np.linalg.LinAlgError:
        values, vectors = np.linalg.eigh(S)
        return vectors @ ((vectors.T @ b) / np.maximum(np.abs(values), 1e-10 * np.abs(values).max()))
