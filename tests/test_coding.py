"""Federations from data frames: numbers, truth values and categories, the same at every client or an error."""

import dataclasses
import datetime
import json

import numpy as np
import pandas
import polars
import pyarrow
import pytest

import fedlap
from fedlap.data import Federation
from fedlap.errors import ConfigError, DataError

NORTH = {
    "age": [61, 48, 70, 35],
    "sex": ["male", "female", "male", "female"],
    "smoker": [True, False, False, True],
    "outcome": ["ill", "well", "ill", "well"],
}
SOUTH = {
    "outcome": ["well", "ill"],
    "smoker": [False, True],
    "sex": ["female", "male"],
    "age": [39.5, 66.0],
}
CODED_NORTH = [[61, 1, 1], [48, 0, 0], [70, 1, 0], [35, 0, 1]]
CODED_SOUTH = [[39.5, 0, 0], [66, 1, 1]]
KINDS = {"dictionary": dict, "pandas": pandas.DataFrame, "polars": polars.DataFrame, "arrow": pyarrow.table}


def changed(table, **columns):
    return {**table, **columns}


def without(table, name):
    return {column: values for column, values in table.items() if column != name}


def made(north=NORTH, south=SOUTH, test=NORTH, table=dict, **options):
    frames = {"north": table(north), "south": table(south)}
    return Federation.from_frames(frames, target="outcome", test=test, **options)


@pytest.fixture(params=KINDS)
def table(request):
    return KINDS[request.param]


def test_tables_of_every_library_are_coded_alike(table):
    federation = made(table=table, test=table(SOUTH))
    assert federation.clients == ("north", "south") and federation.features == ("age", "sex=male", "smoker")
    assert federation.class_names == ("ill", "well")
    for (inputs, labels), rows, expected in [
        (federation.of("north"), CODED_NORTH, [0, 1, 0, 1]),
        (federation.of("south"), CODED_SOUTH, [1, 0]),
        ((federation.test_inputs, federation.test_labels), CODED_SOUTH, [1, 0]),
    ]:
        np.testing.assert_array_equal(inputs, rows)
        np.testing.assert_array_equal(labels, expected)
    assert federation.fingerprint() == made(test=SOUTH).fingerprint()


def test_new_rows_are_coded_as_those_of_the_clients(table, tmp_path):
    """With or without the target, in any order of columns; a history that was saved still knows how."""
    history = fedlap.simulate(fedlap.FedLap(delta=1.0), made(), fedlap.logistic(), solver=fedlap.newton(), rounds=1)
    wanted = history.predict(np.array(CODED_SOUTH))
    if not (tmp_path / "history").exists():
        history.save(tmp_path / "history")
    for each in (history, fedlap.load(tmp_path / "history")):
        for rows in (SOUTH, without(SOUTH, "outcome"), dict(reversed(SOUTH.items()))):
            np.testing.assert_array_equal(each.predict(table(rows)), wanted)
    coded = {"age": [39.5, 66], "sex=male": [0, 1], "smoker": [0, 1]}
    np.testing.assert_array_equal(history.predict(table(coded)), wanted)
    with pytest.raises(DataError, match="inputs, row 1: column 'sex' is 'mal'; expected one of 'female', 'male'; did"):
        history.predict(table(changed(SOUTH, sex=["male", "mal"])))
    with pytest.raises(DataError, match="inputs: its columns are not those of the clients' pool: it lacks 'age'"):
        history.predict(table(without(SOUTH, "age")))
    assert json.loads((tmp_path / "history/history.json").read_text())["coding"]["target"] == "outcome"


def test_a_part_of_the_rows_may_be_the_test_set():
    federation = made(test=0.5, seed=3)
    assert federation.sizes.tolist() == [2, 1] and len(federation.test_labels) == 3
    assert federation.coding == made().coding
    other = [made(test=0.5, seed=seed).test_inputs.tolist() for seed in range(5)]
    assert any(rows != federation.test_inputs.tolist() for rows in other)


