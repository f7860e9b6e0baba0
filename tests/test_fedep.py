"""FedEP with Laplace's moments: where it is FedLap-Cov, and what one factor for all clients can do."""

import numpy as np

import fedlap
import oracle
from closeness import assert_same, dense, flat
from drawn import PlainNewton, Squared, federation, points, trajectory
from oracle import softmax, squared

DELTA = 1.3


def test_with_a_whole_step_it_is_fedlap_cov():
    """Line by line: cavity, tilted mode and moments, and the damped factor are eqs. (12), (14) and (21)."""
    drawn = federation(3)
    _, states = trajectory(fedlap.FedEP(delta=DELTA, rho=0.3, covariance="full"), drawn, 8)
    rounds = oracle.fedlap_cov(softmax, points(drawn), [[0, 1, 2]] * 8, DELTA, 0.3, "full")
    for state, wanted in zip(states[1:], rounds, strict=True):
        assert_same(flat(state.server.w), wanted.w, 1e-12)
        assert_same(dense(state.server.S), wanted.S, 1e-12)
        assert_same(flat(state.clients.factor.v), wanted.v, 1e-12)
        assert_same(dense(state.clients.factor.V), wanted.V, 1e-12)


def test_the_step_of_the_server_is_not_in_the_answer():
    drawn = federation(3)
    mean, precision = oracle.pooled(softmax, points(drawn), DELTA)
    for eta in (1.0, 0.4):
        method = fedlap.FedEP(delta=DELTA, rho=0.5, eta=eta, covariance="full")
        run, states = trajectory(method, drawn, 120)
        assert_same(flat(states[-1].server.w), mean)
        assert_same(dense(states[-1].server.S), precision)
        assert_same(dense(run.algorithm.precision_ahead(states[-1].server)), precision)


def test_who_was_never_drawn_adds_nothing_to_what_will_be_known():
    """As in FedLap-Cov, whose lines these are: each factor is undamped by its own lag, and not by that of all."""
    drawn = federation(3)
    for options in ({"participation": 1}, {"participation": 2}):
        found = [
            fedlap.simulate(
                kind(delta=DELTA, rho=0.3, covariance="full"),
                drawn,
                fedlap.logistic(),
                rounds=2,
                solver=PlainNewton(),
                on_divergence="ignore",
                **options,
            ).precision
            for kind in (fedlap.FedEP, fedlap.FedLapCov)
        ]
        assert_same(*found, 1e-12)


def test_one_factor_for_all_is_exact_on_quadratics():
    """At once with whole steps, and in the end with any; what it will be sure of is known after one round."""
    drawn = federation(3)
    mean, precision = oracle.pooled(squared, points(drawn), DELTA)
    for rho, eta, rounds in ((1.0, 1.0, 1), (0.4, 0.7, 100)):
        method = fedlap.FedEP(delta=DELTA, rho=rho, eta=eta, shared=True, covariance="full")
        run, states = trajectory(method, drawn, rounds, likelihood=Squared())
        assert_same(flat(states[-1].server.w), mean, 1e-11)
        assert_same(dense(states[-1].server.S), precision, 1e-11)
        assert_same(dense(run.algorithm.precision_ahead(states[1].server)), precision, 1e-11)


def test_one_factor_for_all_is_that_of_each_where_clients_are_alike():
    """Stochastic EP is then EP; where they differ, it is not, and does not end at the pooled optimum."""
    drawn, rounds = points(federation(3)), [[0, 1, 2]] * 60
    alike = [drawn[0]] * 3
    for ep, sep in zip(
        oracle.fedep(softmax, alike, rounds[:8], DELTA, 0.5, 1.0, "full"),
        oracle.fedep(softmax, alike, rounds[:8], DELTA, 0.5, 1.0, "full", shared=True),
        strict=True,
    ):
        assert_same(sep.w, ep.w, 1e-12)
        assert_same(sep.S, ep.S, 1e-12)
    optimum, _ = oracle.pooled(softmax, drawn, DELTA)
    ends = [list(oracle.fedep(softmax, drawn, rounds, DELTA, 0.5, 1.0, "full", each))[-1].w for each in (False, True)]
    assert_same(ends[0], optimum)
    assert np.linalg.norm(ends[1] - optimum) > 1e-3 * np.linalg.norm(optimum)
