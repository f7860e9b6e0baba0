"""Who takes part in a round and with which minibatches, and what of a memory a run is told."""

import numpy as np

import fedlap
from drawn import federation
from fedlap.engines.setup import draw_plan, everyone
from fedlap.streams import stream, streams

ADAM = fedlap.adam(epochs=2, batch=4)
EVEN = federation(3, sizes=[12, 12, 12])


def test_clients_of_one_size_go_through_their_rows_in_orders_of_their_own():
    plan = draw_plan(ADAM, EVEN, 1.0, seed=0, round=0)
    assert plan.batches.steps.tolist() == [6, 6, 6]
    for k, rows in enumerate(EVEN.rows):
        assert sorted(plan.batches.rows[k].ravel().tolist()) == sorted(2 * rows.tolist())  # each once an epoch
    order = lambda k: tuple(EVEN.rows[k].tolist().index(row) for row in plan.batches.rows[k].ravel())
    assert len({order(k) for k in range(3)}) == 3


def test_a_client_that_is_not_drawn_takes_no_steps_and_changes_nobody_elses():
    whole, drawn = (draw_plan(ADAM, EVEN, participation, seed=0, round=0) for participation in (1.0, 2))
    assert drawn.drawn.sum() == 2
    np.testing.assert_array_equal(drawn.batches.steps, [6, 6])
    np.testing.assert_array_equal(drawn.batches.rows, whole.batches.rows[drawn.drawn])


def test_one_client_is_not_everyone():
    """As a number 1 is one client, so that a one-shot method goes on until it has heard the others."""
    assert everyone(1.0) and not everyone(1) and not everyone(0.5)
    for participation, one_shot in ((1.0, True), (1, False)):
        run = fedlap.Simulation.of(fedlap.BCM(delta=1.0), EVEN, fedlap.logistic(), participation=participation)
        assert run.one_shot == one_shot


def test_all_points_of_a_memory_count():
    """Beyond this number they are padding, of which no sample is drawn."""
    pool = fedlap.Simulation.of(fedlap.FedLapFunc(delta=1.0, memory=3), EVEN, fedlap.logistic()).setup.pool
    assert len(pool.memory) == pool.points > 9


def test_streams_in_a_row_are_the_streams_by_themselves():
    """Whatever the one before them has drawn: half a word of 64 bits may be left of it."""
    named = streams(7, "batches", 2)
    for name in ("a", "b", "a", "ä"):
        for draws in (3, 4):  # one and a half words, two words
            alone, among_others = (
                rng.integers(2**32, size=draws, dtype=np.uint32) for rng in (stream(7, "batches", 2, name), named(name))
            )
            np.testing.assert_array_equal(alone, among_others)


def test_adam_draws_the_orders_that_numpy_permutes():
    """Which rows are drawn is part of a result: a faster way must draw the same."""
    rows, out = np.arange(30, 41, dtype=np.int32), np.full((6, 4), -1, np.int32)
    ADAM.schedule(stream(0, "order"), rows, out)
    epochs = stream(0, "order").permuted(np.tile(rows, (2, 1)), axis=1)
    np.testing.assert_array_equal(out.reshape(2, 12), np.pad(epochs, ((0, 0), (0, 1)), constant_values=-1))
