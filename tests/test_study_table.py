"""A site's file against the study: each fault is told with its row and column, and all of them at once."""

import numpy as np
import pytest
from typer.testing import CliRunner

from fedlap.cli.main import app
from fedlap.cli.study import study_app
from fedlap.errors import DataError
from fedlap.study.table import table
from studies import FILE, SMALL, study, write


def checked(folder, text, **sections):
    return table.check_file(study(**sections), write(folder, text))


def test_a_sound_file_becomes_columns_with_their_row_numbers(tmp_path):
    found = checked(tmp_path, FILE)
    assert found.values["age"].tolist() == [50, 61, 72, 33]
    assert found.values["ward"].tolist() == [0, 1, 0, 2]
    assert found.values["sex"].tolist() == [1, 0, 0, 1]
    assert found.labels.tolist() == [1, 0, 1, 0]
    assert found.row_numbers.tolist() == [2, 3, 4, 5]
    assert found.missing == {"age": 0, "dose": 0, "ward": 1, "sex": 0, "outcome": 0}


def test_each_rule_for_an_empty_cell_is_followed(tmp_path):
    text = FILE + "44,,medicine,male,ill\n45,1,medicine,,ill\n46,1,medicine,male,\n"
    found = checked(tmp_path, text)
    assert np.isnan(found.values["dose"][4]), "mean"
    assert found.row_numbers.tolist() == [2, 3, 4, 5, 6]
    assert found.dropped.tolist() == [7, 8]
    assert (found.missing["dose"], found.missing["sex"], found.missing["outcome"]) == (1, 1, 1)
    with pytest.raises(
        DataError, match="row 6, column age: the cell is empty; expected a number from 0 to 120 in years"
    ):
        checked(tmp_path, FILE + ",1,medicine,male,ill\n")


@pytest.mark.parametrize(
    "text",
    [
        "\ufeff" + FILE,
        FILE.replace("\n", "\r\n"),
        FILE + "\n\n,,,,\n",
        FILE.replace("age,dose", '" age ", dose').replace("surgery", '" surgery "'),
        "\n".join("P1," + line if line[0].isdigit() else "patient_id," + line for line in FILE.splitlines()),
        "\n".join(",".join(line.split(",")[::-1]) for line in FILE.splitlines()),
    ],
    ids=["byte-order mark", "Windows", "empty lines at the end", "quotes and spaces", "ignored column", "other order"],
)
def test_harmless_differences_change_nothing(tmp_path, text):
    assert checked(tmp_path, text).fingerprint() == checked(tmp_path, FILE).fingerprint()


