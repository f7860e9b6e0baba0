"""The engines decide where clients run and nothing else: all of them give the same rounds, from the same seed."""

import dataclasses
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedlap
from closeness import same_bits
from drawn import federation
from fedlap.algebra.soft_labels import SoftLabels, weigh
from fedlap.algorithms import ALGORITHMS
from fedlap.engines import ENGINES, SMALL, brief, choose, loop, parties, sequential, vectorised
from fedlap.engines.round import ClientState, answered
from fedlap.models.network import Activation, Dense, Dropout, Flatten, Network
from methods import after, build, simulation

MODELS = {
    "mlp": fedlap.mlp(hidden=(4,), activation="tanh"),
    "dropout": Network((Flatten(), Dense(5), Activation("relu"), Dropout(0.4), Dense())),
}


def states(name, engine, rounds=2, **options):
    """Server and clients after each round, read alike however the engine keeps them."""
    run = simulation(name, engine="vectorised" if engine == "brief" else engine, **options)
    run = dataclasses.replace(run, engine=brief) if engine == "brief" else run
    state, found = run.init(), []
    for _ in range(rounds):
        state = run.step(state)
        clients = ClientState(state.clients.factor, state.clients.solver, state.clients.contribution)
        found.append((state.server, clients, state.round))
    return found


def assert_same(found, wanted):
    assert jax.tree.structure(found) == jax.tree.structure(wanted)
    for x, y in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-11, atol=1e-12)


# One for each thing that a client may be asked for, as an engine has no more to do with an algorithm: duals, gradients,
# the pace of its solver, noise, curvature and memory, curvature in a basis, a key of its own. Nothing is compiled in
# the loop but each operation by itself, which takes longer than a round.
LOOPED = ("fedadmm", "scaffold", "fednova", "pvi", "fedlap_cov_func", "fedlap_kron", "bayes_admm")


@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_engines_agree(name):
    """Adam on minibatches, clients of different lengths, two of three drawn."""
    assert len(set(federation(4, overlap=True).sizes)) > 1
    rounds = 1 if build(name).one_shot else 2
    wanted = states(name, "vectorised", rounds, participation=2)
    assert_same(states(name, "sequential", rounds, participation=2), wanted)
    if name in LOOPED:
        assert_same(states(name, "loop", rounds, participation=2), wanted)


@pytest.mark.parametrize("name", ["scaffold", "fedlap_cov_func"])
def test_a_brief_run_agrees(name):
    """It is the vectorised engine's own function, and only the compiler is told otherwise."""
    assert_same(states(name, "brief", participation=2), states(name, "vectorised", participation=2))


def test_a_brief_run_has_the_scores_of_any_other():
    run = simulation("fedlap", engine="vectorised")
    brief_run = dataclasses.replace(run, engine=brief)
    first, again = run.init(), brief_run.init()
    assert same_bits(first, again)
    state = run.step(first)
    assert len(run.look(state)) == 5
    np.testing.assert_allclose(brief_run.look(state), run.look(state), rtol=1e-12)


def test_a_compiler_without_the_options_of_a_brief_run_is_used_as_it_is(monkeypatch):
    for options in ("OPTIONS", "LEAST"):
        monkeypatch.setattr(brief, options, {"xla_of_another_version": True})
    for program in ("compiled_round", "initial", "evaluate"):
        monkeypatch.setattr(brief, program, getattr(brief, program).__wrapped__)
    for found, wanted in zip(states("fedlap", "brief"), states("fedlap", "vectorised"), strict=True):
        assert same_bits(found, wanted)


@pytest.mark.parametrize("engine", ["loop", "sequential"])
def test_the_state_reads_alike_and_no_client_is_copied(engine):
    """`state.clients.factor.v` has an axis of clients in every engine; who is not drawn stays the same object."""
    run = simulation("fedlap_cov", engine=engine, participation=2)
    before = run.init()
    after = run.step(before)
    out = int(np.flatnonzero(~run.plan(0).drawn)[0])
    wanted = simulation("fedlap_cov", participation=2)
    wanted = wanted.step(wanted.init())
    assert_same(after.clients.factor, wanted.clients.factor)
    assert after.clients.factor.v.rows.shape == (3, run.size)
    assert len(after.clients) == 3 and after.clients[out] is before.clients[out]
    again = jax.tree.map(lambda leaf: leaf, after)
    assert type(again.clients) is type(after.clients) and same_bits(again, after)


