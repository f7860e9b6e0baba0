"""A method in one file, with states of its own under names of its own: nothing else has to know of it.

The conformance suite and the bits of a study are in `test_conformance` and `test_study_parity`, as of every method.
"""

import json

import jax
import numpy as np
import optax
import pytest
from typer.testing import CliRunner

import drawn
import fedlap
import sites
from closeness import assert_same, dense, flat
from fedlap.algorithms import ALGORITHMS
from fedlap.cli.main import app
from fedlap.run import membership
from methods import STRANGERS

SPEC = """
[federation]
dataset = "heart"
[model]
name = "logistic"
[solver]
name = "newton"
[train]
rounds = 2
seeds = [0]
[algorithms."stranger:Consensus"]
strength = 1.0
[algorithms."stranger:Product"]
strength = 1.0
shape = "full"
"""
PLAIN = {"init": lambda self, s, start: (fedlap.Point(start), ()), "factor_update": lambda self, g, t, q, k: t}
both = pytest.mark.parametrize("name", STRANGERS)


def test_the_command_line_runs_it(tmp_path):
    spec, out = tmp_path / "stranger.toml", tmp_path / "out"
    spec.write_text(SPEC)
    done = CliRunner().invoke(app, ["run", str(spec), "--output", str(out), "--jobs", "1"])
    assert done.exit_code == 0, done.output
    lines = [json.loads(line) for line in (out / "results.jsonl").read_text().splitlines()]
    assert {line["algorithm"] for line in lines} == set(STRANGERS)
    assert all(len(line["curves"]["test"]["nll"]) == 2 for line in lines)


@both
@pytest.mark.parametrize("shape", ["diagonal", "full"])
def test_a_study_asks_the_method_itself(name, shape, tmp_path):
    """Nobody honest is refused, the precision is the method's own, and a policy knows how much is sent."""
    terms, events = sites.make_terms(ALGORITHMS[name](strength=0.5, shape=shape)), []
    outcome = sites.make_coordinator(terms, tmp_path, tell=events.append).run()
    assert not [event for event in events if event.kind == "refused"] and len(outcome.history) == 3
    state = sites.simulate(terms)
    np.testing.assert_array_equal(outcome.precision, terms.algorithm.precision_ahead(state.server))
    assert terms.covariances == (6 if shape == "full" else 0)


@both
def test_it_comes_to_the_pooled_answer(name):
    """FedLap-Cov's, with full covariances: the methods are worth testing."""
    data, options = drawn.federation(3), {"solver": fedlap.newton(), "rounds": 150}
    run = lambda algorithm: fedlap.simulate(algorithm, data, fedlap.logistic(), **options)
    mine, wanted = (
        run(ALGORITHMS[name](strength=0.7, shape="full")),
        run(fedlap.FedLapCov(delta=0.7, covariance="full")),
    )
    assert_same(flat(mine.final.w), flat(wanted.final.w), 1e-9)
    assert_same(dense(mine.precision), dense(wanted.precision), 1e-9)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"init": lambda self, s, start: ((start,), ())},
            r"Own.init: what the server knows is a tuple without a vector w, the model; expected a named tuple that ha",
        ),
        (
            {"server_update": lambda self, g, c, s: c.mean(lambda k: k.w)},
            r"Own.server_update gives Vector; expected Point\(w Vector\), as init does",
        ),
        (
            {"factor_update": lambda self, g, t, q, k: (q.w, t)},
            r"Own.factor_update gives tuple\(Vector, tuple\); expected tuple\(\), as init does",
        ),
    ],
)
def test_a_state_that_is_none_is_told_by_the_line_that_gives_it(change, message):
    own = fedlap.algorithm(type("Own", (fedlap.FedAvg,), {"__doc__": "Broken.", **PLAIN, **change}))
    with pytest.raises(fedlap.ConfigError, match=message):
        fedlap.simulate(own(), drawn.federation(3), fedlap.logistic(), rounds=1)


@pytest.mark.parametrize(
    ("solver", "message"),
    [
        (optax.adam(0.1), r"solver is Gradient.*; expected for example adam\(\), or optimiser\(optax.adam\(0.1\)\)"),
        (type("Half", (), {"minimise": print})(), "solver Half has no init; expected minimise, init, step_count"),
        (
            type("Loose", (), dict.fromkeys(("minimise", "init", "step_count"), print))(),
            "solver Loose is no value; expected @fedlap.hyperparameters above its class",
        ),
    ],
)
def test_what_is_no_solver_is_told(solver, message):
    with pytest.raises(fedlap.ConfigError, match=message):
        fedlap.simulate(fedlap.FedAvg(), drawn.federation(3), fedlap.logistic(), rounds=1, solver=solver)


def test_what_was_said_for_good_has_no_lag():
    """Its `v`, `V` and `reached` are what `settled` reads; what it calls its damping is nobody's business."""
    algorithm = ALGORITHMS["stranger:Product"](strength=0.7, pace=0.4)
    run = fedlap.Simulation.of(algorithm, drawn.federation(3), fedlap.logistic(), solver=fedlap.newton())
    state = run.step(run.init())
    changed, _ = membership.update(run, state, "client-0", drawn.federation(4).of(0))
    sent, said = jax.tree.map(lambda leaf: np.asarray(leaf)[0], state.clients.factor), changed.past[0].sent
    np.testing.assert_allclose(sent.reached, 0.4)
    np.testing.assert_allclose(said.reached, 1)
    np.testing.assert_allclose(said.V, np.asarray(sent.V) / 0.4)
    np.testing.assert_allclose(said.v, np.asarray(sent.v) / 0.4)
