"""A study's file: what it may say, what all members share, and the folder that a new one is."""

import json
import os
import re
import stat
import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fedlap.algorithms import ALGORITHMS
from fedlap.cli.study import study_app
from fedlap.errors import ConfigError, DataError
from fedlap.experiments import spec
from fedlap.study.agreement import example, keys, scaffold
from fedlap.study.agreement.contract import Study, resolve
from fedlap.study.agreement.draft import draft_columns
from studies import SMALL, study, table

AGE = {"kind": "number"}
SEX = {"kind": "category", "categories": ["female", "male"]}


def test_a_study_is_read_with_its_defaults_and_its_members_in_order(tmp_path):
    (tmp_path / "study.toml").write_text(SMALL.replace('["north", "south"]', '["south", "north"]'))
    read = Study.read(tmp_path)
    assert [member.name for member in read.members] == ["north", "south"]
    assert read.member("south").public_key == tmp_path / "members" / "south.pub"
    assert (read.rounds, read.seed, read.quorum, read.share_points) == (20, 0, 2, False)
    assert [column.name for column in read.columns] == ["age", "dose", "ward", "sex"]
    assert type(read.method.make_algorithm()).__name__ == "FedLap"
    with pytest.raises(ConfigError, match="unknown member 'nroth'; did you mean 'north'"):
        read.member("nroth")


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"study": {"roundz": 3}}, "unknown key in .study. 'roundz'; did you mean 'rounds'"),
        ({"study": {"members": None}}, "study.members is missing"),
        ({"study": {"members": ["north"]}}, "study.members is .*; expected a list of at least two names"),
        ({"study": {"members": ["north", "../south"]}}, "'../south'; expected a name of letters, digits"),
        ({"study": {"members": ["north", "North"]}}, "differ in more than capital letters"),
        ({"study": {"rounds": 0}}, "study.rounds is 0; expected a whole number above 0, at most 1,000,000"),
        ({"study": {"seed": True}}, "study.seed is True"),
        ({"study": {"test_fraction": 0.9}}, "study.test_fraction is 0.9; expected a number from 0 to 0.5"),
        ({"study": {"minimum_rows": 1}}, "study.minimum_rows is 1; expected a whole number from 2 to 1,000,000"),
        ({"study": {"share_points": "yes"}}, "study.share_points is 'yes'; expected true or false"),
        ({"study": {"ignored_columns": ["age"]}}, "'age' is in study.ignored_columns and also used"),
        ({"columns": {"age": {"kind": "nubmer"}}}, 'columns.age.kind is .*; expected "number" or "category"'),
        ({"columns": {"age": {**AGE, "categories": ["a"]}}}, "unknown key in .columns.age. 'categories'"),
        ({"columns": {"age": {**AGE, "minimum": 9, "maximum": 1}}}, "expected a minimum below the maximum"),
        ({"columns": {"age": {**AGE, "maximum": "old"}}}, "columns.age.maximum is 'old'; expected a number"),
        ({"columns": {"age": {**AGE, "missing": "category"}}}, '"refuse", "drop", "mean" for a number'),
        ({"columns": {"sex": {**SEX, "missing": "mean"}}}, '"refuse", "drop", "category" for a category'),
        ({"columns": {"sex": {**SEX, "missing": "category"}}}, '"missing" is not in its categories'),
        ({"columns": {"sex": {**SEX, "categories": ["a", "a"]}}}, "'a' twice"),
        ({"columns": {"sex": {**SEX, "categories": [0, 1]}}}, 'has 0; expected text in quotation marks, "0"'),
        ({"columns": {"outcome": AGE}}, "'outcome' is the target and in .columns."),
        ({"target": {"classes": ["ill"]}}, "target.classes is .*at least two"),
        ({"model": {"name": "zenke_cnn"}}, "a study's inputs are rows of numbers: logistic or mlp"),
        ({"model": {"bais": True}}, "unknown key in .model. 'bais'"),
        ({"algorithm": {"name": "fedlab"}}, "unknown algorithm.name 'fedlab'; did you mean 'fedlap'"),
        ({"algorithm": {"delta": -1.0}}, "delta is -1.0; expected a number above 0"),
        ({"network": {"address": "localhost"}}, 'network.address is .*; expected "host:port"'),
        ({"network": {"address": "localhost:65536"}}, "network.address is .*; expected a port from 1 to 65535"),
        ({"network": {"address": "localhost:0"}}, "network.address is .*; expected a port from 1 to 65535"),
        ({"network": {"quorum": 3}}, "network.quorum is 3; the study has 2 members"),
        (
            {"network": {"quorum": 1}, "algorithm": {"name": "bcm", "delta": 1.0}},
            "network.quorum is 1; bcm has one round.*expected 2, all members",
        ),
        ({"network": {"deadline": 0}}, "network.deadline is 0; expected a number of seconds above 0"),
        ({"netwrok": {}}, "unknown section 'netwrok'; did you mean 'network'"),
    ],
)
def test_a_wrong_setting_is_named_with_the_file_and_what_was_expected(sections, message):
    with pytest.raises(ConfigError, match=f"^study.toml: .*{message}"):
        study(**sections)