def test_a_setup_goes_through_jit_whole():
    """Its arrays are values, its task and its counts a part of the program."""
    run = simulation("fedlap")
    back = jax.jit(lambda setup: dataclasses.replace(setup, key=jax.random.fold_in(setup.key, 1)))(run.setup)
    assert type(back) is type(run.setup) and back.task is run.setup.task
    assert (back.count, back.classes) == (3, 3) and same_bits(back.shards, run.setup.shards)
    structure = jax.tree.structure(run.setup)
    assert structure == jax.tree.structure(simulation("fedlap", seed=1, hyper={"delta": 0.1}).setup)
    for other in ({"count": 4}, {"classes": 4}, {"task": dataclasses.replace(run.setup.task, curvature=None)}):
        assert structure != jax.tree.structure(dataclasses.replace(run.setup, **other))


def test_the_memory_of_a_solver_goes_from_one_argmin_to_the_next():
    """And into the next round, each time as a value: asked again, an update gives the same."""
    solve = lambda objective, start, state: (objective(start), (*state, start))
    update = lambda argmin: argmin(lambda v: 10 * v, argmin(lambda v: v + 1, 1))
    before = (0,)
    for _ in range(2):
        assert answered(update, solve, before) == (20, (0, 1, 2))
    assert answered(lambda argmin: 7, solve, before) == (7, before)


def test_an_argmin_outside_of_client_update_is_refused():
    """There its solver's state would be lost."""
    run = simulation("fedlap")
    shard = jax.tree.map(lambda leaf: leaf[0], run.setup.shards)
    k, _ = parties.client(run.setup, shard, parties.Moment(0, run.init().start, run.setup.key))
    with pytest.raises(fedlap.ConfigError, match=r"k\.argmin is asked for outside of client_update"):
        k.argmin(lambda w, k: k.loss(w), k.start)


def test_a_sample_of_the_memory_stands_for_all_of_it():
    """In the mean over many draws, and exactly where there are no more points than in a sample."""
    run = simulation("fedlap_func")
    task, start, features = run.setup.task, run.init().start, run.setup.pool.memory.shape[1]
    rng, size, draws = np.random.default_rng(0), parties.MEMORY_BATCH, 2000
    inputs, w = jnp.asarray(rng.normal(size=(2 * size + 7, features))), start.like(jnp.asarray(rng.normal(size=6)))
    labels = weigh(jnp.asarray(rng.uniform(size=len(inputs))), jax.nn.softmax(rng.normal(size=(len(inputs), 3))))
    distil, sampled_distil = parties.distillation(task, inputs), parties.sampled_distillation
    whole = jax.jit(distil)(w, labels)
    keys = jax.random.split(jax.random.key(0), draws)
    all_draws = jax.jit(jax.vmap(lambda key: sampled_distil(task, inputs, len(inputs), key)(w, labels)))
    sampled = np.asarray(all_draws(keys))
    error = sampled.std() / draws**0.5
    assert 0 < error < 0.01 * whole  # a wrong factor would show
    assert abs(sampled.mean() - whole) < 4 * error
    expected = draws * size / len(inputs)
    # Linear in the masses, so each point's derivative counts how often it is drawn: the first and the last too.
    of_points = lambda distil: jax.grad(lambda mass: distil(w, SoftLabels(mass, labels.targets)))(labels.mass)
    drawn = jax.jit(jax.vmap(lambda key: of_points(sampled_distil(task, inputs, len(inputs), key))))(keys).mean(0)
    np.testing.assert_allclose(drawn / jax.jit(lambda: of_points(distil))(), 1, atol=6 / expected**0.5)
    few, few_labels = inputs[:size], jax.tree.map(lambda leaf: leaf[:size], labels)
    exact = parties.distillation(task, few)(w, few_labels)
    assert sampled_distil(task, few, size, keys[0])(w, few_labels) == exact
    for points in (size, size - 1):  # the same few, padded to the memory of a larger run
        real = jnp.arange(len(inputs)) < points
        padded = SoftLabels(labels.mass * real, labels.targets * real[:, None])
        sampled = sampled_distil(task, inputs, points, keys[0])(w, padded)
        np.testing.assert_allclose(sampled, distil(w, padded), rtol=1e-12)


