"""A checkpoint is the whole state of a run, in a file that is there or not there, and trusts nobody."""

import json
import os
import signal
import subprocess
import sys
import time
import zipfile

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fedlap
from closeness import same_bits
from drawn import federation
from fedlap.run import checkpoint
from fedlap.run.simulation import histories
from methods import eventful, finish, simulation


@pytest.fixture
def saved(tmp_path):
    """A checkpoint after two rounds, and where it is."""
    path = tmp_path / "deep" / "run.npz"
    history = finish(eventful(), 2, checkpoint=path)
    return path, history


def resume(path, rounds=3, **options):
    return finish(eventful(**options), rounds, checkpoint=path, resume=True)


def rewrite(path, change):
    """The same file with its arrays changed, an honest archive still."""
    with np.load(path) as file:
        arrays = dict(file)
    change(arrays)
    np.savez(path.with_suffix(".new.npz"), **arrays)
    os.replace(path.with_suffix(".new.npz"), path)


def header(arrays):
    return json.loads(arrays["header"].tobytes())


def test_a_checkpoint_is_exactly_the_state_and_the_table(saved):
    path, history = saved
    with np.load(path, allow_pickle=False) as file:
        arrays = dict(file)
    leaves = jax.tree.leaves(history.state)
    assert len(arrays) == len(leaves) + 2
    assert sorted(a.nbytes for n, a in arrays.items() if n.startswith("state")) == sorted(
        np.asarray(leaf).nbytes for leaf in leaves
    )
    np.testing.assert_array_equal(arrays["table"], np.stack([history.seconds, *history.test], axis=1))
    state, table = checkpoint.load(path, eventful().init(), np.zeros((0, 6)), eventful().describe())
    assert same_bits(state, history.state) and type(state.round) is int and state.round == 2
    np.testing.assert_array_equal(table, arrays["table"])


def test_only_finished_rounds_are_on_disk_and_nothing_else_is_left(saved):
    path, _ = saved
    assert [file.name for file in path.parent.iterdir()] == ["run.npz"]
    assert resume(path, rounds=2).state.round == 2  # nothing left to do
    assert resume(path, rounds=1).state.round == 2  # and a finished round is not taken back


def test_a_checkpoint_is_not_overwritten_because_resume_was_forgotten(saved, monkeypatch):
    path, _ = saved
    before = path.read_bytes()
    nothing_runs = lambda *_: pytest.fail("a round has begun")
    monkeypatch.setattr(fedlap.Simulation, "init", nothing_runs)
    monkeypatch.setattr(fedlap.Simulation, "step", nothing_runs)
    words = r"run\.npz: exists already; go on from it with resume=True, remove it or name another file"
    for rounds in (2, 3):  # finished or not
        with pytest.raises(fedlap.DataError, match=words):
            finish(eventful(), rounds, checkpoint=path)
        with pytest.raises(fedlap.DataError, match=words):
            fedlap.simulate(
                fedlap.FedAvg(), federation(4, overlap=True), fedlap.logistic(), rounds=rounds, checkpoint=path
            )
    assert path.read_bytes() == before


def test_a_checkpoint_of_clients_in_a_plain_tuple_is_read(tmp_path):
    """Its arrays have the same names."""
    mine = eventful(engine="sequential")
    state, path = mine.step(mine.init()), tmp_path / "run.npz"
    checkpoint.save(path, state._replace(clients=tuple(state.clients)), np.zeros((1, 6)), mine.describe())
    with np.load(path) as file:
        assert "state.clients[1].factor.v.tree[1]['weight']" in file.files
    found, _ = checkpoint.load(path, mine.init(), np.zeros((0, 6)), mine.describe())
    assert same_bits(found, state)


