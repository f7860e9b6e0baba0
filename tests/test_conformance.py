"""What every algorithm owes its users, over the whole list: values in, values out, one compilation, any clients.

A new algorithm needs one row in `methods.HYPER`; everything else finds it in `fedlap.algorithms.ALGORITHMS`. Two of
`stranger`, with states of their own under names of their own, show that nothing more is needed.
"""

import dataclasses
import itertools

import jax
import numpy as np
import pytest

import fedlap
from closeness import flat, same_bits
from drawn import THREE, Shape, federation
from fedlap.algorithms import ALGORITHMS
from fedlap.engines import parties
from fedlap.engines.parties import Moment
from fedlap.engines.sequential import run_client, run_server
from fedlap.models.likelihood import Categorical
from fedlap.models.network import Dense, Flatten, Network
from methods import HYPER, PRIORLESS, STRANGERS, TRACES, after, build, finish, settings_of, simulation

# Where the moments of Adam are kept too: what is optimised is a vector, a Gaussian, or either of them with a memory.
KEPT = ("fedlap", "pvi", "fedlap_cov_func")

NETWORK = Network((Flatten(), Dense(bias=False)))  # as `logistic()`, from weights that are not zero

everyone = pytest.mark.parametrize("name", [*ALGORITHMS, *STRANGERS])


def bits(tree):
    return [np.array(leaf) for leaf in jax.tree.leaves(tree)]


def test_every_algorithm_has_a_row():
    assert set(HYPER) == set(ALGORITHMS), "HYPER and fedlap.algorithms.ALGORITHMS name different algorithms"


@everyone
def test_it_is_a_frozen_value(name):
    algorithm = build(name)
    fields = dataclasses.fields(algorithm)
    assert algorithm == build(name) and hash(algorithm) == hash(build(name))
    assert hash(jax.tree.structure(algorithm)) == hash(jax.tree.structure(build(name)))
    for field in fields:
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(algorithm, field.name, 1.0)
    for field in fields:
        if settings_of(name).get(field.name):
            assert algorithm != build(name, **{field.name: settings_of(name)[field.name] * 2})
    own = [each for each in type(algorithm).__subclasses__() if each.__module__.startswith("fedlap.")]
    assert own == []  # an experiment of the reproduction may vary a method


def test_no_two_algorithms_look_alike_to_jit():
    """A program is found again by the structure of its arguments, in which FedProx and FedADMM both are one number."""
    structures = [jax.tree.structure(build(name)) for name in ALGORITHMS]
    assert all(a != b for a, b in itertools.combinations(structures, 2))


@everyone
def test_a_round_is_pure(name):
    run = simulation(name)
    plan, state = run.plan(0), run.init()
    before = bits((state, plan, run.setup.shards, run.setup.pool))
    first, second = run.step(state, plan), run.step(state, plan)
    assert same_bits(first, second)
    assert not same_bits(first.server, state.server)
    for old, new in zip(before, bits((state, plan, run.setup.shards, run.setup.pool)), strict=True):
        np.testing.assert_array_equal(old, new)


@everyone
def test_what_comes_out_can_go_in_again(name):
    """Structures, shapes and types do not change from round to round, or the second round would compile anew."""
    run = simulation(name)
    state = run.init()
    new = run.step(state)
    shape = lambda leaf: (np.shape(leaf), np.asarray(leaf).dtype, getattr(leaf, "weak_type", None))
    assert jax.tree.structure(state._replace(round=0)) == jax.tree.structure(new._replace(round=0))
    for old, leaf in zip(jax.tree.leaves(state), jax.tree.leaves(new), strict=True):
        assert shape(old) == shape(leaf)
    assert all(np.asarray(leaf).dtype in (np.float64, np.int32, int) for leaf in jax.tree.leaves(new))


def numbers_of(name):
    """The hyper-parameters that are real numbers, hence values in the program and not a part of it."""
    return [field for field, value in settings_of(name).items() if isinstance(value, float)]


