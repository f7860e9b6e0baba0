"""Families and rounds of regressions over sites, on arrays: derivatives, the pooled optimum, and FedLap-Cov itself."""

import jax
import numpy as np
import pytest
from scipy.optimize import minimize

import fedlap
from fedlap.errors import ConfigError, DataError
from fedlap.regression import rounds
from fedlap.regression.families import FAMILIES, family
from fedlap.regression.objective import LinearObjective
from fedlap.regression.rounds import Belief, Broadcast, SiteFactor, answer, maximise, no_prior

LEVELS = 4


def outcomes(name, f, rng):
    """Outcomes of a family, of which the predictor is f."""
    draws = {
        "gaussian": lambda: f + rng.normal(size=len(f)),
        "binomial": lambda: (rng.random(len(f)) < 1 / (1 + np.exp(-f))).astype(float),
        "poisson": lambda: rng.poisson(np.exp(f)).astype(float),
        "negative_binomial": lambda: rng.negative_binomial(2, 2 / (2 + np.exp(f))).astype(float),
        "gamma": lambda: rng.gamma(2, np.exp(f) / 2),
        "multinomial": lambda: rng.integers(0, LEVELS, len(f)).astype(float),
    }
    return draws[name]()


def drawn(name, rng, rows=60, columns=3, sites=3):
    """Sites with rows of a family: [(x, y, weights, offset)]."""
    parts = []
    for _ in range(sites):
        x = np.c_[np.ones(rows), rng.normal(size=(rows, columns - 1))]
        offset = rng.normal(size=rows) / 4
        y = outcomes(name, x @ np.linspace(0.5, -0.5, columns) + offset, rng)
        parts.append((x, y, rng.integers(1, 4, rows).astype(float), offset))
    return parts


def objectives(name, parts):
    kind = family(name, LEVELS)
    return {f"site {k}": LinearObjective(kind, *part) for k, part in enumerate(parts)}, kind


def size_of(kind, columns=3):
    return columns * (kind.predictors - kind.shapes) + kind.shapes


