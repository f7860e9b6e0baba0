"""δ by the evidence: MacKay's step against NumPy, its end against the evidence itself, and what a user sees of it."""

import dataclasses
from types import SimpleNamespace

import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import minimize_scalar

import fedlap
import oracle
import sites
from closeness import dense, distance, flat, same_bits
from drawn import THREE, Squared, federation, memory, points
from fedlap.algebra.evidence import LEAST, MOST, PRIOR, Evidence, prior
from fedlap.algebra.precision import Diagonal, Full, Shifted
from fedlap.algebra.vector import Vector
from fedlap.models.likelihood import categorical
from fedlap.models.network import Dense, Flatten, Network
from methods import TRACES, finish, simulation

LINEAR = Network((Flatten(), Dense(bias=False)))  # the network of test_oracle
LOSSES = {"softmax": (oracle.softmax, categorical), "squared": (oracle.squared, Squared())}
STARTS = (0.01, 1.0, 100.0)


def vector(*parts):
    return Vector({str(place): jnp.asarray(part, float) for place, part in enumerate(parts)})


LIKE = vector([0.3, -0.2], [[1.0], [0.5], [-2.0]])


def curvature(rank, seed=0):
    """A matrix over five weights that is silent on 5 − rank directions."""
    half = np.random.default_rng(seed).normal(size=(5, rank)) * np.array([[1.0, 30.0, 1.0, 0.1, 5.0]]).T
    return half @ half.T


@pytest.mark.parametrize("rank", [5, 3])
@pytest.mark.parametrize("delta", [np.full(5, 0.7), np.array([1e-4, 1e-4, 30.0, 30.0, 30.0])])
def test_what_is_learnt_of_each_weight(rank, delta):
    V = curvature(rank)
    layered = Diagonal(LIKE.like(jnp.asarray(delta)))
    S = V + np.diag(delta)
    one = len(set(delta)) == 1
    full = (delta[0] if one else layered) + Full(jnp.asarray(V))
    assert isinstance(full, Shifted)
    np.testing.assert_allclose(full.flat, S, rtol=1e-14)
    np.testing.assert_allclose((full @ LIKE).flat, S @ LIKE.flat, rtol=1e-13)
    np.testing.assert_allclose(full.solve(full @ LIKE).flat, LIKE.flat, rtol=1e-9)
    told = 1 - delta * np.diag(np.linalg.inv(S))
    np.testing.assert_allclose(full.learnt(delta[0] if one else layered, LIKE).flat, told, rtol=1e-7, atol=1e-9)
    assert told.sum() < rank + 1e-9
    diagonal = Diagonal(LIKE.like(jnp.asarray(np.diag(V)))) + (delta[0] if one else layered)
    told = np.diag(V) / (np.diag(V) + delta)
    np.testing.assert_allclose(diagonal.learnt(delta[0] if one else layered, LIKE).flat, told, rtol=1e-9)


def state(w, V, delta):
    return SimpleNamespace(w=w, ahead=delta + V, delta=delta)


def test_a_step_is_held_where_data_say_nothing_and_where_they_say_zero():
    V = Diagonal(vector([0.0, 0.0], [[4.0], [4.0], [4.0]]))
    layered = Diagonal(vector([2.0, 2.0], [[4.0]] * 3))
    silent, heard = prior(Evidence(by_layer=True), state(np.sqrt(0.1) * LIKE, V, layered)).d.tree.values()
    np.testing.assert_array_equal(silent, 2.0)  # as it was
    np.testing.assert_allclose(heard, 1.5 / 0.525)  # γ = 3 · 4/8, ‖w‖² = (1 + 1/4 + 4)/10
    assert prior(Evidence(), state(LIKE, 0.0 * V, jnp.asarray(3.0))) == 3.0
    assert prior(Evidence(), state(0.0 * LIKE, V, jnp.asarray(3.0))) == 6.0  # at most twice, or half, of what it was
    assert prior(Evidence(), state(1e9 * LIKE, V, jnp.asarray(3.0))) == 1.5
    assert prior(Evidence(), state(0.0 * LIKE, V, jnp.asarray(0.9 * MOST))) == MOST
    assert prior(Evidence(), state(1e9 * LIKE, V, jnp.asarray(1.1 * LEAST))) == LEAST
    assert prior(0.7, None) == 0.7


