"""Ctrl-C at any moment and a disk that is full: real processes, one plain line, and the way to go on."""

import hashlib
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from fedlap import files
from fedlap import machine as compilation

RUN = """
[federation]
dataset = "heart"
[model]
name = "logistic"
[train]
rounds = 200
seeds = [0, 1]
[solver]
batch = 32
[algorithms]
fedavg = {}
bcm = { delta = 1.0 }
"""
SWEEP = """
[federation]
dataset = "heart"
[model]
name = "mlp"
hidden = [800]
[train]
rounds = 200
seeds = [1, 2]
[solver]
batch = 32
[algorithms]
fedavg = {}
[sweep]
"""
WAYS = {  # the words of a command that writes to `output`, what there is after its first round, and how it goes on
    "run": (
        lambda output: ["run", "run.toml", "--output", output],
        "results.jsonl.checkpoints/*.npz",
        lambda output: ["run", "--resume", output],
    ),
    "sweep": (
        lambda output: ["sweep", "sweep.toml", "--jobs", "2", "--output", f"{output}/results.jsonl"],
        "results.jsonl.checkpoints/*.npz",
        lambda output: ["sweep", "sweep.toml", "--jobs", "2", "--output", f"{output}/results.jsonl"],
    ),
}
PATIENCE = 300  # seconds until something that is waited for must have happened, on the slowest machine
INTERRUPTS = 6  # of each command


def until(happened):
    end = time.monotonic() + PATIENCE
    while not happened():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.005)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with both files, and with compiled programs of its own: what is stopped may leave half of one.

    Whoever runs the tests may have Ctrl-C ignored, which processes would inherit.
    """
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(tmp_path / "programs"))
    (tmp_path / "run.toml").write_text(RUN)
    (tmp_path / "sweep.toml").write_text(SWEEP)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield tmp_path
    signal.signal(signal.SIGINT, before)


def begin(words, folder):
    """`fedlap WORDS` in a process group of its own, as a terminal begins it."""
    command = [sys.executable, "-m", "fedlap", *words]
    return subprocess.Popen(
        command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )


def interrupt(process):
    """Ctrl-C in a terminal: every process of the group gets it."""
    try:
        os.killpg(process.pid, signal.SIGINT)
    except ProcessLookupError:
        pass


def alive(process):
    """Whether any process of its group is left."""
    try:
        os.killpg(process.pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs to see when a process has begun")
@pytest.mark.parametrize("kind", WAYS)
def test_an_interrupt_at_any_moment_is_one_line_and_the_work_goes_on(folder, kind):
    """From the first import to the rounds, once or twice; then what was interrupted finishes."""
    words, after_a_round, goes_on = WAYS[kind]
    draw = random.Random(kind)

    def begun(process):  # its first thread waits for Ctrl-C; before that there is Python alone
        until(lambda: process.poll() is not None or len(os.listdir(f"/proc/{process.pid}/task")) > 1)
        return time.monotonic()

    first = begin(words("first"), folder)
    start = begun(first)
    until(lambda: first.poll() is not None or list(folder.glob(f"first/{after_a_round}")))
    length = 1.2 * (time.monotonic() - start)
    interrupt(first)
    ended = [(first, *first.communicate(timeout=PATIENCE))]
    for number in range(INTERRUPTS - 1):
        process = begin([*words(f"number-{number}"), "--set", "rounds=1000000"], folder)  # it ends by Ctrl-C alone
        begun(process)
        time.sleep(length * (number + draw.random()) / (INTERRUPTS - 1))
        interrupt(process)
        if number % 2:
            time.sleep(0.02 * draw.random())
            interrupt(process)
        ended.append((process, *process.communicate(timeout=PATIENCE)))
    for process, _, errors in ended:
        assert process.returncode == 130, errors
        assert errors.startswith("Interrupted") and len(errors.splitlines()) == 1, errors
        until(lambda process=process: not alive(process))
    assert any("goes on where this stopped" in errors for _, _, errors in ended)
    finished = subprocess.run(
        [sys.executable, "-m", "fedlap", *goes_on("first")], cwd=folder, capture_output=True, text=True
    )
    assert (finished.returncode, finished.stderr) == (0, "")
    assert "fedavg" in finished.stdout and not list(folder.glob("first/**/*.part"))


def fedlap(*words, folder, largest=None):
    """`fedlap WORDS`; with `largest`, no file can grow beyond so many bytes, which is a disk with no more room."""
    limit = f"import resource; resource.setrlimit(resource.RLIMIT_FSIZE, ({largest}, {largest}))\n" if largest else ""
    code = f"{limit}from fedlap.__main__ import main; main()"
    # Half a compiled program of a thread that is still at work when the disk is full would be another test's warning.
    kept = {"JAX_ENABLE_COMPILATION_CACHE": "0"} if largest else {}
    environment = {**os.environ, "COLUMNS": "100", **kept}
    command = [sys.executable, "-c", code, *map(str, words)]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=PATIENCE)


@pytest.mark.parametrize(
    ("file", "largest"), [("curves.png", 30_000), ("results.jsonl", 18_000)], ids=["the picture", "the last lines"]
)
def test_a_full_disk_is_named_and_the_table_is_printed_all_the_same(folder, file, largest):
    (folder / "run.toml").write_text(RUN + "fedprox = { alpha = 0.1 }\nfedadmm = { alpha = 0.1 }\n")
    words = ["run", "run.toml", "--set", "rounds=60", "--jobs", "1", "--output", "out"]
    result = fedlap(*words, folder=folder, largest=largest)
    errors = [line for line in result.stderr.splitlines() if line.startswith("error: ")]
    assert result.returncode == 2 and "Traceback" not in result.stderr, result.stderr
    (error,) = errors
    assert error.startswith(f"error: out/{file}: cannot be written (") and "make room on the disk, then " in error
    assert "accuracy %" in result.stdout and "fedavg  " in result.stdout.split("accuracy %")[1]
    assert not list(folder.glob("out/*.part"))
    finished = fedlap("run", "--resume", "out", folder=folder)
    assert (finished.returncode, finished.stderr) == (0, "") and (folder / "out" / file).exists()


def test_a_full_disk_in_a_sweep_names_the_results_and_the_same_command_goes_on(folder):
    grid = RUN + "[sweep]\nvalidation = 0\n[sweep.fedavg]\nepochs = [1, 2, 3]\n"
    (folder / "grid.toml").write_text(grid.replace("bcm = { delta = 1.0 }", "").replace("200", "100"))
    words = ["sweep", "grid.toml", "--output", "grid.jsonl"]
    result = fedlap(*words, folder=folder, largest=18_000)
    assert result.returncode == 2 and "Traceback" not in result.stderr, result.stderr
    assert "error: grid.jsonl: cannot be written (" in result.stderr
    assert "make room on the disk, then the same command goes on where this stopped" in result.stderr
    kept = (folder / "grid.jsonl").read_text()
    assert kept == "" or kept.endswith("\n")  # a batch is written whole or not at all
    finished = fedlap(*words, folder=folder)
    assert (finished.returncode, finished.stderr) == (0, "")
    assert len((folder / "grid.jsonl").read_text().splitlines()) == 6


def test_whatever_write_fails_the_error_names_the_file(tmp_path):
    """A write that fails does not know of which file it was."""
    with pytest.raises(OSError) as failed, files.replacing(tmp_path / "table.md"):
        raise OSError(28, "No space left on device")
    assert failed.value.filename == str(tmp_path / "table.md")
    with pytest.raises(OSError) as failed:
        files.write(tmp_path / "nowhere" / "table.md", "text")
    assert failed.value.filename == str(tmp_path / "nowhere" / "table.md")


@pytest.fixture
def clone(folder):
    """start.py with an environment that counts as installed; its pip never ends."""
    here = Path(__file__).parents[1]
    for name in ("start.py", "pyproject.toml"):
        shutil.copy(here / name, folder)
    python = folder / ".venv/bin/python"
    python.parent.mkdir(parents=True)
    python.write_text(
        f'#!/bin/sh\ncase "$*" in *pip*) touch pip-began; exec sleep 1000;; esac\nexec {sys.executable} "$@"\n'
    )
    python.chmod(0o755)
    (python.parent / "pip").touch()
    mark = hashlib.sha256((folder / "pyproject.toml").read_bytes()).hexdigest()
    (folder / ".venv/installed[plots]").write_text(f"{mark}[plots]")
    return folder


def start(folder):
    command = [sys.executable, "start.py", "run", "run.toml", "--output", "out"]
    return subprocess.Popen(
        command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )


@pytest.mark.parametrize(
    ("when", "send"),
    [("training", os.killpg), ("training", os.kill), ("setting up", os.killpg)],
    ids=["group", "process", "pip"],
)
def test_start_is_interrupted_with_one_line_too(clone, when, send):
    """By a terminal, which sends it to the whole group, or by its number alone."""
    if when == "setting up":
        (clone / ".venv/installed[plots]").unlink()
    process = start(clone)
    sign = "out/results.jsonl.checkpoints/*.npz" if when == "training" else "pip-began"
    until(lambda: process.poll() is not None or list(clone.glob(sign)))
    send(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130 and errors.startswith("Interrupted; "), errors
    assert len(errors.splitlines()) == 1
    until(lambda: not alive(process))


def in_python(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE)


INTERRUPT_ITSELF = """
import os, signal, time
from fedlap import stopping
{before}
stopping.end_on_interrupt()
{after}
try:
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep({seconds})
    print("went on")