def test_a_file_that_is_absent_or_no_toml_is_an_error_of_words(tmp_path):
    with pytest.raises(ConfigError, match="cannot be read"):
        Study.read(tmp_path / "none.toml")
    (tmp_path / "study.toml").write_text("[study\n")
    with pytest.raises(ConfigError, match="not a TOML file"):
        Study.read(tmp_path)


def test_the_digest_is_of_all_that_members_share_and_of_nothing_else():
    digest = study().digest
    assert study(network={"address": "example.org:1", "quorum": 1, "deadline": 5, "retries": 0}).digest == digest
    assert study(study={"members": ["south", "north"]}).digest == digest
    for sections in (
        {"study": {"rounds": 21}},
        {"study": {"members": ["north", "west"]}},
        {"columns": {"age": {"kind": "number", "unit": "years", "minimum": 0, "maximum": 121}}},
        {"target": {"classes": ["ill", "well"]}},
        {"algorithm": {"delta": 2.0}},
        {"solver": {"epochs": 7}},
    ):
        assert study(**sections).digest != digest, sections
    settings = table()
    settings["columns"] = dict(reversed(settings["columns"].items()))
    assert resolve(settings, "study.toml").digest != digest, "the order of the columns is the order of the inputs"


@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_example_takes_every_algorithm_and_what_members_share_reads_back_as_the_same_study(name):
    arguments = {
        key: value for key, value in spec.resolve(*spec.read_table()).algorithms[name].items() if value is not None
    }
    text = example.example_study(algorithm={"name": name, **arguments}, share_points=True, rounds=3, name='"odd" näme')
    there = resolve(tomllib.loads(text), "study.toml")
    assert there.method.algorithm_name == name
    assert (there.rounds, there.name) == (3, '"odd" näme')
    assert resolve(json.loads(json.dumps(there.shared())), "card.json").digest == there.digest


def test_memory_points_need_the_members_consent():
    method = {"name": "fedlap_func", "tau": 0.1}
    with pytest.raises(ConfigError, match="share_points = true"):
        study(algorithm=method)
    assert study(algorithm=method, study={"share_points": True}).method.make_algorithm().memory == 1
    assert study(algorithm={**method, "memory": 0}).method.make_algorithm().memory == 0


def test_a_new_study_is_complete_and_says_which_file_goes_to_whom(tmp_path):
    result = CliRunner().invoke(study_app, ["new", str(tmp_path / "trial"), "--members", "north, south"])
    assert result.exit_code == 0, result.output
    files = {str(path.relative_to(tmp_path / "trial")) for path in (tmp_path / "trial").rglob("*") if path.is_file()}
    pairs = {f"members/{name}.{ending}" for name in ("north", "south") for ending in ("key", "pub")}
    assert files == {"study.toml", "ca.crt", "ca.key", "server.pem", "server.key", *pairs}
    assert Study.read(tmp_path / "trial").name == "trial"
    assert "north  study.toml, ca.crt, members/north.key" in result.output
    assert "PRIVATE" not in result.output


