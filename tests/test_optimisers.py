"""SGD and the optimisers of optax: NumPy's steps on the planned minibatches, and what makes two of them the same."""

import json

import numpy as np
import optax
import pytest
from typer.testing import CliRunner

import fedlap
import oracle
from closeness import distance, flat, same_bits
from drawn import THREE, federation
from fedlap import identity
from fedlap.cli.main import app
from fedlap.errors import ConfigError, DataError
from fedlap.experiments import spec
from methods import TRACES, after, finish, simulation

DRAWN = federation(4, sizes=[12, 8, 6], overlap=True)  # two steps or one
COMMON = {"epochs": 1, "batch": 6}
RATE = 0.05


def numpy_sgd(w, batches, rate, momentum=0.0, clip=None, decay=0.0, done=0):
    """Steps of u ← momentum · u + g, w ← w − rate(i) · u on the mean loss of each batch, and how many there were."""
    u = np.zeros_like(w)
    for i, rows in enumerate(batches):
        data = oracle.labelled(DRAWN.inputs[rows], DRAWN.labels[rows], DRAWN.classes)
        g = oracle.softmax.gradient(data, w) / data.n
        if clip is not None:
            g = g * min(1, clip / np.linalg.norm(g))
        u = momentum * u + g + decay * w
        w = w - rate(done + i) * u
    return w, done + len(batches)


def check_against_numpy(solver, rate, keep=False, **numbers):
    """FedAvg of two rounds, once more in NumPy."""
    run = simulation("fedavg", DRAWN, solver=solver)
    state, w_g, done = run.init(), np.zeros(THREE.weights), [0] * 3
    for round in range(2):
        plan, w = run.plan(round), []
        for k in range(3):
            batches = [rows[rows >= 0] for rows in plan.batches.rows[k][: plan.batches.steps[k]]]
            found, count = numpy_sgd(w_g, batches, rate, done=done[k], **numbers)
            w.append(found)
            done[k] = count if keep else 0
        w_g = DRAWN.sizes @ np.stack(w) / DRAWN.sizes.sum()
        state = run.step(state)
        assert distance(flat(state.server.w), w_g) < 1e-12
    assert len(set(plan.batches.steps)) > 1, "all clients take as many steps; take another draw"


@pytest.mark.parametrize("numbers", [{}, {"momentum": 0.9}, {"momentum": 0.5, "clip": 0.4}], ids=str)
def test_sgd_is_numpys(numbers):
    check_against_numpy(fedlap.sgd(learning_rate=RATE, **COMMON, **numbers), lambda i: RATE, **numbers)


@pytest.mark.parametrize("keep", [False, True])
def test_a_schedule_counts_the_steps_of_a_round_or_of_all(keep):
    """And weight decay sees the weights."""
    schedule = optax.piecewise_constant_schedule(0.25, {1: 0.5, 2: 0.25})  # numbers that are exact in any precision
    made = optax.chain(optax.add_decayed_weights(0.1), optax.sgd(schedule))
    solver = fedlap.optimiser(made, keep=keep, **COMMON)
    check_against_numpy(solver, lambda i: (0.25, 0.125, 0.03125, 0.03125)[i], keep, decay=0.1)


def test_adam_by_any_name_is_adam():
    wanted = after(simulation("fedlap", keep=True), 2)
    adam = optax.adam(RATE)
    for solver in (
        fedlap.optimiser(adam, keep=True, **COMMON),
        fedlap.optimiser("adam", learning_rate=RATE, keep=True, **COMMON),
    ):
        assert same_bits(after(simulation("fedlap", solver=solver), 2), wanted)
    other = fedlap.optimiser("adam", learning_rate=2 * RATE, keep=True, **COMMON)
    assert not same_bits(after(simulation("fedlap", solver=other), 2), wanted)