def test_there_need_be_no_test_set():
    assert not made(test=None).has_test and made(test=None).features == made().features


def test_levels_may_be_said():
    """In the order wished, more than anybody has, and of numbers that are codes."""
    federation = made(categories={"sex": ["other", "female", "male"], "age": [35, 39.5, 48, 61, 66, 70]})
    assert federation.features[-3:] == ("sex=female", "sex=male", "smoker")
    assert federation.features[:2] == ("age=39.5", "age=48")
    np.testing.assert_array_equal(federation.of("north")[0][:, -3:], [[0, 1, 1], [1, 0, 0], [0, 1, 0], [1, 0, 1]])


def test_levels_that_a_type_declares_are_agreed_on():
    """Though no client has a row of each."""
    levels = ["never", "once", "often"]
    for declare in (
        lambda values: polars.Series(values, dtype=polars.Enum(levels)),
        lambda values: pandas.Categorical(values, categories=levels, ordered=True),
    ):
        table = polars.DataFrame if isinstance(declare(["once"]), polars.Series) else pandas.DataFrame
        north = changed(NORTH, sex=declare(["once", "never", "never", "once"]))
        south = changed(SOUTH, sex=declare(["never", "often"]))
        assert made(north, south, test=table(south), table=table).features[1:3] == ("sex=once", "sex=often")


NOT_THERE = "fill it in, or leave the row out"


@pytest.mark.parametrize(
    ("north", "south", "message"),
    [
        (NORTH, without(SOUTH, "outcome"), "client 'south' has no column 'outcome', the target among 'smoker', 'sex'"),
        (
            NORTH,
            changed(without(SOUTH, "outcome"), Outcome=[1, 0]),
            "client 'south' has no column 'outcome', the target; did you mean 'Outcome'",
        ),
        (NORTH, without(SOUTH, "age"), "client 'south': its columns are not those of client 'north': it lacks 'age'"),
        (NORTH, changed(SOUTH, id=[1, 2]), "client 'south': its columns .* it has also 'id'"),
        (changed(NORTH, age=[1, None, 2, 3]), SOUTH, f"client 'north', row 1: column 'age' is missing; {NOT_THERE}"),
        (changed(NORTH, age=[1.0, 2.0, np.nan, 3.0]), SOUTH, "client 'north', row 2: column 'age' is missing"),
        (NORTH, changed(SOUTH, sex=["male", None]), "client 'south', row 1: column 'sex' is missing"),
        (NORTH, changed(SOUTH, outcome=["ill", None]), "client 'south', row 1: column 'outcome' is missing"),
        (
            NORTH,
            changed(SOUTH, sex=["Male", "female"]),
            "client 'north', row 0: column 'sex' is 'male', which no row of client 'south' has; if it is meant, pass "
            "categories={'sex': \\['Male', 'female', 'male'\\]}",
        ),
        (
            NORTH,
            changed(SOUTH, age=["39,5", "66"]),
            "client 'south': column 'age' is text, such as '39,5', but that of client 'north' is a number",
        ),
        (
            changed(NORTH, sex=["male"] * 4),
            changed(SOUTH, sex=["male"] * 2),
            "column 'sex' is 'male' in every row of every client and says nothing; leave it out",
        ),
        (
            NORTH,
            changed(SOUTH, age=[datetime.date(1980, 1, 1)] * 2),
            "client 'south': column 'age' holds dates; expected numbers, truth values or text",
        ),
        ({name: [] for name in NORTH}, SOUTH, "client 'north' has no rows; expected at least one"),
        (changed(NORTH, age=[1.0, 2.0, np.inf, 3.0]), SOUTH, "client 'north', row 2, column 'age': input is inf"),
    ],
)
def test_what_clients_do_not_agree_on_is_told_by_client_column_and_row(table, north, south, message):
    with pytest.raises(DataError, match=message):
        made(north, south, table=table)