# The whole federation -------------------------------------------------------------------------------------------------


def exact(algorithm, drawn, loss="squared", model=LINEAR, **options):
    solvers = {"solver": fedlap.newton(), "server_solver": fedlap.newton()}
    likelihood = LOSSES[loss][1]
    return fedlap.Simulation.of(
        algorithm, drawn, model, likelihood=likelihood, engine="vectorised", **solvers, **options
    )


@pytest.mark.parametrize(
    ("name", "loss", "numbers", "participation"),
    [
        ("fedlap_cov", "squared", {"covariance": "full", "rho": 0.4}, 1.0),
        ("fedlap_cov", "softmax", {"covariance": "diagonal", "rho": 0.3}, 2),
        ("fedlap_cov_func", "softmax", {"covariance": "full", "rho": 0.4, "tau": 0.3}, 1.0),
    ],
)
def test_the_library_is_the_oracle(name, loss, numbers, participation):
    drawn = federation(7, THREE, overlap=True)
    algorithm = fedlap.algorithms.ALGORITHMS[name](delta=fedlap.evidence(start=0.5), **numbers)
    run = exact(algorithm, drawn, loss, participation=participation)
    who = [np.flatnonzero(run.plan(r).drawn).tolist() for r in range(12)]
    extra = {"memory": memory(run)} if algorithm.memory else {}
    found = run.init()
    for wanted in oracle.ALGORITHMS[name](
        LOSSES[loss][0], points(drawn), who, **numbers, delta=0.5, evidence=True, **extra
    ):
        found = run.step(found)
        assert distance(flat(found.server.w), wanted.w) < 1e-9
        assert distance(dense(found.server.S), wanted.S) < 1e-9
        assert float(found.server.delta) == pytest.approx(wanted.delta, rel=1e-9)
    assert wanted.delta != pytest.approx(0.5, rel=0.1)
    assert run.algorithm.broadcast(found.server).delta is None


def log_evidence(loss, data, delta):
    """log p(D | δ) by Laplace, up to a constant: exact where losses are quadratic."""
    w, S = oracle.pooled(loss, data, delta)
    energy = sum(loss.value(each, w) for each in data) + delta / 2 * w @ w
    return -energy + w.size / 2 * np.log(delta) - np.linalg.slogdet(S)[1] / 2


def test_it_ends_where_the_evidence_is_largest_from_wherever_it_starts():
    """Full covariances and quadratic losses, where Laplace's evidence is the evidence."""
    drawn = federation(7, THREE, overlap=True)
    ends = []
    for start in STARTS:
        run = exact(fedlap.FedLapCov(delta=fedlap.evidence(start=start), covariance="full", rho=0.4), drawn)
        found = run.init()
        for _ in range(150):
            found = run.step(found)
        ends.append(float(found.server.delta))
    np.testing.assert_allclose(ends, ends[0], rtol=1e-9)
    objective = lambda u: -log_evidence(oracle.squared, points(drawn), np.exp(u))
    best = minimize_scalar(objective, bounds=(-9, 9), method="bounded", options={"xatol": 1e-10})
    assert objective(np.log(ends[0])) == pytest.approx(best.fun, abs=1e-12)
    assert ends[0] == pytest.approx(np.exp(best.x), rel=1e-4)  # the top is flat: half the digits
    slope = objective(np.log(ends[0]) + 1e-4) - objective(np.log(ends[0]) - 1e-4)
    assert abs(slope) < 1e-9


