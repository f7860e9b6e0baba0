"""A function of the user's is told of every round, and may end the run; TensorBoard and MLflow are such functions."""

import struct
import sys
from pathlib import Path

import numpy as np
import pytest

import fedlap
from drawn import federation
from fedlap.hooks.numbers import numbers
from methods import build

DATA = federation(4, overlap=True)


def train(rounds, **options):
    solver = fedlap.adam(epochs=1, batch=6, learning_rate=0.05)
    options = {"solver": solver, "engine": "vectorised", "watch": {"all": (DATA.inputs, DATA.labels)}, **options}
    return fedlap.simulate(build("fedlap"), DATA, fedlap.logistic(), rounds=rounds, **options)


def test_a_function_is_told_of_every_round():
    told = []
    history = train(3, on_round=told.append)
    assert [now.round for now in told] == [1, 2, 3] == [now.state.round for now in told]
    assert [now.metrics.nll for now in told] == history.nll.tolist()
    assert [now.watched["all"].accuracy for now in told] == history.watched["all"].accuracy.tolist()
    assert [now.seconds for now in told] == history.seconds.tolist()
    assert [len(now.history.nll) for now in told] == [1, 2, 3]
    np.testing.assert_array_equal(told[-1].history.final.w, history.final.w)
    np.testing.assert_array_equal(train(3).nll, history.nll)  # and the run is what it would have been
    with pytest.raises(AttributeError):
        told[0].round = 7


def test_it_may_end_the_run_which_then_can_go_on(tmp_path):
    checkpoint = {"checkpoint": tmp_path / "run.npz"}
    rounds = []
    short = train(9, on_round=lambda now: rounds.append(now.round) or now.round == 2, **checkpoint)
    assert len(short.nll) == 2 and rounds == [1, 2]
    whole = train(4, resume=True, on_round=lambda now: rounds.append(now.round), **checkpoint)
    assert rounds == [1, 2, 3, 4]  # of those that had been, it has been told
    np.testing.assert_array_equal(whole.nll, train(4).nll)


def test_its_error_is_the_run_s_and_the_checkpoint_has_the_round(tmp_path):
    def full(now):
        if now.round == 2:
            raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        train(4, on_round=full, checkpoint=tmp_path / "run.npz")
    rounds = []
    whole = train(4, on_round=lambda now: rounds.append(now.round), checkpoint=tmp_path / "run.npz", resume=True)
    assert rounds == [3, 4]
    np.testing.assert_array_equal(whole.nll, train(4).nll)


def test_what_is_no_such_function_is_refused():
    with pytest.raises(fedlap.ConfigError, match="on_round is 'log'; expected a function of one argument"):
        train(1, on_round="log")
    with pytest.raises(fedlap.ConfigError, match=r"on_round is <class 'fedlap\.hooks\.mlflow\.MLflow'>"):
        train(1, on_round=fedlap.MLflow)
    with pytest.raises(fedlap.ConfigError, match="on_round returned 1; expected True to end the run, or False"):
        train(2, on_round=lambda now: now.round)


@pytest.mark.parametrize("function", [lambda: None, lambda now, before: None, lambda *, now: None, Path().exists])
def test_a_function_that_cannot_be_given_a_round_is_refused_before_the_first(function, tmp_path):
    with pytest.raises(
        fedlap.ConfigError, match=r"on_round takes \(.*\); expected a function of one argument, a Round"
    ):
        train(1, on_round=function, checkpoint=tmp_path / "run.npz")
    assert not (tmp_path / "run.npz").exists()


def test_the_numbers_of_a_round_have_names():
    told = []
    train(1, on_round=told.append)
    (now,) = told
    found = numbers(now)
    assert found["test/nll"] == now.metrics.nll and found["watch/all/nll"] == now.watched["all"].nll
    assert "seconds" in found and all(np.isfinite(list(found.values())))
    lost = now._replace(metrics=now.metrics._replace(accuracy=np.nan, nll=np.nan))
    assert np.isnan(numbers(lost)["test/nll"]) and np.isnan(numbers(lost)["test/accuracy"])
    other = now._replace(metrics=now.metrics._replace(accuracy=np.nan))  # a score that there is not
    assert "test/accuracy" not in numbers(other)


def events(folder):
    """What a TensorBoard would read: (round, name, value) of each record."""
    from tensorboardX.proto.event_pb2 import Event

    (file,) = Path(folder).iterdir()
    content, found = file.read_bytes(), []
    while content:
        (size,) = struct.unpack("<Q", content[:8])
        event = Event.FromString(content[12 : 12 + size])
        found += [(event.step, value.tag, value.simple_value) for value in event.summary.value]
        content = content[16 + size :]
    return found


def test_tensorboard_has_every_round(tmp_path):
    with fedlap.TensorBoard(tmp_path / "board") as board:
        history = train(2, on_round=board)
    found = events(tmp_path / "board")
    curve = [value for _, name, value in found if name == "test/nll"]
    np.testing.assert_allclose(curve, history.nll, rtol=1e-6)  # of single precision
    assert {step for step, _, _ in found} == {1, 2} and "watch/all/accuracy" in {name for _, name, _ in found}


def test_mlflow_has_every_round_and_the_settings(tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # a database would be another dependency
    where = {"tracking_uri": (tmp_path / "store").as_uri()}
    with fedlap.MLflow("hospitals", run="first", **where) as log:
        history = train(2, on_round=log)
    from mlflow.tracking import MlflowClient

    client = MlflowClient(**where)
    run = client.get_run(log.run_id)
    assert run.info.status == "FINISHED" and run.info.run_name == "first"
    assert run.data.params["algorithm"] == str(build("fedlap")) and run.data.params["seed"] == "0"
    curve = client.get_metric_history(log.run_id, "test/nll")
    assert [(point.step, point.value) for point in curve] == list(enumerate(history.nll, start=1))
    with pytest.raises(RuntimeError, match="by hand"), fedlap.MLflow("hospitals", **where) as second:
        raise RuntimeError("ended by hand")
    assert client.get_run(second.run_id).info.status == "FAILED"
    assert len(client.search_experiments()) == 2  # MLflow's own, and this one


@pytest.mark.parametrize(
    ("make", "module", "extra"),
    [(fedlap.TensorBoard, "tensorboardX", "tensorboard"), (fedlap.MLflow, "mlflow", "mlflow")],
)
def test_a_missing_extra_says_what_to_install(make, module, extra, tmp_path, monkeypatch):
    for name in [name for name in sys.modules if name.split(".")[0] == module]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(fedlap.ConfigError, match=rf"pip install 'fedlap\[{extra}\]'"):
        make(str(tmp_path))