def test_kinds_within_a_column_are_told_by_row():
    with pytest.raises(DataError, match="client 'south', row 1: column 'age' is '66', text; expected a number"):
        made(south=changed(SOUTH, age=[39, "66"]))
    with pytest.raises(DataError, match="client 'south': column 'age' holds a list; expected numbers"):
        made(south=changed(SOUTH, age=[[1], [2]]))
    assert made(south=changed(SOUTH, smoker=[0, True])).of("south")[0][:, 2].tolist() == [0, 1]


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        (
            {"test": changed(SOUTH, sex=["x", "male"])},
            DataError,
            "the test set, row 0: column 'sex' is 'x'; expected one",
        ),
        ({"test": without(SOUTH, "outcome")}, DataError, "the test set has no column 'outcome', the target"),
        (
            {"test": changed(SOUTH, outcome=["ill", "dead"])},
            DataError,
            "the test set, row 1: label is 'dead'; expected one of",
        ),
        ({"categories": {"sexe": ["a", "b"]}}, ConfigError, "unknown column in categories 'sexe'; did you mean 'sex'"),
        (
            {"categories": {"sex": ["male"]}},
            ConfigError,
            "the levels of 'sex' are .*; expected at least two, each once",
        ),
        (
            {"categories": {"sex": ["male", "f"]}},
            DataError,
            "client 'north', row 1: column 'sex' is 'female'; expected",
        ),
        ({"test": 1.5}, ConfigError, "fraction is 1.5; expected a number above 0"),
    ],
)
def test_what_cannot_be_is_an_error(options, error, message):
    with pytest.raises(error, match=message):
        made(**options)


def test_names_of_rows_are_no_category():
    names = [f"patient {number}" for number in range(60)]
    table = {"name": names, "outcome": [0, 1] * 30}
    with pytest.raises(DataError, match=r"column 'name' has 60 levels, and at most 50 .*; leave it out if it names"):
        Federation.from_frames({"north": table}, target="outcome", test=table)
    with pytest.raises(DataError, match="two columns of inputs would be named 'sex=male'; rename a column"):
        made(changed(NORTH, **{"sex=male": [1, 2, 3, 4]}), changed(SOUTH, **{"sex=male": [1, 2]}))


@pytest.mark.parametrize("ordered", [False, True])
def test_a_category_of_numbers_is_not_taken_for_a_number(ordered):
    stages = pandas.Categorical([1, 2, 3], ordered=ordered)
    clients = {name: pandas.DataFrame({"stage": stages, "outcome": [0, 1, 0]}) for name in ("north", "south")}
    with pytest.raises(DataError, match=r"client 'north': column 'stage' is a category of numbers.*\[1.*, 2.*, 3.*\]"):
        Federation.from_frames(clients, target="outcome")
    said = Federation.from_frames(clients, target="outcome", categories={"stage": [1, 2, 3]})
    assert said.features == ("stage=2", "stage=3")


def test_what_is_no_table_is_refused():
    with pytest.raises(DataError, match=r"client 'north': LazyFrame; expected a data frame .*; call its collect\(\)"):
        Federation.from_frames({"north": polars.LazyFrame(NORTH)}, target="outcome", test=NORTH)
    with pytest.raises(DataError, match="client 'north': ndarray; expected a data frame of pandas or polars"):
        Federation.from_frames({"north": np.ones((3, 2))}, target="outcome", test=NORTH)
    with pytest.raises(ConfigError, match="frames is of type DataFrame; expected one table a client"):
        Federation.from_frames(pandas.DataFrame(NORTH), target="outcome", test=NORTH)  # type: ignore[arg-type]
    two = pandas.DataFrame([[1, 2, 0]], columns=["age", "age", "outcome"])
    with pytest.raises(DataError, match="client 'north': two columns are named 'age'; expected unique names"):
        Federation.from_frames({"north": two}, target="outcome", test=NORTH)


def test_a_coding_is_kept_when_rows_are_held_out():
    assert dataclasses.replace(made(), name="other").coding == made().hold_out(0.5, seed=0).coding