def test_by_layer_each_array_has_its_own_and_a_full_matrix_ends_at_the_pooled_fixed_point():
    """Softmax: one direction of each input is silent, and Newton's step ρ = 1."""
    drawn = federation(5, THREE)
    model = fedlap.logistic(bias=True)
    ends = []
    for start in STARTS:
        rule = fedlap.evidence(start=start, by_layer=True)
        run = exact(fedlap.FedLapCov(delta=rule, covariance="full", rho=1.0), drawn, "softmax", model)
        history = finish(run, 100)  # δ takes ten of them to come from 0.01, and then gains a digit in several
        ends.append(history.delta)
    assert list(ends[0]) == list(history.weights)
    for end in ends:
        assert end == pytest.approx(ends[0], rel=1e-9)
    delta = np.concatenate([np.full(array.size, history.delta[name]) for name, array in history.weights.items()])
    w, S = history.final.w, history.precision
    gamma = 1 - delta * np.diag(np.linalg.inv(S))
    places = np.split(np.arange(w.size), [history.weights["1.bias"].size])
    for name, place in zip(history.weights, places, strict=True):
        assert gamma[place].sum() / (w[place] @ w[place]) == pytest.approx(history.delta[name], rel=1e-8)
    x, y = (np.concatenate(parts) for parts in zip(*(drawn.of(k) for k in range(3)), strict=True))
    design = np.hstack([np.ones((len(x), 1)), x])
    pooled = oracle.labelled(design, y, 3)
    W = np.vstack([history.weights["1.bias"], history.weights["1.weight"].T]).T
    gradient = oracle.softmax.gradient(pooled, W.reshape(-1)).reshape(3, -1)
    prior_pull = np.array([history.delta["1.bias"], *[history.delta["1.weight"]] * 2]) * W
    np.testing.assert_allclose(gradient, -prior_pull, atol=1e-8)


# What a user sees -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("plain", "meant"),
    [
        (2, 2.0),
        ("evidence", Evidence()),
        ("evidence by layer", Evidence(by_layer=True)),
        ({"rule": "evidence by layer", "start": 0.01}, fedlap.evidence(start=0.01, by_layer=True)),
        ({"rule": "evidence", "start": 100.0}, fedlap.evidence(start=100.0)),
    ],
)
def test_a_file_says_it_in_words(plain, meant):
    assert PRIOR.read("delta", plain) == meant and PRIOR.holds(meant)
    assert PRIOR.normal("delta", plain) == plain
    if isinstance(plain, str):
        assert fedlap.FedLapCov(delta=plain) == fedlap.FedLapCov(delta=meant)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: fedlap.FedLapCov(delta="evidance"), "FedLapCov: delta: unknown rule 'evidance'; did you mean 'evid"),
        (lambda: fedlap.FedLapCov(delta=-1.0), 'delta is -1.0; expected a number above 0, "evidence" or "evidence by'),
        (lambda: fedlap.FedLap(delta="evidence"), "FedLap: delta is 'evidence'; expected a number above 0"),
        (lambda: fedlap.evidence(start=0), "evidence: start is 0; expected a number from 1e-06 to 1e"),
        (lambda: fedlap.evidence(by_layer=1), "evidence: by_layer is 1; expected true or false"),
        (lambda: PRIOR.read("delta", {"start": 1.0}), "delta: .* exactly the keys rule and start"),
        (lambda: PRIOR.read("delta", {"rule": "evidence", "start": 1e9}), "delta: evidence: start is 1000000000.0"),
    ],
)
def test_what_is_no_rule_is_refused(make, message):
    with pytest.raises(fedlap.ConfigError, match=message):
        make()


