"""Regressions over sites that are hard on numbers, and the answer that pooling their data would have given.

Five kinds of two-class problems, all of few shapes so that one compiled program serves many: with features as people
would scale them, in units from 1e-5 to 1e5 and correlated, separable, with fifty sites of three rows, and with sites
that know one class only. The pooled optimum comes from Newton's method in extended precision on the log-odds alone.
"""

from dataclasses import dataclass
from functools import cache, cached_property

import numpy as np

import fedlap
from fedlap.data import Federation
from fedlap.run.simulation import histories

KINDS = ("benign", "ill-conditioned", "separable", "tiny sites", "one-class sites")
DELTAS = (1e-8, 1e-5, 1e-2, 10.0)
FEATURES, POOL, LONGEST = 5, 240, 60


@dataclass(frozen=True)
class Problem:
    """Several sites' rows, and the weight of the prior."""

    federation: Federation
    delta: float
    bias: bool

    @property
    def design(self):
        """All rows that some site owns, with a column of ones for the intercept."""
        rows = np.concatenate(self.federation.rows)
        x = self.federation.inputs[rows]
        return np.column_stack([np.ones(len(x)), x]) if self.bias else x

    @property
    def signs(self):
        return 2 * self.federation.labels[np.concatenate(self.federation.rows)] - 1

    @property
    def units(self):
        """The size of each column, which weights are multiplied by to be compared."""
        return np.sqrt((self.design**2).mean(0))

    @cached_property
    def optimum(self):
        """The answer of pooling, the same for all that is compared with it."""
        return pooled(self)


def draw(kind, number):
    """The sites of a problem: the same for the same number."""
    rng = np.random.default_rng([KINDS.index(kind), number])
    sizes = np.full(50, 3) if kind == "tiny sites" else rng.integers(8, LONGEST, size=4)
    if kind != "tiny sites":
        sizes[rng.integers(4)] = LONGEST
    x = rng.normal(size=(POOL, FEATURES))
    if kind == "ill-conditioned" or (kind != "benign" and number % 2):
        correlation = rng.choice([0.5, 0.9, 0.99])
        x = x @ np.linalg.cholesky(correlation + (1 - correlation) * np.eye(FEATURES)).T
        x = x * 10.0 ** rng.uniform(-5, 5, size=FEATURES)
    owned = np.arange(sizes.sum())
    logits = x @ (rng.normal(size=FEATURES) / x[owned].std(0)) * rng.choice([0.5, 2.0])
    labels = (logits + (0 if kind == "separable" else rng.logistic(size=POOL)) > 0).astype(int)
    if kind == "one-class sites":
        owned = owned[np.argsort(labels[owned], kind="stable")]
    return Federation(
        name=kind,
        clients=tuple(f"site-{k}" for k in range(len(sizes))),
        inputs=x,
        labels=labels,
        rows=tuple(np.split(owned.astype(np.int32), np.cumsum(sizes)[:-1])),
        test_inputs=x[owned[:50]],
        test_labels=labels[owned[:50]],
        classes=2,
    )


def pooled(problem):
    """The weights of class 1, those of class 0 being their negatives: δ on both is δ/2 on the log-odds.

    Without the data's units, in extended precision, by Newton steps that are halved until the objective falls.
    """
    z = (problem.design / problem.units).astype(np.longdouble) * problem.signs[:, None]
    penalty = (problem.delta / 2 / problem.units**2).astype(np.longdouble)
    value = lambda u: np.logaddexp(0, -z @ u).sum() + penalty @ u**2 / 2
    u = np.zeros(z.shape[1], np.longdouble)
    for _ in range(500):
        p = 1 / (1 + np.exp(z @ u))
        step = _eliminate((z * (p * (1 - p))[:, None]).T @ z + np.diag(penalty), -z.T @ p + penalty * u)
        if np.abs(step).max() <= 1e-17 * np.abs(u).max():
            break
        length, before = 1.0, value(u)
        while value(u - length * step) > before * (1 + 1e-18) and length > 1e-9:
            length /= 2
        u = u - length * step
    return np.asarray(u / problem.units / 2, float)


def _eliminate(matrix, right):
    """matrix⁻¹ right by Gauss and Jordan, with a unit diagonal: LAPACK knows no extended precision."""
    scale = 1 / np.sqrt(np.diag(matrix))
    table = np.column_stack([matrix * scale[:, None] * scale, right * scale])
    for i in range(len(right)):
        j = i + np.argmax(np.abs(table[i:, i]))
        table[[i, j]] = table[[j, i]]
        table[i] /= table[i, i]
        others = np.arange(len(right)) != i
        table[others] -= np.outer(table[others, i], table[i])
    return table[:, -1] * scale


def federated(problem, rounds):
    """The history, and weights [rounds, 2, columns], by FedLap-Cov with full covariances, ρ = 1 and Newton's method."""
    run = fedlap.Simulation.of(
        fedlap.FedLapCov(delta=problem.delta, covariance="full", rho=1.0),
        problem.federation,
        fedlap.logistic(bias=problem.bias),
        solver=fedlap.newton(),
        engine="vectorised",
    )
    weights = []
    for history in histories(run, rounds):
        layer = history.state.server.w.tree[1]
        columns = [layer["bias"][..., None], layer["weight"]] if problem.bias else [layer["weight"]]
        weights.append(np.concatenate([np.float64(column) for column in columns], axis=-1))
    return history, np.stack(weights)


@dataclass(frozen=True)
class Errors:
    """After every round: of the weights in the data's units, the largest over the largest; of probabilities of rows."""

    weights: np.ndarray  # [rounds]
    predictions: np.ndarray  # [rounds]

    @classmethod
    def of(cls, problem, found):
        star, units, x = problem.optimum, problem.units, problem.design
        wanted = np.stack([-star, star])
        weights = np.abs((found - wanted) * units).max((1, 2)) / np.abs(wanted * units).max()
        with np.errstate(over="ignore"):
            probability = lambda w: 1 / (1 + np.exp(-(x @ (w[..., 1, :] - w[..., 0, :]).T).T))
            predictions = np.abs(probability(found) - probability(wanted)).max(1)
        return cls(weights, predictions)


@cache
def problems(kind, federations):
    """So many federations with every delta; every other model has an intercept."""
    return [Problem(draw(kind, i), delta, bias=i % 4 < 2) for i in range(federations) for delta in DELTAS]


def settled(curve, tolerance):
    """The first round from which on all are within the tolerance; None if the last is not."""
    wrong = ~(curve <= tolerance)
    if wrong[-1]:
        return None
    return int(np.flatnonzero(wrong)[-1]) + 2 if wrong.any() else 1
