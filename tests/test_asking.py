"""What an algorithm may ask of a client beside its loss: its steps, their size, a whole gradient, its own draws."""

import itertools
from typing import Any, NamedTuple

import jax
import numpy as np
import pytest

import fedlap
import oracle
from closeness import flat
from drawn import federation, points
from fedlap.algorithms.base import Algorithm, Point, algorithm
from fedlap.engines import parties
from fedlap.engines.parties import Moment
from fedlap.errors import ConfigError
from fedlap.solvers.problem import FullBatch
from methods import simulation

DRAWN = federation(4, sizes=[12, 8, 6], overlap=True)
SGD = fedlap.sgd(epochs=1, batch=6, learning_rate=0.05, momentum=0.5)


class Answers(NamedTuple):
    """What a client was told in its last round."""

    steps: Any
    rate: Any
    effective: Any
    pulled: Any
    gradient: Any
    noise: Any
    drawn: Any


@algorithm
class Curious(Algorithm[Point, Answers, Point, Point]):
    """FedAvg whose clients ask for everything and remember the answers."""

    mean_loss = True

    def init(self, s, start):
        return Point(start), Answers(*[s.zero] * 4, s.zeros, s.zeros, s.zero)

    def client_update(self, g, t, k):
        return Point(k.argmin(lambda w, k: k.loss(w) / k.n, k.start))

    def factor_update(self, g, t, q, k):
        number, noise = 1.0 * k.rate, jax.tree.map(lambda leaf: leaf[0], k.noise(1, g.w))
        told = k.steps * number / number, number, k.effective_steps(), k.effective_steps(1.5), k.gradient(g.w)
        return Answers(*told, noise, jax.random.normal(k.key, (), g.w.flat.dtype))

    def contribution(self, t, q, k):
        return q

    def server_update(self, g, c, s):
        return Point(c.average(lambda k: k.w))


def run_of(engine, solver=SGD, drawn=DRAWN):
    return fedlap.Simulation.of(Curious(), drawn, fedlap.logistic(), solver=solver, engine=engine)


def way(steps, rate, momentum, pull):
    """w after so many steps from 0, with a gradient of −1 + pull · w and a rate of one, in NumPy."""
    w = u = 0.0
    for _ in range(steps):
        u = momentum * u + (-1 + rate * pull * w)
        w = w - u
    return w


@pytest.fixture(scope="module")
def told():
    """The states of two rounds, all clients side by side."""
    run = run_of("vectorised")
    first = run.init()
    second = run.step(first)
    return first, second, run.step(second)


def test_a_client_is_told_what_is_so(told):
    answers, steps = told[1].clients.factor, [2, 2, 1]
    np.testing.assert_array_equal(answers.steps, steps)
    np.testing.assert_allclose(answers.rate, 0.05, rtol=1e-15)
    np.testing.assert_allclose(answers.effective, [way(n, 0.05, 0.5, 0.0) for n in steps], rtol=1e-14)
    np.testing.assert_allclose(answers.pulled, [way(n, 0.05, 0.5, 1.5) for n in steps], rtol=1e-14)
    for before, after in itertools.pairwise(told):
        wanted = [oracle.softmax.gradient(data, flat(before.server.w)) for data in points(DRAWN)]
        np.testing.assert_allclose(flat(after.clients.factor.gradient), wanted, rtol=1e-12, atol=1e-13)
    draws = [np.asarray(state.clients.factor.drawn) for state in told[1:]]
    assert len(np.unique(draws)) == 6, "another number for each client in each round"


@pytest.mark.parametrize("engine", ["sequential", "sharded"])
def test_clients_are_told_the_same_on_every_engine(engine, told):
    """And on the others, where test_engines.py and test_streamed.py run SCAFFOLD and FedNova, who ask."""
    run = run_of(engine)
    answers = run.step(run.init()).clients.factor
    for name, answer in told[1].clients.factor._asdict().items():
        np.testing.assert_allclose(getattr(answers, name), answer, rtol=1e-12, atol=1e-14, err_msg=name)


