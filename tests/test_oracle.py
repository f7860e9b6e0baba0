"""Every algorithm, round by round, against the slow NumPy of `oracle.py`, with exact argmins on both sides."""

import ast
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import energies
import fedlap
import oracle
from closeness import dense, distance, flat
from drawn import FOUR, THREE, PlainNewton, SigmaPoints, Squared, federation, memory, points
from fedlap.algorithms import ALGORITHMS
from fedlap.models.likelihood import categorical
from fedlap.models.network import Dense, Flatten, Network
from methods import PRIORLESS

ROUNDS = 20
TOLERANCE = 1e-9  # relative; 1e-14 is usual, and twenty rounds may stretch it

LOSSES = {"softmax": (oracle.softmax, categorical), "squared": (oracle.squared, Squared())}
RULES = {"evenly": fedlap.evenly, "by_share": fedlap.by_share}
NUMBERS = {
    "alpha": st.floats(0.05, 5.0),
    "weight_decay": st.floats(0.0, 1.0),
    "delta": st.floats(0.3, 10.0),
    "tau": st.floats(0.0, 2.0),
    "rho": st.floats(0.05, 0.4),
    "server_rate": st.floats(0.5, 1.2),
    "learning_rate": st.floats(0.01, 0.3),
    "beta1": st.floats(0.0, 0.9),
    "beta2": st.floats(0.5, 0.99),
    "eta": st.floats(0.3, 1.0),
}


class Case(NamedTuple):
    """One program: what is not drawn."""

    name: str
    shape: object = THREE
    loss: str = "softmax"
    fixed: dict = {}
    drawn: tuple = ()  # the hyper-parameters that are numbers
    solver: dict | None = None  # of SGD, whose steps count; None for exact argmins

    def __repr__(self):
        words = [self.name, f"{self.shape.clients}-clients", self.loss, *map(str, self.fixed.values())]
        return "-".join(words)


CASES = [
    Case("fedavg"),
    Case("fedprox", FOUR, drawn=("alpha",)),
    Case("fedadmm", drawn=("alpha",)),
    Case("fedadmm", FOUR, "squared", drawn=("alpha",)),
    Case("feddyn", drawn=("alpha", "weight_decay")),
    Case("scaffold", fixed={"control": "gradient"}, drawn=("server_rate",), solver={}),
    Case("scaffold", fixed={"control": "steps"}, solver={"momentum": 0.5}),
    Case("fednova", solver={"momentum": 0.5}),
    Case("fednova", FOUR, "squared", drawn=("alpha",), solver={"momentum": 0.0}),
    Case("fedopt", fixed={"rule": "adam", "tau": 0.02}, drawn=("learning_rate", "beta1", "beta2"), solver={}),
    Case("fedopt", fixed={"rule": "yogi", "tau": 0.02}, drawn=("learning_rate", "beta1", "beta2"), solver={}),
    Case("fedopt", fixed={"rule": "adagrad", "tau": 0.02}, drawn=("learning_rate", "beta1"), solver={}),
    Case("bcm", fixed={"covariance": "diagonal"}, drawn=("delta",)),
    Case("bcm", FOUR, "squared", fixed={"covariance": "full"}, drawn=("delta",)),
    Case("pvi", THREE, "squared", drawn=("delta", "rho")),
    Case("fedlap", drawn=("delta", "rho")),
    Case("fedlap", FOUR, fixed={"rho": "by_share"}, drawn=("delta",)),
    Case("fedlap", THREE, "squared", fixed={"rho": "evenly"}, drawn=("delta",)),
    Case("fedlap_cov", fixed={"rho": "evenly", "covariance": "diagonal"}, drawn=("delta",)),
    Case("fedlap_cov", FOUR, fixed={"rho": "by_share", "covariance": "full"}, drawn=("delta",)),
    Case("fedlap_cov", THREE, "squared", fixed={"covariance": "full"}, drawn=("delta", "rho")),
    Case("fedlap_kron", fixed={"refresh": 2}, drawn=("delta", "rho")),
    Case("fedlap_func", drawn=("delta", "rho", "tau")),
    Case("fedlap_func", FOUR, "squared", fixed={"rho": "by_share"}, drawn=("delta", "tau")),
    Case("fedlap_cov_func", fixed={"rho": "evenly", "covariance": "diagonal"}, drawn=("delta", "tau")),
    Case("fedlap_cov_func", fixed={"covariance": "full"}, drawn=("delta", "rho", "tau")),
    Case("bayes_admm", fixed={"rho": 1.2, "gamma": 0.2, "tau": 0.5}, drawn=("delta",)),
    Case("fedep", fixed={"rho": "evenly", "covariance": "full", "shared": True}, drawn=("delta", "eta")),
]


