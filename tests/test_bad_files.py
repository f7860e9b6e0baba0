"""Files that are damaged, hostile or absurdly large: every command says in words what is wrong, within bounds."""

import hashlib
import json
import struct

import pyarrow
import pytest
from pyarrow import parquet
from typer.testing import CliRunner

from fedlap.cli.main import app
from fedlap.documents import DEEPEST, LONGEST, MOST_BYTES, parse_toml, read_json
from fedlap.errors import ConfigError, DataError, FedlapError
from fedlap.regression import formulas
from fedlap.settings import plain_value
from fedlap.sheets import sheet
from fedlap.sheets.problems import Problems
from fedlap.study import model
from fedlap.study.agreement.contract import resolve
from fedlap.study.agreement.draft import read_cells
from fedlap.study.agreement.regression import resolve_regression
from fedlap.study.table import table
from regression_studies import table as regression_table
from studies import FILE, SMALL, study, write
from studies import table as study_table
from study_models import save_model


def words(*arguments):
    """What a command says of a file that it refuses; a traceback fails the test."""
    result = CliRunner().invoke(app, [str(each) for each in arguments])
    assert result.exit_code != 0
    assert result.exception is None or isinstance(result.exception, (FedlapError, SystemExit)), result.exception
    return result.output + str(result.exception)


# Parquet --------------------------------------------------------------------------------------------------------------


def patients(folder, **columns):
    """The small study's file as Parquet, with some columns put in the place of its own."""
    lines = [line.split(",") for line in FILE.splitlines()]
    own = {name: [line[place] or None for line in lines[1:]] for place, name in enumerate(lines[0])}
    path = folder / "patients.parquet"
    parquet.write_table(pyarrow.table({**own, **columns}), path)
    return path


def of(kind, *numbers):
    return pyarrow.array(numbers, pyarrow.int64()).view(kind)


FAR = 2**62
TIMES = {
    "nanoseconds": of(pyarrow.timestamp("ns"), 1, FAR, -FAR, 0),
    "out of range": of(pyarrow.timestamp("us"), FAR, -FAR, 1, 0),
    "no such zone": of(pyarrow.timestamp("us", "Mars/Base"), 1, 2, 3, 4),
    "far dates": pyarrow.array([2**31 - 1, -(2**31), 0, 1], pyarrow.int32()).view(pyarrow.date32()),
    "durations": of(pyarrow.duration("ns"), 1, 2, 3, FAR),
    "lists": pyarrow.array([[1], [], None, [2, 3]]),
    "bytes": pyarrow.array([b"\xff", b"a", None, b""]),
}


@pytest.mark.parametrize("kind", TIMES)
def test_odd_columns_are_no_matter_where_nobody_reads_them_and_named_where_somebody_does(tmp_path, kind):
    sound = table.check_file(study(), write(tmp_path, FILE)).fingerprint()
    assert table.check_file(study(), patients(tmp_path, patient_id=TIMES[kind])).fingerprint() == sound
    write(tmp_path, "members = 2\n", "policy.toml")
    said = words("study", "check", write(tmp_path, SMALL, "study.toml"), "--data", patients(tmp_path, dose=TIMES[kind]))
    assert "row 1, column dose: found " in said and "expected a number in mg" in said
    assert read_cells(patients(tmp_path, patient_id=TIMES[kind])).rows == [1, 2, 3, 4]


@pytest.mark.parametrize("column", ["patient_id", "ward"])
def test_text_that_is_no_utf_8_is_named_with_its_row(tmp_path, column):
    raw = pyarrow.array([b"surgery", b"m\xe9decine", b"surgery", None])
    text = pyarrow.StringArray.from_buffers(4, *raw.buffers()[1:], raw.buffers()[0])
    path = patients(tmp_path, **{column: text})
    for read in (read_cells, lambda path: table.check_file(study(), path)):
        with pytest.raises(DataError, match=f"^patients.parquet, row 2, column {column}: the text is not UTF-8"):
            read(path)


def test_categories_that_pandas_wrote_as_codes_are_read(tmp_path):
    wards = pyarrow.array(["surgery", "medicine", "surgery", None]).dictionary_encode()
    ages = pyarrow.array([50, 61, 72, 33]).dictionary_encode()
    found = table.check_file(study(), patients(tmp_path, ward=wards, age=ages))
    assert found.fingerprint() == table.check_file(study(), write(tmp_path, FILE)).fingerprint()


