"""Clients without number: blocks of them, their states in memory or on disk, and sums that are never added up anew."""

import dataclasses
import gc
import pickle
import warnings
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedlap
from closeness import same_bits
from fedlap.algebra.running import Running
from fedlap.algorithms import ALGORITHMS
from fedlap.algorithms.base import Algorithm, Counted, Nothing, Point, algorithm
from fedlap.engines import FEW, MANY, choose, sequential, vectorised
from fedlap.engines.clients import Spilled
from fedlap.engines.persistent import Persistent
from fedlap.engines.scratch import OnDisk, Scratch
from fedlap.engines.sharded import Sharded
from fedlap.engines.streamed import Streamed, blocks
from fedlap.errors import ConfigError
from fedlap.run.rounds import load_begun
from fedlap.run.simulation import histories
from methods import after, simulation

CLIENTS = 7


@pytest.fixture(scope="module")
def drawn():
    """Seven clients of different sizes."""
    rng = np.random.default_rng(5)
    sizes = [3, 9, 5, 12, 4, 7, 6]
    clients = [(rng.normal(size=(n, 3)), rng.integers(0, 3, n)) for n in sizes]
    return fedlap.Federation.from_arrays(clients=clients, test=clients[0], classes=3)


@pytest.fixture
def collected():
    """Garbage is looked for among what a test makes, and not in all that JAX holds by then: a hundred times faster."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


def with_engine(name, drawn, engine, **options):
    return dataclasses.replace(simulation(name, drawn, **options), engine=engine)


def factors(state):
    return [np.asarray(leaf) for leaf in jax.tree.leaves((state.clients.factor, state.clients.solver))]


# Client after client is what `sequential` does, and adds up what the same function adds up for those together: one for
# each kind of sum, and for each kind of thing that is sent.
IN_TURN = ("fedavg", "scaffold", "pvi", "fedlap_cov", "fedlap_func", "fedlap_kron")


@pytest.mark.parametrize(("name", "participation"), [*[(name, 3) for name in ALGORITHMS], ("fedlap_cov", 1.0)])
def test_blocks_of_clients_are_all_clients(name, participation, drawn):
    """To rounding: a sum in parts has another order. Three of seven, drawn anew in each round, exchange their terms."""
    options = {"participation": participation, "keep": name in ("fedlap", "pvi")}
    wanted, rounds = after(simulation(name, drawn, **options), 4), 4
    for engine in (Streamed(2, True), *[Streamed(4, False)] * (name in IN_TURN)):
        found = after(with_engine(name, drawn, engine, **options), rounds)
        leaves = [jax.tree.leaves((state.server, factors(state))) for state in (found, wanted)]
        for x, y in zip(*leaves, strict=True):
            np.testing.assert_allclose(x, y, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize(
    ("name", "together"), [("fedlap_cov", True), ("fedadmm", True), ("pvi", False), ("fedavg", False)]
)
def test_states_on_disk_are_the_same_bits(name, together, drawn, tmp_path):
    for participation in (1.0, 3):
        in_memory = after(with_engine(name, drawn, Streamed(3, together), participation=participation), 3)
        engine = Streamed(3, together, Scratch(tmp_path))
        on_disk = after(with_engine(name, drawn, engine, participation=participation), 3)
        assert isinstance(on_disk.clients, Spilled) and isinstance(in_memory.clients, Persistent)
        assert same_bits(on_disk.server, in_memory.server) and same_bits(factors(on_disk), factors(in_memory))
        leaves = jax.tree.leaves(on_disk.clients)
        assert any(isinstance(leaf, OnDisk) for leaf in leaves) or name == "fedavg"
        assert list(tmp_path.iterdir()) == []  # a file without a name goes with its process, however that ends


@pytest.mark.parametrize("scratch", [False, True])
def test_what_was_read_from_a_state_once_can_be_read_again(scratch, drawn, tmp_path):
    engine = Streamed(3, True, Scratch(tmp_path) if scratch else None)
    run = with_engine("fedlap_cov", drawn, engine, participation=3)
    states = [run.init()]
    for _ in range(4):
        states.append(run.step(states[-1]))
    seen = [factors(state) for state in states]
    for i in (2, 0, 3):
        again = run.step(states[i])
        assert same_bits(again.server, states[i + 1].server) and same_bits(factors(again), seen[i + 1])
        assert all(same_bits(factors(state), before) for state, before in zip(states, seen, strict=True))


@pytest.mark.parametrize("scratch", [False, True])
def test_a_state_pickles(scratch, drawn, tmp_path):
    run = with_engine("fedlap_cov", drawn, Streamed(3, True, Scratch(tmp_path) if scratch else None), participation=3)
    before = run.step(run.init())
    state = run.step(before)
    for each in (state, before):
        found = pickle.loads(pickle.dumps(each))
        assert same_bits(found.server, each.server) and same_bits(factors(found), factors(each))


def test_a_slot_on_disk_is_used_again(drawn, tmp_path, collected):
    """Of seven clients and the three under way, whatever the number of rounds."""
    scratch = Scratch(tmp_path)
    run = with_engine("fedlap_cov", drawn, Streamed(2, True, scratch), participation=3)
    state, ends = run.init(), []
    for _ in range(12):
        state = run.step(state)
        gc.collect()
        ends.append(scratch._end)
    size = sum(np.asarray(leaf).nbytes for leaf in jax.tree.leaves(state.clients[0]))
    assert ends[-1] <= (CLIENTS + 3) * size and ends[-1] == ends[-3]


def test_a_run_on_disk_goes_on_from_its_checkpoint(drawn, tmp_path):
    path, solver = tmp_path / "run.npz", fedlap.adam(epochs=1, batch=6)

    def run(rounds, **options):
        common = {"participation": 3, "solver": solver, "scratch": tmp_path / "scratch"}
        return fedlap.simulate(
            fedlap.FedLapCov(delta=1.0), drawn, fedlap.logistic(), rounds=rounds, **common, **options
        )

    whole = run(4)
    run(2, checkpoint=path)
    gone_on = run(4, checkpoint=path, resume=True)
    assert same_bits(gone_on.state.server, whole.state.server)
    assert same_bits(factors(gone_on.state), factors(whole.state))
    assert isinstance(gone_on.state.clients, Spilled) and isinstance(jax.tree.leaves(gone_on.state.clients)[0], OnDisk)


PLACES = st.lists(st.integers(0, 5), min_size=1, max_size=4, unique=True)


@given(st.lists(st.tuples(st.integers(0, 9), PLACES), max_size=12))
def test_every_version_of_a_persistent_stack_is_what_it_was(changes):
    """Against plain copies: any version may be changed, and all others stay."""
    versions, plain = [Persistent({"a": np.zeros((6, 2))})], [np.zeros((6, 2))]
    for number, (which, places) in enumerate(changes):
        which, places = which % len(versions), np.array(places)
        new = np.full((len(places), 2), number + 1.0)
        versions.append(versions[which].replaced(places, {"a": new}))
        copy = plain[which].copy()
        copy[places] = new
        plain.append(copy)
        for version, wanted in zip(versions, plain, strict=True):
            np.testing.assert_array_equal(version.at(np.arange(6))["a"], wanted)


def test_a_running_sum_forgets_what_was_taken_away():
    """Large terms that come and go: in one number they would leave their last digits behind."""
    rng = np.random.default_rng(0)
    small = rng.normal(size=50).astype(np.float32)
    exchange = jax.jit(lambda total, change: total + change)
    total, plain = Running.of(jnp.asarray(small)), jnp.asarray(small)
    for _ in range(40):
        large = (1e6 * rng.normal(size=50)).astype(np.float32)
        for change in (large, -large):
            total, plain = exchange(total, change), plain + change
    np.testing.assert_allclose(total.total, small, rtol=1e-6)
    assert np.abs(np.asarray(plain) - small).max() > 1e-2  # or the test would show nothing
    together = Running.of(jnp.asarray(small)) + Running(jnp.zeros(50, jnp.float32), jnp.full(50, 1e-9, jnp.float32))
    np.testing.assert_allclose(together.lost + together.total.astype(float) - small, 1e-9, rtol=1e-3)


@given(st.integers(1, 60), st.integers(1, 20))
def test_blocks_have_every_client_once(count, size):
    order = np.random.default_rng(count).permutation(count)
    found = list(blocks(order, size))
    assert [which for block in found for which in block.which[block.real]] == order.tolist()
    assert len({len(block.which) for block in found}) == 1 and len(found[0].which) <= size
    assert sum((~block.real).sum() for block in found) < len(found[0].which)


@algorithm
class Hasty(Algorithm[Point, Nothing, Point, Counted]):
    """An algorithm of a user's, which asks for nothing that lasts."""

    def init(self, s, start):
        return Point(start), Nothing()

    def client_update(self, g, t, k):
        return Point(k.argmin(lambda w, k: k.loss(w), k.start))

    def factor_update(self, g, t, q, k):
        return t

    def contribution(self, t, q, k):
        return Counted(q.w, k.n)

    def server_update(self, g, c, s):
        return Point(c.average(lambda k: k.w))


