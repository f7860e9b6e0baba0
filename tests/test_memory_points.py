"""Which inputs are shared, and how many of a client's examples each stands for."""

import dataclasses

import numpy as np
import pytest

import fedlap
from drawn import federation
from fedlap.engines.setup import choose_points, draw_memory, join_points


def public(points, **options):
    return dataclasses.replace(federation(**options), public=np.random.default_rng(7).normal(size=(points, 2)))


def test_public_points_stand_for_all_of_a_clients_examples_together():
    """N_k/M each: a client says as much about five public points as about points of its own, Σ_i τ_i = τ N_k."""
    shared = public(5, sizes=[12, 3, 6])
    memory = draw_memory(shared, 1, seed=0)
    np.testing.assert_array_equal(memory.inputs, shared.public)
    np.testing.assert_array_equal(memory.mine, np.tile(np.arange(5), (3, 1)))
    np.testing.assert_allclose(memory.weights, np.repeat([[12 / 5], [3 / 5], [6 / 5]], 5, axis=1))
    np.testing.assert_allclose(memory.weights.sum(1), draw_memory(federation(sizes=[12, 3, 6]), 1, 0).weights.sum(1))


def test_a_method_without_memory_has_none_of_the_public_points():
    for per_class, points in ((0, 0), (1, 5)):
        run = fedlap.Simulation.of(fedlap.FedLapFunc(delta=1.0, memory=per_class), public(5), fedlap.logistic())
        assert len(run.setup.pool.memory) == points


def test_points_are_drawn_by_seed_and_name():
    """Not the first of each class: files are often sorted. And two clients alike do not show the same rows."""
    labels = np.repeat([0, 1], 50)
    drawn = lambda seed, name: choose_points(labels, 2, 3, seed, name)[0].tolist()
    assert drawn(0, "north") == drawn(0, "north")
    assert len({tuple(drawn(seed, name)) for seed in range(3) for name in ("north", "south")}) == 6
    assert [labels[place] for place in drawn(0, "north")] == [0, 0, 0, 1, 1, 1]


@pytest.mark.parametrize(("per_class", "wanted"), [(1, [5, 2]), (3, [5 / 3] * 3 + [1] * 2), (9, [1] * 7)])
def test_a_point_stands_for_its_share_of_its_class(per_class, wanted):
    """Of the points that there are: a class of two has two, however many are asked for; one of none has none."""
    _, weights = choose_points(np.array([0] * 5 + [2] * 2), 3, per_class, 0, "north")
    np.testing.assert_allclose(weights, wanted)


def test_points_of_all_clients_stand_one_after_the_other():
    memory = join_points([np.full((2, 1), 7.0), np.full((1, 1), 8.0)], [np.array([3.0, 4.0]), np.array([5.0])])
    assert memory.inputs.tolist() == [[7.0], [7.0], [8.0]]
    assert memory.mine[0].tolist() == [0, 1] and memory.mine[1, 0] == 2
    assert memory.weights.tolist() == [[3.0, 4.0], [5.0, 0.0]]  # what is padded weighs nothing
