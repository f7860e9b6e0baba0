"""One round, three engines: they may differ by rounding and by nothing else."""

import jax
import numpy as np
import pytest
from conftest import FOUR, federation
from test_conformance import ROWS, make, same_bits

import fedlap
from fedlap.algorithms import ALGORITHMS
from fedlap.engines import SMALL, choose, loop, sequential, vectorised
from fedlap.layers import Activation, Dense, Dropout, Flatten
from fedlap.models import Network

SIZES = [5, 3, 6, 1]


def final(engine, algorithm, model=None, solver=None, rounds=2, **options):
    history = fedlap.simulate(
        algorithm,
        federation(shape=FOUR, sizes=SIZES),
        model or fedlap.logistic(),
        solver=solver or fedlap.adam(epochs=1, batch=3, learning_rate=0.05, keep=True),
        server_solver=fedlap.descent(steps=3),
        rounds=rounds,
        engine=engine,
        **{"seed": 2, "participation": 3, **options},
    )
    return history


def agree(a, b, tolerance=1e-12):
    np.testing.assert_allclose(a.final.w, b.final.w, rtol=tolerance, atol=tolerance)
    np.testing.assert_allclose(a.nll, b.nll, rtol=tolerance)
    if a.final.S is not None:
        np.testing.assert_allclose(a.final.S, b.final.S, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_all_engines_agree(name):
    together, apart = final("vectorised", make(name)), final("sequential", make(name))
    agree(together, apart)
    agree(final("loop", make(name), rounds=1), final("sequential", make(name), rounds=1))


NETWORKS = {
    "mlp": fedlap.mlp(hidden=(4,), activation="tanh"),
    "dropout": Network((Flatten(), Dense(6), Activation("relu"), Dropout(0.5), Dense())),
}


@pytest.mark.parametrize("model", NETWORKS.values(), ids=NETWORKS)
def test_all_engines_agree_on_networks(model):
    algorithm = make("fedlap_cov")
    reference = final("sequential", algorithm, model)
    agree(final("vectorised", algorithm, model), reference)
    agree(final("loop", algorithm, model, rounds=1), final("sequential", algorithm, model, rounds=1))
    assert not np.array_equal(final("sequential", algorithm, model, seed=3).final.w, reference.final.w)


@pytest.mark.parametrize("engine", ["vectorised", "sequential"])
@pytest.mark.parametrize("name", ["fedavg", "fedlap_cov", "pvi"])
def test_the_same_seed_gives_the_same_bits_and_another_does_not(engine, name):
    first, second = final(engine, make(name)), final(engine, make(name))
    assert same_bits(first.state, second.state)
    assert not np.array_equal(final(engine, make(name), seed=5).final.w, first.final.w)


@pytest.mark.parametrize("solver", [fedlap.newton(), fedlap.lbfgs(tolerance=1e-12, steps=300)], ids=["newton", "lbfgs"])
def test_exact_solvers_agree_on_all_engines(solver):
    reference = final("sequential", make("fedlap_cov"), solver=fedlap.newton())
    agree(final("vectorised", make("fedlap_cov"), solver=solver), reference, 1e-8)


def test_the_engine_is_chosen_by_the_size_of_the_model():
    assert choose("auto", SMALL) is vectorised
    assert choose("auto", SMALL + 1) is sequential
    assert choose("loop", 1) is loop
    with pytest.raises(fedlap.ConfigError, match='engine is "fast"; expected "auto", "vectorised", "sequential", "loop"'):
        choose("fast", 1)


def test_a_round_is_compiled_once_for_all_client_sizes():
    run = fedlap.Simulation.of(
        fedlap.FedAvg(),
        federation(shape=FOUR, sizes=[12, 2, 7, 1]),
        fedlap.logistic(),
        solver=fedlap.adam(epochs=1, batch=4),
        engine="sequential",
    )
    before = sequential._client._cache_size()
    state = run.step(run.step(run.init()))
    assert sequential._client._cache_size() - before <= 1
    assert state.round == 2


def test_a_message_of_the_wrong_participation_names_it():
    for wrong in (0, 5, 0.0, 1.5, "all", True):
        with pytest.raises(fedlap.ConfigError, match="participation is"):
            final("vectorised", fedlap.FedAvg(), participation=wrong)


@pytest.mark.parametrize("rounds", [0, -1, 2.5, "ten"])
def test_rounds_must_be_a_whole_number(rounds):
    with pytest.raises(fedlap.ConfigError, match="rounds is"):
        final("vectorised", fedlap.FedAvg(), rounds=rounds)


def test_a_diverged_run_says_so_instead_of_looking_like_a_bad_one():
    solver = fedlap.adam(epochs=1, batch=3, learning_rate=1e308)
    history = final("vectorised", fedlap.FedADMM(alpha=1.0), solver=solver)
    assert history.diverged and np.isnan(history.accuracy[-1])


def test_predictions_of_another_shape_are_refused():
    history = final("vectorised", fedlap.FedAvg())
    probabilities = history.predict(np.zeros((5, FOUR.features)))
    np.testing.assert_allclose(probabilities.sum(1), 1)
    with pytest.raises(fedlap.ConfigError, match=r"inputs have shape \(9,\) each; the model was trained on \(3,\)"):
        history.predict(np.zeros((5, 9)))


def test_every_row_of_the_conformance_table_is_used_here():
    assert set(ROWS) == set(ALGORITHMS)
    assert jax.config.jax_enable_x64
