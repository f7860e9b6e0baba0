"""Server and sites that exchange bytes end where the simulation ends: the same bits, for every algorithm there is."""

import jax
import numpy as np
import pytest

import fedlap
import sites
from closeness import same_bits
from fedlap.algorithms import ALGORITHMS

MLP = fedlap.mlp(hidden=(3,))


@pytest.mark.parametrize(
    "name, model", [(name, fedlap.logistic()) for name in ALGORITHMS] + [("fedlap_cov", MLP), ("fedlap_func", MLP)]
)
def test_sites_and_simulation_agree_in_every_bit(name, model, tmp_path):
    terms = sites.make_terms(sites.make_algorithm(name), model)
    outcome = sites.make_coordinator(terms, tmp_path).run()
    state = sites.simulate(terms)
    assert same_bits(outcome.server, state.server)
    for leaf in jax.tree.leaves(outcome.server.w):
        assert np.abs(leaf).max() > 0
    rounds = 1 if ALGORITHMS[name].one_shot else 3
    assert [entry["round"] for entry in outcome.history] == list(range(1, rounds + 1))


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
    for entry in history:
        state = run.step(state)
        accuracy, nll = run.evaluate(state)
        assert entry["test_rows"] == len(sites.FEDERATION.test_labels)
        np.testing.assert_allclose((entry["accuracy"], entry["nll"]), (accuracy, nll), rtol=1e-10)


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
        fedlap.study.protocol.terms.Terms(
            "d",
            sites.NAMES,
            fedlap.FedLapFunc(delta=1.0),
            fedlap.logistic(),
            sites.SOLVER,
            sites.SERVER_SOLVER,
            0,
            1,
            2,
            3,
        )
