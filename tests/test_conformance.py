"""What every algorithm must do, whichever it is. A new one needs one row in `ROWS`."""

import dataclasses

import jax
import numpy as np
import pytest
from conftest import FOUR, federation

import fedlap
from fedlap.algorithms import ALGORITHMS
from fedlap.engines import vectorised
from fedlap.engines.round import server_round

ROWS = {
    "fedavg": {},
    "fedprox": {"alpha": 0.1},
    "fedadmm": {"alpha": 0.5},
    "feddyn": {"alpha": 0.5, "weight_decay": 0.01},
    "bcm": {"delta": 1.0},
    "pvi": {"delta": 1.0, "samples": 2},
    "fedlap": {"delta": 1.0},
    "fedlap_cov": {"delta": 1.0},
    "fedlap_func": {"delta": 1.0, "tau": 0.3},
    "fedlap_cov_func": {"delta": 1.0, "tau": 0.3},
}
AVERAGED = ("fedavg", "fedprox", "feddyn")  # whose server line is about the clients drawn in a round
every_algorithm = pytest.mark.parametrize("name", ALGORITHMS)
SOLVER = fedlap.adam(epochs=2, batch=4, learning_rate=0.05)


def make(name, **changes):
    assert name in ROWS, f"give {name} a row of hyper-parameters in {__file__}: all its conformance tests need one"
    return ALGORITHMS[name](**ROWS[name], **changes)


def simulation(name, data=None, **options):
    options = {"solver": SOLVER, "server_solver": fedlap.descent(steps=5), "seed": 1, **options}
    return fedlap.Simulation.of(make(name), data or federation(shape=FOUR), fedlap.logistic(), **options)


def play(run, rounds=3):
    state = run.init()
    for _ in range(rounds):
        state = run.step(state)
    return state


def same_bits(a, b):
    assert jax.tree.structure(a) == jax.tree.structure(b)
    return all(np.array_equal(x, y) for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True))


def close(a, b, tolerance=1e-10):
    assert jax.tree.structure(a) == jax.tree.structure(b)
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        np.testing.assert_allclose(x, y, rtol=tolerance, atol=tolerance)


@every_algorithm
def test_it_is_frozen(name):
    algorithm = make(name)
    assert dataclasses.is_dataclass(algorithm)
    with pytest.raises(dataclasses.FrozenInstanceError):
        algorithm.new = 1


@every_algorithm
def test_a_round_is_pure(name):
    run = simulation(name)
    before = run.init()
    kept = jax.tree.map(np.array, before)
    once, twice = run.step(before), run.step(before)
    assert same_bits(once, twice)
    assert same_bits(jax.tree.map(np.array, before), kept)
    assert not same_bits(once.server.w, before.server.w)