def test_a_new_study_overwrites_nothing_and_leaves_nothing_half_written(tmp_path, monkeypatch):
    (tmp_path / "trial").mkdir()
    (tmp_path / "trial" / "mine.txt").write_text("mine")
    with pytest.raises(ConfigError, match="exists already"):
        scaffold.new_study(tmp_path / "trial", SMALL)
    assert [path.name for path in (tmp_path / "trial").iterdir()] == ["mine.txt"]

    def fail(folder, name):
        keys.make_member(folder, name)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(scaffold, "make_member", fail)
    with pytest.raises(ConfigError, match=r"cannot be written .No space left"):
        scaffold.new_study(tmp_path / "other", SMALL)
    assert [path.name for path in tmp_path.iterdir()] == ["trial"]


def test_a_study_may_begin_with_a_byte_order_mark(tmp_path):
    (tmp_path / "study.toml").write_bytes(b"\xef\xbb\xbf" + SMALL.encode())
    assert Study.read(tmp_path).rounds == 20


def test_a_draft_names_a_column_that_has_no_name(tmp_path):
    (tmp_path / "file.csv").write_text("age,,outcome\n1,2,yes\n3,4,no\n")
    with pytest.raises(DataError, match=r"file\.csv, row 1: column 2 of the header has no name; expected one"):
        draft_columns(tmp_path / "file.csv")


def test_a_draft_from_a_file_guesses_kinds_and_hides_exact_extremes(tmp_path):
    lines = ["id,age,smoker,stage,ward,height,hospital,outcome"]
    for i in range(30):
        ward, outcome = ["A", "B", ""][i % 3], ["no", "yes"][i % 2]
        lines.append(f"p{i},{41 + 0.5 * i},{i % 2},{i % 3},{ward},1.5,north,{outcome}")
    path = tmp_path / "north.csv"
    path.write_text("\n".join(lines) + "\n")
    columns, target, ignored = draft_columns(path)
    kinds = {column.name: (column.kind, column.missing) for column in columns}
    assert kinds == {
        "age": ("number", "refuse"),
        "smoker": ("category", "refuse"),
        "stage": ("category", "refuse"),
        "ward": ("category", "drop"),
    }
    assert (columns[0].minimum, columns[0].maximum) == (40, 60), "the extremes are 41 and 55.5"
    assert columns[2].categories == ("0", "1", "2")
    assert (target.name, target.classes, ignored) == ("outcome", ("no", "yes"), ("id", "height", "hospital"))

    result = CliRunner().invoke(study_app, ["new", str(tmp_path / "trial"), "--columns-from", str(path)])
    assert result.exit_code == 0 and "DRAFT" in result.output
    result = CliRunner().invoke(study_app, ["check", str(tmp_path / "trial"), "--data", str(path)])
    assert result.exit_code == 0, result.output
    with pytest.raises(ConfigError, match=r"unknown column of north.csv 'outcom'; did you mean 'outcome'"):
        draft_columns(path, "outcom")


def test_private_files_are_their_owners_alone(tmp_path):
    old = os.umask(0)
    try:
        scaffold.new_study(tmp_path / "trial", SMALL)
    finally:
        os.umask(old)
    for path in (tmp_path / "trial").rglob("*.key"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path


def test_the_page_for_data_managers_shows_what_really_happens(tmp_path):
    page = (Path(__file__).parent.parent / "docs/real-federations.md").read_text()
    block = re.search(r"^```toml\n(.*?)^```", page, re.S | re.M).group(1)
    assert [member.name for member in resolve(tomllib.loads(block), "study.toml").members] == ["north", "south", "west"]

    scaffold.new_study(tmp_path / "heart", example.example_study())
    path = example.example_files(tmp_path)["cleveland"]
    arguments = ["check", str(tmp_path / "heart"), "--name", "cleveland", "--data", str(path)]
    printed = CliRunner().invoke(study_app, arguments).output.splitlines()
    assert all(f"    {line}\n" in page for line in printed), printed

    lines = path.read_text().splitlines()
    for row, place, cell in ((17, 0, "6O"), (43, 2, "typicl"), (98, 9, '"1,4"')):
        cells = lines[row - 1].split(",")
        lines[row - 1] = ",".join([*cells[:place], cell, *cells[place + 1 :]])
    path.write_text("\n".join(lines) + "\n")
    result = CliRunner().invoke(study_app, arguments)
    assert result.exit_code == 1
    told = [line for line in result.output.splitlines() if "cleveland.csv" in line]
    assert len(told) == 4 and all(f"    {line}\n" in page for line in told), told