def test_what_no_sum_needs_is_not_remembered(drawn):
    solver = fedlap.adam(epochs=1, batch=6)
    run = fedlap.Simulation.of(Hasty(), drawn, fedlap.logistic(), solver=solver, engine="streamed", participation=3)
    state = after(run, 2)
    assert jax.tree.leaves(state.clients) == [] and jax.tree.leaves(state.sums) == []
    wanted = after(dataclasses.replace(run, engine=vectorised), 2)
    np.testing.assert_allclose(state.server.w, wanted.server.w, rtol=1e-12)


@dataclasses.dataclass(frozen=True)
class Reads:
    """What a term may not read, or may."""

    term: str

    def __call__(self, c, g, s):
        if self.term == "the server's state":
            return c.sum(lambda k: k.w - g.w)
        if self.term == "another sum":
            n = c.sum(lambda k: k.n)
            return c.sum(lambda k: k.w * (k.n / n))
        if self.term == "another sum, of those drawn":
            n = c.sum(lambda k: k.n)
            return c.average(lambda k: k.w * n)
        return c.average(lambda k: k.w - g.w)  # which is of this round, as g is


@pytest.mark.parametrize("term", ["the server's state", "another sum", "another sum, of those drawn", "of the drawn"])
def test_a_term_that_reads_more_than_a_contribution_is_refused(term, drawn):
    """It would be right while all clients are one program, and wrong of more."""

    @algorithm
    class Reading(Hasty):
        def server_update(self, g, c, s):
            return Point(Reads(term)(c, g, s))

    run = fedlap.Simulation.of(Reading(), drawn, fedlap.logistic(), engine="streamed")
    refused = (
        nullcontext()
        if term == "of the drawn"
        else pytest.raises(ConfigError, match=r"Reading: a term of c\.sum, c\.gather or c\.average reads")
    )
    with refused:
        run.init()


