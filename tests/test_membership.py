"""Who is in a federation changes: exact where losses are quadratic, the pooled answer after some rounds elsewhere."""

import pickle
from dataclasses import replace

import numpy as np
import pytest

import fedlap
import oracle
from drawn import PlainNewton, Squared, federation, points
from fedlap.run import membership
from methods import after, simulation

LEAVER = "client-1"
THREE = federation(1, overlap=True, sizes=[8, 12, 10])
OTHERS = THREE.without(LEAVER)
NEWER = federation(2, overlap=True, sizes=[8, 12, 10]).of(1)
LINES = federation(1, sizes=[8, 12, 10], diagonal=True)  # every input along one axis: a diagonal knows all curvature
MORE = federation(2, sizes=[8, 12, 10], diagonal=True).of(1)
DELTA = 0.7


def trained(algorithm, data=THREE, rounds=1, **options):
    exact = {"solver": PlainNewton(), "server_solver": PlainNewton(), "on_divergence": "ignore"}
    return fedlap.simulate(algorithm, data, fedlap.logistic(), rounds=rounds, **exact | options)


def pooled(data, loss=oracle.softmax):
    return oracle.pooled(loss, points(data), DELTA)[0]


def close(found, wanted, tolerance):
    np.testing.assert_allclose(found.final.w, wanted, rtol=0, atol=tolerance)


# Quadratic losses: exact ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def quadratic():
    return trained(fedlap.FedLapCov(delta=DELTA, rho=1.0), LINES, likelihood=Squared())


def test_to_leave_a_quadratic_is_exact_without_a_round(quadratic):
    left = quadratic.without(LEAVER, rounds=0)
    close(left, pooled(LINES.without(LEAVER), oracle.squared), 1e-13)
    assert len(left.nll) == 1 and left.simulation.federation.clients == ("client-0", "client-2")
    close(quadratic, pooled(LINES, oracle.squared), 1e-13)  # and is as it was


def test_to_join_a_quadratic_is_exact_in_one_round(quadratic):
    left = quadratic.without(LEAVER, rounds=0)
    joined = left.join("new", MORE, rounds=1)
    close(joined, pooled(LINES.without(LEAVER).with_client("new", MORE), oracle.squared), 1e-13)
    assert joined.nll[0] == pytest.approx(left.nll[-1]) and len(joined.nll) == 2  # at first it has said nothing


def test_newer_data_of_a_quadratic_add_to_what_the_old_have_said(quadratic):
    updated = quadratic.update(LEAVER, MORE, rounds=1)
    both = LINES.with_client("new", MORE)
    close(updated, pooled(both, oracle.squared), 1e-13)
    now = updated.simulation.federation
    assert now.clients == LINES.clients and len(now.inputs) == len(LINES.inputs)  # the old rows are gone
    np.testing.assert_array_equal(now.of(LEAVER)[0], MORE[0])
    # Who goes on twice has said all of it; who leaves takes along what its earlier data have said.
    twice = updated.update(LEAVER, LINES.of(1), rounds=0)
    close(twice, pooled(both, oracle.squared), 1e-13)
    close(twice.without(LEAVER, rounds=0), pooled(LINES.without(LEAVER), oracle.squared), 1e-13)


def test_old_data_have_their_whole_say_however_far_damping_has_come():
    """Their factor has come to 1 − (2/3)³ of it when the newer data arrive."""
    early = trained(fedlap.FedLapCov(delta=DELTA, rho=1 / 3), LINES, rounds=3, likelihood=Squared())
    updated = early.update(LEAVER, MORE, rounds=80)
    close(updated, pooled(LINES.with_client("new", MORE), oracle.squared), 1e-12)


def test_a_committee_changes_its_members_though_it_has_one_round():
    committee = trained(fedlap.BCM(delta=DELTA), LINES, likelihood=Squared())
    left = committee.without(LEAVER)
    close(left, pooled(LINES.without(LEAVER), oracle.squared), 1e-13)
    close(left.join(LEAVER, LINES.of(1)), pooled(LINES, oracle.squared), 1e-13)


# Convex losses: the pooled answer after some rounds -------------------------------------------------------------------


COV = fedlap.FedLapCov(delta=DELTA, rho=0.4)
MANY = 400  # rounds, after which no digit changes


@pytest.fixture(scope="module")
def logistic():
    return trained(COV, rounds=MANY)


