"""SCAFFOLD, FedNova and FedOpt: what their papers say of them, in float64 and to rounding.

A client of these federations has one row, as often as it has rows: whatever a minibatch is, its gradient is that of
all, and SGD is exact, while clients take as many steps as they have rows.
"""

import dataclasses
import itertools

import numpy as np
import pytest

import fedlap
import oracle
from closeness import EXACT, assert_same, distance, flat, weights
from drawn import THREE, Squared, federation, points, trajectory
from fedlap.errors import ConfigError
from oracle import squared


def repeated(sizes, seed=5):
    drawn = federation(seed, THREE, sizes=sizes)
    inputs, labels = drawn.inputs.copy(), drawn.labels.copy()
    for k, rows in enumerate(drawn.rows):
        inputs[rows], labels[rows] = inputs[rows[0]], k
    return dataclasses.replace(drawn, inputs=inputs, labels=labels)


UNEVEN, EVEN = repeated([12, 6, 3]), repeated([12, 12, 12])


def run(method, drawn=UNEVEN, rounds=3, *, epochs=2, rate=0.1, momentum=0.0, **options):
    """With four, two and one steps an epoch on uneven clients."""
    solver = fedlap.sgd(epochs=epochs, batch=3, learning_rate=rate, momentum=momentum)
    return trajectory(method, drawn, rounds, solver=solver, likelihood=Squared(), **options)


def gradient(data, w):
    return squared.gradient(data, w) / data.n


# SCAFFOLD.


@pytest.mark.parametrize("control", ["gradient", "steps"])
def test_scaffold_ends_at_the_pooled_optimum_however_many_steps_clients_take(control):
    """Where FedAvg does not: eight, four and two steps of three clients who want different things."""
    optimum, _ = oracle.pooled(squared, points(UNEVEN), 0.0)
    _, states = run(fedlap.SCAFFOLD(control=control), rounds=150)
    assert_same(flat(states[-1].server.w), optimum)
    wanted = np.stack([gradient(data, optimum) for data in points(UNEVEN)])
    assert np.linalg.norm(wanted, axis=1).min() > 0.1
    assert_same(flat(states[-1].clients.factor.c), wanted)
    assert np.linalg.norm(flat(states[-1].server.c)) < EXACT
    _, averaged = run(fedlap.FedAvg(), rounds=150)
    assert distance(flat(averaged[-1].server.w), optimum) > 0.05