@everyone
def test_one_compilation_serves_all_numbers(name):
    """Three values of every number, and a whole number for a real one: none of them traces anything again."""

    def run(**options):
        simulation_ = simulation(name, **options)
        state = after(simulation_, 2)
        simulation_.evaluate(state)
        return flat(state.server.w)

    first = run()
    traced = len(TRACES)
    numbers = numbers_of(name)
    for field, value in itertools.product(numbers, (0.11, 0.83, 1)):
        other = run(hyper={field: value})
        assert len(TRACES) == traced, f"{field} = {value!r} compiled again"
        assert np.isfinite(other).all() and not np.array_equal(other, first), f"{field} = {value!r} changes nothing"
    for field in numbers:
        np.testing.assert_array_equal(run(hyper={field: 1}), run(hyper={field: 1.0}))
        np.testing.assert_array_equal(run(hyper={field: np.float32(0.5)}), run(hyper={field: 0.5}))
    run(seed=3)
    run(solver=fedlap.adam(epochs=1, batch=6, learning_rate=0.01))
    assert len(TRACES) == traced
    run(participation=2)  # as many clients as are drawn are in the program
    traced = len(TRACES)
    run(seed=3, participation=2)
    assert len(TRACES) == traced


def test_another_program_is_noticed():
    """Or the counting above would prove nothing: the number of epochs is a part of the program."""
    after(simulation("fedavg"), 1)
    traced = len(TRACES)
    after(simulation("fedavg"), 1)
    assert len(TRACES) == traced
    after(simulation("fedavg", solver=fedlap.adam(epochs=2, batch=6)), 1)
    assert len(TRACES) > traced


@everyone
def test_the_order_of_the_clients_does_not_matter(name):
    drawn = federation(4, overlap=True, names=["north", "east", "south"])
    order = [2, 0, 1]
    turned = dataclasses.replace(
        drawn, clients=tuple(drawn.clients[k] for k in order), rows=tuple(drawn.rows[k] for k in order)
    )
    for options in ({"seed": 0}, {"seed": 1}, {"seed": 1, "participation": 2}):
        a, b = (after(simulation(name, each, **options), 3) for each in (drawn, turned))
        np.testing.assert_allclose(flat(b.server.w), flat(a.server.w), rtol=1e-11, atol=1e-13)
        for x, y in zip(jax.tree.leaves(a.clients), jax.tree.leaves(b.clients), strict=True):
            np.testing.assert_allclose(y, np.asarray(x)[order], rtol=1e-10, atol=1e-12)


def test_a_one_shot_method_hears_everybody_before_it_ends():
    """With two of three clients a round it needs several; the rounds in which nobody is new change nothing."""
    exact = {"solver": fedlap.newton(), "likelihood": Categorical()}
    run = simulation("bcm", participation=2, **exact)
    assert not run.one_shot and simulation("bcm").one_shot
    heard = [run.plan(r).drawn for r in range(6)]
    assert not heard[0].all() and np.any(heard, axis=0).all()
    whole, partial = finish(simulation("bcm", **exact), 6), finish(run, 6)
    assert (len(whole.nll), len(partial.nll)) == (1, 6)
    np.testing.assert_allclose(partial.final.w, whole.final.w, rtol=1e-9)
    np.testing.assert_allclose(partial.final.S, whole.final.S, rtol=1e-9)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"solver": fedlap.adam}, r"solver is <class .*expected for example adam\(\)"),
        ({"solver": fedlap.descent()}, r"solver is descent\(.*expected for example adam\(\)"),
        ({"server_solver": fedlap.adam()}, r"server_solver is adam\(.*expected for example annealed\(\)"),
        ({"hyper": {"rho": lambda k: 0.1}}, r"FedLap: rho is <function .*expected a number in \(0, 1\], evenly"),
        ({"hyper": {"delta": (0.1, 1.0)}}, r"FedLap: delta is \(0.1, 1.0\); expected a number above 0"),
    ],
)
def test_what_cannot_do_its_part_is_refused(options, message):
    with pytest.raises(fedlap.ConfigError, match=message):
        simulation("fedlap", **options)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda x, y: (x, y[:, None]), r"late: labels of shape \(10, 1\); expected one label per row"),
        (lambda x, y: (x, y[:-1]), "late: 10 rows of inputs but 9 labels"),
        (lambda x, y: (x, y + 1), "late, row .: label is 3; expected a whole number from 0 to 2"),
        (lambda x, y: (x[:, :1], y), r"late has rows of shape \(1,\)"),
        (lambda x, y: (x * np.nan, y), "late, row 0, column 0: input is nan"),
        (lambda x, y: x, r"late: ndarray; expected a pair \(inputs, labels\)"),
    ],
)
def test_a_watched_set_is_checked_as_the_test_set_is(change, message):
    drawn = federation(4, overlap=True)
    with pytest.raises(fedlap.DataError, match=message):
        simulation("fedlap", drawn, watch={"late": change(drawn.test_inputs, drawn.test_labels)})