def build(case, numbers):
    hyper = {key: RULES.get(value, value) for key, value in case.fixed.items()} | numbers
    if case.name == "pvi":
        hyper["samples"] = 2 * case.shape.weights
    return ALGORITHMS[case.name](**hyper)


RATE = 0.05


def exact(case):
    """Of quadratics a plain step of Newton's, which is compiled in a third of the time; else the library's solver."""
    return PlainNewton() if case.loss == "squared" else fedlap.newton()


def solver(case):
    if case.solver is not None:
        return fedlap.sgd(learning_rate=RATE, epochs=2, batch=5, **case.solver)
    return SigmaPoints() if case.name == "pvi" else exact(case)


def batches(run, round):
    """By client, the rows of each of its steps as the oracle counts them: within the client's own."""
    plan, own = run.plan(round), run.federation.rows
    within = lambda k, rows: np.flatnonzero(rows[rows >= 0][:, None] == own[k]) % len(own[k])
    taken = zip(np.flatnonzero(plan.drawn).tolist(), plan.batches.rows, plan.batches.steps, strict=True)
    return {k: [within(k, rows) for rows in steps[:count]] for k, steps, count in taken}


NETWORK = Network((Flatten(), Dense(bias=False)))  # as `logistic()`, from weights that are not zero


def compare(case, federation, numbers, participation=1.0, seed=0):
    """The largest distance over rounds and over all that the two leave behind."""
    loss, likelihood = LOSSES[case.loss]
    algorithm = build(case, numbers)
    run = fedlap.Simulation.of(
        algorithm,
        federation,
        NETWORK,
        seed=seed,
        solver=solver(case),
        server_solver=exact(case),
        likelihood=likelihood,
        participation=participation,
        engine="vectorised",
    )
    rounds = 1 if run.one_shot else ROUNDS
    drawn = [np.flatnonzero(run.plan(r).drawn).tolist() for r in range(rounds)]
    extra = {"memory": memory(run)} if run.algorithm.memory else {}
    state = run.init()
    assert np.abs(flat(state.start)).min() > 0
    if case.name in PRIORLESS:
        extra["start"] = flat(state.start)
    if case.solver is not None:
        extra["local"] = oracle.Local([batches(run, r) for r in range(rounds)], RATE, **case.solver)
    for wanted in oracle.ALGORITHMS[case.name](loss, points(federation), drawn, **case.fixed, **numbers, **extra):
        state = run.step(state)
        errors = distances(state, wanted)
        if wanted.precision is not None:
            errors["precision"] = distance(dense(run.algorithm.precision(state.server)), wanted.precision)
        if case.name == "fedavg":  # alone without a regulariser, so only what the data determine is the same
            errors["w"] = distance(centred(flat(state.server.w)), centred(wanted.w))
        for name, error in errors.items():
            assert error < TOLERANCE, f"{name} is off by {error:.1e} after round {state.round}"


def centred(w):
    """What softmax outputs depend on: W is determined up to a row added to all of its rows."""
    W = w.reshape(THREE.classes, -1)
    return W - W.mean(0)