def test_a_small_file_that_stands_for_a_huge_table_is_refused_before_it_is_decoded(tmp_path):
    path, nothing = tmp_path / "bomb.parquet", pyarrow.nulls(10_000_000)
    part = pyarrow.table({"age": nothing, "dose": nothing})
    with parquet.ParquetWriter(path, part.schema) as writer:
        for _ in range(14):
            writer.write_table(part)
    assert path.stat().st_size < 2**20
    with pytest.raises(DataError, match="140,000,000 rows of 2 columns; expected at most 268,435,456 cells in all"):
        table.check_file(study(), path)
    with pytest.raises(DataError, match="expected at most 33,554,432 cells"):
        read_cells(path)


def test_a_long_text_that_all_rows_share_is_made_once_a_batch(tmp_path):
    """Written out, the column would be ten gigabytes."""
    path, count = tmp_path / "long.parquet", 100_000
    texts = pyarrow.DictionaryArray.from_arrays(pyarrow.array([0] * count, pyarrow.int32()), ["x" * 100_000])
    parquet.write_table(pyarrow.table({"note": texts}), path, store_schema=False)
    cells = [cells[0] for _, cells in sheet.read(path, Problems(path)).rows]
    assert len(cells) == count and len({id(cell) for cell in cells}) <= count // 2**14 + 1


# CSV ------------------------------------------------------------------------------------------------------------------


def test_a_line_of_a_gigabyte_is_refused_by_its_beginning(tmp_path):
    path = write(tmp_path, FILE)
    with open(path, "r+b") as file:
        file.truncate(2**30)  # zeros, which take no room on the disk
    with pytest.raises(DataError, match=r"^patients.csv, line 6: more than 16,777,216 characters"):
        table.check_file(study(), path)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("patients.csv.gz", b"\x1f\x8b", r"the ending .gz; expected .csv, .*\(unpack it first\)"),
        ("patients.csv", b"\x1f\x8b\x08", "this is a file compressed with gzip"),
        ("patients.csv", b"\x28\xb5\x2f\xfd", "compressed with zstd"),
        ("patients.csv", b"a," * 100_001, "100,002 columns; expected at most 100,000"),
        ("patients.csv", b"age\n" + b"\xff" * 99, "row 2: the byte 0xff is not UTF-8"),
    ],
)
def test_a_file_that_is_no_table_of_patients_is_told_so(tmp_path, name, content, message):
    with pytest.raises(DataError, match=message):
        table.check_file(study(), write(tmp_path, content, name))


def test_only_the_problems_that_are_shown_are_put_in_words(tmp_path, monkeypatch):
    """A near category is looked for twenty times, not a thousand."""
    asked = []
    monkeypatch.setattr("fedlap.study.table.cells.nearest", lambda text, choices: asked.append(text))
    with pytest.raises(DataError, match="1000 problems"):
        table.check_file(study(), write(tmp_path, FILE + "50,1,surgrey,male,ill\n" * 1000))
    assert len(asked) == 20


# TOML and JSON --------------------------------------------------------------------------------------------------------

TEXTS = {
    "a huge number": ("a = " + "9" * 5000, "a whole number of more than 4300 digits"),
    "a huge number in hex": ("a = 0x" + "f" * 50_000, "a: a whole number of about 60207 digits"),
    "a number beyond 64 bits": ("[b]\na = 9223372036854775808", "a: a whole number of about 20 digits"),
    "deep brackets": ("a = " + "[" * 100_000, f"line 1: brackets within brackets; expected at most {DEEPEST}"),
    "deep tables": ("a = " + "{a=" * 999 + "1" + "}" * 999, "brackets within brackets"),
    "a key of 100,000 names": (".".join("a" * 100_000) + " = 1", "a key of more than 32 names"),
    "a section of 5,000 names": ("[" + " . ".join("a" * 5000) + "]", "a key of more than 32 names"),
    "a long text": ('a = "' + "x" * (LONGEST + 1) + '"', "a: a text of 10,001 characters; expected at most 10,000"),
}


