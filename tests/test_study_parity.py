"""Server and sites that exchange bytes end where the simulation ends: the same bits, for every algorithm there is."""

import dataclasses
import itertools
import tracemalloc

import jax
import numpy as np
import pytest

import fedlap
import sites
from closeness import same_bits
from fedlap.algorithms import ALGORITHMS
from fedlap.engines.evaluate import evaluate
from fedlap.study.protocol.checkpoint import RoundReport
from fedlap.study.protocol.terms import Rows
from methods import STRANGERS

MLP = fedlap.mlp(hidden=(3,))
EVERYONE = [*ALGORITHMS, *STRANGERS]
LOPSIDED = sites.make_federation((5, 333, 41))


def lopsided_records(member):
    return sites.FederationRecords(member, federation=LOPSIDED)


@pytest.mark.parametrize(
    "name, model", [(name, fedlap.logistic()) for name in EVERYONE] + [("fedlap_cov", MLP), ("fedlap_func", MLP)]
)
def test_sites_and_simulation_agree_in_every_bit(name, model, tmp_path):
    """Of the sizes below, whose programs serve both tests; `sites` has sizes that are nearly the same."""
    terms = sites.make_terms(sites.make_algorithm(name), model)
    transport = sites.Loopback(terms, tmp_path, records=lopsided_records)
    outcome = sites.make_coordinator(terms, tmp_path, transport).run()
    state = sites.simulate(terms, federation=LOPSIDED)
    assert same_bits(outcome.server, state.server)
    for leaf in jax.tree.leaves(outcome.server.w):
        assert np.abs(leaf).max() > 0
    rounds = 1 if ALGORITHMS[name].one_shot else 3
    assert [report.round for report in outcome.history] == list(range(1, rounds + 1))


WHOLE = [fedlap.newton(steps=3), fedlap.lbfgs(steps=3)]  # solvers that add up all rows of a client at once
SOLVERS = [(name, sites.SOLVER) for name in EVERYONE] + list(itertools.product(("fedlap", "fedlap_cov"), WHOLE))


@pytest.mark.parametrize("name, solver", SOLVERS)
def test_sites_of_very_different_sizes_agree_with_the_simulation_in_every_bit(name, solver, tmp_path):
    """Also where one of them misses the first round: the server then has what such a client would send."""
    terms = sites.make_terms(sites.make_algorithm(name), rounds=2, solver=solver)
    lose = lambda request, member, data: (
        None if (request.kind, request.round, member) == ("train", 0, "birch") else data
    )
    transport = sites.Loopback(terms, tmp_path, lose, lopsided_records)
    outcome = sites.make_coordinator(terms, tmp_path, transport, quorum=2).run()
    state = sites.simulate(terms, absent={0: ("birch",)}, federation=LOPSIDED)
    assert same_bits(outcome.server, state.server)


def test_a_sites_memory_is_of_its_own_rows():
    """Of members with millions of rows a small one holds numbers of rows, of the largest alone, and no inputs."""
    terms, few, most = sites.make_terms(sites.make_algorithm("fedlap_cov")), 10, 3_000_000
    rows = Rows(
        np.ones((few, sites.FEATURES), np.float32), np.zeros(few, int), np.zeros((0, sites.FEATURES)), np.zeros(0)
    )
    tracemalloc.start()
    start = terms.site_start("ash", rows, np.array([few, most, most - 1]), None)
    batches = terms.batches("ash", few, 0)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    setup = start.setup
    assert setup.pool.inputs.shape == (few, sites.FEATURES) and setup.pool.labels.shape == (few,)
    assert setup.shards.n.tolist() == [few] and setup.shards.rows[0, :few].tolist() == list(range(few))
    assert batches.rows.size == 2 * 12 and sorted(batches.rows[:3].flat) == [-1, -1, *range(few)]
    numbers = jax.tree.map(lambda leaf: leaf.size, (setup.pool, setup.shards._replace(rows=None)))
    assert setup.shards.rows.shape == (1, most) and sum(jax.tree.leaves(numbers)) < 100
    assert peak < 2 * 4 * most, "NumPy makes little beside the numbers of rows"


def test_the_server_makes_no_room_for_rows():
    terms = sites.make_terms(sites.make_algorithm("fedlap_cov"))
    setup = terms.server_start(np.array([10, 3_000_000, 2_000_000]), None).setup
    assert sum(leaf.size for leaf in jax.tree.leaves((setup.pool, setup.shards))) < 100
    assert setup.shards.n.tolist() == [10, 3_000_000, 2_000_000]