@pytest.mark.parametrize("momentum", [0.0, 0.6])
def test_scaffolds_control_is_the_mean_gradient_of_its_steps(momentum):
    """Its sign, and its scale: divided by the rate and by the client's own steps, or what these are with momentum.

    In the first round nothing is corrected yet, and w_g is FedAvg's. In the second c_k − c is, in the steps and in c_k.
    """
    _, (_, first, second) = run(fedlap.SCAFFOLD(control="steps"), rounds=2, momentum=momentum)
    _, (_, average, _) = run(fedlap.FedAvg(), rounds=2, momentum=momentum)
    assert_same(flat(first.server.w), flat(average.server.w), 1e-14)
    shares = UNEVEN.sizes / UNEVEN.sizes.sum()
    before, own, together = np.zeros(THREE.weights), np.zeros((3, THREE.weights)), np.zeros(THREE.weights)
    for state in (first, second):
        means = []
        for k, data in enumerate(points(UNEVEN)):
            w, u, seen = before, np.zeros_like(before), []
            for _ in range(2 * data.n // 3):
                seen.append(gradient(data, w))
                u = momentum * u + seen[-1] - own[k] + together
                w = w - 0.1 * u
            # A gradient counts as often as it has moved w: once, and less often the later it comes.
            times = [(1 - momentum ** (len(seen) - i)) / (1 - momentum) for i in range(len(seen))]
            means.append(np.average(seen, axis=0, weights=times))
        own = np.stack(means)
        together = shares @ own
        assert_same(flat(state.clients.factor.c), own, 1e-12)
        assert_same(flat(state.server.c), together, 1e-12)
        before = flat(state.server.w)


def test_scaffolds_two_controls_are_one_where_a_client_takes_one_step():
    even = repeated([3, 3, 3])
    whole, steps = (run(fedlap.SCAFFOLD(control=c), even, 4, epochs=1)[1] for c in ("gradient", "steps"))
    assert_same(weights(steps), weights(whole), 1e-13)
    assert_same(flat(steps[1].clients.factor.c), np.stack([gradient(d, np.zeros(6)) for d in points(even)]), 1e-13)


def test_scaffold_keeps_the_controls_of_clients_who_are_not_drawn():
    """And c moves by what those who were have changed: Σ_drawn (N_k/N) Δc_k."""
    run_, states = run(fedlap.SCAFFOLD(), rounds=5, participation=2)
    shares = UNEVEN.sizes / UNEVEN.sizes.sum()
    for round, (old, new) in enumerate(itertools.pairwise(states)):
        drawn, change = run_.plan(round).drawn, flat(new.clients.factor.c) - flat(old.clients.factor.c)
        assert drawn.sum() == 2 and not change[~drawn].any() and change[drawn].any(axis=1).all()
        assert_same(flat(new.server.c), flat(old.server.c) + (drawn * shares) @ change, 1e-13)
        wanted = np.stack([gradient(data, flat(old.server.w)) for data in points(UNEVEN)])
        assert_same(flat(new.clients.factor.c)[drawn], wanted[drawn], 1e-13)


# FedNova.


def test_fednova_is_fedavg_where_all_take_as_many_steps():
    for drawn, same in ((EVEN, True), (UNEVEN, False)):
        nova, average = (run(method, drawn, momentum=0.6)[1] for method in (fedlap.FedNova(), fedlap.FedAvg()))
        error = distance(weights(nova[1:]), weights(average[1:]))
        assert error < 1e-13 if same else error > 1e-2


def test_fednova_with_a_proximal_term_is_fedprox_where_all_take_as_many_steps():
    nova, prox = (run(method(alpha=0.8), EVEN)[1] for method in (fedlap.FedNova, fedlap.FedProx))
    assert_same(weights(nova), weights(prox), 1e-13)


@pytest.mark.parametrize("alpha", [None, 0.8])
def test_fednova_leaves_the_pooled_optimum_alone_as_its_steps_become_small(alpha):
    """Theorem 1: FedAvg minimises another objective, in which clients weigh by their steps too; FedNova the right one.

    Begun at the optimum and with a tenth of the rate, what moves it by its steps' curvature is a hundredth; what moves
    it by wrong weights would be a tenth.
    """
    optimum, _ = oracle.pooled(squared, points(UNEVEN), 0.0)

    def moved(method, rate):
        made, (state,) = run(method, rounds=0, rate=rate)
        there = state.server.w.like(optimum)
        after = made.step(state._replace(server=state.server._replace(w=there), start=there))
        return np.linalg.norm(flat(after.server.w) - optimum)

    of = lambda method: moved(method, 1e-3) / moved(method, 1e-4)
    assert 90 < of(fedlap.FedNova(alpha=alpha)) < 110
    assert 9 < of(fedlap.FedAvg() if alpha is None else fedlap.FedProx(alpha=alpha)) < 11


# FedOpt.


def test_fedopt_is_fedavg_with_a_plain_server_and_tends_to_it_with_others():
    plain = {"beta1": 0.0}
    _, average = run(fedlap.FedAvg())
    _, sgd = run(fedlap.FedOpt(rule="sgd", learning_rate=1.0, **plain))
    assert_same(weights(sgd), weights(average), 1e-14)
    tau = 1e5
    for rule in ("adagrad", "yogi"):
        _, far = run(fedlap.FedOpt(rule=rule, learning_rate=2 * tau, tau=tau, **plain))
        assert_same(weights(far), weights(average), 1e-9)


def test_fedopt_with_momentum_remembers():
    """m is an average of the changes so far, the last with a weight of 1 − β₁."""
    _, states = run(fedlap.FedOpt(rule="sgd", learning_rate=1.0, beta1=0.7))
    before, m = np.zeros(THREE.weights), np.zeros(THREE.weights)
    for state in states[1:]:
        m = 0.7 * m + 0.3 * (UNEVEN.sizes @ flat(state.clients.contribution.w) / UNEVEN.sizes.sum() - before)
        before = before + m
        assert_same(flat(state.server.w), before, 1e-13)


# What a solver cannot do for them.


@pytest.mark.parametrize(
    ("method", "solver", "message"),
    [
        (
            fedlap.SCAFFOLD(control="steps"),
            fedlap.adam(),
            r"SCAFFOLD asks for k\.rate, and the solver Adam has none",
        ),
        (fedlap.FedNova(), fedlap.newton(), r"FedNova asks for k\.steps, and the solver Newton has none; expected one"),
        (fedlap.FedNova(alpha=1.0), fedlap.adam(), r"FedNova asks for k\.effective_steps\(pull\), and the solver Adam"),
    ],
    ids=["scaffold", "fednova", "proximal"],
)
def test_a_solver_without_steps_along_the_gradient_is_refused(method, solver, message):
    with pytest.raises(ConfigError, match=message):
        trajectory(method, UNEVEN, 0, solver=solver)