@every_algorithm
def test_state_keeps_its_shape_and_type(name):
    run = simulation(name)
    before = run.init()
    shapes = lambda state: [(leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(state._replace(round=()))]
    assert shapes(run.step(before)) == shapes(before)


@every_algorithm
def test_one_program_serves_every_value_of_every_number(name):
    numbers = [field.name for field in dataclasses.fields(make(name)) if isinstance(ROWS[name].get(field.name), float)]
    play(simulation(name), 1)
    before = vectorised._compiled._cache_size()
    for number in numbers:
        for value in (0.25, 1, 2):  # whole numbers too: an int is not another program
            changed = dataclasses.replace(make(name), **{number: value})
            run = fedlap.Simulation.of(
                changed, federation(shape=FOUR), fedlap.logistic(), solver=SOLVER, server_solver=fedlap.descent(steps=5)
            )
            play(run, 1)
    assert vectorised._compiled._cache_size() == before


@every_algorithm
def test_the_order_of_the_clients_does_not_matter(name):
    data = federation(shape=FOUR)
    order = [2, 0, 3, 1]
    shuffled = dataclasses.replace(
        data, clients=tuple(data.clients[k] for k in order), rows=tuple(data.rows[k] for k in order)
    )
    # Memory points are numbered in the order of the clients, so only what they mean can be compared.
    a, b = play(simulation(name, data)), play(simulation(name, shuffled))
    close(a.server.w, b.server.w)
    site = lambda state: getattr(state.clients.site, "v", ())
    close(jax.tree.map(lambda leaf: leaf[np.array(order)], site(a)), site(b))


@every_algorithm
def test_one_client_is_enough(name):
    x, y = federation(shape=FOUR).of(0)
    alone = fedlap.Federation.from_arrays(clients=[(x, y)], test=(x, y), classes=2)
    assert np.isfinite(play(simulation(name, alone)).server.w.flat).all()


@every_algorithm
def test_one_example_is_enough_for_a_client(name):
    state = play(simulation(name, federation(shape=FOUR, sizes=[12, 1, 5, 1])))
    assert np.isfinite(state.server.w.flat).all()


@every_algorithm
def test_clients_not_drawn_keep_everything_and_the_server_keeps_their_last_word(name):
    run = simulation(name, participation=2, solver=fedlap.adam(epochs=1, batch=4, keep=True))
    state = run.init()
    for round in range(4):
        drawn = run.plan(round).drawn
        assert drawn.sum() == 2
        new = run.step(state)
        pick = lambda tree, who: jax.tree.map(lambda leaf: leaf[who], tree)
        assert same_bits(pick(new.clients, ~drawn), pick(state.clients, ~drawn))
        assert not same_bits(pick(new.clients.contribution, drawn), pick(state.clients.contribution, drawn))
        state = new


@every_algorithm
@pytest.mark.parametrize("everyone", [1.0, 4])
def test_asking_for_all_clients_changes_no_bit(name, everyone):
    assert same_bits(play(simulation(name, participation=everyone), 2), play(simulation(name), 2))


@every_algorithm
def test_a_fraction_of_the_clients_is_rounded_up(name):
    assert simulation(name, participation=0.3).plan(0).drawn.sum() == 2


@pytest.mark.parametrize("name", ["fedavg", "fedprox"])
def test_averages_are_over_the_clients_drawn(name):
    run = simulation(name, participation=2)
    state = play(run, 3)
    drawn, n = run.plan(2).drawn, np.asarray(run.setup.shards.n)
    w = np.asarray(jax.vmap(lambda c: c.w.flat)(state.clients.contribution))
    np.testing.assert_allclose(state.server.w.flat, n[drawn] @ w[drawn] / n[drawn].sum(), rtol=1e-12)


@pytest.mark.parametrize("name", [name for name in ALGORITHMS if name not in AVERAGED])
def test_other_servers_sum_the_last_word_of_all_clients(name):
    run = simulation(name, participation=2)
    state = run.step(run.init())
    silent = ~run.plan(0).drawn
    forgotten = jax.tree.map(lambda leaf: leaf[silent], state.clients.contribution)
    assert all((np.asarray(leaf) == 0).all() for leaf in jax.tree.leaves(forgotten))
    later = run.step(state)
    spoke_once = run.plan(0).drawn & ~run.plan(1).drawn
    kept = jax.tree.map(lambda leaf: leaf[spoke_once], later.clients.contribution)
    assert same_bits(kept, jax.tree.map(lambda leaf: leaf[spoke_once], state.clients.contribution))


@every_algorithm
@pytest.mark.parametrize("keep", [True, False])
def test_a_resumed_run_has_the_bits_of_one_that_never_stopped(name, keep, tmp_path):
    options = {
        "solver": fedlap.adam(epochs=1, batch=4, keep=keep),
        "server_solver": fedlap.descent(steps=5),
        "participation": 3,
    }
    run = lambda rounds, **more: fedlap.simulate(
        make(name), federation(shape=FOUR), fedlap.logistic(), rounds=rounds, **options, **more
    )
    whole = run(4)
    run(2, checkpoint=tmp_path / "run.npz")
    resumed = run(4, checkpoint=tmp_path / "run.npz", resume=True)
    assert same_bits(whole.state, resumed.state)
    assert np.array_equal(whole.nll, resumed.nll) and np.array_equal(whole.accuracy, resumed.accuracy)


@pytest.mark.parametrize("name", [name for name in ALGORITHMS if name not in AVERAGED])
def test_the_server_line_already_holds_before_the_first_round(name):
    run = simulation(name, server_solver=fedlap.newton())
    state = run.init()
    setup = run.setup
    again = server_round(
        *setup.static, setup.method, state.server, state.clients.contribution, setup.pool, setup.shards, np.ones(4)
    )
    close(again, state.server, 1e-12)


def test_every_algorithm_has_a_row():
    assert set(ROWS) == set(ALGORITHMS)