def test_a_checkpoint_knows_what_was_watched(tmp_path):
    """Its columns have no names."""
    drawn, path = federation(4, overlap=True), tmp_path / "run.npz"
    test, train = (drawn.test_inputs, drawn.test_labels), (drawn.inputs, drawn.labels)
    finish(simulation("fedlap", drawn, watch={"a": test, "b": train}), 1, checkpoint=path)
    with pytest.raises(fedlap.DataError, match="watch"):
        finish(simulation("fedlap", drawn, watch={"b": train, "a": test}), 2, checkpoint=path, resume=True)
    assert len(finish(simulation("fedlap", drawn, watch={"a": test, "b": train}), 2, path, resume=True).nll) == 2


@everyone
def test_one_client_is_a_federation(name):
    state = after(simulation(name, federation(1, Shape(clients=1, features=2, classes=3))), 2)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(state))
    assert np.abs(flat(state.server.w)).max() > 0


@everyone
def test_a_client_may_have_one_example(name):
    drawn = federation(3, sizes=[12, 5, 1])
    assert drawn.sizes.min() == 1
    state = after(simulation(name, drawn), 2)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(state))


@everyone
def test_clients_that_are_not_drawn_keep_everything(name):
    run = simulation(name, participation=2, keep=name in KEPT)
    state, idle = run.init(), set()
    for _ in range(4):
        plan = run.plan(state.round)
        assert plan.drawn.sum() == 2
        new = run.step(state)
        for k in range(3):
            mine = lambda state: jax.tree.map(lambda leaf: np.asarray(leaf)[k], state.clients)  # noqa: B023
            assert same_bits(mine(new), mine(state)) != plan.drawn[k]
        idle |= set(np.flatnonzero(~plan.drawn).tolist())
        state = new
    assert len(idle) > 1, "the same client sat out in all rounds; take another seed"


@pytest.mark.parametrize("name", ["feddyn", "fedlap_cov", "fedlap_func"])
def test_single_precision_is_single_throughout_and_sound(name):
    """What networks are trained in; all other tests compute in double precision."""
    with jax.enable_x64(False):
        run = simulation(name, model=fedlap.mlp(hidden=(5,)), keep=True)
        state = after(run, 1 if run.one_shot else 3)
        leaves = [np.asarray(leaf) for leaf in jax.tree.leaves((state.server, state.clients))]
        assert all(np.isfinite(leaf).all() for leaf in leaves)
        assert {leaf.dtype for leaf in leaves if leaf.dtype.kind == "f"} == {np.dtype(np.float32)}
        if hasattr(state.server, "S"):
            smallest = lambda tree: min(leaf.min() for leaf in jax.tree.leaves(tree))
            assert smallest(state.server.S) >= np.float32(run.algorithm.delta)
            assert smallest(state.clients.contribution.V) >= 0


@everyone
def test_the_server_line_holds_before_the_first_round(name):
    """Or clients that have not been drawn yet would pull w_g away from where it began; here that is not zero."""
    run = simulation(name, model=NETWORK)
    state = run.init()
    before, nobody_moved = state.server, (jax.tree.map(lambda leaf: leaf[0], state.clients.contribution),) * 3
    after = run_server(run.setup, before, nobody_moved, np.ones(3))
    np.testing.assert_allclose(flat(after.w), flat(before.w), atol=1e-15)
    assert np.array_equal(flat(before.w), flat(state.start)) == (name in PRIORLESS)


@everyone
def test_clients_are_told_nothing_that_they_do_not_read(name):
    """What only the server's line needs would double the bytes of every round for nothing. All evaluate w."""
    run = simulation(name, model=NETWORK, engine="sequential")
    state = after(run, 1)
    broadcast, batches = run.algorithm.broadcast(state.server), jax.tree.map(lambda leaf: leaf[0], run.plan(1).batches)
    moment = Moment(1, state.server.w, run.setup.key)
    result = lambda broadcast: run_client(run.setup, broadcast, state.clients[0], 0, batches, moment)
    leaves, structure = jax.tree.flatten_with_path(broadcast)
    undisturbed = result(broadcast)
    for i, (path, leaf) in enumerate(leaves):
        if path[0].name != "w":
            others = [other for _, other in leaves]
            others[i] = 1.5 * leaf + 0.1
            changed = result(jax.tree.unflatten(structure, others))
            assert not same_bits(changed, undisturbed), f"no client reads {jax.tree_util.keystr(path)}"