@pytest.mark.parametrize("kind", TEXTS)
def test_hostile_toml_is_refused_in_words_by_every_command_that_reads_it(tmp_path, kind):
    text, message = TEXTS[kind]
    path = write(tmp_path, text, "study.toml")
    for command in (
        ("study", "check", path, "--data", path),
        ("node", path, "--name", "north", "--data", path, "--explain"),
        ("study", "new", tmp_path / "new", "--from", path),
        ("run", path),
        ("sweep", path),
    ):
        assert message in words(*command), command


def test_many_dotted_keys_are_read_in_time_and_a_file_has_a_largest_size(tmp_path):
    assert len(parse_toml("\n".join(f"k{place}.a.b = 1" for place in range(100_000)), "study.toml")) == 100_000
    with pytest.raises(ConfigError, match=f"expected a settings file of at most {MOST_BYTES:,}"):
        study_file = write(tmp_path, "#" * (MOST_BYTES + 1), "study.toml")
        app(["study", "check", str(study_file), "--data", "x"], standalone_mode=False)


def test_brackets_and_dots_in_texts_and_comments_are_none():
    dots = ".".join("a" * 99)
    text = f'a = "{"[" * 99}"\nb = \'{dots}\'  # {"{" * 99} {dots}\nc = """\n{dots}\n"{"[" * 99}\\""" """'
    assert parse_toml(text, "x")["b"] == dots and parse_toml("[" + ".".join("a" * 32) + "]", "x")


def test_a_word_of_the_command_line_that_is_no_value_is_a_word():
    assert plain_value("9" * 5000) == "9" * 5000 and plain_value("[" * 5000) == "[" * 5000 and plain_value("3") == 3


@pytest.mark.parametrize("content", [b"[" * 10**5, b"9" * 5000, b'{"a": 1' + b"0" * 30 + b"}", b'["\\ud800"]', b"\xff"])
def test_hostile_json_is_a_value_error(tmp_path, content):
    with pytest.raises(ValueError, match=r"\S"):
        read_json(write(tmp_path, content, "card.json"))


# Settings of absurd size ----------------------------------------------------------------------------------------------

ABSURD = {
    "epochs": ({"solver": {"epochs": 10**12}}, "epochs is 1000000000000; .*at most 1,000,000"),
    "batch": ({"solver": {"batch": 10**12}}, "batch is .*at most 1,000,000"),
    "rounds": ({"study": {"rounds": 10**15}}, "study.rounds is .*at most 1,000,000"),
    "seed": ({"study": {"seed": 2**40}}, "study.seed is .*from 0 to 4,294,967,295"),
    "minimum_rows": ({"study": {"minimum_rows": 10**12}}, "study.minimum_rows is .*from 2 to 1,000,000"),
    "members": (
        {"study": {"members": [f"m{place}" for place in range(10**5)]}},
        "100,000 names; expected at most 1,000",
    ),
    "ignored": ({"study": {"ignored_columns": ["a"] * 10**5}}, "100,000 names; expected at most 10,000"),
    "units": ({"model": {"name": "mlp", "hidden": [2 * 10**9]}}, "at most 100 layers of 100,000 units"),
    "layers": ({"model": {"name": "mlp", "hidden": [2] * 1000}}, "at most 100 layers"),
    "weights": (
        {"model": {"name": "mlp", "hidden": [10**5, 10**5]}},
        r"the model has 10,000,\d+,\d+ weights; expected at most 134,217,728",
    ),
    "covariance": (
        {"model": {"name": "mlp", "hidden": [10**4]}, "algorithm": {"name": "fedlap_cov", "covariance": "full"}},
        'their full covariance .* numbers .covariance = "diagonal" has fewer.; expected at most',
    ),
    "minimum": ({"columns": {"dose": {"kind": "number", "minimum": -1e300}}}, r"from -1e\+100 to 1e\+100"),
    "categories": (
        {"columns": {"sex": {"kind": "category", "categories": [str(place) for place in range(10**5)]}}},
        "100,000 texts; expected at most 10,000",
    ),
    "columns": ({"columns": {f"c{place}": {} for place in range(10**6)}}, "1,000,004 columns; .*at most 10,000"),
    "a name": ({"target": {"name": "x" * 2000}}, "a name of 2,000 characters; expected at most 1,000"),
    "deadline": ({"network": {"deadline": 1e300}}, "network.deadline is .*at most 31,622,400"),
    "retries": ({"network": {"retries": 10**12}}, "network.retries is .*from 0 to 1,000,000"),
    "port": ({"network": {"address": "host:" + "9" * 5000}}, 'expected "host:port"'),
}


