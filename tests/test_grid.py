"""Many runs at once are the same runs one by one."""

import numpy as np
import pytest

import fedlap


def settings(epochs=1):
    solvers = [fedlap.adam(epochs=epochs, batch=8, learning_rate=rate) for rate in (1e-2, 3e-2)]
    return [(fedlap.FedLapFunc(delta=delta, tau=0.1), solver) for delta in (0.1, 1.0) for solver in solvers]


def test_a_grid_equals_its_runs_one_by_one():
    federations = [fedlap.data.credit(seed=seed) for seed in (0, 1)]
    options = {"rounds": 2, "server_solver": fedlap.descent(steps=30), "participation": 0.5}
    together = fedlap.simulate_grid(settings(), federations, fedlap.logistic(), seeds=[0, 1], **options)
    assert set(together) == {(j, seed) for j in range(4) for seed in (0, 1)}
    for j, seed in ((0, 0), (3, 1)):
        algorithm, solver = settings()[j]
        alone = fedlap.simulate(algorithm, federations[seed], fedlap.logistic(), solver=solver, seed=seed, **options)
        np.testing.assert_allclose(together[j, seed].final.w, alone.final.w, atol=1e-10)
        np.testing.assert_allclose(together[j, seed].nll, alone.nll, rtol=1e-10)
        np.testing.assert_array_equal(together[j, seed].accuracy, alone.accuracy)


def test_federations_of_different_sizes_are_padded_without_a_trace():
    rng = np.random.default_rng(0)

    def federation(sizes):
        clients = [(rng.normal(size=(n, 3)), rng.integers(0, 2, n)) for n in sizes]
        return fedlap.Federation.from_arrays(clients=clients, test=clients[0], classes=2)

    federations = [federation([4, 9]), federation([12, 2])]
    watches = [{"train": (each.inputs, each.labels)} for each in federations]
    solver = fedlap.adam(epochs=2, batch=4, learning_rate=0.05, keep=True)
    algorithms = [(fedlap.FedLapCovFunc(delta=delta, tau=0.1), solver) for delta in (0.5, 2.0)]
    options = {"rounds": 3, "server_solver": fedlap.descent(steps=30)}
    seeds = {"seeds": [3, 4], "watches": watches}
    together = fedlap.simulate_grid(algorithms, federations, fedlap.logistic(), **seeds, **options)
    for i, seed in enumerate((3, 4)):
        options |= {"solver": solver, "seed": seed, "watch": watches[i]}
        alone = fedlap.simulate(algorithms[1][0], federations[i], fedlap.logistic(), **options)
        mine = together[1, seed]
        np.testing.assert_allclose(mine.final.w, alone.final.w, rtol=1e-8, atol=1e-10)
        for found, expected in ((mine, alone), (mine.watched["train"], alone.watched["train"])):
            np.testing.assert_allclose(found.nll, expected.nll, rtol=1e-8)
            np.testing.assert_array_equal(found.accuracy, expected.accuracy)
        np.testing.assert_allclose(mine.watched["train"], alone.watched["train"], rtol=1e-8)


def test_the_memory_of_one_seed_is_not_that_of_another():
    """Above 32 points a step sees a sample: of its own memory, whatever the largest in the grid is."""
    rng = np.random.default_rng(0)

    def federation(points):
        clients = [(rng.normal(size=(n, 3)), np.arange(n) % 2) for n in (points // 2, points // 2)]
        return fedlap.Federation.from_arrays(clients=clients, test=clients[0], classes=2)

    federations = [federation(points) for points in (28, 36, 44)]
    algorithm, solver = fedlap.FedLapFunc(delta=1.0, memory=50), fedlap.adam(epochs=1, batch=8, learning_rate=0.05)
    options = {"rounds": 2, "server_solver": fedlap.descent(steps=30)}
    seeds = (5, 6, 7)
    together = fedlap.simulate_grid([(algorithm, solver)], federations, fedlap.logistic(), seeds=seeds, **options)
    for mine, seed, points in zip(federations, seeds, (28, 36, 44), strict=True):
        alone = fedlap.simulate(algorithm, mine, fedlap.logistic(), solver=solver, seed=seed, **options)
        assert len(alone.simulation.setup.pool.memory) == points
        np.testing.assert_allclose(together[0, seed].final.w, alone.final.w, rtol=1e-9, atol=1e-11)


def test_settings_of_another_structure_are_refused():
    mixed = [settings()[0], settings(epochs=2)[0]]
    with pytest.raises(fedlap.ConfigError, match="may differ in their numbers only"):
        fedlap.simulate_grid(mixed, fedlap.data.heart(), fedlap.logistic(), rounds=1, seeds=[0])


def test_seeds_and_federations_must_match():
    federations = [fedlap.data.credit(seed=seed) for seed in (0, 1)]
    with pytest.raises(fedlap.ConfigError, match="2 federations for 3 seeds"):
        fedlap.simulate_grid(settings(), federations, fedlap.logistic(), rounds=1, seeds=[0, 1, 2])
