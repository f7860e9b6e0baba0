"""What a site tells about its numbers, and what every site makes of the sums."""

import numpy as np
import pytest

from fedlap.data import heart
from fedlap.data.tables import read_table
from fedlap.errors import DataError
from fedlap.study.agreement import example
from fedlap.study.agreement.contract import resolve
from fedlap.study.protocol.records import FileRecords
from fedlap.study.table import encoding, table
from studies import FILE, study, write


def hospitals(tmp_path):
    """The bundled hospitals through the study's own pipeline, divided as fedlap.data divides them."""
    import tomllib

    settings = resolve(tomllib.loads(example.example_study()), "study.toml")
    parts = {}
    for name, path in example.example_files(tmp_path).items():
        checked = table.check_file(settings, path)
        _, is_test = read_table("heart", f"processed.{name}.data")
        held = is_test[checked.row_numbers - 2]  # row 1 is the header
        parts[name] = checked.take(~held), checked.take(held)
    return settings, parts


def test_the_four_hospitals_agree_with_the_bundled_data_set(tmp_path):
    settings, parts = hospitals(tmp_path)
    pooled = encoding.pool([encoding.statistics(settings, train) for train, _ in parts.values()])
    reference = heart(preset="standard")
    # The bundled set has its numbers first and gives deviation 1 to its 0/1 columns too; the study leaves them 0/1.
    order = [
        "age", "sex=male", "resting_blood_pressure", "cholesterol", "fasting_blood_sugar_high=yes",
        "maximum_heart_rate", "exercise_angina=yes", "st_depression", "chest_pain=atypical", "chest_pain=non-anginal",
        "chest_pain=asymptomatic", "resting_ecg=st-t-abnormality", "resting_ecg=hypertrophy",
    ]  # fmt: skip
    names = encoding.features(settings)
    places = [names.index(name) for name in order]
    indicator = np.array(["=" in name for name in order])
    encoded = {name: [encoding.encode(settings, part, pooled) for part in both] for name, both in parts.items()}
    everyone = np.concatenate([train[0] for train, _ in encoded.values()])[:, places].astype(np.float64)
    mean, deviation = everyone[:, indicator].mean(0), everyone[:, indicator].std(0)
    for name, ((inputs, labels), _) in encoded.items():
        expected, classes = reference.of(name)
        inputs = inputs[:, places].astype(np.float64)
        assert set(np.unique(inputs[:, indicator])) <= {0.0, 1.0}
        np.testing.assert_allclose(inputs[:, ~indicator], expected[:, ~indicator], rtol=0, atol=1e-6)
        np.testing.assert_allclose((inputs[:, indicator] - mean) / deviation, expected[:, indicator], rtol=0, atol=1e-6)
        assert np.array_equal(labels, classes)
    tests = np.concatenate([test[0] for _, test in encoded.values()])[:, places]
    np.testing.assert_allclose(tests[:, ~indicator], reference.test_inputs[:, ~indicator], rtol=0, atol=1e-6)
    assert pooled.rows == len(reference.inputs) == 486


def test_statistics_are_counts_sums_and_sums_of_squares_of_the_values_that_are_there(tmp_path):
    settings = study()
    checked = table.check_file(settings, write(tmp_path, FILE + "10,,surgery,male,ill\n"))
    sent = encoding.statistics(settings, checked)
    assert {name: array.tolist() for name, array in sent._asdict().items()} == {
        "rows": 5,
        "counts": [5, 4],
        "sum": [226, 7.5],
        "sum_of_squares": [50**2 + 61**2 + 72**2 + 33**2 + 10**2, 1.5**2 + 2.5**2 + 0.5**2 + 9],
    }
    assert all(array.dtype == np.float64 for array in sent)


def test_a_missing_number_becomes_the_mean_of_all_members_which_is_zero_when_standardised(tmp_path):
    settings = study()
    north = table.check_file(settings, write(tmp_path, FILE + "10,,medicine,male,ill\n", "north.csv"))
    south = table.check_file(settings, write(tmp_path, FILE.replace("3,,", "9,,"), "south.csv"))
    pooled = encoding.pool([encoding.statistics(settings, site) for site in (north, south)])
    doses = np.array([1.5, 2.5, 0.5, 3, 1.5, 2.5, 0.5, 9])
    np.testing.assert_allclose(pooled.means[1], doses.mean(), rtol=1e-15)
    np.testing.assert_allclose(pooled.deviations[1], doses.std(), rtol=1e-14)
    inputs, labels = encoding.encode(settings, north, pooled)
    assert encoding.features(settings) == ("age", "dose", "ward=medicine", "ward=missing", "sex=male")
    assert inputs.dtype == np.float32 and labels.dtype == np.int32
    assert inputs[4, 1] == 0
    assert inputs[:, 2:].tolist() == [[0, 0, 1], [1, 0, 0], [0, 0, 0], [0, 1, 1], [1, 0, 1]]


def test_pooling_depends_neither_on_the_order_of_rows_nor_of_members(tmp_path):
    settings = study()
    rng = np.random.default_rng(0)
    header = FILE.splitlines()[0]
    lines = [
        f"{age:.3f},{dose},surgery,male,ill"
        for age, dose in zip(rng.uniform(0, 99, 60), rng.normal(size=60), strict=True)
    ]
    files = [
        table.check_file(settings, write(tmp_path, "\n".join([header, *part]), f"{place}.csv"))
        for place, part in enumerate((lines[:20], lines[20:25], lines[25:], lines[:20][::-1]))
    ]
    first, second, third, reversed_first = (encoding.statistics(settings, file) for file in files)
    for one, other in zip(
        encoding.pool([first, second, third]), encoding.pool([third, reversed_first, second]), strict=True
    ):
        assert np.array_equal(one, other)