def test_a_convex_run_comes_to_what_it_would_have_come_to_from_scratch(logistic):
    left, scratch = logistic.without(LEAVER, rounds=MANY), trained(COV, OTHERS, rounds=MANY)
    close(left, pooled(OTHERS), 1e-10)
    close(left, scratch.final.w, 1e-10)
    np.testing.assert_allclose(left.final.S, scratch.final.S, rtol=0, atol=1e-10)
    joined = left.join(LEAVER, THREE.of(1), rounds=MANY)
    close(joined, pooled(THREE), 1e-10)
    close(joined, logistic.final.w, 1e-10)
    assert max(left.stationarity(), joined.stationarity()) < 1e-10


def test_newer_data_add_to_the_quadratic_that_old_data_left(logistic):
    """The oracle's minimum of the losses now and of Laplace's approximation of the old one, at the model then."""
    updated = logistic.update(LEAVER, NEWER, rounds=MANY)
    old, w = points(THREE)[1], pooled(THREE)
    H = np.diag(np.diag(oracle.softmax.hessian(old, w)))
    v = H @ w - oracle.softmax.gradient(old, w)
    now = [*points(OTHERS), oracle.labelled(*NEWER, THREE.classes)]
    energies = [oracle.energy(oracle.softmax, each) for each in now]
    wanted = oracle.argmin(oracle.square(DELTA).plus(oracle.square(H), oracle.line(-v), *energies), np.zeros(w.size))
    close(updated, wanted, 1e-10)
    assert updated.stationarity() < 1e-10


def test_so_does_admm_whose_duals_are_no_factors_of_a_product():
    algorithm = fedlap.FedADMM(alpha=0.3)
    history = trained(algorithm, rounds=200)
    left, scratch = history.without(LEAVER, rounds=200), trained(algorithm, OTHERS, rounds=200)
    close(left, scratch.final.w, 1e-8)
    joined = left.join(LEAVER, THREE.of(1), rounds=200)
    assert joined.nll[0] == pytest.approx(left.nll[-1], abs=1e-12)  # a newcomer begins where the others are
    close(joined, history.final.w, 1e-8)


def test_the_certificate_is_the_slope_of_the_pooled_objective(logistic):
    """Wherever the run is: right after a division, or with factors that are not yet the clients' slopes."""
    for history in (logistic.without(LEAVER, rounds=0), trained(fedlap.FedLap(delta=DELTA, rho=0.4), rounds=2)):
        w = history.final.w
        slope = DELTA * w + sum(oracle.softmax.gradient(each, w) for each in points(history.simulation.federation))
        assert history.stationarity() == pytest.approx(np.linalg.norm(slope), rel=1e-10)
        assert history.stationarity() > 0.01


# Memory points, engines -----------------------------------------------------------------------------------------------

FUNC = fedlap.FedLapFunc(delta=DELTA, rho=0.4, tau=0.5, memory=2)


def labels_of(run, factors):
    """Each client's soft labels as the oracle takes them."""
    places, memory = np.asarray(run.setup.shards.places), np.asarray(run.setup.pool.memory)
    masses, targets = np.asarray(factors.y.mass), np.asarray(factors.y.targets)
    return [oracle.Points(memory[at], *said) for at, *said in zip(places, masses, targets, strict=True)]


def test_memory_points_leave_with_their_client_and_stay_with_its_old_data():
    """The server's minimum over the labels that are left: of who leaves, none; of who goes on, those it has sent."""
    data = replace(THREE, rows=(THREE.rows[0][:2], THREE.rows[1], THREE.rows[2][:3]))  # few points beside many
    history = trained(FUNC, data)
    run, factors = history.simulation, history.state.clients.factor
    labels, v = labels_of(run, factors), factors.v.rows
    others = [0, 2]

    def minimum(who):
        energies = [oracle.energy(oracle.softmax, labels[k], scale=FUNC.tau) for k in who]
        lines = [oracle.line(-DELTA * np.asarray(v[k])) for k in who]
        return oracle.argmin(oracle.square(DELTA).plus(*energies, *lines), np.zeros(v.shape[1]))

    left = history.without(LEAVER, rounds=0)
    close(left, minimum(others), 1e-10)
    assert len(left.simulation.setup.pool.memory) < len(run.setup.pool.memory)
    updated = history.update(LEAVER, NEWER, rounds=0)
    close(updated, minimum([0, 1, 2]), 1e-10)
    later = updated.simulation.step(updated.state)
    assert float(later.server.mass.sum()) == pytest.approx(2 + 12 + 3 + 12)  # a mass for each row, the old ones too


