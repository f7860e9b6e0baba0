"""Tables with named columns: matched by name, whatever library they are of and in whatever order they come."""

import dataclasses

import numpy as np
import pyarrow
import pytest

import fedlap
from fedlap.data import Federation
from fedlap.errors import DataError

AGE, DOSE, SEX = np.array([50.0, 60.0, 70.0, 40.0]), np.array([1, 2, 3, 4]), np.array([True, False, True, False])
COLUMNS = {"age": AGE, "dose": DOSE, "sex": SEX}
LABELS = [0, 1, 1, 0]
ARRAY = np.stack([AGE, DOSE, SEX], axis=1)


class Frame:
    """What data frames have in common."""

    def __init__(self, columns):
        self.columns, self.data = list(columns), dict(columns)

    def __getitem__(self, name):
        return self.data[name]


def pandas(columns):
    return pytest.importorskip("pandas").DataFrame(columns)


def polars(columns):
    return pytest.importorskip("polars").DataFrame(columns)


KINDS = {"dictionary": dict, "arrow": pyarrow.table, "frame": Frame, "pandas": pandas, "polars": polars}


@pytest.fixture(params=KINDS)
def table(request):
    return KINDS[request.param]


def turned(columns=COLUMNS):
    return dict(reversed(columns.items()))


def without(*names, **more):
    return {name: column for name, column in COLUMNS.items() if name not in names} | more


def federation(*clients, test=None, **options):
    pairs = [(inputs, LABELS) for inputs in clients]
    return Federation.from_arrays(clients=pairs, test=(clients[0] if test is None else test, LABELS), **options)


def test_columns_are_matched_by_name(table):
    made = federation(
        table(COLUMNS), table(turned()), test=table(turned()), public=table(turned()), names=["north", "south"]
    )
    assert made.features == ("age", "dose", "sex")
    for found in (made.of("north")[0], made.of("south")[0], made.test_inputs, made.public):
        np.testing.assert_array_equal(found, ARRAY)
    np.testing.assert_array_equal(made.checked("mine", (table(turned()), LABELS))[0], ARRAY)
    assert made.hold_out(0.5, seed=0).features == made.features


def test_a_table_is_the_array_of_its_columns(table):
    """Bit for bit, and with the fingerprint of the array, so that a checkpoint of one is one of the other."""
    made, plain = federation(table(COLUMNS)), federation(ARRAY)
    assert made.inputs.dtype == plain.inputs.dtype == np.float64 and plain.features is None
    assert made.fingerprint() == plain.fingerprint()
    single = {name: np.float32(column) for name, column in COLUMNS.items()}
    assert federation(single).inputs.dtype == np.float32


def test_numbers_with_no_gaps_may_be_objects():
    objects = {name: column.astype(object) for name, column in COLUMNS.items()}
    np.testing.assert_array_equal(federation(Frame(objects)).inputs, ARRAY)


NAN = np.array([50.0, np.nan, 70.0, 40.0])


@pytest.mark.parametrize(
    ("second", "message"),
    [
        (without("dose"), "'client-1': its columns are not those of client 'client-0': it lacks 'dose'"),
        (without(height=AGE), "'client-1': its columns are not those of client 'client-0': it has also 'height'"),
        (without("dose", "sex", Sex=SEX), "it lacks 'dose', 'sex' and has also 'Sex'"),
        (ARRAY, "'client-1' has no column names but client 'client-0' has; expected columns 'age', 'dose', 'sex'"),
        (without("sex", sex=["m", "f", "m", "f"]), "'client-1': column 'sex' has values of type <U1; expected numbers"),
        (
            without("sex", sex=np.array(["m", "f", 1, 0], object)),
            "'client-1', row 0: column 'sex' is 'm'; expected a number",
        ),
        (without("age", age=NAN), "'client-1', row 1, column 'age': input is nan; expected a finite number"),
        (
            without("age", age=np.array([1.0, None, 2.0, 3.0], object)),
            "'client-1', row 1, column 'age': input is nan; expected a finite number",
        ),
        (without("age", age=AGE[:3]), "'client-1': column 'dose' has 4 rows but column 'age' has 3; expected as many"),
        (
            without("age", age=np.ones((4, 2))),
            r"'client-1': column 'age' has shape \(4, 2\); expected one number a row",
        ),
    ],
)
def test_columns_that_are_not_the_first_clients_are_refused(second, message):
    for table in (dict, Frame):
        with pytest.raises(DataError, match=message):
            federation(COLUMNS, table(second) if isinstance(second, dict) else second)


def test_the_test_set_and_public_inputs_are_matched_too():
    for options in ({"test": without("dose")}, {"public": without("dose")}):
        with pytest.raises(DataError, match=r"the (test set|public inputs): its columns are not .* it lacks 'dose'"):
            federation(COLUMNS, **options)
    for options in ({"test": ARRAY}, {"public": ARRAY}):
        with pytest.raises(
            DataError, match=r"the (test set|public inputs) has no column names but client 'client-0' has"
        ):
            federation(COLUMNS, **options)
    with pytest.raises(DataError, match="the test set has column names but client 'client-0' has none"):
        federation(ARRAY, test=COLUMNS)


def test_two_columns_of_one_name_are_refused():
    frame = Frame(COLUMNS)
    frame.columns.append("age")
    with pytest.raises(DataError, match="client 'client-0': two columns are named 'age'; expected unique names"):
        federation(frame)


def test_a_table_alone_is_no_pair():
    """Of two columns it would otherwise be taken apart into their names."""
    two = without("sex")
    for table in (two, Frame(two)):
        with pytest.raises(
            DataError, match=r"client 'client-0': (dict|Frame); expected a pair \(inputs, labels\): the table w"
        ):
            Federation.from_arrays(clients=[table], test=(two, LABELS))


def test_as_many_features_as_columns():
    with pytest.raises(DataError, match=r"2 names of features for inputs of shape \(3,\); expected one each"):
        dataclasses.replace(federation(ARRAY), features=("age", "dose"))


def history(inputs):
    made = federation(inputs)
    return fedlap.simulate(fedlap.FedLap(delta=1.0), made, fedlap.logistic(), solver=fedlap.newton(), rounds=1)


def test_predictions_are_matched_by_name_too():
    named = history(COLUMNS)
    wanted = named.predict(ARRAY)  # an array is taken to be in the order of the features
    for inputs in (COLUMNS, turned(), pyarrow.table(turned()), Frame(turned())):
        np.testing.assert_array_equal(named.predict(inputs), wanted)
    assert (wanted != named.predict(ARRAY[:, ::-1])).any()
    for inputs, message in [
        (without("sex"), "inputs: its columns are not those of the clients' pool: it lacks 'sex'"),
        (ARRAY[:, :2], r"inputs has rows of shape \(2,\) but the clients' pool has rows of shape \(3,\)"),
        (np.where(ARRAY == 3, np.nan, ARRAY), "inputs, row 2, column 'dose': input is nan; expected a finite number"),
    ]:
        with pytest.raises(DataError, match=message):
            named.predict(inputs)


def test_arrays_have_no_names_to_match():
    plain = history(ARRAY)
    assert plain.predict(ARRAY[:0]).shape == (0, 2)
    with pytest.raises(DataError, match="inputs has column names but the clients' pool has none; expected names"):
        plain.predict(COLUMNS)
    with pytest.raises(DataError, match="inputs, row 2, column 1: input is nan; expected a finite number"):
        plain.predict(np.where(ARRAY == 3, np.nan, ARRAY))
    with pytest.raises(DataError, match=r"inputs: inputs of shape \(3,\); expected one row of features per point"):
        plain.predict(ARRAY[0])