def test_one_compilation_serves_all_rates_and_all_that_are_made_alike():
    def run(solver):
        return flat(after(simulation("fedavg", solver=solver), 1).server.w)

    named = [fedlap.optimiser("adam", learning_rate=rate, keep=True, **COMMON) for rate in (0.01, 0.2)]
    sgd = [fedlap.sgd(learning_rate=rate, momentum=momentum, **COMMON) for rate, momentum in ((0.1, 0.0), (0.3, 0.7))]
    made = [fedlap.optimiser(optax.adam(0.1), **COMMON) for _ in range(2)]
    for first, second in (named, sgd, made):
        one, traced = run(first), len(TRACES)
        assert np.array_equal(run(second), one) == (first == second)
        assert len(TRACES) == traced
    run(fedlap.optimiser(optax.adam(0.2), **COMMON))
    assert len(TRACES) > traced, "another optimiser is another program"


@pytest.mark.parametrize(
    "others",
    [
        (optax.adam(1e-3), optax.adam(1e-2), optax.adam(1e-3, b1=0.8), optax.adamw(1e-3), optax.nadam(1e-3)),
        (optax.adagrad(0.1), optax.adagrad(0.1, initial_accumulator_value=1.0), optax.sgd(0.1), optax.sgd(0.1, 0.9)),
        tuple(optax.sgd(each) for each in (0.1, optax.constant_schedule(0.1), optax.cosine_decay_schedule(0.1, 9))),
        tuple(optax.sgd(optax.piecewise_constant_schedule(1.0, {9: rate})) for rate in (0.1, 0.2)),
    ],
    ids=["adam", "sgd", "schedules", "dictionaries"],
)
def test_no_two_optimisers_are_taken_for_one(others):
    texts = [identity.text(identity.of(fedlap.optimiser(each))) for each in others]
    assert len(set(texts)) == len(texts)
    assert not any(" at 0x" in text for text in texts)


def test_what_an_optimiser_is_does_not_depend_on_who_has_used_it():
    """A schedule of optax writes into what it holds."""
    schedule = optax.cosine_decay_schedule(0.1, 9)
    before = fedlap.optimiser(optax.sgd(schedule))
    schedule(3)
    assert fedlap.optimiser(optax.sgd(schedule)) == before
    assert hash(fedlap.optimiser(optax.sgd(optax.cosine_decay_schedule(0.1, 9)))) == hash(before)


def test_a_named_function_of_ones_own_is_known_by_the_name_given():
    """Its program is its own all the same."""
    one, two = (optax.sgd(lambda step, rate=rate: rate / (1 + step)) for rate in (0.1, 0.2))
    a, b, again = (fedlap.optimiser(each, name="falling") for each in (one, two, one))
    assert identity.of(a) == identity.of(b) and a != b and a == again
    assert identity.of(fedlap.optimiser(one, name="other")) != identity.of(a)
    assert repr(a) == "optimiser(optimiser=falling, epochs=5, batch=32, clip=None, keep=False)"


def test_another_optimiser_does_not_go_on_with_a_run(tmp_path):
    run = lambda rate: simulation("fedavg", solver=fedlap.optimiser(optax.adam(rate), **COMMON))
    finish(run(0.1), 1, checkpoint=tmp_path / "run.npz")
    with pytest.raises(DataError, match=r"a checkpoint of another run: its solver is .*-0\.1.*this run's is .*-0\.2"):
        finish(run(0.2), 2, checkpoint=tmp_path / "run.npz", resume=True)
    assert len(finish(run(0.1), 2, checkpoint=tmp_path / "run.npz", resume=True).nll) == 2


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: fedlap.sgd(momentum=1.0), r"SGD: momentum is 1\.0; expected a number, 0 or above and below 1"),
        (lambda: fedlap.sgd(lr=0.1), r"unknown argument of SGD 'lr'"),
        (lambda: fedlap.optimiser("adamm", learning_rate=0.1), r"optimiser is 'adamm'; expected the name of an opt"),
        (lambda: fedlap.optimiser(optax.adam), r"optimiser is <function adam.*expected the name of an optimiser of o"),
        (lambda: fedlap.optimiser("adam"), r"learning_rate is None; expected a number above 0"),
        (lambda: fedlap.optimiser("adam", learning_rate=0.1, name="a"), r"name is 'a'; expected none, for 'adam' is"),
        (lambda: fedlap.optimiser(optax.adam(0.1), learning_rate=0.1), r"learning_rate is 0\.1; expected none"),
        (lambda: fedlap.optimiser(optax.adam(0.1), name=""), r"name is ''; expected some letters"),
        (lambda: fedlap.optimiser(optax.adam(0.1), epochs=0), r"epochs is 0; expected a whole number above 0"),
        (lambda: fedlap.optimiser(optax.sgd(lambda step: 0.1)), r"made with <function.*give it a name: optimiser\(…, "),
        (lambda: fedlap.optimiser(optax.polyak_sgd()), r"no step from a gradient and weights alone: .*'value'"),
    ],
)
def test_what_cannot_be_meant_is_refused(make, message):
    with pytest.raises(ConfigError, match=message):
        make()


