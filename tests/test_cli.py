"""The command line as a user meets it: real commands in real processes, small ones."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest
import typer
from rich.text import Text

from fedlap.cli import app

SPEC = """
[federation]
dataset = "heart"
[model]
name = "logistic"
[train]
rounds = 3
seeds = [0, 1]
target_accuracy = 0.5
[solver]
name = "adam"
epochs = 1
batch = 32
[algorithms]
fedavg = {}
bcm = { delta = 1.0 }
fedlap_cov = { delta = 1.0 }
"""


def fedlap(*arguments, cwd, timeout=120):
    environment = {**os.environ, "COLUMNS": "120"}
    command = [sys.executable, "-m", "fedlap", *map(str, arguments)]
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=timeout)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    (folder / "small.toml").write_text(SPEC)
    (folder / "grid.toml").write_text(SPEC + "[sweep.every]\nepochs = [1, 2]\n")
    (folder / "wrong.toml").write_text(SPEC.replace("train", "trian"))
    result = fedlap("run", "small.toml", "--output", "out", cwd=folder)
    assert result.returncode == 0, result.stderr
    return folder, result.stdout


def test_run_prints_the_table_and_says_where_it_wrote(finished):
    _, printed = finished
    for word in ("fedavg", "bcm", "fedlap_cov", "accuracy %", "NLL", "rounds to 50 %", "table.md"):
        assert word in printed


def test_run_writes_lines_configuration_table_and_picture(finished):
    folder, _ = finished
    lines = [json.loads(line) for line in (folder / "out/rounds.jsonl").read_text().splitlines()]
    counts = {name: sum(line["algorithm"] == name for line in lines) for name in ("fedavg", "bcm", "fedlap_cov")}
    assert counts == {"fedavg": 6, "bcm": 2, "fedlap_cov": 6}
    assert all(0 < line["accuracy"] < 1 and line["nll"] > 0 for line in lines)
    configuration = json.loads((folder / "out/configuration.json").read_text())
    assert configuration["train"]["rounds"] == 3 and configuration["algorithms"]["fedlap_cov"]["rho"] == "evenly"
    assert "| fedlap_cov | " in (folder / "out/table.md").read_text()
    assert (folder / "out/curves.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    assert not list((folder / "out").rglob("*.part"))


def test_a_second_run_gives_the_same_numbers(finished):
    folder, _ = finished
    fedlap("run", "small.toml", "--output", "again", cwd=folder)
    without_time = lambda path: [
        {k: v for k, v in json.loads(line).items() if k != "seconds"} for line in path.read_text().splitlines()
    ]
    assert without_time(folder / "again/rounds.jsonl") == without_time(folder / "out/rounds.jsonl")


def test_resuming_a_finished_run_changes_nothing(finished):
    folder, _ = finished
    before = (folder / "out/rounds.jsonl").read_text()
    assert fedlap("run", "--resume", "out", cwd=folder).returncode == 0
    assert (folder / "out/rounds.jsonl").read_text() == before


def test_a_killed_run_is_resumed_to_the_same_numbers(finished):
    folder, _ = finished
    command = [sys.executable, "-m", "fedlap", "run", "small.toml", "--output", "killed", "--set", "rounds=40"]
    process = subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 100
    while not list(folder.glob("killed/checkpoints/fedlap_cov-0.npz")) and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert fedlap("run", "--resume", "killed", cwd=folder).returncode == 0
    assert fedlap("run", "small.toml", "--output", "whole", "--set", "rounds=40", cwd=folder).returncode == 0
    numbers = lambda name: [
        (line["algorithm"], line["seed"], line["round"], line["accuracy"], line["nll"])
        for line in map(json.loads, (folder / name / "rounds.jsonl").read_text().splitlines())
    ]
    assert numbers("killed") == numbers("whole")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "nowhere.toml"], "error: nowhere.toml: cannot be read"),
        (["run", "fedlop"], "error: unknown algorithm 'fedlop'; did you mean 'fedlap'?"),
        (["run", "fedlap", "--set", "detla=1"], "error: unknown key 'detla'; did you mean 'delta'?"),
        (["run", "small.toml", "--output", "out"], "error: out: holds results already"),
        (["run", "--resume", "nowhere"], "cannot be resumed"),
        (["run", "--resume", "out", "fedavg"], "error: --resume takes everything from its folder"),
        (["run", "fedlap", "--set", "delta=[0.1, 1.0]"], "delta is (0.1, 1.0); expected a number above 0"),
        (["run", "fedavg", "--output", "small.toml/x"], "error: small.toml/x: cannot be made"),
        (["run", "grid.toml"], "error: grid.toml: has a [sweep], a grid of runs: fedlap sweep grid.toml"),
        (["run", "wrong.toml"], "error: wrong.toml: unknown section 'trian'; did you mean 'train'?"),
        (["data", "verify", "hart"], "error: unknown data set 'hart'"),
        (["run", "fedavg", "--set", "participation=9"], "participation is 9 clients; the federation has 4"),
    ],
)
def test_errors_are_one_line_without_a_traceback(finished, arguments, message):
    folder, _ = finished
    result = fedlap(*arguments, cwd=folder)
    assert result.returncode == 2
    assert message in result.stderr
    assert "Traceback" not in result.stderr


def test_a_file_that_cannot_be_written_is_one_line_too(finished):
    folder, _ = finished
    (folder / "x.jsonl.checkpoints").write_text("a file where a folder is to be")
    result = fedlap("sweep", "grid.toml", "--output", "x.jsonl", cwd=folder)
    assert result.returncode == 2 and "Traceback" not in result.stderr
    assert result.stderr.startswith("error: x.jsonl.checkpoints") and len(result.stderr.splitlines()) == 1


def test_a_run_that_diverges_says_so(finished):
    """In the table, and in lines that any reader of JSON takes."""
    folder, _ = finished
    result = fedlap("run", "small.toml", "fedavg", "--set", "solver.learning_rate=1e300", "--output", "far", cwd=folder)
    assert result.returncode == 0 and "2 of 2 diverged" in result.stdout and "nan" not in result.stdout.lower()
    refuse = lambda word: pytest.fail(f"{word} is no JSON")
    lines = (folder / "far/rounds.jsonl").read_text().splitlines()
    assert {json.loads(line, parse_constant=refuse)["nll"] for line in lines} == {None}
    assert "| fedavg | 2 of 2 diverged | – |" in (folder / "far/table.md").read_text()


def test_a_warning_is_one_plain_line(finished):
    """Of a run that has only finite numbers, and has diverged all the same."""
    folder, _ = finished
    result = fedlap("run", "small.toml", "fedavg", "--set", "solver.learning_rate=1e30", "--output", "huge", cwd=folder)
    assert result.returncode == 0 and "2 of 2 diverged" in result.stdout
    assert "| fedavg | 2 of 2 diverged | – |" in (folder / "huge/table.md").read_text()
    lines = result.stderr.splitlines()
    assert [line[: line.index(" on its")] for line in lines] == [
        f"warning: seed {seed}: FedAvg diverged: from round 1" for seed in (0, 1)
    ]
    assert all(line.endswith("; try a smaller learning rate") for line in lines)
    assert all(json.loads(line)["nll"] > 1e20 for line in (folder / "huge/rounds.jsonl").read_text().splitlines())


def test_a_data_set_that_is_not_here_is_explained(finished, tmp_path):
    folder, _ = finished
    result = fedlap("data", "verify", "mnist", "--data-dir", tmp_path, cwd=folder)
    assert result.returncode == 1 and "missing" in result.stdout


def test_algorithms_shows_equations_and_hyper_parameters(tmp_path):
    printed = fedlap("algorithms", cwd=tmp_path).stdout
    for text in ("fedlap_cov", "delta, rho=evenly, covariance=diagonal", "w_g ← S_g⁻¹ Σ_k v_k"):
        assert text in printed


def test_data_list_and_verify(tmp_path):
    printed = fedlap("data", "list", cwd=tmp_path).stdout
    for text in ("heart", "credit", "mnist", "fashion_mnist", "cifar10", "bundled"):
        assert text in printed
    verified = fedlap("data", "verify", "heart", cwd=tmp_path)
    assert verified.returncode == 0 and verified.stdout.count("ok") >= 4


def parameters(command, path="fedlap"):
    for name, each in getattr(command, "commands", {}).items():
        yield from parameters(each, f"{path} {name}")
    yield from ((f"{path} {parameter.name}", parameter) for parameter in command.params)


def test_help_says_what_every_argument_is():
    """A newer click than typer knows of once lost the texts of all arguments."""
    found = list(parameters(typer.main.get_command(app)))
    assert "fedlap table number" in dict(found)
    assert [name for name, parameter in found if not parameter.help] == []


def test_help_shows_what_it_says():
    """A word in brackets is taken for markup, and lost, unless it is escaped."""
    found = parameters(typer.main.get_command(app))
    assert [
        name
        for name, parameter in found
        if Text.from_markup(parameter.help).plain.count("[") != parameter.help.count("[")
    ] == []