def test_threads_may_read_all_versions_at_once():
    versions = [Persistent({"a": np.zeros((50, 3))})]
    for number in range(1, 6):
        versions.append(versions[-1].replaced(np.arange(number * 7), {"a": np.full((number * 7, 3), float(number))}))
    wanted = [version.at(np.arange(50))["a"] for version in versions]

    def read(which):
        return all(np.array_equal(versions[which].at(np.arange(50))["a"], wanted[which]) for _ in range(300))

    with ThreadPoolExecutor(4) as threads:
        assert all(threads.map(read, [0, 5, 2, 4]))


def test_a_run_that_goes_on_remembers_no_older_states(drawn, tmp_path, collected):
    """The state that a run goes on from is let go, or all that changes later would be kept for it."""
    path, solver = tmp_path / "run.npz", fedlap.adam(epochs=1, batch=6)
    run = fedlap.Simulation.of(
        fedlap.FedLapCov(delta=1.0), drawn, fedlap.logistic(), solver=solver, participation=3, engine="streamed"
    )
    list(histories(run, 1, path))
    for _ in histories(run, 6, path, load_begun(run, path, True)):
        gc.collect()
        alive = sum(isinstance(each, Persistent) for each in gc.get_objects())
    assert alive <= 3


def test_the_engine_is_chosen_by_size(monkeypatch, tmp_path):
    large = 100_000
    assert choose("auto", 100, MANY) is vectorised and choose("auto", large, FEW) is sequential
    small, big = choose("auto", 84, MANY + 1), choose("auto", large, FEW + 1)
    assert (small.together, big.together) == (True, False) and 100 < small.size <= MANY and big.size == 16
    assert small.scratch is None and choose("auto", 100, 2, scratch=tmp_path).scratch is not None
    monkeypatch.setattr("fedlap.engines.memory", lambda: 4_000)
    assert choose("auto", large, 1_000, lambda: 1).scratch is None
    assert choose("auto", large, 1_001, lambda: 1).scratch is not None
    assert isinstance(choose("sharded", 100, 2), Sharded)
    with pytest.raises(ConfigError, match='scratch is for engine="streamed" or "sharded", and engine is "loop"'):
        choose("loop", 100, 2, scratch=tmp_path)
    with pytest.raises(ConfigError, match='engine is "strewn"; expected "auto", "vectorised"'):
        choose("strewn", 100)


def test_a_scratch_folder_that_cannot_be_is_named(tmp_path, drawn):
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match=r"file: cannot be written .* expected a folder"):
        fedlap.simulate(fedlap.FedAvg(), drawn, fedlap.logistic(), rounds=1, scratch=tmp_path / "file")


def test_a_simulation_of_many_streams_by_itself():
    """And says nothing about it: the answer is the same."""
    count = MANY + 3
    x = np.random.default_rng(1).normal(size=(2 * count, 3))
    y = (x[:, 0] > 0).astype(int)
    clients = [(x[i : i + 2], y[i : i + 2]) for i in range(0, 2 * count, 2)]
    federation = fedlap.Federation.from_arrays(clients=clients, test=(x, y))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found, wanted = (
            fedlap.simulate(
                fedlap.FedLap(delta=1.0), federation, fedlap.logistic(), rounds=2, participation=40, engine=engine
            )
            for engine in ("auto", "vectorised")
        )
    assert isinstance(found.simulation.engine, Streamed)
    np.testing.assert_allclose(found.final.w, wanted.final.w, rtol=1e-10)
    np.testing.assert_allclose(found.nll, wanted.nll, rtol=1e-10)