@pytest.mark.parametrize("value", ["0", "120", "1.3", "3.1", "4.7"])
def test_a_constant_column_is_only_centred_and_one_that_nobody_has_is_zero(tmp_path, value):
    settings = study()
    text = FILE.splitlines()[0] + "\n" + f"{value},,surgery,male,ill\n" * 7
    checked = table.check_file(settings, write(tmp_path, text))
    pooled = encoding.pool([encoding.statistics(settings, checked)] * 3)
    assert pooled.deviations.tolist() == [1, 1]
    np.testing.assert_allclose(encoding.encode(settings, checked, pooled)[0][:, :2], 0, atol=1e-12)


def test_a_narrow_column_far_from_zero_is_not_taken_for_a_constant(tmp_path):
    settings = study()
    text = FILE.splitlines()[0] + "\n" + "".join(f"1,{100000 + i % 2},surgery,male,ill\n" for i in range(10))
    pooled = encoding.pool([encoding.statistics(settings, table.check_file(settings, write(tmp_path, text)))])
    np.testing.assert_allclose(pooled.deviations[1], 0.5, rtol=1e-4)


def test_a_sum_over_too_few_patients_does_not_leave_the_site(tmp_path):
    settings = study(study={"minimum_rows": 4})
    checked = table.check_file(settings, write(tmp_path, FILE.replace("72,0.5", "72,")))
    with pytest.raises(DataError, match=r"patients.csv, column dose: 3 of 4 training rows .*none or at least 4"):
        encoding.statistics(settings, checked)
    # Already when the file is opened: the first request would be answered by a refusal, and the study never begin.
    with pytest.raises(DataError, match="column dose: 3 of 4 training rows"):
        FileRecords(settings, "north", checked.path)


def test_categories_and_classes_of_few_patients_are_warned_of(tmp_path):
    lines = [f"{30 + i},1,surgery,{'male' if i % 2 else 'female'},{'ill' if i > 2 else 'well'}" for i in range(8)]
    text = "\n".join([FILE.splitlines()[0], *lines, "70,1,medicine,male,ill"])
    settings = study(study={"minimum_rows": 4})
    checked = table.check_file(settings, write(tmp_path, text))
    first, *few, _, _ = encoding.warnings(settings, checked)
    assert first == "warning: of the 9 rows to train on, fewer than 4 (minimum_rows) have"
    assert few == ["  ward = medicine: 1", "  outcome = well: 3"]  # none is missing, 4 are female, 5 male
    assert encoding.warnings(study(study={"minimum_rows": 3}), checked.take(checked.values["ward"] == 0)) == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rows": np.array(1.0)}, "1 training rows; expected at least 2"),
        ({"rows": np.array(2.5)}, "2.5 training rows"),
        ({"rows": np.array(5e9)}, r"5e\+09 training rows; expected at most \d+"),
        ({"rows": np.array([4.0])}, "'rows' of shape"),
        ({"sum": np.array([np.nan, 0])}, "'sum' of shape"),
        ({"sum": np.zeros(3)}, "'sum' of shape"),
        ({"counts": np.array([4, 4])}, "'counts' of shape"),
        ({"counts": np.array([4.0, 5.0])}, "column dose: 5 values in 4 rows"),
        ({"counts": np.array([-1.0, 4.0])}, "column age: -1 values"),
        ({"sum_of_squares": np.array([1.0, 100.0])}, "column age: no numbers have sum 216"),
        # Finite each, but added to another member's they would be none any more.
        ({"sum": np.array([216, 1.7e308])}, r"column dose: no 4 numbers from -1e\+100 to 1e\+100 have the sum 1.7e"),
        ({"sum_of_squares": np.array([12494, 1e308])}, "column dose: no numbers have sum"),
        # A mean age of 1e50, of 130 and of -1; more squares than ages up to 120 of this sum can have.
        ({"sum": np.array([4e50, 7.5]), "sum_of_squares": np.array([4e100, 20])}, "column age: no 4 numbers from 0 to"),
        ({"sum": np.array([520, 7.5]), "sum_of_squares": np.array([67600.0, 20])}, "from 0 to 120 have the sum 520"),
        ({"sum": np.array([-4, 7.5])}, "column age: no 4 numbers from 0 to 120 have the sum -4"),
        ({"sum_of_squares": np.array([25921.0, 20])}, "column age: no numbers have sum 216 and sum of squares 25921"),
        (
            {"counts": np.array([3.0, 4.0])},
            "column age: 3 values in 4 rows; expected one a row, as none",
        ),
        ({"counts": np.array([4.0, 0.0]), "sum": np.array([216.0, 0.0])}, "column dose: no numbers have sum 0 and"),
    ],
)
def test_statistics_that_no_file_can_have_are_refused_with_the_members_name(tmp_path, change, message):
    settings = study()
    sent = encoding.statistics(settings, table.check_file(settings, write(tmp_path, FILE)))
    encoding.check_statistics(settings, "north", sent)
    with pytest.raises(DataError, match=f"^north.*{message}"):
        encoding.check_statistics(settings, "north", sent._replace(**change))