def test_starts_are_numbers_of_one_program_and_a_run_goes_on_where_it_stopped(tmp_path):
    make = lambda start=1.0: simulation("fedlap_cov", hyper={"delta": fedlap.evidence(start=start)})
    whole = finish(make(), 4)
    traced = len(TRACES)
    others = [finish(make(start), 4).delta for start in (0.1, 10)]
    assert len(TRACES) == traced and len({whole.delta, *others}) == 3
    finish(make(), 2, tmp_path / "run.npz")
    assert same_bits(finish(make(), 4, tmp_path / "run.npz", resume=True).state.server, whole.state.server)
    whole.save(tmp_path / "saved")
    assert fedlap.load(tmp_path / "saved", likelihood=whole.fit.task.likelihood).delta == whole.delta
    assert finish(simulation("fedlap_cov"), 1).delta is None
    assert repr(whole.simulation.algorithm).startswith("FedLapCov(delta=evidence(start=1.0, by_layer=False)")


def test_a_delta_without_end_is_told():
    """Every input with its opposite, both of one label: quadratic losses are then best at zero."""
    drawn = federation(7, THREE, overlap=True)
    inputs, labels = drawn.inputs.copy(), drawn.labels.copy()
    for rows in drawn.rows:
        half = len(rows) // 2
        inputs[rows[half : 2 * half]], labels[rows[half : 2 * half]] = -inputs[rows[:half]], labels[rows[:half]]
        inputs[rows[2 * half :]] = 0.0
    drawn = dataclasses.replace(drawn, inputs=inputs, labels=labels)
    algorithm = fedlap.FedLapCov(delta="evidence", covariance="full", rho=0.4)
    options = {"solver": fedlap.newton(), "server_solver": fedlap.newton(), "likelihood": Squared()}
    with pytest.warns(
        UserWarning, match="the weights would be best at zero: its delta .* 1e.06; if that cannot be, give"
    ):
        history = fedlap.simulate(algorithm, drawn, LINEAR, rounds=24, engine="vectorised", **options)
    assert history.delta == MOST and np.isfinite(history.final.w).all()


@pytest.mark.parametrize("by_layer", [False, True])
def test_a_delta_that_is_on_its_way_is_told(by_layer):
    """From 0.01 it doubles in every round; where it has come to its end nothing is said, and of a number never."""
    drawn = federation(7, THREE, overlap=True)
    options = {"solver": fedlap.newton(), "likelihood": Squared(), "engine": "vectorised"}
    run = lambda delta, rounds: fedlap.simulate(
        fedlap.FedLapCov(delta=delta, covariance="full", rho=0.4), drawn, LINEAR, rounds=rounds, **options
    )
    far = fedlap.evidence(start=0.01, by_layer=by_layer)
    with pytest.warns(
        UserWarning, match=r"delta.* is not at its end: 0.02, and 0.04 after one more round; give it more"
    ):
        assert run(far, 2).doubt.startswith("delta of 1.weight" if by_layer else "delta by")
    assert run(far, 60).doubt is None and run(1.0, 2).doubt is None


def test_a_network_with_a_diagonal_is_warned_of():
    """Its δ would come out far too large; a full matrix knows what weights share."""
    drawn = federation(7, THREE)
    with pytest.warns(UserWarning, match=r"more weights \(123\) than rows \(\d+\): it will be too large"):
        exact(fedlap.FedLapCov(delta="evidence"), drawn, "softmax", fedlap.mlp(hidden=(20,)))
    exact(fedlap.FedLapCov(delta="evidence", covariance="full"), drawn, "softmax", fedlap.mlp(hidden=(20,)))
    exact(fedlap.FedLapCov(delta=1.0), drawn, "softmax", fedlap.mlp(hidden=(20,)))


def test_sites_and_simulation_agree_in_every_bit(tmp_path):
    """Sites are told nothing more than with a number, and their guard lets a δ pass that it does not know."""
    terms = sites.make_terms(fedlap.FedLapCov(delta="evidence"))
    outcome = sites.make_coordinator(terms, tmp_path).run()
    server = sites.simulate(terms).server
    assert same_bits(outcome.server, server)
    assert float(server.delta) != 1.0
