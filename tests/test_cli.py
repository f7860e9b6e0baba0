"""The command line as a user meets it: real commands in real processes, small ones."""

import json
import os
import re
import resource
import shutil
import signal
import statistics
import subprocess
import sys
import time

import pytest
import typer
from typer.testing import CliRunner

from commands import command
from fedlap import __version__
from fedlap.cli.main import app
from fedlap.errors import ConfigError
from fedlap.experiments import plots, results
from fedlap.experiments import sweep as cells
from fedlap.study.agreement import example

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


def fedlap(*arguments, cwd, timeout=120, columns=120):
    environment = {**os.environ, "COLUMNS": str(columns)}
    command = [sys.executable, "-m", "fedlap", *map(str, arguments)]
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=timeout)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    (folder / "small.toml").write_text(SPEC)
    (folder / "grid.toml").write_text(SPEC + "[sweep.every]\nepochs = [1, 2]\n")
    (folder / "wrong.toml").write_text(SPEC.replace("train", "trian"))
    (folder / "spec").write_text(SPEC)
    (folder / "folder.toml").mkdir()
    (folder / "other").mkdir()
    (folder / "other/configuration.json").write_text('{"train": {}}')
    (folder / "study.toml").write_text(example.example_study(address="localhost:70000"))
    (folder / "bound.toml").write_text(example.example_study())
    result = fedlap("run", "small.toml", "--output", "out", cwd=folder)
    assert result.returncode == 0, result.stderr
    return folder, result.stdout


def test_run_prints_the_table_and_says_where_it_wrote(finished):
    _, printed = finished
    for word in ("fedavg", "bcm", "fedlap_cov", "accuracy %", "NLL", "ECE", "AUC", "rounds to 50 %", "table.md"):
        assert word in printed