@everyone
def test_an_objective_is_stated_on_the_loss_that_it_says(name):
    """On ℓ_k/N_k or on ℓ_k, whose coefficient is what the objective's derivative with respect to it is."""
    run = simulation(name)
    state, seen = run.init(), []
    shard, factor = jax.tree.map(lambda leaf: leaf[0], (run.setup.shards, state.clients.factor))
    k, _ = parties.client(run.setup, shard, Moment(0, state.start, run.setup.key))

    def argmin(objective, start):
        seen.append(jax.grad(lambda value: objective(start, k._replace(loss=lambda w: value)))(1.0))
        return start

    run.algorithm.client_update(run.algorithm.broadcast(state.server), factor, k._replace(argmin=argmin))
    wanted = 1 / run.federation.sizes[0] if run.algorithm.mean_loss else 1.0
    np.testing.assert_allclose(seen, wanted, rtol=1e-12, err_msg=f"{name}.mean_loss is {run.algorithm.mean_loss}")
    assert "mean_loss" not in {field.name for field in dataclasses.fields(run.algorithm)}


@pytest.mark.parametrize("name", ["fedavg", "fedprox"])
def test_averages_are_of_the_clients_drawn(name):
    run = simulation(name, participation=2)
    state = after(run, 3)
    drawn, sent = run.plan(2).drawn, state.clients.contribution
    weights = drawn * run.federation.sizes
    np.testing.assert_allclose(flat(state.server.w), weights @ flat(sent.w) / weights.sum(), rtol=1e-12)


@pytest.mark.parametrize("name", ["fedadmm", "fedlap", "fedlap_cov"])
def test_the_server_adds_up_the_last_that_each_client_has_sent(name):
    run = simulation(name, participation=2)
    state = run.init()
    for _ in range(3):
        state = run.step(state)
        sent = state.clients.contribution
        if name == "fedadmm":
            wanted = flat(sent.w).mean(0)
        elif name == "fedlap":
            wanted = flat(sent.v).sum(0)
        else:
            wanted = flat(sent.v).sum(0) / (HYPER[name]["delta"] + flat(sent.V).sum(0))
        np.testing.assert_allclose(flat(state.server.w), wanted, rtol=1e-12)


@everyone
def test_a_fraction_and_a_number_of_clients_are_the_same(name):
    default = after(simulation(name), 2)
    for all_of_them in (1.0, 3):
        assert same_bits(after(simulation(name, participation=all_of_them), 2), default)
    two = after(simulation(name, participation=2), 2)
    assert same_bits(after(simulation(name, participation=0.6), 2), two)  # 1.8 clients, rounded up
    assert not same_bits(two.server, default.server)


@pytest.mark.parametrize(
    ("name", "keep"), [(name, False) for name in ALGORITHMS] + [(name, True) for name in KEPT], ids=str
)
def test_a_run_resumed_is_the_run_never_stopped(name, keep, tmp_path):
    whole = finish(simulation(name, keep=keep, participation=2), 4)
    path = tmp_path / "run.npz"
    first = finish(simulation(name, keep=keep, participation=2), 2, checkpoint=path)
    assert first.state.round == 2
    resumed = finish(simulation(name, keep=keep, participation=2), 4, checkpoint=path, resume=True)
    assert same_bits(resumed.state, whole.state)
    for column in ("accuracy", "nll"):
        np.testing.assert_array_equal(getattr(resumed, column), getattr(whole, column))
    np.testing.assert_array_equal(resumed.seconds[: len(first.seconds)], first.seconds)


def test_keeping_the_moments_of_adam_changes_the_second_round():
    """And only the second: otherwise the tests above would compare two runs of the same kind."""
    for rounds, same in ((1, True), (2, False)):
        kept, reset = (after(simulation("fedlap", keep=keep), rounds) for keep in (True, False))
        assert np.array_equal(flat(kept.server.w), flat(reset.server.w)) == same
    leaves = jax.tree.leaves(after(simulation("fedlap", keep=True), 1).clients.solver)
    assert sum(leaf.size for leaf in leaves) == THREE.clients * (2 * THREE.weights + 1)  # both moments and the count
