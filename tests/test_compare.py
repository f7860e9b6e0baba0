"""Results side by side, and what commands say to a program."""

import json
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from typer.testing import CliRunner

import fedlap
from commands import command
from drawn import federation
from fedlap.cli.answer import answering, plain
from fedlap.cli.main import app
from fedlap.errors import DataError
from fedlap.experiments import comparison, results, sweep


def invoke(*words):
    return CliRunner().invoke(app, [str(word) for word in words])


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Two folders of `fedlap run`: FedAvg and FedLap, and FedLap with another delta."""
    folder = tmp_path_factory.mktemp("runs")
    brief = ("--set", "rounds=2", "--set", "seeds=[0, 1]", "--set", "epochs=1", "--jobs", "1", "--json")
    done = invoke("run", "fedavg", "fedlap", *brief, "--output", folder / "a")
    invoke("run", "fedlap", "--set", "delta=0.1", *brief, "--output", folder / "b")
    return folder, done


def rows_of(folder):
    lines = [json.loads(line) for line in (folder / results.RESULTS).read_text().splitlines()]
    return {(line["algorithm"], line["seed"]): line["curves"]["test"] for line in lines}


def test_scores_are_those_of_the_files(runs):
    folder, _ = runs
    rows = comparison.read([folder / "a", folder / "b"])
    assert [(row.run, row.method) for row in rows] == [("a", "fedavg"), ("a", "fedlap"), ("b", "fedlap")]
    assert comparison.differing(rows) == ["delta"]
    for row in rows:
        ends = rows_of(folder / row.run)
        for score in comparison.SCORES:
            values = [np.mean(ends[row.method, seed][score]) for seed in (0, 1)]
            np.testing.assert_allclose(row.score(score), (np.mean(values), np.std(values)), rtol=1e-12)


def test_the_table_has_what_differs(runs):
    folder, _ = runs
    text = comparison.as_text(comparison.read([folder / "a", folder / "b"]))
    assert text.heads[:3] == ["run", "algorithm", "setting"]
    assert [row[2] for row in text.rows] == ["–", "delta 1", "delta 0.1"]
    alone = comparison.as_text(comparison.read([folder / "b"]))
    assert alone.heads[0] == "algorithm" and "setting" not in alone.heads
    shown = invoke("compare", folder / "a", folder / "b", "--plot", folder / "both.png")
    assert shown.exit_code == 0 and "delta 0.1" in shown.output
    assert (folder / "both.png").read_bytes().startswith(b"\x89PNG")


def test_on_a_narrow_screen_both_tables_say_what_a_row_is_of(runs):
    folder, _ = runs
    text = comparison.as_text(comparison.read([folder / "a", folder / "b"]))
    first, second = text.parts()
    assert second.heads == ["run", "algorithm", "setting", "Brier", "ECE", "AUC"]
    assert [row[:3] for row in first.rows] == [row[:3] for row in second.rows] == [row[:3] for row in text.rows]
    shown = command("compare", folder / "a", folder / "b", cwd=folder, columns=70).stdout
    below = shown[shown.index("Brier") :]
    assert below.count("fedavg") == 1 and below.count("fedlap") == 2 and "0.1" in below.split()


def test_a_row_is_the_last_three_rounds_of_one_method_on_all_rows(tmp_path):
    """By hand: four rounds of two seeds; a search's run is none of them, and a changed method is a row of its own."""
    table = {
        "federation": {"dataset": "heart"},
        "model": {"name": "logistic"},
        "train": {"seeds": [0, 1]},
        "algorithms": {"fedlap": {"delta": 1.0}},
    }
    cells = sweep.make("made up", table).final()
    accuracy = [[0.9, 0.1, 0.2, 0.3], [0.0, 0.3, 0.6, 0.9]]
    nll = [[1.0, 0.9, 0.8, 0.7], [9.0, 1.0, 2.0, 6.0]]
    both = [
        results.Result.of(cell, {"test": results.Curve.of(*curve)}, 2.0, classes=2)
        for cell, *curve in zip(cells, accuracy, nll, strict=True)
    ]
    searched = results.Result.of(
        replace(cells[0], held_out=0.2), {"test": both[1].curves["test"], "validation": both[0].curves["test"]}, 2.0, 2
    )
    changed = replace(both[0], revision=both[0].revision + 1)
    file = tmp_path / "by_hand.jsonl"
    file.write_text("".join(each.line() for each in (*both, searched, changed)))
    first, second = comparison.read([file])
    assert first.score("accuracy") == pytest.approx((0.4, 0.2)) and first.score("nll") == pytest.approx((1.9, 1.1))
    assert (first.rounds, len(first.curves), len(second.curves)) == (4, 2, 1)
    text = comparison.as_text([first, second])
    cell = dict(zip(text.heads, text.rows[0], strict=True))
    assert (cell["accuracy %"], cell["NLL"], cell["rounds"], cell["seeds"]) == (
        "40.0 (20.0)",
        "1.900 (1.100)",
        "4",
        "2",
    )
    assert dict(zip(text.heads, text.rows[1], strict=True))["accuracy %"] == "20.0"


