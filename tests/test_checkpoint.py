"""Checkpoints: the old one or the new one, never half; and never of another run."""

import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from conftest import FOUR, federation

import fedlap
from fedlap import checkpoint


def simulate(path, rounds=2, resume=False, algorithm=None, data=None, **options):
    return fedlap.simulate(
        algorithm or fedlap.FedLap(delta=1.0),
        data or federation(shape=FOUR),
        fedlap.logistic(),
        rounds=rounds,
        checkpoint=path,
        resume=resume,
        **{"solver": fedlap.adam(epochs=1, batch=4), **options},
    )


@pytest.fixture
def saved(tmp_path):
    path = tmp_path / "run.npz"
    simulate(path)
    return path


@pytest.mark.parametrize("broken", ["savez", "fsync", "replace"])
def test_a_crash_while_writing_leaves_the_old_checkpoint(saved, monkeypatch, broken):
    before = saved.read_bytes()

    def crash(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(np if broken == "savez" else os, broken, crash)
    with pytest.raises(KeyboardInterrupt):
        simulate(saved, rounds=3, resume=True)
    monkeypatch.undo()
    assert saved.read_bytes() == before
    assert len(simulate(saved, rounds=3, resume=True).nll) == 3


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"algorithm": fedlap.FedLap(delta=2.0)}, r"its algorithm is FedLap\(delta=1.0.*this run's is FedLap\(delta=2.0"),
        ({"algorithm": fedlap.FedAvg()}, "its algorithm is"),
        ({"seed": 7}, "its seed is 0, this run's is 7"),
        ({"solver": fedlap.adam(epochs=2, batch=4)}, "its solver is"),
        ({"participation": 2}, "its participation is 1.0, this run's is 2"),
    ],
)
def test_another_run_is_refused_by_name(saved, change, word):
    with pytest.raises(fedlap.DataError, match=f"{saved.name}: a checkpoint of another run: {word}"):
        simulate(saved, rounds=3, resume=True, **change)


def test_other_data_are_refused(saved):
    with pytest.raises(fedlap.DataError, match="its federation is"):
        simulate(saved, rounds=3, resume=True, data=federation(seed=9, shape=FOUR))


@pytest.mark.parametrize("damage", [lambda b: b[:200], lambda b: b"", lambda b: b"PK" + b[5:], lambda b: b[: len(b) // 2]])
def test_a_damaged_file_is_named(saved, damage):
    saved.write_bytes(damage(saved.read_bytes()))
    with pytest.raises(fedlap.DataError, match=r"run.npz: not a readable checkpoint"):
        simulate(saved, resume=True)


def test_a_missing_array_is_named(saved):
    with np.load(saved) as file:
        arrays = dict(file)
    gone = next(name for name in arrays if name.startswith("state"))
    del arrays[gone]
    np.savez(saved, **arrays)
    with pytest.raises(fedlap.DataError, match=r"run.npz: state.* is missing; expected"):
        simulate(saved, resume=True)


def test_no_pickle_is_ever_opened(saved):
    with np.load(saved) as file:
        arrays = dict(file)
    np.savez(saved, **{**arrays, "table": np.array([{"a": 1}], object)})
    with pytest.raises(fedlap.DataError, match="not a readable checkpoint"):
        simulate(saved, resume=True)


def test_nothing_to_resume_from_is_said(tmp_path):
    with pytest.raises(fedlap.DataError, match="no checkpoint to resume from"):
        simulate(tmp_path / "nothing.npz", resume=True)
    with pytest.raises(fedlap.ConfigError, match="resume needs a checkpoint"):
        simulate(None, resume=True)


def test_a_checkpoint_is_the_state_a_table_and_a_few_words(saved):
    with np.load(saved, allow_pickle=False) as file:
        words = json.loads(file["header"].tobytes())
        assert file["table"].shape == (2, 3)
    assert words["format"] == checkpoint.FORMAT and words["seed"] == "0"


SCRIPT = """
import sys, fedlap
sys.path.insert(0, {tests!r})
from test_checkpoint import simulate
simulate({path!r}, rounds=100000)
"""


def test_a_process_killed_at_any_moment_is_resumed_to_the_same_bits(tmp_path):
    path = tmp_path / "run.npz"
    script = SCRIPT.format(tests=os.path.dirname(__file__), path=str(path))
    process = subprocess.Popen([sys.executable, "-c", script])
    deadline = time.monotonic() + 90
    while not path.exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(0.3)
    process.send_signal(signal.SIGKILL)
    process.wait()
    with np.load(path) as file:
        done = len(file["table"])
    resumed, whole = simulate(path, rounds=done + 2, resume=True), simulate(tmp_path / "other.npz", rounds=done + 2)
    assert np.array_equal(resumed.final.w, whole.final.w)
    assert np.array_equal(resumed.nll, whole.nll)