@pytest.mark.parametrize("name", FAMILIES)
def test_slopes_and_curvatures_are_derivatives(name):
    rng = np.random.default_rng(1)
    sites, kind = objectives(name, drawn(name, rng))
    objective, step = sites["site 0"], 1e-5
    w = rng.normal(size=size_of(kind)) / 3
    here = objective.expand(w)
    assert here.loss == objective.loss(w)
    moved = [(objective.expand(w + step * e), objective.expand(w - step * e)) for e in np.eye(len(w))]
    gradient = np.array([(up.loss - down.loss) / (2 * step) for up, down in moved])
    hessian = np.array([(up.gradient - down.gradient) / (2 * step) for up, down in moved])
    np.testing.assert_allclose(here.gradient, gradient, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(here.hessian, hessian, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", FAMILIES)
def test_a_row_that_counts_twice_is_two_rows(name):
    rng = np.random.default_rng(2)
    x, y, weights, offset = drawn(name, rng, sites=1)[0]
    kind = family(name, LEVELS)
    w = rng.normal(size=size_of(kind)) / 3
    once = LinearObjective(kind, x, y, weights, offset)
    times = np.repeat(np.arange(len(y)), weights.astype(int))
    often = LinearObjective(kind, x[times], y[times], np.ones(len(times)), offset[times])
    for a, b in zip((*once.expand(w), once.meat(w)), (*often.expand(w), often.meat(w)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-12)


def test_blocks_of_rows_add_up(monkeypatch):
    sites, kind = objectives("binomial", drawn("binomial", np.random.default_rng(3)))
    w = np.linspace(-1, 1, size_of(kind))
    whole = sites["site 0"].expand(w).hessian
    monkeypatch.setattr("fedlap.regression.objective.BLOCK", 7)
    np.testing.assert_allclose(sites["site 0"].expand(w).hessian, whole, rtol=1e-14)


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("prior", [0.0, 2.0])
def test_rounds_end_at_the_pooled_optimum(name, prior):
    """As a general optimiser finds it, which knows neither sites nor factors."""
    sites, kind = objectives(name, drawn(name, np.random.default_rng(4)))
    size = size_of(kind)
    belief = Belief(np.full(size, 0.1), prior * np.eye(size))
    found = maximise(sites, belief)
    pooled = lambda w: sum(each.loss(w) for each in sites.values()) + belief.loss(w)
    slope = lambda w: sum(each.expand(w).gradient for each in sites.values()) + belief.precision @ (w - belief.mean)
    oracle = minimize(pooled, np.zeros(size), jac=slope, method="BFGS", options={"gtol": 1e-9, "maxiter": 10_000})
    assert found.converged and found.rounds[-1].decrement < 1e-9
    np.testing.assert_allclose(found.w, oracle.x, rtol=1e-6, atol=1e-7)
    assert sum(found.losses.values()) + belief.loss(found.w) <= oracle.fun + 1e-9
    np.testing.assert_allclose(
        found.S, belief.precision + sum(e.expand(found.w).hessian for e in sites.values()), rtol=1e-7
    )
    for name_, objective in sites.items():  # v_k = V_k w_g − ∇ℓ_k(w_g), the expansion of its loss at the optimum
        factor = found.factors[name_]
        np.testing.assert_allclose(factor.V @ found.w - factor.v, objective.expand(found.w).gradient, atol=1e-6)


def test_a_round_is_one_of_fedlap_cov_with_full_covariance_and_rho_1():
    """Eqs. (12), (14) and (21), by the library's own engine in float64: the same weights after every round."""
    rng = np.random.default_rng(5)
    parts = [(rng.normal(size=(40, 3)), rng.integers(0, 2, 40).astype(float)) for _ in range(3)]
    kind = family("multinomial", 2)  # two levels: one logit
    # The library's logistic model has two logits w_0, w_1 with a prior each: β = w_1 − w_0 has half the precision.
    delta = 2.0
    sites = {str(k): LinearObjective(kind, x, y, np.ones(40), np.zeros(40)) for k, (x, y) in enumerate(parts)}
    belief = Belief(np.zeros(3), delta / 2 * np.eye(3))
    g, factors = Broadcast(np.zeros(3), belief.precision), {name: rounds.nothing(3) for name in sites}
    ours = []
    for _ in range(4):
        factors = {name: answer(objective, g, factors[name]).factor for name, objective in sites.items()}
        S = belief.precision + sum(t.V for t in factors.values())
        g = Broadcast(np.linalg.solve(S, sum(t.v for t in factors.values())), S)
        ours.append(g.w)
    with jax.enable_x64(True):
        federation = fedlap.Federation.from_arrays(
            clients=[(x, y.astype(int)) for x, y in parts], test=(parts[0][0], parts[0][1].astype(int))
        )
        method = fedlap.FedLapCov(delta=delta, covariance="full", rho=1.0)
        run = fedlap.Simulation.of(method, federation, fedlap.logistic(), solver=fedlap.newton())
        state, theirs = run.init(), []
        for _ in range(4):
            state = run.step(state)
            w_0, w_1 = np.asarray(state.server.w.flat, np.float64).reshape(2, 3)
            theirs.append(w_1 - w_0)
    np.testing.assert_allclose(ours, theirs, atol=2e-6)  # a site's own search ends within CLOSE of its optimum
    np.testing.assert_allclose(ours[-1], theirs[-1], atol=1e-10)


def test_the_first_round_is_a_meta_analysis_and_the_last_the_pooled_fit():
    parts = drawn("binomial", np.random.default_rng(6))
    sites, _ = objectives("binomial", parts)
    local = {name: maximise({name: objective}, no_prior(3)) for name, objective in sites.items()}
    inverse_variance = np.linalg.solve(
        sum(each.S for each in local.values()), sum(each.S @ each.w for each in local.values())
    )
    g = Broadcast(np.zeros(3), 1e-9 * np.eye(3))
    factors = [answer(objective, g, rounds.nothing(3)).factor for objective in sites.values()]
    first = np.linalg.solve(sum(t.V for t in factors), sum(t.v for t in factors))
    np.testing.assert_allclose(first, inverse_variance, rtol=1e-5)


@pytest.mark.parametrize("search", [True, False])
def test_where_the_loss_rises_the_rounds_step_back(search, monkeypatch):
    """Sites of one class each ask for far too much. Without the check the weights run away."""
    x, ones = np.ones((100, 1)), (0, 0, 98, 100)
    sites = {
        str(k): LinearObjective(family("binomial"), x, np.arange(100.0) < count, np.ones(100), np.zeros(100))
        for k, count in enumerate(ones)
    }
    if not search:
        plain = rounds.answer
        monkeypatch.setattr(rounds, "answer", lambda objective, g, t: plain(objective, g._replace(search=False), t))
    found = maximise(sites, no_prior(1))
    assert found.converged
    np.testing.assert_allclose(found.w, [np.log(sum(ones) / (400 - sum(ones)))], atol=1e-9)
    accepted = [each.loss for each in found.rounds if np.isfinite(each.decrement)]
    assert accepted == sorted(accepted, reverse=True)
    if search:
        assert any(each.note for each in found.rounds)


def test_a_direction_without_an_optimum_is_an_error():
    x = np.c_[np.ones(40), np.linspace(-1, 1, 40)]
    kind = family("binomial")
    separated = {"only": LinearObjective(kind, x, (x[:, 1] > 0).astype(float), np.ones(40), np.zeros(40))}
    with pytest.raises(rounds.FlatError) as flat:
        maximise(separated, no_prior(2))
    assert np.abs(flat.value.direction).argmax() == 1


def test_a_step_that_overflows_is_taken_back():
    """Counts in the millions: from w = 0 a whole step of Newton's would be beyond all numbers."""
    rng = np.random.default_rng(8)
    x = np.c_[np.ones(30), rng.normal(size=30)]
    y = rng.poisson(np.exp(14 + x[:, 1])).astype(float)
    found = maximise({"only": LinearObjective(family("poisson"), x, y, np.ones(30), np.zeros(30))}, no_prior(2))
    assert found.converged
    np.testing.assert_allclose(found.w, [14, 1], atol=0.01)


@pytest.mark.parametrize(
    "name, wrong, said",
    [
        ("binomial", 2.0, "0, 1 or a proportion"),
        ("poisson", -1.0, "a count"),
        ("gamma", 0.0, "above 0"),
        ("gaussian", np.inf, "finite"),
        ("multinomial", 1.5, "the number of a level, 0 to 3"),
        ("negative_binomial", np.nan, "a count"),
    ],
)
def test_an_outcome_that_a_family_cannot_have_is_named(name, wrong, said):
    with pytest.raises(DataError, match=rf"north, row 7: the outcome is .*{said}"):
        family(name, LEVELS).checked(np.array([1.0, wrong]), "north", np.array([3, 7]))


def test_a_family_that_is_not_there():
    with pytest.raises(ConfigError, match="did you mean 'poisson'"):
        family("poison")


def test_solve_copes_with_what_is_not_positive_definite():
    S = np.diag([2.0, -1.0])
    np.testing.assert_allclose(rounds.solve(S, np.array([2.0, 1.0])), [1.0, 1.0])
    assert isinstance(rounds.nothing(2), SiteFactor)