ROW = "50,1.5,surgery,male,ill\n"


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("fifty,1,surgery,male,ill", "row 6, column age: found 'fifty'; expected a number from 0 to 120 in years"),
        ("121,1,surgery,male,ill", "row 6, column age: found '121'; expected a number from 0 to 120 in years"),
        ('50,"1,5",surgery,male,ill', "row 6, column dose: found '1,5'; .*a decimal point, not a comma"),
        ('50,"1,234.5",surgery,male,ill', "column dose: found '1,234.5'; .*nothing between thousands"),
        ("50,1 234,surgery,male,ill", "column dose: found '1 234'; .*nothing between thousands"),
        ("50,1_000,surgery,male,ill", "column dose: found '1_000'; expected a number in mg"),
        ("50,NA,surgery,male,ill", "column dose: found 'NA'; .*leave the cell empty if the value is missing"),
        ("50,inf,surgery,male,ill", "column dose: found 'inf'; expected a number in mg"),
        ("50,1e999,surgery,male,ill", "column dose: found '1e999'; expected a number in mg"),
        (
            "50,8.98846567431158e+307,surgery,male,ill",  # what Stata writes for a missing value
            r"row 6, column dose: found '8.98846567431158e\+307'; expected a number in mg, or an empty cell",
        ),
        ("50,-1e101,surgery,male,ill", "column dose: found '-1e101'; expected a number in mg"),
        ("50,٣,surgery,male,ill", "column dose: found '٣'"),
        ("50,1,surgrey,male,ill", "column ward: found 'surgrey'; expected one of .*did you mean 'surgery'"),
        ("50,1,surgery,Male,ill", "column sex: found 'Male'; .*did you mean 'male'"),
        ("50,1,surgery,male,dead", "row 6, column outcome: found 'dead'; expected one of well, ill"),
        ("50,1,surgery,male", "row 6: 4 cells, the first '50'; expected 5, one for each column of the header"),
        ("50,1,5,surgery,male,ill", "row 6: 6 cells"),
        ("\n50,1,surgery,male,ill", "row 6: an empty line"),
        ('50,1,surgery,"male,ill', "row 6: cannot be read .*quotation marks in pairs"),
        ("50,1,sur\0gery,male,ill", "row 6"),
    ],
)
def test_a_faulty_row_is_named(tmp_path, row, message):
    with pytest.raises(DataError, match=f"^patients.csv, {message}" if message.startswith("row") else message):
        checked(tmp_path, FILE + row + "\n")


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ("age,dose,ward,sex", "row 1, column outcome: the column is missing"),
        ("age,dose,ward,sex,outcome,bmi", "row 1, column bmi: the study has no such column .*ignored_columns"),
        ("Age,dose,ward,sex,outcome", "row 1, column Age: the study has no such column; did you mean 'age'"),
        ("age,age,dose,ward,sex,outcome", "row 1, column age: there are two columns of this name"),
        ("age,dose,ward,sex,outcome,", "row 1: column 6 of the header has no name"),
        ("age;dose;ward;sex;outcome", "row 1: the columns are separated by semicolons; expected commas"),
        ("50,1,2,3,4", "row 1: the values '50', '1', '2' …; expected the names of the columns"),
    ],
)
def test_a_faulty_header_is_named(tmp_path, header, message):
    with pytest.raises(DataError, match=message):
        checked(tmp_path, f"{header}\n{ROW}")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("patients.csv", b"", "the file is empty"),
        ("patients.csv", b"\xef\xbb\xbf \n", "the file is empty"),
        ("patients.csv", FILE.encode("utf-16"), "UTF-16; expected UTF-8"),
        ("patients.csv", FILE.replace("medicine", "médecine").encode("latin-1"), "row 3: the byte 0xe9 is not UTF-8"),
        ("patients.csv", b"PK\x03\x04rest", "a spreadsheet workbook"),
        ("patients.csv", b"PAR1rest", "this is a Parquet file"),
        ("patients.parquet", FILE.encode(), "not a readable Parquet file"),
        ("patients.xlsx", b"PK\x03\x04", "expected .csv, or .parquet"),
    ],
)
def test_a_file_of_another_kind_is_told_apart(tmp_path, name, content, message):
    with pytest.raises(DataError, match=message):
        table.check_file(study(), write(tmp_path, content, name))


def test_a_folder_or_an_absent_file_is_told_apart(tmp_path):
    with pytest.raises(DataError, match="not a file"):
        table.check_file(study(), tmp_path)
    with pytest.raises(DataError, match="there is no such file"):
        table.check_file(study(), tmp_path / "none.csv")


def test_too_few_rows_are_refused_after_dropping_and_keeping_back(tmp_path):
    settings = {"minimum_rows": 4}
    assert len(checked(tmp_path, FILE, study=settings)) == 4
    with pytest.raises(DataError, match=r"3 usable rows .1 dropped.*expected at least 4"):
        checked(tmp_path, FILE.replace("72,0.5,surgery,female", "72,0.5,surgery,"), study=settings)
    with pytest.raises(DataError, match=r"4 usable rows .*3 of them to train on; expected at least 4"):
        checked(tmp_path, FILE, study={**settings, "test_fraction": 0.25})
    with pytest.raises(DataError, match="0 usable rows"):
        checked(tmp_path, FILE.splitlines()[0])


def test_all_problems_are_told_at_once_the_first_twenty_in_words(tmp_path):
    with pytest.raises(DataError) as raised:
        checked(tmp_path, FILE + "x,y,z,male,ill\n" * 10)
    lines = str(raised.value).splitlines()
    assert lines[0] == "patients.csv: 30 problems"
    assert [line for line in lines if "row 6" in line] == lines[1:4]
    assert len(lines) == 22 and lines[-1] == "… and 10 more"


def test_parquet_gives_the_same_as_csv(tmp_path):
    import pyarrow
    from pyarrow import parquet

    columns = {
        "age": pyarrow.array([50, 61, 72, 33], pyarrow.int16()),
        "dose": pyarrow.array([1.5, 2.5, None, 3], pyarrow.float64()),
        "ward": pyarrow.array(["surgery", "medicine", "surgery", None]).dictionary_encode(),
        "sex": ["male", "female", "female", "male"],
        "outcome": ["ill", "well", "ill", "well"],
    }
    path = tmp_path / "patients.parquet"
    parquet.write_table(pyarrow.table(columns), path)
    found = table.check_file(study(), path)
    assert found.fingerprint() == checked(tmp_path, FILE.replace("72,0.5", "72,")).fingerprint()
    assert found.row_numbers.tolist() == [1, 2, 3, 4]

    faulty = {**columns, "age": [50, 61, 720, 33], "dose": [1.0, float("nan"), 1.0, 1.0]}
    parquet.write_table(pyarrow.table(faulty), path)
    with pytest.raises(DataError, match=r"row 2, column dose: found 'nan'.*\n.*row 3, column age: found '720'"):
        table.check_file(study(), path)