def test_without_a_test_set_the_training_rows_are_compared_and_it_is_said(runs, tmp_path):
    folder, _ = runs
    lines = [json.loads(line) for line in (folder / "b" / results.RESULTS).read_text().splitlines()]
    for line in lines:
        line["curves"] = {"train": line["curves"]["test"]}
    untested = tmp_path / "c.jsonl"
    untested.write_text("".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines))
    alone, both = (comparison.as_text(comparison.read(paths)) for paths in ([untested], [folder / "b", untested]))
    assert alone.title.startswith("no test set; on the training rows") and both.title.startswith("test set")
    assert [row[1] for row in both.rows] == ["fedlap", "fedlap (training rows)"] and alone.rows[0][0] == "fedlap"
    answer = json.loads(invoke("compare", untested, "--json").stdout)
    assert [row["scores_on"] for row in answer["rows"]] == ["train"]
    rows = federation(3, overlap=True)
    clients = [rows.of(client) for client in rows.clients]
    history = fedlap.simulate(
        fedlap.FedAvg(), fedlap.Federation.from_arrays(clients, classes=rows.classes), fedlap.logistic(), rounds=1
    )
    history.save(tmp_path / "saved")
    (row,) = comparison.read([tmp_path / "saved"])
    assert not row.tested and row.score("nll") == pytest.approx((history.judged.nll[-1], 0), abs=1e-5)


def test_the_answer_is_alone_on_the_output_whatever_others_print(capfd, tmp_path, monkeypatch):
    with answering(True) as answer:
        subprocess.run([sys.executable, "-c", "print('of a child')"], check=True)
        answer({"found": 1})
    output, errors = capfd.readouterr()
    assert json.loads(output) == {"found": 1} and "of a child" in errors
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "loud_method.py").write_text("print('of a module')\nfrom fedlap import FedAvg as Loud\n")
    brief = ("--set", "rounds=1", "--set", "seeds=[0]", "--set", "epochs=1", "--jobs", "1", "--json")
    done = invoke("run", "loud_method:Loud", *brief, "--output", tmp_path / "loud")
    assert done.exit_code == 0 and "of a module" in done.stderr
    assert [row["method"] for row in json.loads(done.stdout)["rows"]] == ["loud_method:Loud"]


def test_a_score_that_a_file_does_not_have_is_a_dash(runs, tmp_path):
    folder, _ = runs
    older = [json.loads(line) for line in (folder / "b" / results.RESULTS).read_text().splitlines()]
    for line in older:
        line["curves"]["test"] = {name: line["curves"]["test"][name] for name in ("accuracy", "nll")}
    file = tmp_path / "older.jsonl"
    file.write_text("".join(json.dumps(line, separators=(",", ":")) + "\n" for line in older))
    text = comparison.as_text(comparison.read([folder / "b", file]))
    place = text.heads.index("Brier")
    assert text.rows[0][place] != "–" and text.rows[1][place] == "–"


def test_a_saved_history_is_compared_too(tmp_path):
    history = fedlap.simulate(
        fedlap.FedLap(delta=1.0), federation(4), fedlap.logistic(), solver=fedlap.newton(), rounds=2
    )
    history.save(tmp_path / "mine")
    (row,) = comparison.read([tmp_path / "mine"])
    assert row.method.startswith("FedLap(") and row.rounds == 2
    np.testing.assert_allclose(row.score("nll")[0], history.nll.mean(), atol=1e-5)


def test_what_holds_no_results_is_told(tmp_path):
    for path, words in ((tmp_path, "holds no results"), (tmp_path / "x", "there is no such file or folder")):
        with pytest.raises(DataError, match=words):
            comparison.read([path])
    (tmp_path / "empty.jsonl").write_text("")
    with pytest.raises(DataError, match="holds no run on all rows yet"):
        comparison.read([tmp_path / "empty.jsonl"])


def test_a_program_reads_json(runs):
    folder, done = runs
    assert done.exit_code == 0, done.output
    answer = json.loads(done.stdout)
    assert answer["folder"] == str(folder / "a") and [row["method"] for row in answer["rows"]] == ["fedavg", "fedlap"]
    compared = json.loads(invoke("compare", folder / "a", folder / "b", "--json").stdout)
    assert compared["differs"] == ["delta"] and len(compared["rows"][0]["curves"]) == 2
    listed = json.loads(invoke("data", "list", "--json").stdout)
    assert listed["heart"]["here"] == "bundled"
    assert "←" in json.loads(invoke("algorithms", "--json").stdout)["fedavg"]["equations"]


def test_a_regression_answers_in_json(tmp_path):
    done = invoke("fit", "--output", tmp_path / "fit", "--json")
    answer = json.loads(done.stdout)
    names = [row["name"] for row in answer["coefficients"]]
    assert names[0] == "Intercept" and all(isinstance(row["standard_error"], float) for row in answer["coefficients"])
    assert "Written" in done.stderr
    patients = sorted((tmp_path / "fit" / "data").glob("*.csv"))[0]
    said = invoke("predict", tmp_path / "fit" / "model", patients, "--output", tmp_path / "new.csv", "--json")
    found = json.loads(said.stdout)
    assert found["rows"] == len((tmp_path / "new.csv").read_text().splitlines()) - 1


def test_numbers_that_are_none_are_null():
    assert plain({"a": (np.float64("nan"), np.arange(2), float("inf"), "x")}) == {"a": [None, [0, 1], None, "x"]}