LINEAR = {"schedule": "linear_schedule", "init_value": 0.5, "end_value": 0.125, "transition_steps": 3}


SCHEDULES = """
[federation]
dataset = "heart"
[model]
name = "logistic"
[solver]
name = "optimiser"
optimiser = "sgd"
[train]
rounds = 2
seeds = [0]
[algorithms.fedavg]
[sweep]
finals = "all"
[sweep.every]
learning_rate = [
    0.125, { schedule = "linear_schedule", init_value = 0.5, end_value = 0.125, transition_steps = 3 }
]
"""


def scheduled(**learning_rate):
    return {"optimiser": "lion", "learning_rate": learning_rate}


def test_a_schedule_by_its_name_is_the_one_of_optax():
    """0.5, 0.375, 0.25, 0.125: exact in any precision."""
    named = fedlap.optimiser("sgd", learning_rate=LINEAR, **COMMON)
    check_against_numpy(named, lambda i: 0.5 - 0.125 * min(i, 3))
    assert named == fedlap.optimiser("sgd", learning_rate=dict(reversed(LINEAR.items())), **COMMON)
    assert named != fedlap.optimiser("sgd", learning_rate=LINEAR | {"transition_steps": 4}, **COMMON)


def test_a_settings_file_says_a_schedule_and_sweeps_over_several(tmp_path):
    """Each is another run, written down as it was said."""
    file = tmp_path / "schedules.toml"
    file.write_text(SCHEDULES)
    done = CliRunner().invoke(app, ["run", str(file), "--output", str(tmp_path / "out"), "--jobs", "1"])
    assert done.exit_code == 0, done.output
    lines = [json.loads(line) for line in (tmp_path / "out" / "results.jsonl").read_text().splitlines()]
    lines = [line for line in lines if not line["held_out"]]
    said = [line["spec"]["solver"]["learning_rate"] for line in lines]
    assert len(said) == 2 and 0.125 in said and LINEAR in said
    assert len({line["curves"]["test"]["nll"][-1] for line in lines}) == 2


def test_a_settings_file_names_an_optimiser_of_optax():
    table = {"federation": {"dataset": "heart"}, "model": {"name": "logistic"}, "algorithms": {"fedavg": {}}}
    named = lambda **solver: spec.resolve("any", {**table, "solver": {"name": "optimiser", **solver}}).make_solver()
    assert named(optimiser="lion", learning_rate=0.1) == fedlap.optimiser("lion", learning_rate=0.1)
    for wrong, message in (
        ({"optimiser": "lion"}, r"solver\.learning_rate is missing"),
        ({"optimiser": "lions", "learning_rate": 0.1}, r"optimiser is 'lions'; expected the name of an optimiser of o"),
        (
            {"optimiser": "lion", "learning_rate": 0},
            r"learning_rate is 0\.0; expected a number above 0, or \{ schedule",
        ),
        (scheduled(schedule="cosine_decay"), r"unknown schedule of optax 'cosine_decay'; did you mean 'cosine_decay_s"),
        (scheduled(init_value=0.1), r"learning_rate: \{.*\} is no schedule, which has a key schedule"),
        (scheduled(schedule="linear_schedule", init_value="a"), r"init_value of linear_schedule is 'a'; expected a nu"),
        (scheduled(schedule="linear_schedule", init_value=0.1), r"optax makes no linear_schedule of .*'end_value'"),
        (scheduled(**LINEAR | {"end_value": -0.1}), r"linear_schedule goes from 0\.5 to -0\.1; expected rates of 0 or"),
    ):
        with pytest.raises(ConfigError, match=message):
            named(**wrong)