def test_codes_in_parquet_may_be_numbers_or_truth_values(tmp_path):
    import pyarrow
    from pyarrow import parquet

    columns = {"age": [1.0, 2.0], "stage": [0.0, 1.0], "ill": [False, True]}
    path = tmp_path / "patients.parquet"
    parquet.write_table(pyarrow.table(columns), path)
    settings = study(
        columns={"dose": None, "ward": None, "sex": None, "stage": {"kind": "category", "categories": ["1", "0"]}},
        target={"name": "ill", "classes": ["false", "true"]},
    )
    found = table.check_file(settings, path)
    assert found.values["stage"].tolist() == [1, 0]
    assert found.labels.tolist() == [0, 1]


def test_the_rows_kept_back_depend_on_seed_and_member_and_are_balanced(tmp_path):
    text = (
        FILE.splitlines()[0]
        + "\n"
        + "".join(f"{30 + i},1,surgery,male,{'ill' if i % 4 else 'well'}\n" for i in range(40))
    )
    settings = study(study={"test_fraction": 0.25})
    found = table.check_file(settings, write(tmp_path, text))
    train, test = found.split(settings, "north")
    assert (len(train), len(test)) == (30, 10)
    assert sorted([*train.row_numbers, *test.row_numbers]) == list(range(2, 42))
    assert 2 <= (test.labels == 0).sum() <= 3
    again = found.split(settings, "north")[1].row_numbers.tolist()
    assert again == test.row_numbers.tolist()
    assert again != found.split(settings, "south")[1].row_numbers.tolist()
    other = study(study={"test_fraction": 0.25, "seed": 1})
    assert again != found.split(other, "north")[1].row_numbers.tolist()
    whole = study()
    assert len(found.split(whole, "north")[1]) == 0


def test_a_file_read_without_its_target_is_not_divided(tmp_path):
    """Its rows cannot be balanced over classes, nor trained on."""
    patients = table.check_inputs(study(), write(tmp_path, FILE))
    with pytest.raises(DataError, match=r"patients\.csv: checked without its target; expected"):
        patients.split(study(), "north")


def test_what_a_node_would_send_is_shown_with_the_same_warning(tmp_path):
    write(tmp_path, SMALL, "study.toml")
    write(tmp_path, "members = 2\nminimum_rows = 2\n", "policy.toml")
    data = write(tmp_path, FILE)
    result = CliRunner().invoke(app, ["node", str(tmp_path), "--name", "north", "--data", str(data), "--explain"])
    assert result.exit_code == 0, result.output
    assert "  ward = medicine: 1\n  ward = missing: 1\n" in result.output
    assert "Nothing has been sent." in result.output


def test_the_command_tells_a_summary_or_every_problem_and_sends_nothing(tmp_path, monkeypatch):
    import socket

    def refuse(*_):
        raise AssertionError("a socket was opened")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    write(tmp_path, SMALL, "study.toml")
    write(tmp_path, "members = 2\nminimum_rows = 2\n", "policy.toml")
    data = write(tmp_path, FILE + "45,1,medicine,,ill\n")
    arguments = ["check", str(tmp_path), "--data", str(data)]
    result = CliRunner().invoke(study_app, [*arguments, "--name", "north"])
    assert result.exit_code == 0, result.output
    for words in ("4 usable, 1 dropped", "2 well, 2 ill", "sex: 1 (drop)", "to train on: 4 rows", "Nothing was sent."):
        assert words in result.output
    assert "warning: of the 4 rows to train on, fewer than 2 (minimum_rows) have" in result.output
    assert "  ward = medicine: 1\n  ward = missing: 1\n" in result.output
    write(tmp_path, FILE + "200,1,medicine,male,ill\n201,1,medicine,male,ill\n")
    result = CliRunner().invoke(study_app, arguments)
    assert result.exit_code == 1
    assert "row 6, column age: found '200'" in result.output and "row 7, column age: found '201'" in result.output
