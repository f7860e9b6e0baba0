"""The processes of a sweep: their cores, and what happens when one is killed or fails."""

import contextlib
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from fedlap.errors import FedlapError
from fedlap.experiments import results
from fedlap.experiments import sweep as cells
from fedlap.experiments import workers as processes
from fedlap.experiments.runner import Advanced, Planned, carry_out
from fedlap.machine import cores
from sweeping import NETWORK, run


def session_members(leader):
    """The processes of a session, from /proc; the dead that nobody has waited for do not count."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, _, _, session = path.read_text().rpartition(")")[2].split()[:4]
            if int(session) == leader and state != "Z":
                found.append(path.parent.name)
    return found


def test_a_sweep_goes_on_after_a_kill(tmp_path):
    """A real process with two workers, killed by force when its first line is there; they go with it."""
    spec, path = tmp_path / "tiny.toml", tmp_path / "tiny.jsonl"
    spec.write_text(
        '[federation]\ndataset = "heart"\n[model]\nname = "mlp"\nhidden = [800]\n[train]\nrounds = 2\nseeds = [1]\n'
        "[solver]\nbatch = 64\n[algorithms]\nfedavg = {}\n"
        '[sweep]\nfinals = "winners"\n[sweep.every]\nepochs = [1]\nlearning_rate = [1e-4, 1e-3, 3e-3, 1e-2]\n'
    )
    command = [
        sys.executable,
        "-c",
        "from fedlap.cli.main import main; main()",
        "sweep",
        str(spec),
        "--output",
        str(path),
    ]
    process = subprocess.Popen(
        [*command, "--jobs", "2"],
        start_new_session=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "JAX_ENABLE_X64": "1"},  # as in this process, so that its results count
    )
    try:
        deadline, most = time.monotonic() + 240, 0
        while not (path.exists() and b"\n" in path.read_bytes()):
            assert process.poll() is None and time.monotonic() < deadline
            most = max(most, len(session_members(process.pid)))  # one that finds nothing left to do ends early
            time.sleep(0.02)
        assert most >= 4  # two workers, and what tracks their resources
        process.kill()
        process.wait()
        while session_members(process.pid):
            assert time.monotonic() < deadline
            time.sleep(0.05)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    before = path.read_bytes()
    kept = before[: before.rfind(b"\n") + 1]
    sweep = cells.read(spec)
    events, _ = run(sweep, path, jobs=1)
    assert path.read_bytes().startswith(kept)
    lines = [json.loads(line)["cell"] for line in path.read_text().splitlines()]
    assert len(lines) == len(set(lines)) and set(lines) >= {cell.digest for cell in sweep.search()}
    assert [event.workers for event in events if isinstance(event, Planned)][-1] == 1
    assert any(isinstance(event, Advanced) for event in events)
    done = results.load(path)
    assert {result.precision for result in done} == {"float64"}  # of the workers of this process, too
    assert 1 <= len([result for result in done if result.held_out == 0]) <= 2  # the winner of each way, no other
    assert not list(tmp_path.glob("*.checkpoints"))


def cores_seen(item, tell):
    return cores()


@pytest.mark.parametrize(
    ("mine", "workers", "dealt"),
    [([4, 6, 7, 9], 2, [[4, 6], [7, 9]]), ([4, 6, 7], 2, [[4], [6]]), ([4, 6], 3, [[4], [6], [4]])],
)
def test_cores_are_dealt_to_processes(mine, workers, dealt):
    assert processes.deal(mine, workers) == dealt


def test_a_process_that_is_alone_has_all_cores():
    assert list(processes.on_processes(1, cores_seen, ["a run"])) == [cores()]


def test_a_run_left_over_has_as_many_cores_as_beside_the_others(tmp_path):
    """Its last bits depend on how many it has."""
    path = tmp_path / "x.jsonl"
    table = {**NETWORK, "algorithms": {"fedavg": {}}, "train": {"rounds": 1, "seeds": [1, 2]}, "sweep": {}}
    _, whole = run(cells.make("tiny", table), path)
    path.write_text(whole[0].line())
    _, left_over = run(cells.make("tiny", table), path)
    assert left_over == [replace(whole[1], seconds=left_over[0].seconds)]
    assert {result.cores for result in whole} == {max(len(cores()) // 2, 1)}
    _, alone = run(cells.make("tiny", {**table, "train": {"rounds": 1, "seeds": [1]}}), tmp_path / "y.jsonl")
    assert [result.cores for result in alone] == [len(cores())]


def test_a_worker_that_is_killed_is_reported(tmp_path):
    table = {**NETWORK, "algorithms": {"fedavg": {}}, "train": {"rounds": 100_000, "seeds": [1]}, "sweep": {}}
    with pytest.raises(FedlapError, match=r"ended from outside.*--jobs 1"):
        for event in carry_out(cells.make("tiny", table), tmp_path / "x.jsonl", jobs=1):
            if isinstance(event, Advanced):
                (worker,) = multiprocessing.active_children()
                worker.kill()


def fails_or_finishes(item, tell):
    tell(item)
    if item == "fails":
        raise KeyError(item)
    return item


def test_what_fails_in_a_process_is_told_and_none_is_left():
    with pytest.raises(RuntimeError, match=r"in a process of the sweep:[\s\S]*KeyError: 'fails'"):
        list(processes.on_processes(1, fails_or_finishes, ["finishes", "fails"]))
    assert multiprocessing.active_children() == []


def test_what_threads_tell_is_heard_and_a_failure_ends_all_of_them():
    def work(item, tell):
        tell(item)
        if item == "fails":
            raise KeyError(item)
        return item.upper()

    before = threading.active_count()
    assert sorted(processes.on_threads(2, work, ["a", "b", "c"])) == ["A", "B", "C", "a", "b", "c"]
    with pytest.raises(KeyError, match="fails"):
        list(processes.on_threads(2, work, ["a", "fails", *"bcdefg"]))
    assert threading.active_count() == before


def test_threads_that_nobody_listens_to_stop():
    """At the next thing that they have to tell, or at the end of an item."""
    told = []

    def work(item, tell):
        for number in range(1_000_000):
            tell((item, number))
            told.append(number)
            time.sleep(0.1)

    before = threading.active_count()
    steps = processes.on_threads(2, work, ["a", "b", "c"])
    next(steps)
    assert threading.active_count() == before + 2
    steps.close()
    assert threading.active_count() == before and len(told) < 100
