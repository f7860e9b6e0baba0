"""Federations of any size: what precedes the first round, and what the host does in each, is linear in the clients."""

import ctypes
import resource
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import jax
import numpy as np
import pytest

import fedlap
from fedlap.engines import sequential, vectorised
from fedlap.engines.round import initial
from fedlap.engines.sums import UNROLLED
from fedlap.machine import give_memory_back


def many(count, names=None):
    """Clients of two rows each."""
    x = np.random.default_rng(0).normal(size=(2 * count, 3))
    y = np.arange(2 * count) % 2
    clients = [(x[i : i + 2], y[i : i + 2]) for i in range(0, 2 * count, 2)]
    return fedlap.Federation.from_arrays(clients=clients, test=(x[:4], y[:4]), names=names)


def simulation(federation, engine="vectorised"):
    solver = fedlap.adam(epochs=1, batch=2)
    return fedlap.Simulation.of(fedlap.FedLap(delta=1.0), federation, fedlap.logistic(), solver=solver, engine=engine)


def operands(program):
    """How many operands the operations of a traced program have, those of its inner programs too."""
    inner = [each for equation in program.eqns for each in jax.tree.leaves(equation.params, is_leaf=_is_program)]
    own = sum(len(equation.invars) for equation in program.eqns)
    return own + sum(operands(getattr(each, "jaxpr", each)) for each in inner if _is_program(each))


def _is_program(thing):
    return hasattr(thing, "eqns")


def test_a_program_is_no_longer_for_more_clients():
    """Clients are an axis; a program that names each of them takes their square to compile."""

    def lengths(count):
        run = simulation(many(count))
        state = run.init()
        moved = vectorised.Moved.of(*run.plan(0))
        traced = {
            "initial": jax.make_jaxpr(initial)(run.setup),
            "round": jax.make_jaxpr(vectorised.federated_round)(run.setup, state, moved),
        }
        return {name: operands(program.jaxpr) for name, program in traced.items()}

    some = lengths(UNROLLED + 1)
    assert min(some.values()) > 0 and some == lengths(2 * UNROLLED)


def test_the_server_of_clients_one_by_one_sees_many_of_them_stacked(monkeypatch):
    """Or its program would have as many arguments as there are clients; of few it is the same, and faster."""
    seen = []

    def noted(program):
        def server(*arguments):
            seen.append(len(jax.tree.leaves(arguments)))
            return program(*arguments)

        return server

    for name in ("_server", "_server_of_few"):
        monkeypatch.setattr(sequential, name, noted(getattr(sequential, name)))
    for count in (sequential.FEW + 1, sequential.FEW + 3):
        run = simulation(many(count), engine="sequential")
        state = run.init()
        sent = tuple(client.contribution for client in state.clients)
        sequential.run_server(run.setup, state.server, sent, np.ones(count))
    assert len(seen) == 2 and seen[0] == seen[1]


def test_few_clients_and_many_are_one_server(monkeypatch):
    run = simulation(many(5), engine="sequential")
    state = run.step(run.init())
    monkeypatch.setattr(sequential, "FEW", 4)
    np.testing.assert_allclose(run.step(run.init()).server.w, state.server.w, rtol=1e-12)


def calls(work):
    """How many functions are called while it works, in Python and in C."""
    count = 0

    def note(frame, event, argument):
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(before)
    return count


@pytest.mark.parametrize("part", ["federation", "simulation", "plan"])
def test_what_comes_before_a_round_is_linear_in_the_clients(part):
    """Of four times the clients at most four times the calls."""

    def work(count):
        if part == "federation":
            return calls(lambda: many(count))
        federation = many(count)
        if part == "simulation":
            simulation(federation)  # so that nothing is compiled while it is counted
            return calls(lambda: simulation(federation))
        run = simulation(federation)
        return calls(lambda: run.plan(0))

    few, more = work(200), work(800)
    assert few > 200 and more < 4.2 * few


class Name(str):
    """A name that knows how often names have been compared."""

    compared = 0
    __hash__ = str.__hash__

    def __eq__(self, other):
        Name.compared += 1
        return str.__eq__(self, other)


def test_names_are_not_compared_each_with_each():
    Name.compared = 0
    federation = many(500, names=[Name(f"site {number}") for number in range(500)])
    assert len(set(federation.clients)) == 500
    assert Name.compared < 5 * 500


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="the C library is not glibc")
def test_memory_that_other_threads_have_freed_goes_back_to_the_system():
    def resident():
        return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()

    def hoard(_):
        kept = [np.ones(10_000) for _ in range(1000)]
        return kept[::100]  # so that no part of the memory is free at its end

    with ThreadPoolExecutor(1) as thread:
        held = list(thread.map(hoard, range(2)))
        before = resident()
        give_memory_back()
        assert before - resident() > 40e6, "of 80 megabytes and more, a hundredth is held"
        del held
