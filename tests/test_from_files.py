"""Data sets of CSV files in a settings file."""

import json

import numpy as np
import pytest
from typer.testing import CliRunner

import fedlap
from fedlap.cli.main import app
from fedlap.errors import ConfigError, DataError
from fedlap.experiments import sweep

NORTH = "age,sex,outcome\n61,male,ill\n48,female,well\n70,male,ill\n52,female,well\n66,male,well\n39,female,ill\n"
SOUTH = "outcome,sex,age\nill,female,55.5\nwell,male,39\nill,male,81\nwell,female,44\n"
SPEC = """
[federation]
files = { north = "data/north.csv", south = "data/south.csv" }
target = "outcome"
test = "data/test.csv"
[model]
name = "logistic"
[solver]
name = "newton"
[train]
rounds = 2
seeds = [0]
[algorithms.fedlap]
delta = 1.0
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "data").mkdir()
    for name, text in (("north", NORTH), ("south", SOUTH), ("test", SOUTH)):
        (tmp_path / "data" / f"{name}.csv").write_text(text)
    (tmp_path / "study.toml").write_text(SPEC)
    return tmp_path


def load(folder, **options):
    named = {name: folder / "data" / f"{name}.csv" for name in ("north", "south")}
    return fedlap.data.load("files", files=named, target="outcome", **options)


def test_the_rows_are_those_of_the_files(folder):
    federation = load(folder, test=str(folder / "data" / "test.csv"))
    assert federation.clients == ("north", "south") and federation.features == ("age", "sex=male")
    assert federation.class_names == ("ill", "well")
    np.testing.assert_array_equal(federation.of("south")[0], [[55.5, 0], [39, 1], [81, 1], [44, 0]])
    np.testing.assert_array_equal(federation.of("south")[1], [0, 1, 0, 1])
    np.testing.assert_array_equal(federation.test_inputs, federation.of("south")[0])


@pytest.mark.parametrize(
    ("right", "wrong", "message"),
    [
        ('"outcome"', '"outcom"', "client 'north' has no column 'outcom'"),
        ("rounds = 2", "rounds = 2\nparticipation = 9", "participation is 9 clients"),
    ],
)
def test_a_run_that_is_refused_leaves_its_folder_free(folder, right, wrong, message):
    """What else was in the folder stays; without that, the folder goes too."""
    run = lambda: CliRunner().invoke(app, ["run", str(folder / "study.toml"), "--output", str(folder / "out")])
    (folder / "study.toml").write_text(SPEC.replace(right, wrong))
    refused = run()
    assert message in str(refused.exception) and not (folder / "out").exists()
    (folder / "out").mkdir()
    (folder / "out" / "notes.txt").write_text("mine")
    run()
    assert [path.name for path in (folder / "out").iterdir()] == ["notes.txt"]
    (folder / "study.toml").write_text(SPEC)
    assert run().exit_code == 0 and len((folder / "out" / "results.jsonl").read_text().splitlines()) == 1
    kept = {path.name for path in (folder / "out").iterdir()}
    assert "holds results already" in str(run().exception)
    assert {path.name for path in (folder / "out").iterdir()} == kept


def test_a_part_of_each_sites_rows_is_held_out(folder):
    federation = load(folder, test=0.5, seed=3)
    assert federation.sizes.tolist() == [3, 2] and len(federation.test_labels) == 5


def test_a_settings_file_names_files_beside_it(folder, monkeypatch, tmp_path_factory):
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
    done = CliRunner().invoke(app, ["run", str(folder / "study.toml"), "--output", str(folder / "out"), "--json"])
    assert done.exit_code == 0, done.output
    (row,) = json.loads(done.stdout)["rows"]
    assert row["settings"]["federation.dataset"] == "files" and row["rounds"] == 2
    again = CliRunner().invoke(app, ["run", "--resume", str(folder / "out")])
    assert again.exit_code == 0, again.output


@pytest.mark.parametrize("test", ["", 'test = "data/test.csv"'])
def test_labels_are_text_also_where_rows_are_held_out_or_watched(folder, test):
    """Without a test set the clients' own rows are looked at; a search looks at the test set, too."""
    sweep = "[sweep]\nvalidation = 0.5\nsearch_seeds = [1]\n[sweep.fedlap]\ndelta = [0.1, 1.0]\n"
    file = folder / "sweep.toml"
    file.write_text(SPEC.replace('test = "data/test.csv"', test).replace("delta = 1.0\n", "") + sweep)
    done = CliRunner().invoke(app, ["run", str(file), "--output", str(folder / "out"), "--jobs", "1"])
    assert done.exit_code == 0, done.output
    lines = [json.loads(line) for line in (folder / "out" / "results.jsonl").read_text().splitlines()]
    searched = [line for line in lines if line["held_out"]]
    assert len(searched) == 2 and all(("test" in line["curves"]) == bool(test) for line in searched)


def test_a_run_is_known_by_what_is_in_its_files(folder):
    digest = lambda file="study.toml": sweep.read(folder / file).final()[0].digest
    before = digest()
    (folder / "data").rename(folder / "moved")
    (folder / "again.toml").write_text(SPEC.replace("data/", "moved/"))
    assert digest("again.toml") == before
    (folder / "moved" / "south.csv").write_text(SOUTH.replace("44", "45"))
    assert digest("again.toml") != before


@pytest.mark.parametrize(
    "old, new, words",
    [
        ("81", "eighty", ["south.csv, row 4, column age: found 'eighty'; expected a number"]),
        ("well,male,39", "well,,39", ["south.csv, row 3, column sex: the cell is empty", 'missing = "drop"']),
        ("outcome,sex,age", "outcome,sex,sex", ["two columns of this name"]),
        ("outcome,sex,age", "outcome,sex,agee", ["age", "south"]),
        ("outcome,sex,age", "result,sex,age", ["outcome", "south"]),
        ("ill,male,81", "ill,male", ["south.csv, row 4"]),
    ],
)
def test_what_is_wrong_is_told_with_file_row_and_column(folder, old, new, words):
    (folder / "data" / "south.csv").write_text(SOUTH.replace(old, new))
    with pytest.raises((DataError, ConfigError)) as raised:
        load(folder, test=0.5)
    assert all(word in str(raised.value) for word in words), raised.value


def test_rows_with_a_gap_are_left_out_if_one_says_so(folder):
    (folder / "data" / "south.csv").write_text(SOUTH.replace("well,male,39", "well,,39"))
    with pytest.warns(UserWarning, match="south.csv: 1 of 4 rows have an empty cell and are left out"):
        federation = load(folder, missing="drop", test=0.5)
    assert federation.sizes.sum() + len(federation.test_labels) == 9


def test_numbers_are_one_label_however_a_file_writes_them(folder):
    """A program that has seen an empty cell writes 1 as 1.0."""
    for name, text, end in (("north", NORTH, ""), ("south", SOUTH, ".0")):
        (folder / "data" / f"{name}.csv").write_text(text.replace("ill", f"1{end}").replace("well", f"0{end}"))
    federation = load(folder)
    assert federation.classes == 2 and federation.of("south")[1].tolist() == [1, 0, 1, 0]
    (folder / "data" / "south.csv").write_text(SOUTH.replace("ill", "1.37").replace("well", "0"))
    with pytest.raises(DataError, match=r"client 'south', row 0: label is 1\.37; expected a whole number"):
        load(folder)


def test_a_file_that_is_not_there_is_named(folder):
    (folder / "data" / "south.csv").unlink()
    with pytest.raises(ConfigError, match=r"federation.files: .*south.csv: there is no such file"):
        sweep.read(folder / "study.toml")
