"""Who is in a federation changes: exact where losses are quadratic, the pooled answer after some rounds elsewhere."""

import pickle

import jax
import numpy as np
import pytest

import fedlap
import oracle
from drawn import Squared, federation, points
from fedlap.engines import ENGINES
from fedlap.run import membership
from methods import after, simulation

LEAVER = "client-1"
THREE = federation(1, overlap=True)
OTHERS = THREE.without(LEAVER)
NEWER = federation(2, overlap=True).of(1)  # of a client that comes, or of one that is here already
FOUR = THREE.with_client("new", NEWER)
EXACT = {"solver": fedlap.newton(), "server_solver": fedlap.newton(), "engine": "vectorised", "on_divergence": "ignore"}
DELTA = 0.7


def trained(algorithm, data=THREE, rounds=1, **options):
    return fedlap.simulate(algorithm, data, fedlap.logistic(), rounds=rounds, **EXACT | options)


def covariances(rho=1.0):
    return fedlap.FedLapCov(delta=DELTA, covariance="full", rho=rho)


def pooled(data, loss=oracle.softmax):
    return oracle.pooled(loss, points(data), DELTA)


def close(found, wanted, tolerance):
    np.testing.assert_allclose(found.final.w, wanted, rtol=0, atol=tolerance)


# Quadratic losses: exact ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def quadratic():
    return trained(covariances(), likelihood=Squared())


def test_to_leave_a_quadratic_is_exact_without_a_round(quadratic):
    left = quadratic.without(LEAVER, rounds=0)
    close(left, pooled(OTHERS, oracle.squared), 1e-13)
    assert len(left.nll) == 1 and left.simulation.federation.clients == OTHERS.clients
    close(quadratic, pooled(THREE, oracle.squared), 1e-13)  # and is as it was


def test_to_join_a_quadratic_is_exact_in_one_round(quadratic):
    joined = quadratic.join("new", NEWER, rounds=1)
    close(joined, pooled(FOUR, oracle.squared), 1e-13)
    assert joined.nll[0] == quadratic.nll[-1] and len(joined.nll) == 2  # before its first round it has said nothing


def test_newer_data_of_a_quadratic_add_to_what_the_old_have_said(quadratic):
    updated = quadratic.update(LEAVER, NEWER, rounds=1)
    close(updated, pooled(FOUR, oracle.squared), 1e-13)
    run = updated.simulation
    assert run.federation.clients == THREE.clients and len(run.federation.inputs) == len(THREE.inputs) - 12 + len(NEWER[0])
    # Who leaves takes along what its earlier data have said; who goes on twice has said both.
    close(updated.without(LEAVER, rounds=0), pooled(OTHERS, oracle.squared), 1e-13)
    twice = updated.update(LEAVER, THREE.of(0), rounds=1)
    close(twice, pooled(FOUR.with_client("again", THREE.of(0)), oracle.squared), 1e-13)


def test_old_data_have_their_whole_say_however_far_damping_has_come():
    early = trained(covariances(rho=fedlap.evenly), rounds=3, likelihood=Squared())
    settled = early.update(LEAVER, NEWER, rounds=80)
    close(settled, pooled(FOUR, oracle.squared), 1e-12)


def test_a_committee_changes_its_members_without_a_fixed_point():
    committee = trained(fedlap.BCM(delta=DELTA, covariance="full"))
    alone = trained(fedlap.BCM(delta=DELTA, covariance="full"), OTHERS)
    close(committee.without(LEAVER), alone.final.w, 1e-13)
    close(committee.without(LEAVER).join(LEAVER, THREE.of(1)), committee.final.w, 1e-13)


# Convex losses: the pooled answer after some rounds -------------------------------------------------------------------


@pytest.fixture(scope="module")
def logistic():
    return trained(covariances(), rounds=8)


@pytest.mark.parametrize(
    ("change", "data"),
    [
        (lambda history: history.without(LEAVER, rounds=8), OTHERS),
        (lambda history: history.join("new", NEWER, rounds=8), FOUR),
    ],
    ids=["without", "join"],
)
def test_a_convex_run_comes_to_what_it_would_have_come_to_from_scratch(logistic, change, data):
    changed = change(logistic)
    close(changed, pooled(data), 1e-10)
    close(changed, trained(covariances(), data, rounds=9).final.w, 1e-10)
    np.testing.assert_allclose(changed.final.S, trained(covariances(), data, rounds=9).final.S, atol=1e-10)
    assert changed.stationarity() < 1e-10


def test_the_division_is_a_better_start_than_the_model_with_the_leaver(logistic):
    """By far the most of the way, where losses are near quadratic, and the slope knows."""
    left = logistic.without(LEAVER, rounds=0)
    wanted = pooled(OTHERS)
    assert np.linalg.norm(left.final.w - wanted) < np.linalg.norm(logistic.final.w - wanted) / 2
    assert left.stationarity() > 0.1


def test_newer_data_add_to_the_quadratic_that_old_data_left(logistic):
    """The oracle's minimum of the new losses and the old one's Laplace approximation at w_k, which was at w_g."""
    updated = logistic.update(LEAVER, NEWER, rounds=12)
    old = points(THREE)[1]
    H, w = oracle.softmax.hessian(old, logistic.final.w), logistic.final.w
    v = H @ w - oracle.softmax.gradient(old, w)
    now = [points(OTHERS)[0], points(OTHERS)[1], oracle.labelled(*NEWER, THREE.classes)]
    energies = [oracle.energy(oracle.softmax, each) for each in now]
    wanted = oracle.argmin(oracle.square(DELTA).plus(oracle.square(H), oracle.line(-v), *energies), np.zeros(w.size))
    close(updated, wanted, 1e-8)
    assert updated.stationarity() < 1e-8


@pytest.mark.parametrize("name", ["fedlap", "fedadmm"])
def test_so_do_methods_whose_factor_is_a_line(name):
    rho = {"fedlap": {"rho": 1 / 3, "delta": DELTA}, "fedadmm": {"alpha": 0.3}}[name]
    algorithm = fedlap.algorithms.ALGORITHMS[name](**rho)
    history = trained(algorithm, rounds=20)
    left = history.without(LEAVER, rounds=300)
    joined = history.join("new", NEWER, rounds=300)
    for changed, data in ((left, OTHERS), (joined, FOUR)):
        close(changed, trained(algorithm, data, rounds=400).final.w, 1e-8)
        if name == "fedlap":
            close(changed, pooled(data), 1e-8)
            assert changed.stationarity() < 1e-7


def test_the_certificate_is_the_slope_of_the_pooled_objective(logistic):
    """With FedLap-Cov that has not converged, whose factors are not yet its clients' slopes."""
    for history in (logistic.without(LEAVER, rounds=0), trained(fedlap.FedLap(delta=DELTA), rounds=2)):
        data = history.simulation.federation
        w = history.final.w
        slope = DELTA * w + sum(oracle.softmax.gradient(each, w) for each in points(data))
        assert history.stationarity() == pytest.approx(np.linalg.norm(slope), rel=1e-10)