@pytest.mark.parametrize("victim", ["numpy.lib.format.write_array", "os.fsync", "os.replace"])
def test_a_crash_while_writing_leaves_the_old_checkpoint(saved, victim, monkeypatch):
    path, _ = saved
    before = path.read_bytes()
    real = np.lib.format.write_array

    def crash(*args, **options):
        if victim == "numpy.lib.format.write_array":
            real(*args, **options)  # a part of it is written
        raise OSError("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(victim, crash)
        with pytest.raises(OSError, match="disk is full"):
            resume(path)
    assert path.read_bytes() == before and list(path.parent.iterdir()) == [path]
    assert same_bits(resume(path).state, finish(eventful(), 3).state)


def test_the_new_file_is_on_disk_before_it_gets_its_name(saved, monkeypatch):
    path, _ = saved
    order = []
    for module, name in ((os, "fsync"), (os, "replace")):
        real = getattr(module, name)
        note = lambda *args, name=name, real=real: (order.append(name), real(*args))[1]
        monkeypatch.setattr(module, name, note)
    resume(path)
    assert order == ["fsync", "replace", "fsync"]  # the file, its name, and the folder that holds the name


SCRIPT = """
import sys
sys.path[:0] = {folders!r}
import conftest  # the tests' precision
from methods import eventful
from fedlap.run.simulation import histories
for history in histories(eventful(), 10_000, checkpoint=sys.argv[1]):
    print(history.state.round, flush=True)
"""


def test_a_killed_process_can_be_resumed(tmp_path):
    """SIGKILL at a moment nobody chose, in a run that does nothing but rounds and checkpoints."""
    path, folders = tmp_path / "run.npz", [os.path.dirname(__file__), os.path.dirname(os.path.dirname(fedlap.__file__))]
    command = [sys.executable, "-c", SCRIPT.format(folders=folders), str(path)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        for line in process.stdout:
            if int(line) >= 5:
                break
        else:
            pytest.fail(process.stderr.read())
        time.sleep(0.05)
    finally:
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL
    with np.load(path) as file:
        reached = len(file["table"])
    assert reached >= 5
    resumed = resume(path, rounds=reached + 2)
    whole = finish(eventful(), reached + 2)
    assert same_bits(resumed.state, whole.state)
    np.testing.assert_array_equal(resumed.nll, whole.nll)


def test_a_run_may_be_watched_while_it_is_saved(saved, tmp_path):
    """Every history yielded is already on disk."""
    path = tmp_path / "watched.npz"
    for history in histories(eventful(), 3, checkpoint=path):
        state, table = checkpoint.load(path, eventful().init(), np.zeros((0, 6)), eventful().describe())
        assert same_bits(state, history.state)
        np.testing.assert_array_equal(table[:, 2], history.nll)


DIFFERENT = {
    "algorithm": lambda: simulation("fedlap_cov", keep=True, hyper={"delta": 0.8}),
    "solver": lambda: eventful(solver=fedlap.adam(epochs=1, batch=6, learning_rate=0.06, keep=True)),
    "server_solver": lambda: eventful(server_solver=fedlap.descent(steps=7)),
    "model": lambda: eventful(model=fedlap.logistic(bias=True)),
    "curvature": lambda: eventful(curvature=fedlap.ExactHessian()),
    "seed": lambda: eventful(seed=1),
    "participation": lambda: eventful(participation=2),
    "federation": lambda: eventful(drawn=federation(5, overlap=True)),
}


@pytest.mark.parametrize("key", DIFFERENT)
def test_the_checkpoint_of_another_run_is_refused_by_name(saved, key):
    path, _ = saved
    with pytest.raises(fedlap.DataError, match=rf"run\.npz: .*another run.* its {key} is ") as caught:
        finish(DIFFERENT[key](), 3, checkpoint=path, resume=True)
    assert "this run's is" in str(caught.value)


def test_a_checkpoint_of_another_precision_is_refused(saved):
    path, _ = saved

    def change(arrays):
        words = header(arrays) | {"precision": "dtype('float32')"}
        arrays["header"] = np.frombuffer(json.dumps(words).encode(), np.uint8)

    rewrite(path, change)
    with pytest.raises(fedlap.DataError, match="its precision is"):
        resume(path)


def test_a_checkpoint_of_another_version_is_refused(saved):
    path, _ = saved

    def change(arrays):
        arrays["header"] = np.frombuffer(json.dumps(header(arrays) | {"format": 99}).encode(), np.uint8)

    rewrite(path, change)
    with pytest.raises(fedlap.DataError, match="its format is 99"):
        resume(path)


def test_arrays_that_do_not_fit_are_named(saved):
    path, _ = saved
    good = path.read_bytes()
    with np.load(path) as file:
        name = next(name for name in file.files if ".factor.v" in name)
        array = file[name]
    changes = {
        "missing": lambda arrays: arrays.pop(name),
        r"float32 \(3": lambda arrays: arrays.update({name: array.astype(np.float32)}),
        r"float64 \(1": lambda arrays: arrays.update({name: array[:1]}),
    }
    for words, change in changes.items():
        path.write_bytes(good)
        rewrite(path, change)
        with pytest.raises(fedlap.DataError, match=rf"run\.npz.*factor.*{words}.*expected float64 \(3"):
            resume(path)


def test_a_table_of_another_shape_is_refused(saved):
    path, _ = saved
    rewrite(path, lambda arrays: arrays.update(table=arrays["table"][:, :2]))
    with pytest.raises(fedlap.DataError, match=r"run\.npz"):
        resume(path)


def foreign(tmp_path):
    """Files that are not checkpoints, by what they are."""
    path = tmp_path / "run.npz"
    text, table, archive, other = (tmp_path / name for name in ("text", "table", "archive", "other.npz"))
    text.write_text("accuracy,nll\n0.5,1.0\n")
    with open(table, "wb") as file:
        np.save(file, np.zeros(3))
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("hello.txt", "hello")
    np.savez(other, weights=np.zeros(3))
    listed = tmp_path / "list.npz"
    np.savez(listed, header=np.frombuffer(b"[1, 2]", np.uint8), table=np.zeros((1, 3)))
    numbers = tmp_path / "numbers.npz"
    np.savez(numbers, header=np.zeros(3), table=np.zeros((1, 3)))
    empty = tmp_path / "empty"
    empty.write_bytes(b"")
    found = {file.stem: file.read_bytes() for file in (text, table, archive, other, listed, numbers, empty)}
    return path, found


@pytest.mark.parametrize("kind", ["text", "table", "archive", "other", "list", "numbers", "empty"])
def test_a_file_that_is_no_checkpoint_is_refused(kind, tmp_path):
    path, files = foreign(tmp_path)
    path.write_bytes(files[kind])
    with pytest.raises(fedlap.DataError, match=r"run\.npz"):
        resume(path)


def test_a_missing_file_and_a_folder_are_refused(tmp_path):
    with pytest.raises(fedlap.DataError, match=r"nothing\.npz: no checkpoint"):
        resume(tmp_path / "nothing.npz")
    with pytest.raises(fedlap.DataError, match=tmp_path.name):
        resume(tmp_path)


class Trap:
    """Unpickling it makes a folder."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("name", ["table", "header", "state.round"])
def test_nothing_is_ever_unpickled(saved, name, tmp_path):
    path, _ = saved
    sprung = tmp_path / "sprung"
    trap = np.empty(1, object)
    trap[0] = Trap(sprung)
    rewrite(path, lambda arrays: arrays.update({name: trap}))
    with np.load(path, allow_pickle=True) as file:
        file[name]
    assert sprung.exists(), "the trap is no trap"
    sprung.rmdir()
    with pytest.raises(fedlap.DataError, match="pickle"):
        resume(path)
    assert not sprung.exists()


def test_a_truncated_checkpoint_is_refused(saved):
    path, _ = saved
    whole = path.read_bytes()
    for length in (1, 10, len(whole) // 3, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:length])
        with pytest.raises(fedlap.DataError, match=r"run\.npz"):
            resume(path)


def test_a_damaged_checkpoint_is_refused_or_unharmed(saved):
    """Any byte anywhere: no crash of another kind, and never a state that differs from the one saved."""
    path, history = saved
    whole, like, description = path.read_bytes(), eventful().init(), eventful().describe()

    @settings(max_examples=400)
    @given(place=st.integers(0, len(whole) - 1), value=st.integers(1, 255))
    def check(place, value):
        damaged = bytearray(whole)
        damaged[place] ^= value
        path.write_bytes(bytes(damaged))
        try:
            loaded, _ = checkpoint.load(path, like, np.zeros((0, 6)), description)
        except fedlap.DataError as error:
            assert "run.npz" in str(error)
        else:
            assert same_bits(loaded, history.state)

    check()
