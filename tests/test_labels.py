"""Labels of any kind: numbered, remembered, or refused with a word about what to do."""

import dataclasses

import numpy as np
import pyarrow
import pytest

import fedlap
from fedlap.data import Federation
from fedlap.errors import ConfigError, DataError


def inputs_for(labels):
    return np.arange(2.0 * len(labels)).reshape(-1, 2)


def federation(*clients, test=None, **options):
    test = clients[0] if test is None else test
    pairs = [(inputs_for(labels), labels) for labels in clients]
    return Federation.from_arrays(clients=pairs, test=(inputs_for(test), test), **options)


class Categorical:
    """A pandas categorical, as NumPy sees it."""

    def __init__(self, values):
        self.values = values

    def __array__(self, dtype=None, copy=None):
        return np.array(self.values, dtype or object)

    def __len__(self):
        return len(self.values)


@pytest.mark.parametrize(
    ("labels", "names"),
    [
        ([2, 1, 2], (1, 2)),
        ([1, -1, 1], (-1, 1)),
        ([7.0, 3.0, 7.0], (3, 7)),
        (np.array([200, 100, 200], np.uint8), (100, 200)),
        (["yes", "no", "yes"], ("no", "yes")),
        (np.array(["b", "a", "b"]), ("a", "b")),
        (np.array(["b", "a", "b"], object), ("a", "b")),
        (np.array([2, 1, 2], object), (1, 2)),
        ([True, False, True], (False, True)),
        (np.array([True, True, True]), (False, True)),
        (Categorical(["high", "low", "low"]), ("high", "low")),
        (pyarrow.array(["b", "a"]), ("a", "b")),
        (pyarrow.chunked_array([["b"], ["a", "b"]]), ("a", "b")),
        (pyarrow.array(["b", "a", "b"]).dictionary_encode(), ("a", "b")),
    ],
)
def test_labels_are_numbered_in_sorted_order_and_remembered(labels, names):
    made = federation(labels, labels)
    assert (made.classes, made.class_names) == (2, names)
    assert [type(name) for name in made.class_names] == [type(name) for name in names]
    found = [made.class_names[number] for number in made.labels]
    assert found == 2 * list(np.asarray(labels))
    assert made.test[1].tolist() == list(np.asarray(labels)) == [names[number] for number in made.test_labels]


def test_all_clients_labels_count():
    made = federation(["b", "b"], ["c", "a"], ["b"])
    assert made.class_names == ("a", "b", "c") and made.labels.tolist() == [1, 1, 2, 0, 1]
    assert made.hold_out(0.5, seed=0).class_names == made.class_names


@pytest.mark.parametrize(
    "labels", [[0, 1, 2], [2.0, 1.0, 0.0], np.array([0, 1, 2], np.uint8), np.arange(3.0, dtype=object)]
)
def test_labels_that_are_class_numbers_stay_as_they_are(labels):
    made = federation(labels)
    assert made.class_names is None and made.labels.tolist() == list(labels) and made.labels.dtype == np.int32
    assert made.fingerprint() == federation(labels, classes=3).fingerprint()
    assert made.fingerprint() == federation(labels, classes=[0, 1, 2]).fingerprint()


def test_the_fingerprint_of_class_numbers_is_what_it_was_and_that_of_names_knows_them():
    """The first is of a federation made before labels had names; checkpoints have it."""
    made = federation([0, 1, 1])
    assert made.fingerprint() == "63eee4da56ed1f7ff1ef47c6ace927f6667553e852b88efccc355ab4325e2f67"
    assert federation([False, True, True]).fingerprint() == made.fingerprint()
    others = [federation([1, 2, 2]), federation(["a", "b", "b"]), federation(["a", "c", "c"])]
    assert len({each.fingerprint() for each in (made, *others)}) == 4


def test_a_list_of_classes_gives_their_order_and_those_that_no_row_has():
    made = federation(["b", "a"], test=["c", "a"], classes=["c", "b", "a", "d"])
    assert (made.classes, made.class_names) == (4, ("c", "b", "a", "d"))
    assert (made.labels.tolist(), made.test_labels.tolist()) == ([1, 2], [0, 2])
    assert federation([0, 2], classes=[0, 2]).labels.tolist() == [0, 1]
    assert federation([0, 2], classes=np.array([2, 0])).labels.tolist() == [1, 0]
    assert federation([0, 2], classes=range(3)).class_names is None
    assert federation([True, False], classes=[True, False]).labels.tolist() == [0, 1]


def test_a_number_of_classes_means_0_1_2_or_as_many_strings():
    assert federation([0, 2], classes=3).labels.tolist() == [0, 2]
    assert federation([1, 2], classes=3).class_names is None
    assert federation(["b", "a"], classes=2).class_names == ("a", "b")
    assert federation([True, False], classes=2).class_names == (False, True)