def test_the_servers_argmin_is_of_a_mean_loss():
    """So that a solver's tolerances mean the same however many examples there are."""
    run = simulation("fedlap_func")
    setup, zeros = run.setup, 0 * run.init().start
    reading = SimpleNamespace(solve=lambda function, start: function(start))
    setup = dataclasses.replace(setup, method=setup.method._replace(server_solver=reading))
    server = parties.server(setup, zeros, jnp.ones(3))
    assert server.argmin(lambda v: 7.0, zeros) == pytest.approx(7.0 / run.federation.sizes.sum())


def test_each_use_of_a_step_has_its_own_key(monkeypatch):
    """Dropout and noise: with one key for both, the noise on a layer told which of its inputs were dropped."""
    keys = []

    class Watched(Network):
        def train(self, params, inputs, key):
            keys.append(key)
            return super().train(params, inputs, key)

    monkeypatch.setattr(parties, "standard_normal", keys.append)
    monkeypatch.setattr(parties, "sampled_distillation", lambda task, inputs, points, key: keys.append(key))
    run = simulation("pvi", model=Watched(MODELS["dropout"].layers))
    state, setup = run.init(), run.setup
    keys.clear()
    shard = jax.tree.map(lambda leaf: leaf[0], setup.shards)
    _, minibatch = parties.client(setup, shard, parties.Moment(state.round, state.start, setup.key))
    minibatch(jnp.arange(2), 0).loss(state.start)
    bits = {tuple(np.asarray(jax.random.key_data(key)).tolist()) for key in keys}
    assert len(bits) == len(keys) == 4  # of the round's noise; of a step: memory, noise, dropout


def test_every_client_round_and_step_draws_its_own_dropout():
    """The loop compiles nothing, so that keys are seen as often as they are used."""
    keys = []

    class Watched(Network):
        def train(self, params, inputs, key):
            keys.append(tuple(np.asarray(jax.random.key_data(key)).tolist()))
            return super().train(params, inputs, key)

    run = simulation("fedavg", model=Watched(MODELS["dropout"].layers), engine="loop")
    state, steps = run.init(), 0
    for round in range(2):
        steps += int(run.plan(round).batches.steps.sum())
        state = run.step(state)
    assert len(keys) == len(set(keys)) == steps > 2 * len(run.federation.clients)


@pytest.mark.parametrize("model", MODELS)
def test_the_engines_agree_on_networks(model):
    options = {"model": MODELS[model], "keep": True, "seed": 5}
    wanted = states("fedlap_cov", "vectorised", **options)
    assert_same(states("fedlap_cov", "sequential", **options), wanted)


def test_the_loop_agrees_on_a_network_that_draws():
    """One method, one network and one round, because nothing is compiled in the loop."""
    options = {"model": MODELS["dropout"], "seed": 5, "rounds": 1}
    assert_same(states("fedavg", "loop", **options), states("fedavg", "vectorised", **options))


def test_dropout_drops_in_training_and_not_in_evaluation():
    """Or the test above would compare networks without dropout."""
    dry = Network(tuple(layer for layer in MODELS["dropout"].layers if not isinstance(layer, Dropout)))
    wet, dry = (simulation("fedlap_cov", model=model, keep=True, seed=5) for model in (MODELS["dropout"], dry))
    state = after(wet, 1)
    np.testing.assert_array_equal(wet.evaluate(state), wet.evaluate(state))
    outputs = lambda run, params: run.setup.task.model.apply(params, run.setup.pool.inputs)
    train = jax.jit(lambda key: wet.setup.task.model.train(state.server.w.tree, wet.setup.pool.inputs, key))
    assert not np.array_equal(train(jax.random.key(0)), train(jax.random.key(1)))
    plain = state.server.w.tree[:3] + state.server.w.tree[4:]  # the same weights without the layer that drops
    np.testing.assert_array_equal(outputs(wet, state.server.w.tree), outputs(dry, plain))