def test_effective_steps_are_the_papers():
    """Wang et al. (2020), sec. 3: of momentum, and of a proximal term, in closed form."""
    steps, rate, momentum, pull = 7, 0.1, 0.8, 2.5
    solver = fedlap.sgd(learning_rate=rate, momentum=momentum)
    wanted = (steps - momentum * (1 - momentum**steps) / (1 - momentum)) / (1 - momentum)
    np.testing.assert_allclose(solver.effective_steps(steps, None), wanted, rtol=1e-14)
    plain = fedlap.sgd(learning_rate=rate)
    assert plain.effective_steps(steps, None) == steps
    np.testing.assert_allclose(
        plain.effective_steps(steps, pull), (1 - (1 - rate * pull) ** steps) / (rate * pull), rtol=1e-14
    )


def test_a_gradient_is_read_in_chunks_and_is_whole_in_an_objective(monkeypatch):
    monkeypatch.setattr("fedlap.models.curvature.BACKWARD", 5)
    run = run_of("vectorised")
    shard, w = jax.tree.map(lambda leaf: leaf[0], run.setup.shards), run.init().start + 0.3

    @jax.jit
    def asked():
        k, minibatch = parties.client(run.setup, shard, Moment(0, w, run.setup.key))
        seen = [k, minibatch(shard.rows[:2], 0), minibatch(shard.rows[:2], 1)]
        return (
            [each.gradient(w) for each in seen],
            [jax.random.key_data(each.key) for each in seen],
            jax.grad(k.loss)(w),
        )

    gradients, keys, wanted = asked()
    np.testing.assert_allclose(flat(wanted), oracle.softmax.gradient(points(DRAWN)[0], flat(w)), rtol=1e-12)
    for gradient in gradients:
        np.testing.assert_allclose(flat(gradient), flat(wanted), rtol=1e-12)
    assert len({tuple(np.asarray(key).tolist()) for key in keys}) == 3


class Silent(FullBatch):
    """A solver of one's own that says nothing about its steps."""

    def solve(self, function, start):
        return start


@pytest.mark.parametrize(
    ("solver", "message"),
    [
        (fedlap.newton(), "Curious asks for k.rate, and the solver Newton has none; expected one whose steps are alon"),
        (fedlap.adam(), "Curious asks for k.rate, and the solver Adam has none"),
        (fedlap.optimiser("adam", learning_rate=0.1), "Curious asks for k.rate, and the solver NamedOptimiser has no"),
        (fedlap.sgd(clip=1.0), r"Curious asks for k.effective_steps\(pull\), and the solver SGD has none; expected on"),
    ],
    ids=["newton", "adam", "optimiser", "clipped"],
)
def test_what_a_solver_cannot_say_is_an_error_before_the_first_round(solver, message):
    with pytest.raises(ConfigError, match=message):
        run_of("vectorised", solver).init()


def test_a_solver_that_takes_as_many_steps_as_it_needs_has_no_number_of_them():
    run = run_of("vectorised")
    for solver, message in ((fedlap.newton(), "Newton has none; expected one with mini"), (Silent(), "Silent has non")):
        pace = parties.SolverPace(run.algorithm, solver, 3)
        with pytest.raises(ConfigError, match=f"Curious asks for k.steps, and the solver {message}"):
            pace.steps  # noqa: B018
        with pytest.raises(ConfigError, match=r"k\.steps"):
            pace.effective_steps(None)
    assert parties.SolverPace(run.algorithm, fedlap.adam(), 3).effective_steps(None) == 3


def test_asking_for_nothing_computes_nothing():
    """A round of FedAvg is the program that it was: neither a gradient of all rows nor a key of one's own is in it."""
    run = simulation("fedavg", DRAWN)
    state = run.init()
    moment = Moment(0, state.start, run.setup.key)
    shard = jax.tree.map(lambda leaf: leaf[0], run.setup.shards)
    asked = jax.make_jaxpr(lambda: parties.client(run.setup, shard, moment)[0].gradient(state.start))()
    plain = jax.make_jaxpr(lambda: parties.client(run.setup, shard, moment)[0].n)()
    assert "while" in str(asked) and "while" not in str(plain)