def test_run_writes_lines_configuration_table_and_picture(finished):
    folder, _ = finished
    lines = [json.loads(line) for line in (folder / "out/results.jsonl").read_text().splitlines()]
    counts = {(line["algorithm"], line["seed"]): len(line["curves"]["test"]["accuracy"]) for line in lines}
    rounds = {"fedavg": 3, "bcm": 1, "fedlap_cov": 3}
    assert counts == {(name, seed): count for name, count in rounds.items() for seed in (0, 1)}
    for curve in (line["curves"]["test"] for line in lines):
        assert all(0 < value < 1 for value in curve["accuracy"]) and all(value > 0 for value in curve["nll"])
    configuration = json.loads((folder / "out/configuration.json").read_text())
    assert configuration["train"]["rounds"] == 3 and configuration["algorithms"]["fedlap_cov"]["rho"] == "evenly"
    assert "| fedlap_cov | " in (folder / "out/table.md").read_text()
    assert (folder / "out/curves.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    assert not list((folder / "out").rglob("*.part")) and not list((folder / "out").rglob("*.npz"))


def curves(folder):
    """What came out of each run, round by round."""
    return {(each.algorithm, each.seed): each.curves for each in results.load(folder / "results.jsonl")}


def test_a_second_run_gives_the_same_numbers(finished):
    folder, _ = finished
    fedlap("run", "small.toml", "--output", "again", cwd=folder)
    assert curves(folder / "again") == curves(folder / "out")


def test_resuming_a_finished_run_changes_nothing(finished):
    folder, _ = finished
    before = [(folder / "out" / name).read_bytes() for name in ("results.jsonl", "table.md", "configuration.json")]
    assert fedlap("run", "--resume", "out", cwd=folder).returncode == 0
    assert before == [
        (folder / "out" / name).read_bytes() for name in ("results.jsonl", "table.md", "configuration.json")
    ]


def test_the_table_is_made_of_the_file_of_results(finished, tmp_path):
    """Nothing is remembered from before: a number that is changed there is the number in the table."""
    folder, _ = finished
    shutil.copytree(folder / "out", tmp_path / "copy")
    lines = [json.loads(line) for line in (tmp_path / "copy/results.jsonl").read_text().splitlines()]
    for line in lines:
        if line["algorithm"] == "bcm":
            line["curves"]["test"] = {"accuracy": [0.123], "nll": [0.456]}
    (tmp_path / "copy/results.jsonl").write_text(
        "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines)
    )
    printed = fedlap("run", "--resume", "copy", cwd=tmp_path).stdout
    assert (
        "12.3 (0.0)" in printed
        and "| bcm | 12.3 (0.0) | 0.456 (0.000) | – | – | – |" in (tmp_path / "copy/table.md").read_text()
    )


def test_a_killed_run_is_resumed_to_the_same_numbers(finished):
    folder, _ = finished
    command = [sys.executable, "-m", "fedlap", "run", "small.toml", "--output", "killed", "--set", "rounds=400"]
    process = subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 100
    while not list(folder.glob("killed/*.checkpoints/*.npz")) and time.monotonic() < deadline:
        time.sleep(0.001)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL and len(results.load(folder / "killed/results.jsonl")) < 6
    assert fedlap("run", "--resume", "killed", cwd=folder).returncode == 0
    assert fedlap("run", "small.toml", "--output", "whole", "--set", "rounds=400", cwd=folder).returncode == 0
    assert curves(folder / "killed") == curves(folder / "whole") and len(curves(folder / "whole")) == 6
    assert not list(folder.glob("killed/*.checkpoints"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "nowhere.toml"], "error: nowhere.toml: cannot be read"),
        (["run", "fedlapp"], "error: unknown algorithm 'fedlapp'; did you mean 'fedlap'?"),
        (["run", "fedlap", "--set", "detla=1"], "error: unknown key 'detla'; did you mean 'delta'?"),
        (["run", "small.toml", "--output", "out"], "error: out: holds results already"),
        (["run", "--resume", "nowhere"], "error: nowhere: cannot be resumed, there is no such folder; expected a res"),
        (
            ["run", "--resume", "folder.toml"],
            "error: folder.toml: cannot be resumed, it has no configuration.json; e",
        ),
        (["run", "--resume", "other"], "error: other/configuration.json: cannot be resumed (KeyError: 'fedlap'); exp"),
        (["run", "folder.toml"], "error: folder.toml: is a folder; expected a TOML file"),
        (["run", "folder.toml/"], "error: folder.toml: is a folder; expected a TOML file"),
        (["run", "other"], "error: other: is a folder; expected a settings file, NAME.toml, or some of fedavg"),
        (["run", "spec"], "error: spec: its name does not end in .toml; expected a settings file, NAME.toml, or some"),
        (["sweep", "other"], "error: other: is a folder; expected a TOML file"),
        (
            ["server", "study.toml"],
            "error: study.toml: network.address is 'localhost:70000'; expected a port from 1",
        ),
        (["server", "bound.toml", "--bind", "127.0.0.1:70000"], "error: --bind is '127.0.0.1:70000'; expected a host"),
        (["study", "new", "st", "--address", "a:65536"], "error: --address is 'a:65536'; expected a port from 1 to 6"),
        (["run", "--resume", "out", "fedavg"], "error: --resume takes everything from its folder"),
        (["run", "fedlap", "--set", "delta=[0.1, 1.0]"], "delta is (0.1, 1.0); expected a number above 0"),
        (["run", "fedavg", "--output", "small.toml/x"], "error: small.toml/x: cannot be made"),
        (["run", "wrong.toml"], "error: wrong.toml: unknown section 'trian'; did you mean 'train'?"),
        (["data", "verify", "hart"], "error: unknown data set 'hart'"),
        (["run", "fedavg", "--set", "participation=9"], "participation is 9 clients; the federation has 4"),
    ],
)
def test_errors_are_one_line_without_a_traceback(finished, arguments, message):
    folder, _ = finished
    result = command(*arguments, cwd=folder)
    assert result.returncode == 2
    assert message in result.stderr and len(result.stderr.splitlines()) == 1
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize("arguments", [["run", "nowhere.toml"], ["data", "verify", "hart"], ["server", "study.toml"]])
def test_an_error_is_the_only_line_of_a_process(finished, arguments):
    """Nothing is added by libraries as they are imported, or by what ends with it."""
    folder, _ = finished
    result = fedlap(*arguments, cwd=folder)
    assert result.returncode == 2
    assert result.stderr.startswith("error: ") and len(result.stderr.splitlines()) == 1