except KeyboardInterrupt:
    print("raised")
"""


@pytest.mark.parametrize(
    ("before", "after", "seconds", "printed", "code"),
    [
        ("", "", 1000, "", 130),
        ("", "stopping.raise_on_interrupt()", 1000, "raised\n", 0),
        ("signal.signal(signal.SIGINT, signal.SIG_IGN)", "stopping.raise_on_interrupt()", 0, "went on\n", 0),
    ],
    ids=["ends", "raised where a command cleans up", "ignored under nohup"],
)
def test_what_an_interrupt_does(folder, before, after, seconds, printed, code):
    result = in_python(INTERRUPT_ITSELF.format(before=before, after=after, seconds=seconds))
    assert (result.stdout, result.returncode) == (printed, code), result.stderr


def test_an_interrupt_after_the_work_changes_nothing(folder):
    """While Python takes itself down, which takes a moment with JAX in it."""
    code = """
import atexit, os, signal, sys, time
atexit.register(lambda: (os.kill(os.getpid(), signal.SIGINT), time.sleep(1)))
from fedlap.__main__ import main
sys.argv = ["fedlap", "--version"]
main()
"""
    result = in_python(code)
    assert (result.returncode, result.stderr) == (0, "")


def test_programs_that_may_be_half_written_go(folder, monkeypatch):
    """JAX does not replace one that is there; one that is older is whole."""
    monkeypatch.setattr(compilation.jax, "config", SimpleNamespace(jax_compilation_cache_dir=str(folder)))
    for name, age in (("old", 100), ("new", 1)):
        (folder / f"{name}-cache").write_text("a program")
        os.utime(folder / f"{name}-cache", (time.time() - age,) * 2)
    compilation.forget_programs(10)
    assert [path.name for path in folder.glob("*-cache")] == ["old-cache"]
    compilation.forget_programs(1000)
    assert list(folder.glob("*-cache")) == []