def distances(state, wanted):
    factor, found = state.clients.factor, {"w": distance(flat(state.server.w), wanted.w)}
    if wanted.S is not None:
        found["S"] = distance(dense(state.server.S), wanted.S)
    if wanted.v is not None:
        found["v"] = distance(flat(factor.v), np.stack(wanted.v))
    if wanted.V is not None:
        found["V"] = distance(dense(factor.V), np.stack(wanted.V))
    if wanted.c is not None:
        found["c"] = distance(flat(factor.c), np.stack(wanted.c))
    for k, labels in (wanted.y or {}).items():
        found[f"y[{k}]"] = distance(np.asarray(factor.y.targets)[k, : labels.n], labels.targets)
    return found


@pytest.mark.parametrize("case", CASES, ids=repr)
def test_the_library_is_the_oracle(case):
    @settings(max_examples=4)
    @given(
        seed=st.integers(0, 2**32 - 1),
        participation=st.sampled_from([1.0, 2]),
        numbers=st.fixed_dictionaries({name: NUMBERS[name] for name in case.drawn}),
    )
    def check(seed, participation, numbers):
        # Func's memory has the same shape in all draws if every client has every class, which `overlap` ensures.
        overlap = case.name == "fedavg" or "func" in case.name
        compare(case, federation(seed, case.shape, overlap=overlap), numbers, participation, seed)

    check()


@pytest.mark.parametrize("name", ["fedlap_func", "fedlap_cov_func"])
def test_clients_without_some_class_have_less_memory(name):
    drawn = federation(3, THREE, sizes=[12, 5, 1])
    assert (drawn.class_counts == 0).any(), "the draw no longer has a client that lacks a class"
    fixed = {"covariance": "full"} if name == "fedlap_cov_func" else {}
    compare(Case(name, fixed=fixed), drawn, {"delta": 1.3, "rho": 0.3, "tau": 0.8}, participation=2)


def test_the_oracle_knows_every_algorithm():
    assert set(oracle.ALGORITHMS) == set(ALGORITHMS), "write the new algorithm's equations in tests/oracle.py too"
    assert {case.name for case in CASES} == set(ALGORITHMS), "and give it a row in CASES"


def test_the_oracle_is_numpy_alone():
    modules = set()
    for part in (oracle, energies):
        for node in ast.walk(ast.parse(Path(part.__file__).read_text())):
            if isinstance(node, ast.Import):
                modules |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                modules.add(node.module)
    assert modules == {"collections.abc", "typing", "numpy", "energies"}


@pytest.mark.parametrize("loss", [oracle.softmax, oracle.squared])
def test_the_derivatives_of_the_oracle_are_those_of_its_values(loss):
    rng = np.random.default_rng(0)
    w, direction = rng.normal(size=(2, 6))
    soft = oracle.Points(rng.normal(size=(5, 2)), rng.uniform(1, 3, size=5), rng.normal(size=(5, 3)))
    S = rng.normal(size=(6, 6))
    whole = oracle.energy(loss, soft, 0.7).plus(oracle.line(direction), oracle.square(S @ S.T, around=w + 1), times=1.5)
    step = 1e-6 * direction
    slope = (whole.value(w + step) - whole.value(w - step)) / 2e-6
    bend = (whole.gradient(w + step) - whole.gradient(w - step)) / 2e-6
    np.testing.assert_allclose(whole.gradient(w) @ direction, slope, rtol=1e-7)
    np.testing.assert_allclose(whole.hessian(w) @ direction, bend, rtol=1e-7)


def test_the_argmin_of_the_oracle_is_stationary():
    data = points(federation(1))[0]
    whole = oracle.energy(oracle.softmax, data).plus(oracle.square(0.5))
    found = oracle.argmin(whole, np.ones(THREE.weights))
    assert np.abs(whole.gradient(found)).max() < 1e-13
