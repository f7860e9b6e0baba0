"""Federations from arrays: what they hold, what they refuse, and what is held out of them."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedlap.data import Federation
from fedlap.errors import ConfigError, DataError, FedlapError


def pair(rows, features=3, classes=2, start=0.0):
    inputs = start + np.arange(rows * features, dtype=float).reshape(rows, features)
    return inputs, np.arange(rows) % classes


def federation(sizes=(4, 6), **options):
    clients = [pair(size, start=100.0 * number) for number, size in enumerate(sizes)]
    return Federation.from_arrays(clients=clients, test=pair(5, start=-50.0), **options)


def test_each_client_gets_back_its_own_arrays():
    made = federation(names=["left", "right"])
    for number, (name, size) in enumerate(zip(("left", "right"), (4, 6), strict=True)):
        inputs, labels = pair(size, start=100.0 * number)
        for key in (name, number):
            np.testing.assert_array_equal(made.of(key)[0], inputs)
            np.testing.assert_array_equal(made.of(key)[1], labels)
    np.testing.assert_array_equal(made.test_inputs, pair(5, start=-50.0)[0])
    assert made.sizes.tolist() == [4, 6]
    assert made.class_counts.tolist() == [[2, 2], [3, 3]]
    assert (made.labels.dtype, made.test_labels.dtype) == (np.int32, np.int32)
    assert all(rows.dtype == np.int32 for rows in made.rows)


def test_default_names_sort_in_the_order_of_the_clients():
    assert federation(sizes=(1,) * 10).clients == tuple(f"client-{k}" for k in range(10))
    names = federation(sizes=(1,) * 12).clients
    assert names[0] == "client-00" and names[11] == "client-11"
    assert list(names) == sorted(names)


@pytest.mark.parametrize(
    ("given_type", "stored"),
    [
        ("uint8", "float32"),
        ("float16", "float32"),
        ("bool", "float32"),
        ("int64", "float64"),
        ("float64", "float64"),
    ],
)
def test_inputs_become_floating_without_losing_digits(given_type, stored):
    inputs = np.array([[0, 1], [1, 0]], given_type)
    made = Federation.from_arrays(clients=[(inputs, [0, 1])], test=(inputs, [0, 1]))
    assert made.inputs.dtype == stored
    np.testing.assert_array_equal(made.inputs, inputs)


def test_classes_are_counted_over_clients_and_are_at_least_two():
    ones = np.ones((2, 1))
    assert Federation.from_arrays(clients=[(ones, [0, 0])], test=(ones, [0, 0])).classes == 2
    assert Federation.from_arrays(clients=[(ones, [0, 1]), (ones, [2, 3])], test=(ones, [3, 0])).classes == 4
    assert Federation.from_arrays(clients=[(ones, [0, 1])], test=(ones, [6, 0]), classes=7).classes == 7
    assert Federation.from_arrays(clients=[(ones, [0, 1])], test=(ones, [0, 0]), classes=5).class_counts.shape == (1, 5)


def test_arrays_cannot_be_written_to_and_the_callers_still_can():
    inputs, labels = pair(4)
    made = Federation.from_arrays(clients=[(inputs, labels)], test=(inputs, labels))
    for array in (made.inputs, made.labels, made.rows[0], made.test_inputs, made.test_labels):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1
    inputs[0] = 7  # not frozen by us


def test_the_repr_is_one_line_of_sizes():
    one = Federation.from_arrays(clients=[pair(4)])
    assert repr(one) == "Federation('arrays', one client of 4 rows, inputs (3,), 2 classes, no test set)"
    text = repr(federation(public=np.zeros((8, 3)), name="toy"))
    assert text == ("Federation('toy', 2 clients of 4 to 6 rows, inputs (3,), 2 classes, 5 test rows, 8 public rows)")


GOOD = pair(4)
NAN = np.array([[0.0, 0.0, 0.0], [0.0, np.nan, 0.0]])
INFINITE_IMAGE = np.where(np.arange(16).reshape(2, 2, 2, 2) == 13, np.inf, 0.0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"clients": []}, "no clients; expected at least one"),
        ({"clients": [GOOD, (np.zeros((0, 3)), [])]}, "client 'client-1' has no rows"),
        (
            {"clients": [GOOD, (np.zeros((3, 3)), [0, 1])]},
            r"client 'client-1': 3 rows of inputs but 2 labels",
        ),
        (
            {"clients": [GOOD, (NAN, [0, 1])]},
            r"client 'client-1', row 1, column 1: input is nan; expected a finite",
        ),
        (
            {"clients": [(INFINITE_IMAGE, [0, 1])], "test": (np.zeros((1, 2, 2, 2)), [0])},
            r"client 'client-0', row 1, column \(1, 0, 1\): input is inf",
        ),
        (
            {"clients": [GOOD, (np.zeros((2, 3)), [0, 0.5])]},
            r"'client-1', row 1: label is 0\.5; expected a whole number",
        ),
        (
            {"clients": [(np.zeros((2, 3)), [0, np.nan])]},
            "'client-0', row 1: label is nan; expected a whole number",
        ),
        ({"clients": [GOOD, (np.zeros((2, 3)), [0, 4])], "classes": 3}, "row 1: label is 4; .* from 0 to 2"),
        ({"clients": [GOOD, (np.zeros((2, 3)), [-1, 1])]}, "'client-1', row 0: label is -1, beside labels from 0"),
        (
            {"clients": [GOOD, pair(2, features=4)]},
            r"'client-1' has rows of shape \(4,\) but client 'client-0' .* \(3,\)",
        ),
        (
            {"test": pair(2, features=4)},
            r"the test set has rows of shape \(4,\) but client 'client-0' .* \(3,\)",
        ),
        (
            {"public": np.zeros((2, 4))},
            r"the public inputs has rows of shape \(4,\) but the clients' pool .* \(3,\)",
        ),
        ({"public": np.zeros((0, 3))}, "the public inputs has no rows"),
        ({"public": NAN}, "the public inputs, row 1, column 1: input is nan"),
        ({"test": (NAN, [0, 1])}, "the test set, row 1, column 1: input is nan"),
        ({"test": (np.zeros((1, 3)), [9]), "classes": 2}, "the test set, row 0: label is 9; .* from 0 to 1"),
        ({"test": (np.zeros((0, 3)), [])}, "the test set has no rows"),
        ({"clients": [GOOD, GOOD], "names": ["a", "a"]}, "two clients are named 'a'; expected unique names"),
        ({"clients": [GOOD, GOOD], "names": ["a"]}, "1 names for 2 clients"),
        ({"clients": [GOOD], "names": [3]}, "the name of client 0 is 3; expected a non-empty string"),
        (
            {"clients": [(np.zeros(4), np.zeros(4))]},
            r"client 'client-0': inputs of shape \(4,\); expected one row",
        ),
        ({"clients": [(np.zeros((4, 0)), np.zeros(4))]}, "have no features"),
        (
            {"clients": [(np.zeros((4, 3)), np.zeros((4, 1)))]},
            r"client 'client-0': labels of shape \(4, 1\)",
        ),
        (
            {"clients": [([["x", "y", "z"]], [0])]},
            "client 'client-0': values of type <U1; expected real numbers",
        ),
        ({"clients": [([[1.0], [1.0, 2.0]], [0, 1])]}, "client 'client-0': rows of different lengths"),
        ({"clients": [5]}, r"client 'client-0': int; expected a pair \(inputs, labels\)"),
        ({"clients": [(np.zeros((2, 3)), [0, 20210405])]}, "the largest label, .* implies more classes"),
        *(
            ({"clients": clients}, f"clients is of type {kind}; expected a list of pairs .*names=.*for from_frames")
            for clients, kind in (({"a": GOOD}, "dict"), ("north", "str"), (5, "int"), (None, "NoneType"))
        ),
    ],
)
def test_bad_arrays_are_refused_by_name(arguments, message):
    with pytest.raises(DataError, match=message):
        Federation.from_arrays(**({"clients": [GOOD], "test": GOOD} | arguments))


@pytest.mark.parametrize("classes", [1, 2.5, True, "two"])
def test_a_class_count_that_is_none_is_refused(classes):
    with pytest.raises(ConfigError, match=r"classes is .*; expected a whole number, 2 or above"):
        federation(classes=classes)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rows": ([0, 1], [2, 99])}, "client 'client-1': row number 99; expected 0 to 9"),
        ({"rows": ([0, -1], [2])}, "client 'client-0': row number -1; expected 0 to 9"),
        ({"rows": ([0, 1], [])}, "client 'client-1' has no rows"),
        (
            {"rows": ([0, 1], [1, 2])},
            "row 1 of the pool is given to client 'client-0' and again to client 'client-1'",
        ),
        (
            {"rows": ([0, 3, 3], [1, 2])},
            "row 3 of the pool is given to client 'client-0' and again to client 'client-0'",
        ),
        (
            {"rows": ([0.5], [1])},
            "client 'client-0': rows are float64 of shape .* expected a list of row numbers",
        ),
        ({"rows": ([0, 1],)}, "2 names for 1 clients"),
        ({"labels": np.zeros(3)}, "the pool: 10 rows of inputs but 3 labels"),
    ],
)
def test_a_federation_made_directly_is_checked_the_same(change, message):
    with pytest.raises(DataError, match=message):
        dataclasses.replace(federation(), **change)


def test_a_bad_row_that_nobody_owns_is_named_by_its_place_in_the_pool():
    made = federation()
    inputs = made.inputs.copy()
    inputs[3] = np.inf
    with pytest.raises(DataError, match="the pool, row 3, which no client owns, column 0"):
        dataclasses.replace(made, inputs=inputs, rows=([0, 1], [4, 5]))


def test_an_unknown_client_is_refused_with_the_nearest_name():
    with pytest.raises(ConfigError, match="unknown client 'rihgt'; did you mean 'right'"):
        federation(names=["left", "right"]).of("rihgt")
    for number in (2, -1):
        with pytest.raises(ConfigError, match=f"client number {number}; expected 0 to 1"):
            federation().of(number)


def test_errors_are_value_errors_and_share_one_base():
    assert issubclass(DataError, FedlapError) and issubclass(DataError, ValueError)
    assert issubclass(ConfigError, FedlapError) and issubclass(ConfigError, ValueError)


def test_the_fingerprint_follows_the_contents_and_nothing_else():
    made = federation(public=np.ones((2, 3)))
    same = dataclasses.replace(federation(public=np.ones((2, 3))), name="another title")
    assert made.fingerprint() == same.fingerprint()
    changes = [
        {"inputs": made.inputs + 1e-12},
        {"labels": 1 - made.labels},
        {"rows": (made.rows[1], made.rows[0])},
        {"rows": (made.rows[0][:-1], made.rows[1])},
        {"clients": ("client-1", "client-0")},
        {"test_inputs": made.test_inputs + 1},
        {"test_labels": 1 - made.test_labels},
        {"classes": 3},
        {"public": None},
    ]
    prints = {dataclasses.replace(made, **change).fingerprint() for change in changes}
    assert len(prints | {made.fingerprint()}) == len(changes) + 1


def test_the_fingerprint_knows_shapes_from_bytes():
    grid = np.arange(12.0).reshape(2, 6)
    shapes = [(2, 6), (2, 2, 3), (2, 3, 2)]
    made = [
        Federation.from_arrays(clients=[(grid.reshape(shape), [0, 1])], test=(grid.reshape(shape), [0, 1]))
        for shape in shapes
    ]
    assert len({each.fingerprint() for each in made}) == len(shapes)


@settings(max_examples=40, deadline=None)
@given(
    counts=st.lists(st.lists(st.integers(0, 12), min_size=3, max_size=3).filter(any), min_size=1, max_size=4),
    fraction=st.floats(0.05, 1.0),
    seed=st.integers(0, 100),
)
def test_held_out_rows_leave_their_client_and_follow_its_classes(counts, fraction, seed):
    labels = [np.repeat([0, 1, 2], row) for row in counts]
    starts = np.cumsum([0] + [len(part) for part in labels])
    clients = [
        (np.arange(start, start + len(part), dtype=float)[:, None], part)
        for start, part in zip(starts, labels, strict=False)
    ]
    made = Federation.from_arrays(clients=clients, test=([[-1.0]], [0]), classes=3)
    wanted = [min(round(fraction * sum(row)), sum(row) - 1) for row in counts]
    if not any(wanted):
        with pytest.raises(ConfigError, match="holds out no row"):
            made.hold_out(fraction, seed)
        return
    held = made.hold_out(fraction, seed)
    assert (made.sizes - held.sizes).tolist() == wanted
    assert held.sizes.min() >= 1
    everything = np.concatenate([held.test_inputs[:, 0], *(held.of(k)[0][:, 0] for k in range(len(counts)))])
    assert sorted(everything) == list(range(starts[-1]))
    np.testing.assert_array_equal(held.test_labels, made.labels[held.test_inputs[:, 0].astype(int)])
    taken = made.class_counts - held.class_counts
    shares = np.array(counts) * (np.array(wanted) / made.sizes)[:, None]
    assert np.abs(taken - shares).max() < 1


def test_holding_out_is_random_but_reproducible():
    made = federation(sizes=(30, 40))
    assert made.hold_out(0.3, seed=1).fingerprint() == made.hold_out(0.3, seed=1).fingerprint()
    assert made.hold_out(0.3, seed=1).fingerprint() != made.hold_out(0.3, seed=2).fingerprint()


def test_ties_between_classes_are_not_always_won_by_the_first():
    inputs = np.arange(10.0)[:, None]
    made = Federation.from_arrays(clients=[(inputs, np.arange(10))], test=([[0.0]], [0]))
    winners = {int(label) for seed in range(30) for label in made.hold_out(0.1, seed).test_labels}
    assert len(winners) > 5


@pytest.mark.parametrize("fraction", [0, -0.1, 1.1, "half", float("nan"), True])
def test_a_fraction_that_is_none_is_refused(fraction):
    with pytest.raises(ConfigError, match=r"fraction is .*; expected a number above 0, at most 1"):
        federation().hold_out(fraction, seed=0)


@pytest.mark.parametrize("seed", [-1, 0.5, "zero", None])
def test_a_seed_that_is_none_is_refused(seed):
    with pytest.raises(ConfigError, match=r"seed is .*; expected a whole number, 0 or above"):
        federation().hold_out(0.5, seed=seed)