def test_a_byte_order_mark_is_read(finished):
    """Some editors write one."""
    folder, _ = finished
    for name in ("small", "grid"):
        (folder / f"{name}-mark.toml").write_bytes(b"\xef\xbb\xbf" + (folder / f"{name}.toml").read_bytes())
    for name in ("small", "grid"):
        marked, plain = (cells.read(folder / f"{name}{mark}.toml") for mark in ("-mark", ""))
        assert (marked.table, marked.axes) == (plain.table, plain.axes)


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
    lines = (folder / "far/results.jsonl").read_text().splitlines()
    found = [json.loads(line, parse_constant=refuse) for line in lines]
    assert [line["diverged"] for line in found] == [True, True]
    assert {nll for line in found for nll in line["curves"]["test"]["nll"]} == {None}
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
    assert all(min(each["test"].nll) > 1e20 for each in curves(folder / "huge").values())


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
    assert "fedlap sweep spec" in dict(found)
    assert [name for name, parameter in found if not parameter.help] == []


def commands(command, path=()):
    yield path
    for name, each in getattr(command, "commands", {}).items():
        yield from commands(each, (*path, name))


HELP = [[*path, "--help"] for path in commands(typer.main.get_command(app))]


def shown(*words, columns=100):
    """What a command prints, in this process."""
    result = CliRunner().invoke(app, words, env={"COLUMNS": str(columns)})
    assert result.exit_code == 0, result.output
    return result.output


@pytest.mark.parametrize("words", HELP, ids=" ".join)
def test_help_shows_what_it_says(words):
    """Words in brackets once were markup, and lost; a command's sentence is not cut where the screen ends."""
    printed = " ".join(shown(*words).split())
    assert "\\" not in printed and "..." not in printed.replace("]...", "")
    command = typer.main.get_command(app)
    for name in words[:-1]:
        command = command.commands[name]
    for parameter in command.params:
        assert parameter.help in printed
    for each in getattr(command, "commands", {}).values():
        assert (each.get_short_help_str(1000) in printed) == (not each.hidden)


def test_help_and_version_import_nothing_slow():
    code = f"""
import sys
from fedlap.cli.main import app
for words in {[*HELP, ["--version"]]}:
    app(words, standalone_mode=False)
slow = ("jax", "numpy", "optax", "matplotlib", "flwr", "rich")
print([name for name in slow if name in sys.modules])
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert result.stdout.splitlines()[-2:] == [f"fedlap {__version__}", "[]"], result.stderr


def processor_time(*words):
    """Seconds that Python and what follows take of a processor, whatever else the machine does."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, *words], check=True, capture_output=True, timeout=120)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def test_help_takes_little_more_than_what_it_is_printed_with():
    """At most twice a bare import of both libraries: it is 1.3 times, so a busy machine has half of that to err by.

    Bare imports are among the others, so that both meet the same machine.
    """
    bare, help = [], {tuple(words): [] for words in [*HELP, ["--version"]]}
    for _ in range(3):
        for number, (words, times) in enumerate(help.items()):
            if number % 4 == 0:
                bare.append(processor_time("-c", "import typer, rich"))
            times.append(processor_time("-m", "fedlap", *words))
    ratios = {words: statistics.median(times) / statistics.median(bare) for words, times in help.items()}
    assert max(ratios.values()) <= 2, ratios


def numbers(text):
    """All words that have a digit."""
    return {word for word in re.split(r"[\s│┃]+", text) if re.search(r"\d", word)}


def test_no_number_is_cut_at_40_columns(finished):
    folder, _ = finished
    narrow, wide = (fedlap("run", "--resume", "out", cwd=folder, columns=columns).stdout for columns in (40, 120))
    table = (folder / "out/table.md").read_text()
    assert numbers(table.replace("|", " ")) <= numbers(narrow) and "…" not in narrow
    lengths = [len(line) for line in narrow.splitlines() if not line.startswith("Written")]
    assert max(lengths) <= 40 < max(map(len, wide.splitlines()))
    assert "fedlap_cov" in narrow and "rounds to 50 %" in narrow