@pytest.mark.parametrize("engine", ["sequential", "streamed", "disk"])
def test_members_change_in_every_engine(engine, tmp_path):
    """As in the vectorised one, and the next round goes on from there."""
    where = {"engine": "streamed", "scratch": tmp_path} if engine == "disk" else {"engine": engine}
    states = []
    for options in ({"engine": "vectorised"}, where):
        run = simulation("fedlap", **options)
        changed, state = membership.without(run, after(run, 1), "client-0")
        states.append((state, changed.step(state)))
    for reference, found in zip(*states, strict=True):
        assert found.round == reference.round
        np.testing.assert_allclose(np.asarray(found.server.w), np.asarray(reference.server.w), rtol=0, atol=1e-12)
        np.testing.assert_allclose(found.clients.factor.v.rows, reference.clients.factor.v.rows, rtol=0, atol=1e-12)


def test_some_of_many_take_part_after_a_change():
    """Then the server's sums are what they were, and what these clients change."""
    run = simulation("fedlap", engine="streamed", participation=1)
    changed, state = membership.without(run, after(run, 3), "client-0")
    for _ in range(3):
        state = changed.step(state)
        np.testing.assert_allclose(np.asarray(state.server.w), state.clients.factor.v.rows.sum(0), rtol=0, atol=1e-12)


# Errors ---------------------------------------------------------------------------------------------------------------


def test_what_cannot_be_is_refused(quadratic, tmp_path):
    wide = np.zeros((4, 3)), np.zeros(4, int)
    refused = lambda words: pytest.raises((fedlap.ConfigError, fedlap.DataError), match=words)
    with refused("unknown client 'client-l'; did you mean 'client-"):
        quadratic.without("client-l")
    with refused("unknown client 'new'"):
        quadratic.update("new", MORE)
    with refused("client 'client-1' is in the federation already"):
        quadratic.join(LEAVER, MORE)
    with refused(r"client 'new'.*\(3,\)"):
        quadratic.join("new", wide)
    with refused("client 'new'.*label"):
        quadratic.join("new", (MORE[0], MORE[1] + 7))
    with refused("client 'client-1'.*row 2"):
        quadratic.update(LEAVER, (np.where(np.arange(12)[:, None] == 2, np.nan, MORE[0]), MORE[1]))
    with refused("rounds is -1"):
        quadratic.without(LEAVER, rounds=-1)
    with refused("'client-2' is the last one"):
        quadratic.without("client-0", rounds=0).without(LEAVER, rounds=0).without("client-2")
    quadratic.save(tmp_path / "kept")
    for gone in (fedlap.load(tmp_path / "kept", likelihood=Squared()), pickle.loads(pickle.dumps(quadratic))):
        with refused("without: this history was loaded or pickled, without the clients"):
            gone.without(LEAVER)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("fedavg", lambda run, state: membership.without(run, state, "client-0")),
        ("feddyn", lambda run, state: membership.join(run, state, "new", NEWER)),
        ("fedadmm", lambda run, state: membership.update(run, state, "client-0", NEWER)),
        ("fedprox", membership.stationarity),
    ],
)
def test_a_method_without_a_factor_says_who_has_one(name, change):
    run = simulation(name)
    with pytest.raises(fedlap.ConfigError, match=r"has no factor .* such as BCM, PVI, FedLap, FedLapCov, "):
        change(run, run.init())


@pytest.mark.parametrize(
    "change",
    [
        lambda run, state: membership.without(run, state, "client-0"),
        lambda run, state: membership.join(run, state, "new", NEWER),
        lambda run, state: membership.update(run, state, "client-0", NEWER),
        membership.stationarity,
    ],
)
def test_a_server_that_goes_a_part_of_the_way_keeps_who_has_left(change):
    """With η = 0.05 the certificate said 1e-4 of a model whose pooled slope was 0.6, most of it of who had left."""
    run = simulation("fedep")
    with pytest.raises(fedlap.ConfigError, match=r"the server of FedEP\(.*eta=0.8.* such as FedLapCov"):
        change(run, run.init())


def test_a_basis_that_turns_cannot_keep_what_was_said_in_another():
    run = simulation("fedlap_kron")
    with pytest.raises(fedlap.ConfigError, match="update: factors of FedLapKron are in a basis that turns"):
        membership.update(run, run.init(), "client-0", NEWER)


def test_data_that_have_said_nothing_cannot_be_the_past():
    run = simulation("fedlap", participation=1)
    state = after(run, 1)
    silent = next(name for name, drawn in zip(run.federation.clients, run.plan(0).drawn, strict=True) if not drawn)
    with pytest.raises(fedlap.ConfigError, match=f"'{silent}' has said nothing of its data so far"):
        membership.update(run, state, silent, NEWER)


def test_a_number_of_participants_must_still_be_there():
    run = simulation("fedlap", participation=3)
    with pytest.raises(fedlap.ConfigError, match="participation is 3 clients; the federation has 2"):
        membership.without(run, run.init(), "client-0")