@pytest.mark.parametrize("name", ["fedavg", "fedlap_cov", "fedlap_func"])
def test_the_vectorised_simulation_agrees_to_rounding(name, tmp_path):
    terms = sites.make_terms(sites.make_algorithm(name))
    found = sites.make_coordinator(terms, tmp_path).run().server
    wanted = sites.simulate(terms, "vectorised").server
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-12)


def test_the_history_has_the_metrics_of_the_model_after_each_round(tmp_path):
    terms = sites.make_terms(sites.make_algorithm("fedlap"))
    history = sites.make_coordinator(terms, tmp_path).run().history
    run = sites.make_simulation(terms)
    state = run.init()
    for report in history:
        state = run.step(state)
        rows, accuracy, nll, *_ = report.score
        assert rows == len(sites.FEDERATION.test_labels)
        np.testing.assert_allclose(accuracy, run.evaluate(state).accuracy, rtol=1e-10)
        # Each site rounds the mean over its own rows to two decimals.
        own = [sites.FederationRecords(name).encode(None) for name in sites.NAMES]
        means = [evaluate(run.setup.task, state.server.w, each.test_inputs, each.test_labels).nll for each in own]
        sums = [round(float(mean), 2) * len(each.test_labels) for mean, each in zip(means, own, strict=True)]
        np.testing.assert_allclose(nll, sum(sums) / rows, rtol=1e-10)
    wanted, last = run.evaluate(state), history[-1].score
    assert [report.score.brier for report in history[:-1]] == [None] * (len(history) - 1)  # said once, of the last
    np.testing.assert_allclose(last.brier, wanted.brier, atol=0.005)  # rounded to two decimals, too
    assert last.ece <= wanted.ece + 0.005 and sum(cell[4] for cell in last.reliability) == accuracy * rows
    assert f"Brier {last.brier:.3f}, ECE {last.ece:.3f} ({last.ece_bins} of 15 bins" in str(last)
    assert RoundReport.read(history[-1].as_dict()) == history[-1]
    old = {name: value for name, value in history[-1].as_dict().items() if name not in ("brier", "ece", "reliability")}
    assert RoundReport.read(old).score.brier is None  # of a checkpoint that is older than calibration


@pytest.mark.parametrize("name, numbers, more", [("fedlap", 1, 0), ("fedlap_cov", 2, 1)])
def test_a_site_sends_as_many_numbers_as_the_paper_says(name, numbers, more, tmp_path):
    """And one more where a damped site says how far it has come."""
    terms = sites.make_terms(sites.make_algorithm(name))
    site = sites.Loopback(terms, tmp_path).site("birch")
    every_round = [step for step in site.explain() if step.when == "every round"]
    weights = sites.FEATURES * sites.CLASSES
    assert sum(step.bytes for step in every_round) == (numbers * weights + more) * 8
    assert not site.audit_log.exists()


@pytest.mark.parametrize("name, numbers", [("fedavg", 1), ("feddyn", 1), ("fedlap_cov", 2), ("bcm", 1)])
def test_a_site_receives_what_it_reads(name, numbers, tmp_path):
    """FedDyn's history and the committee's precision are the server's own."""
    received = {}

    def note(request, member, data):
        received[request.kind] = sum(array.size for array in request.arrays.values())
        return data

    terms = sites.make_terms(sites.make_algorithm(name))
    sites.make_coordinator(terms, tmp_path, sites.Loopback(terms, tmp_path, note)).run()
    weights = sites.FEATURES * sites.CLASSES
    assert (received["train"], received["finish"]) == (numbers * weights, numbers * weights)


def test_fedlap_func_sends_its_weights_and_its_soft_labels(tmp_path):
    terms = sites.make_terms(sites.make_algorithm("fedlap_func"))
    steps = sites.Loopback(terms, tmp_path).site("birch").explain()
    numbers = sum(step.bytes for step in steps if step.when == "every round") // 8
    points = sites.CLASSES  # one of each class; their targets, and the weight of each
    assert numbers == sites.FEATURES * sites.CLASSES + points * sites.CLASSES + points
    assert any("share_points" in step.when and step.name == "inputs" for step in steps)


def test_points_are_not_shared_without_consent():
    with pytest.raises(fedlap.errors.ConfigError, match="share_points = true"):
        dataclasses.replace(sites.make_terms(sites.make_algorithm("fedlap_func")), share_points=False)