@pytest.mark.parametrize("setting", ABSURD)
def test_an_absurd_setting_of_a_study_is_refused_with_the_limit(setting):
    sections, message = ABSURD[setting]
    with pytest.raises(ConfigError, match=f"^study.toml: .*{message}"):
        study(**{"model": {"name": "logistic"}, **sections})


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("rounds=1000000000000000", "at most 1,000,000"),
        ("epochs=1000000000000", "at most 1,000,000"),
        ("batch=9999999999", "at most 1,000,000"),
        (f"seeds={list(range(2000))}", "2,000 seeds; expected at most 1,000"),
    ],
)
def test_an_absurd_setting_of_an_experiment_is_refused_with_the_limit(tmp_path, setting, message):
    assert message in words("run", "--set", setting, "--output", tmp_path / "results")


@pytest.mark.parametrize("columns", [[1], [["age"]], [["age", {"kind": "number"}]] * 2, 3, "age"])
def test_columns_that_are_no_table_are_refused(columns):
    with pytest.raises(ConfigError, match=r"^study.toml: .*columns"):
        resolve({**study_table(), "columns": columns}, "study.toml")


@pytest.mark.parametrize(
    ("formula", "message"),
    [
        ("y ~ " + " * ".join("abcdefghijklmnopqrstuvw"), "terms; expected at most 10,000"),
        ("y ~ (a + b + c) ** 99", "terms; expected at most 10,000"),
        ("y ~ I(9 ** 9 ** 9 ** 9)", "is computed from numbers alone"),
        ("y ~ I('a' * 999999999)", "is computed from numbers alone"),
        ("y ~ I(a + " + "9" * 4000 + ")", "is no number of a formula"),
        ("y ~ bs(a, df=1000000)", "expected at most 100"),
        ("y ~ poly(a, 1000000)", "expected at most 100"),
        ("y ~ " + "a + " * 3000 + "b", "12,005 characters; expected at most 10,000"),
    ],
)
def test_a_formula_that_would_take_for_ever_is_refused_as_it_is_read(formula, message):
    with pytest.raises(ConfigError, match=message.replace("(", ".")):
        formulas.parse(formula)


def test_a_design_of_too_many_columns_is_refused_before_it_is_made():
    words = {"kind": "category", "categories": [f"c{place}" for place in range(200)]}
    settings = {"formula": "pressure ~ C(ward) : C(sex)", "family": "gaussian"}
    with pytest.raises(ConfigError, match="up to 40,001 coefficients; expected at most 1,000"):
        resolve_regression(
            regression_table(["pressure"], settings, columns={"ward": words, "sex": words}), "study.toml"
        )


# Models ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "content",
    [b"", b"\xff" * 8, struct.pack("<Q", 2) + b"[]", struct.pack("<Q", 3) + b'{"a'],
    ids=["empty", "a header of 2^64 bytes", "a list", "cut off"],
)
def test_arrays_that_are_none_are_said_in_words_though_the_card_knows_them(tmp_path, content):
    folder = save_model(tmp_path)
    card = json.loads((folder / "card.json").read_text())
    (folder / "model.safetensors").write_bytes(content)
    (folder / "card.json").write_text(json.dumps({**card, "sha256": hashlib.sha256(content).hexdigest()}))
    assert "model.safetensors: not a file of arrays" in words("predict", folder, write(tmp_path, FILE))


@pytest.mark.parametrize(
    "change",
    [{"study": 3}, {"standardisation": {"rows": 10**30, "columns": {}}}, {"classes": [[[]]]}, {"format": [2]}],
)
def test_a_card_with_other_values_is_said_in_words(tmp_path, change):
    folder = save_model(tmp_path)
    card = json.loads((folder / "card.json").read_text())
    (folder / "card.json").write_text(json.dumps({**card, **change}))
    with pytest.raises(FedlapError, match=r"card\.json"):
        model.load(folder)
    (folder / "card.json").write_bytes(b'{"format":' + b"[" * 10**5)
    with pytest.raises(DataError, match=r"card\.json: not JSON \(brackets within brackets"):
        model.load(folder)