@pytest.mark.parametrize(
    ("clients", "options", "message"),
    [
        ([[0, 2]], {}, r"labels are 0, 2, and no client has 1; expected 0, 1, 2, … without a gap; pass classes=3 if"),
        ([[0, 1], [1, -1]], {}, r"'client-1', row 1: label is -1, beside labels from 0 .*classes=\[-1, 0, 1\] if"),
        ([[1, 1]], {}, "all labels are 1; expected at least two classes; pass classes="),
        ([["a"], ["a"]], {}, "all labels are 'a'; expected at least two classes; pass classes="),
        ([[0, 1], ["a", "b"]], {}, "client 'client-1': labels are strings but those of client 'client-0' are numbers"),
        ([[0, 1, "a"]], {}, "client 'client-0', row 2: label is 'a' but row 0 has 0; expected one kind"),
        ([["a", "b", 1]], {}, "client 'client-0', row 2: label is 1 but row 0 has 'a'; expected one kind"),
        (
            [["a", "b"], ["a", None]],
            {},
            "client 'client-1', row 1: label is None; expected a whole number, a string or",
        ),
        ([["a", float("nan")]], {}, "client 'client-0', row 1: label is nan; expected"),
        ([[1, None]], {}, "client 'client-0', row 1: label is None; expected"),
        ([pyarrow.array(["a", None])], {}, "client 'client-0', row 1: label is None; expected"),
        ([[1.0, float("inf")]], {}, "client 'client-0', row 1: label is inf; expected a whole number"),
        ([[1.0, 2.5]], {}, r"client 'client-0', row 1: label is 2\.5; expected .*; this looks like a regression"),
        ([[1, 10**30]], {}, r"client 'client-0', row 1: label is 1e\+30; expected a whole number"),
        (
            [np.array(["2020", "2021"], "M8[Y]")],
            {},
            r"client 'client-0': labels of type datetime64\[Y\]; expected a whole",
        ),
        ([[[1, 0], [0, 1]]], {}, r"client 'client-0': labels of shape \(2, 2\)"),
        ([range(5, 3000)], {}, "2995 different labels in 2995 rows; expected classes; pass classes= if it is meant"),
        (
            [[0, 1]],
            {"test": [0, 1, 2]},
            "the test set, row 2: label is 2; .* from 0 to 1, the labels that clients have",
        ),
        ([["a", "b"]], {"test": ["c"]}, "the test set, row 0: label is 'c'; expected one of 'a', 'b', the labels that"),
        ([[0, 1]], {"test": ["a"]}, "the test set, row 0: label is 'a'; expected a whole number from 0 to 1"),
        ([["a", "b"]], {"test": [0]}, "the test set, row 0: label is 0; expected one of 'a', 'b'"),
        ([["a", "b"]], {"classes": ["a", "c"]}, "client 'client-0', row 1: label is 'b'; expected one of 'a', 'c'"),
        (
            [[1, 2]],
            {"classes": 2},
            r"client 'client-0', row 1: label is 2; .* from 0 to 1; for other labels pass a list",
        ),
        ([["a", "b"]], {"classes": 3}, "labels are 'a', 'b' but classes is 3; pass classes= with a list of all labels"),
    ],
)
def test_labels_that_leave_a_doubt_are_refused(clients, options, message):
    with pytest.raises(DataError, match=message):
        federation(*clients, **options)


@pytest.mark.parametrize(
    ("classes", "message"),
    [
        (["a", "b", "a"], "classes has 'a' twice; expected each label once"),
        (["a"], r"classes are \['a'\]; expected at least two labels"),
        ([0.5, 1], r"classes, row 0: label is 0\.5; expected a whole number"),
        ({"a", "b"}, "classes is .*; expected a whole number, 2 or above"),
        ("ab", "classes is 'ab'; expected a whole number, 2 or above"),
    ],
)
def test_a_list_of_classes_that_is_none_is_refused(classes, message):
    with pytest.raises(ConfigError, match=message):
        federation(["a", "b"], classes=classes)


def test_as_many_names_as_classes():
    with pytest.raises(ConfigError, match="class_names are 'a', 'b'; expected 3, one for each class"):
        dataclasses.replace(federation([0, 1, 2]), class_names=("a", "b"))


def test_sets_to_watch_have_the_users_labels():
    made = federation(["b", "a"])
    assert made.checked("mine", (inputs_for("abc"), ["b", "b", "a"]))[1].tolist() == [1, 1, 0]
    assert made.checked("mine", made.test)[1].tolist() == made.test_labels.tolist()
    with pytest.raises(DataError, match="mine, row 1: label is 'c'; expected one of 'a', 'b'"):
        made.checked("mine", (inputs_for("ac"), ["a", "c"]))
    with pytest.raises(DataError, match="mine, row 0: label is 'a'; expected a whole number from 0 to 1"):
        federation([0, 1]).checked("mine", (inputs_for("a"), ["a"]))


def test_the_history_says_which_column_is_which_class():
    """Where the second feature decides between two names, the columns of `predict` are in the order of `classes`."""
    inputs = np.array([[0.0, -2.0], [0.0, 2.0], [0.0, -1.0], [0.0, 1.0]])

    def history(labels, **options):
        made = Federation.from_arrays(clients=[(inputs, labels)], test=(inputs, labels), **options)
        watch = {"test": made.test}
        return fedlap.simulate(
            fedlap.FedLap(delta=0.1), made, fedlap.logistic(), solver=fedlap.newton(), rounds=1, watch=watch
        )

    for labels, classes in [
        (["wet", "dry", "wet", "dry"], None),
        ([2, 1, 2, 1], None),
        ([0, 1, 0, 1], None),
        (["wet", "dry", "wet", "dry"], ["wet", "dry"]),
    ]:
        found = history(labels, classes=classes)
        assert found.classes == (tuple(classes) if classes else tuple(sorted(set(labels))))
        assert [found.classes[best] for best in found.predict(inputs).argmax(1)] == labels
        assert found.accuracy[0] == found.watched["test"].accuracy[0] == 1