@pytest.mark.parametrize("engine", ["vectorised", "sequential"])
def test_a_seed_is_a_run(engine):
    options = {"engine": engine, "participation": 2}
    first, again = (after(simulation("fedlap_cov", seed=7, **options), 3) for _ in range(2))
    assert same_bits(first, again)
    other = after(simulation("fedlap_cov", seed=8, **options), 3)
    assert not same_bits(first.server, other.server)


def test_the_seed_decides_everything_random():
    """Who is drawn, the minibatches, the network's init and the memory points."""
    a, b = (simulation("fedlap_func", model=MODELS["mlp"], seed=seed, participation=2) for seed in (0, 1))
    plans = [[run.plan(r) for r in range(6)] for run in (a, b)]
    assert any((x.drawn != y.drawn).any() for x, y in zip(*plans, strict=True))
    assert any((x.batches.rows != y.batches.rows).any() for x, y in zip(*plans, strict=True))
    assert not same_bits(a.init().start, b.init().start)
    assert not same_bits(a.setup.pool.memory, b.setup.pool.memory)
    rounds = [plan.batches.rows for plan in plans[0]]
    assert not all(np.array_equal(rounds[0], other) for other in rounds[1:])


def test_every_client_round_and_step_draws_its_own_noise():
    run = simulation("pvi")
    state = run.init()

    @jax.jit
    def noise(k, round, step):
        shard = jax.tree.map(lambda leaf: leaf[k], run.setup.shards)
        moment = parties.Moment(round, state.start, run.setup.key)
        _, minibatch = parties.client(run.setup, shard, moment)
        return minibatch(np.zeros(6, np.int32), step).noise(2, state.start).tree[1]["weight"]

    draws = [np.asarray(noise(*place)).tobytes() for place in ((0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1))]
    assert len(set(draws)) == 4
    assert np.asarray(noise(0, 0, 0)).tobytes() == draws[0]


def test_the_first_round_starts_at_the_networks_init():
    """With steps too small to move, FedAvg's average of its clients is where they began."""
    still = fedlap.adam(epochs=1, batch=6, learning_rate=1e-9)
    run = simulation("fedavg", model=MODELS["mlp"], solver=still)
    state = run.init()
    first = run.step(state)
    assert np.abs(state.start.flat).max() > 0.1
    np.testing.assert_allclose(first.server.w.flat, state.start.flat, atol=1e-8)
    np.testing.assert_allclose(run.step(first).server.w.flat, first.server.w.flat, atol=1e-8)


def test_the_engine_is_chosen_by_the_size_of_the_model():
    assert choose("auto", SMALL) is vectorised
    assert choose("auto", SMALL + 1) is (sequential if jax.default_backend() == "cpu" else vectorised)
    for name, engine in ENGINES.items():
        assert choose(name, 1) is choose(name, 10**6) is engine
    assert simulation("fedlap", engine="auto").engine is vectorised
    wide = simulation("fedlap", engine="auto", model=fedlap.mlp(hidden=(SMALL,)))
    assert wide.engine is choose("auto", SMALL + 1)
    assert set(ENGINES.values()) == {vectorised, sequential, loop}
    with pytest.raises(fedlap.ConfigError, match=r'engine is "gpu".*"auto"'):
        simulation("fedlap", engine="gpu")


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", ["fedlap", "fedlap_cov"])  # memory points are shared, and so is what they overflow to
def test_what_overflows_at_one_client_stays_there(name, engine):
    """Padding reads no row of another client: zero times an infinity is not zero."""
    huge, fine = np.full((7, 40), 1.7e308), np.random.default_rng(0).normal(size=(3, 40))
    clients = [(huge, [0, 1] * 3 + [0]), (fine, [0, 1, 1]), (huge, [0, 1] * 3 + [1])]
    federation = fedlap.Federation.from_arrays(clients=clients, test=(fine, [0, 1, 1]))
    run = fedlap.Simulation.of(
        ALGORITHMS[name](delta=1.0),
        federation,
        fedlap.mlp(hidden=(50,)),
        solver=fedlap.adam(epochs=1, batch=2),
        engine=engine,
    )
    factor = run.step(run.init()).clients.factor
    finite = lambda k: all(np.isfinite(leaf[k]).all() for leaf in jax.tree.leaves(factor))
    assert not finite(0) and finite(1) and not finite(2)