@pytest.mark.parametrize("words", [("data", "list"), ("algorithms",)], ids=" ".join)
def test_no_number_of_other_tables_is_cut_at_40_columns(words):
    narrow, wide = (shown(*words, columns=columns) for columns in (40, 400))
    assert numbers(wide) <= numbers(narrow) and "…" not in narrow.replace(" … ", "")
    assert max(map(len, narrow.splitlines())) <= 40


def test_one_seed_has_no_deviation(finished):
    folder, printed = finished
    assert "mean (standard deviation) over seeds" in printed
    result = fedlap("run", "small.toml", "bcm", "--set", "seeds=[7]", "--output", "one", cwd=folder)
    assert "one seed, last three rounds" in result.stdout and "(" not in result.stdout.split("last three rounds")[1]
    last = (folder / "one/table.md").read_text().splitlines()[-1]
    assert re.fullmatch(r"\| bcm \| \d+\.\d \| (\d\.\d{3} \| ){4}1 \| 1 \| .*", last)


def test_a_sweep_ends_with_its_winners_and_so_does_the_same_command_again(finished):
    folder, _ = finished
    words = ["sweep", "grid.toml", "bcm", "fedavg", "--output", "winners.jsonl"]
    first, again = (fedlap(*words, cwd=folder).stdout for _ in range(2))
    table = first[first.index("test set: ") :]
    assert again.endswith(table) and "0 runs in " in again and "0 runs in " not in first
    assert "chosen by accuracy on 20 % of each client's rows, held out" in " ".join(table.split())
    lines = [line.split("  ") for line in table.splitlines() if re.match(" (fedavg|bcm) ", line)]
    assert [line[0].strip() for line in lines] == ["bcm", "fedavg"]
    assert all(re.search(r"epochs [12] .* \d+\.\d \(\d\.\d\) .* 2 +0 of 8", "  ".join(line)) for line in lines)


def test_one_command_runs_a_file_with_a_sweep_and_one_without(finished):
    """And the other into one file: the same runs, the same table."""
    folder, _ = finished
    words = ["grid.toml", "bcm", "fedavg", "--only", "epochs=2", "--jobs", "1"]
    grid = fedlap("run", *words, "--output", "grid-folder", cwd=folder)
    assert (grid.returncode, grid.stderr) == (0, "") and "chosen from" in grid.stdout
    assert {path.name for path in (folder / "grid-folder").iterdir()} == {
        path.name for path in (folder / "out").iterdir()
    }
    assert "| bcm | epochs 2 |" in (folder / "grid-folder/table.md").read_text()
    again = fedlap("run", "--resume", "grid-folder", cwd=folder)
    assert "0 runs in " in again.stdout and again.stdout.split("test set: ")[1] == grid.stdout.split("test set: ")[1]
    file = fedlap("sweep", "small.toml", "--output", "small.jsonl", cwd=folder)
    assert file.returncode == 0 and "rounds to 50 %" in file.stdout
    found = {(each.algorithm, each.seed): each.curves for each in results.load(folder / "small.jsonl")}
    assert found == curves(folder / "out")


def test_without_the_plotting_library_all_but_the_picture_is_there(tmp_path, monkeypatch):
    monkeypatch.setattr(plots, "can_draw", lambda: False)
    folder = tmp_path / "results"
    short = ["fedavg", "--set", "rounds=1", "--set", "seeds=[0]"]
    result = CliRunner().invoke(app, ["run", *short, "--output", str(folder)])
    assert result.exit_code == 0, result.output
    assert "curves.png is not drawn" in result.output and "fedlap[plots]" in result.output
    assert {path.name for path in folder.iterdir()} == {"configuration.json", "results.jsonl", "table.md"}
    with pytest.raises(ConfigError, match="pictures need matplotlib"):
        plots.pyplot()
