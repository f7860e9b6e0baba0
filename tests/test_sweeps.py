"""Sweeps: every cell once, whatever happens; what diverges is recorded."""

import json
import os
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

import fedlap
from fedlap.errors import ConfigError, DataError
from fedlap.experiments import results, runner, summary
from fedlap.experiments import runner as carry
from fedlap.experiments import sweep as cells
from fedlap.experiments.runner import Advanced, Planned, carry_out
from sweeping import NETWORK, TABLE, make, run

# What runs, and up to which length a few runs of a small model are made one after the other.
WAYS = [(TABLE, 0), (TABLE, runner.SHORT), (NETWORK, 0)]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    path = tmp_path_factory.mktemp("sweep") / "tiny.jsonl"
    events, done = run(make(), path)
    return path, events, done


def test_a_new_revision_runs_anew_and_what_ran_before_is_shown_until_then(tmp_path, monkeypatch):
    """A sweep cannot see that an equation changed; its author can say so."""
    path = tmp_path / "x.jsonl"
    methods = {"fedavg": {}, "fedlap": {"delta": 1.0}}
    table = {**TABLE, "algorithms": methods, "train": {"rounds": 2, "seeds": [1]}, "sweep": {"validation": 0}}
    sweep = cells.make("tiny", table)
    run(sweep, path)
    monkeypatch.setattr(fedlap.FedLap, "revision", 2)
    shown = lambda: {each.algorithm: (each.revision, each.current) for each in sweep.select(results.load(path))}
    assert shown() == {"fedavg": (1, True), "fedlap": (1, False)}
    _, again = run(sweep, path)
    assert [result.algorithm for result in again] == ["fedlap"] and run(sweep, path)[1] == []
    assert shown() == {"fedavg": (1, True), "fedlap": (2, True)}


def test_a_batch_gives_what_single_runs_give(finished):
    _, events, done = finished
    assert [event.workers for event in events if isinstance(event, Planned)] == [0, 0]
    result = next(r for r in done if r.setting.get("delta") == 1.0 and r.held_out and r.seed == 2)
    assert result.batch == 4  # two deltas, two seeds
    whole = fedlap.data.heart()
    history = fedlap.simulate(
        fedlap.FedLap(delta=1.0, rho=fedlap.evenly),
        whole.hold_out(0.25, seed=2),
        fedlap.logistic(),
        solver=fedlap.adam(epochs=result.setting["epochs"], batch=32, learning_rate=1e-2),
        rounds=3,
        seed=2,
        watch={"test": (whole.test_inputs, whole.test_labels)},
    )
    np.testing.assert_allclose(result.curves["validation"].nll, history.nll, atol=1e-4)
    np.testing.assert_allclose(result.curves["test"].nll, history.watched["test"].nll, atol=1e-4)
    np.testing.assert_allclose(result.curves["test"].accuracy, history.watched["test"].accuracy, atol=1e-4)


def plain(**changes):
    """A file without [sweep]."""
    table = {**TABLE, "algorithms": {"fedavg": {}, "fedlap": {"delta": 1.0}}, **changes}
    return cells.make("tiny", {key: value for key, value in table.items() if key != "sweep"})


def test_a_few_short_runs_give_what_single_runs_give(tmp_path):
    """Beside each other in threads; longer ones are a batch."""
    events, done = run(plain(), tmp_path / "x.jsonl", jobs=2)
    assert events[0].threads == 2 and [len(job) for job in events[0].jobs] == [1] * 4
    assert {result.batch for result in done} == {1} and len(done) == 4
    for result in done:
        method = fedlap.FedAvg() if result.algorithm == "fedavg" else fedlap.FedLap(delta=1.0)
        solver = fedlap.adam(batch=32)
        single = fedlap.simulate(
            method, fedlap.data.heart(), fedlap.logistic(), solver=solver, rounds=3, seed=result.seed
        )
        np.testing.assert_allclose(result.curves["test"].nll, single.nll, atol=1e-4)
        np.testing.assert_allclose(result.curves["test"].accuracy, single.accuracy, atol=1e-4)
    longer = plain(train={"rounds": runner.SHORT + 1, "seeds": [1, 2]})
    assert [len(job) for job in runner.batches(longer.final())] == [2, 2]
    more = plain(train={"rounds": 3, "seeds": list(range(runner.FEW + 1))})
    assert [len(job) for job in runner.batches(more.final())] == [runner.FEW + 1] * 2


def test_data_are_read_once(tmp_path, monkeypatch):
    """Not once a run; where seeds divide them anew, once a seed."""
    read = []
    loaded = runner.load
    monkeypatch.setattr(runner, "load", lambda **arguments: read.append(arguments) or loaded(**arguments))
    run(plain(), tmp_path / "x.jsonl")
    assert read == [{"name": "heart", "preset": "standard"}]
    run(plain(), tmp_path / "y.jsonl")
    assert len(read) == 2  # files may have changed since


def test_a_line_says_how_it_came_about(finished):
    path, _, done = finished
    assert results.load(path) == done  # in the order in which they were told
    line = json.loads(path.read_text().splitlines()[0])
    assert line["fedlap"] == fedlap.__version__ and line["seconds"] > 0
    again = fedlap.experiments.spec.resolve(line["spec"].pop("name"), line["spec"])
    cell = replace(make().search()[0], spec=again, seed=line["seed"], held_out=line["held_out"])
    assert cell.digest == line["cell"]


def test_whoever_runs_a_sweep_may_name_the_code(tmp_path):
    """A library knows its version; a clone also knows its commit, and lines with it are read as ever."""
    path, table = tmp_path / "x.jsonl", {**TABLE, "algorithms": {"fedavg": {}}, "sweep": {"validation": 0}}
    _, done = run(cells.make("tiny", table), path, version="0.1.0+0123456789.changed")
    assert {result.fedlap for result in done} == {"0.1.0+0123456789.changed"}
    assert results.load(path) == done


def test_nothing_runs_twice(finished, tmp_path):
    path, _, done = finished
    events, again = run(make(), path)
    assert again == [] and [event.done for event in events if isinstance(event, Planned)] == [12, 12]
    partly = tmp_path / "partly.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    partly.write_text("".join(lines[::3]) + lines[1][:50])  # and a line that a crash left unfinished
    _, rest = run(make(), partly)
    assert len(rest) == len(done) - len(lines[::3])
    assert {each.cell for each in results.load(partly)} == {each.cell for each in results.load(path)}
    curves = {result.cell: result.curves for result in done}
    for result in rest:  # a batch of other neighbours adds up in another order
        np.testing.assert_allclose(result.curves["test"].nll, curves[result.cell]["test"].nll, atol=1e-4)


def test_a_last_line_that_lacks_only_its_end_is_kept(finished, tmp_path):
    """An editor may have taken it; the run took hours."""
    path = tmp_path / "edited.jsonl"
    path.write_text(finished[0].read_text().removesuffix("\n"))
    assert results.load(path) == results.load(finished[0])
    with results.writer(path) as (found, append):
        append(found[:1])
    assert results.load(path) == [*found, found[0]]


def test_settings_that_won_before_run_without_a_search(finished, tmp_path):
    _, _, done = finished
    sweep = make()
    best = summary.winners(done, sweep)
    _, again = run(sweep, tmp_path / "quick.jsonl", quick={"fedavg": best["fedavg"]})
    assert {result.held_out for result in again} == {0.0}
    assert {str(result.setting) for result in again} == {str(setting) for setting in best["fedavg"]}
    assert len(again) == 2 * len(best["fedavg"])  # two seeds


def test_winners_are_those_of_the_grid_as_it_stands(tmp_path):
    """A setting that has left the grid is neither run again nor in the way of those that are in it."""
    path, table = tmp_path / "x.jsonl", {**TABLE, "algorithms": {"fedavg": {}}}
    table["sweep"] = {"finals": "winners", "every": {"learning_rate": [1e-2, 1e-3]}}
    run(cells.make("tiny", table), path)
    table["sweep"]["every"]["learning_rate"] = [1e-5, 1e-6]
    _, done = run(cells.make("tiny", table), path)
    searched = [result.setting["learning_rate"] for result in done if result.held_out]
    trained = {result.setting["learning_rate"] for result in done if not result.held_out}
    assert sorted(searched) == [1e-6, 1e-6, 1e-5, 1e-5]
    assert trained and trained <= {1e-5, 1e-6}


def test_an_only_setting_is_not_searched_for(tmp_path):
    """With one setting nothing is to be chosen; with a second one both are searched."""
    path, table = tmp_path / "x.jsonl", {**TABLE, "algorithms": {"fedavg": {}}}
    table["sweep"] = {"finals": "winners", "every": {"learning_rate": [1e-2, 1e-5]}}
    sweep = cells.make("tiny", table)
    _, done = run(sweep.narrow(["learning_rate=0.01"]), path)
    assert [(result.held_out, result.setting["learning_rate"]) for result in done] == [(0.0, 1e-2)] * 2
    chosen = summary.choose(sweep.select(done), "fedavg", summary.PAPER, sweep.finals)
    assert (chosen.setting, chosen.settings) == ({"learning_rate": 1e-2}, 1)
    assert summary.choose(sweep.select(done), "fedavg", summary.HONEST, sweep.finals) is None
    _, both = run(sweep, path)
    assert sorted(result.setting["learning_rate"] for result in both if result.held_out) == [1e-5, 1e-5, 1e-2, 1e-2]


def test_a_result_without_what_is_asked_for_does_not_count(finished, tmp_path):
    """The digest knows neither of train curves nor of precision."""
    path = tmp_path / "x.jsonl"
    lines = finished[0].read_text()
    path.write_text(lines)
    events, done = run(make(watch_train=True), path)
    assert [event.done for event in events if isinstance(event, Planned)] == [0, 0]
    assert all("train" in result.curves for result in done)
    path.write_text(lines.replace('"float64"', '"float32"'))
    events, _ = run(make(), path)
    assert [event.done for event in events if isinstance(event, Planned)] == [0, 0]


@pytest.mark.parametrize(("table", "short"), WAYS, ids=["batch", "few", "in turn"])
def test_a_stopped_run_goes_on_from_its_last_round(tmp_path, monkeypatch, table, short):
    """To the same bits as one that was never stopped, as a compiled batch, as a few runs with one program, and one by
    one as on an accelerator."""
    monkeypatch.setattr(runner, "CHECKPOINT_SHARE", np.inf)
    monkeypatch.setattr(runner, "SHORT", short)
    monkeypatch.setattr(carry.jax, "default_backend", lambda: "not a cpu")
    sweep = cells.make("tiny", {**table, "algorithms": {"fedavg": {}}, "sweep": {"every": {"epochs": [1]}}})
    _, whole = run(sweep, tmp_path / "whole.jsonl")
    path = tmp_path / "stopped.jsonl"
    steps = carry_out(sweep, path)
    assert next(steps).cells == []  # an only setting is not searched for
    assert [next(steps).workers, next(steps).round, next(steps).round] == [0 if table is TABLE else 1, 1, 2]
    steps.close()
    assert path.read_text() == "" and len(list(tmp_path.glob("stopped.jsonl.checkpoints/*.npz"))) == 1
    events, done = run(sweep, path)
    assert [event.round for event in events if isinstance(event, Advanced)][:2] == [2, 3]
    assert [result.curves for result in done] == [result.curves for result in whole]
    assert not list(tmp_path.glob("*.checkpoints"))


@pytest.mark.parametrize("table", [TABLE, NETWORK], ids=["batch", "process"])
def test_what_diverges_is_recorded(tmp_path, table):
    table = {**table, "algorithms": {"fedavg": {}}, "train": {"rounds": 3, "seeds": [1]}}
    del (sweep := dict(table["sweep"]))["fedlap"]
    sweep["every"] = {"epochs": [1], "learning_rate": [1e-3, 1e308]}
    made = cells.make("tiny", {**table, "sweep": sweep})
    _, done = run(made, tmp_path / "x.jsonl", jobs=1)
    assert {result.setting["learning_rate"]: result.diverged for result in done} == {1e-3: False, 1e308: True}
    lost = next(result for result in done if result.diverged)
    assert None in lost.curves["test"].nll
    assert len(results.load(tmp_path / "x.jsonl")) == 4
    for way in (summary.PAPER, summary.HONEST):
        assert summary.choose(done, "fedavg", way, "all").setting["learning_rate"] == 1e-3


@pytest.mark.parametrize("table", [TABLE, NETWORK], ids=["batch", "process"])
def test_what_diverges_in_finite_numbers_is_recorded_and_runs_on(tmp_path, table, monkeypatch):
    """It might come back; what is not finite will not."""
    monkeypatch.setattr(carry, "on_processes", lambda workers, work, items: (work(each, tell=id) for each in items))
    table = {**table, "algorithms": {"fedavg": {}}, "train": {"rounds": 3, "seeds": [1]}}
    table["sweep"] = {"validation": 0, "every": {"epochs": [1], "learning_rate": [1e-3, 1e30, 1e308]}}
    _, done = run(cells.make("tiny", table), tmp_path / "x.jsonl", jobs=1)
    assert [result.diverged for result in sorted(done, key=lambda result: result.setting["learning_rate"])] == [
        False,
        True,
        True,
    ]
    huge = next(result for result in done if result.setting["learning_rate"] == 1e30).curves["test"].nll
    assert len(huge) == 3 and min(huge) > 1e20
    if table["model"] == NETWORK["model"]:
        lost = next(result for result in done if result.setting["learning_rate"] == 1e308).curves["test"].nll
        assert lost == [None]


def test_a_plan_tells_what_will_follow(finished):
    search, final = (event for event in finished[1] if isinstance(event, Planned))
    assert {cell.digest for job in search.later for cell in job} == {cell.digest for cell in final.cells}
    assert [len(job) for job in search.jobs] == [2, 2, 4, 4]  # one program for each number of epochs
    assert final.later == []
    one_shot = cells.make("tiny", {**TABLE, "algorithms": {"bcm": {"delta": 1.0}}, "sweep": {}}).final()[0]
    assert one_shot.rounds == 1


def test_one_writer_a_file(tmp_path):
    with results.writer(tmp_path / "x.jsonl"), pytest.raises(DataError, match="another process is writing"):
        with results.writer(tmp_path / "x.jsonl"):
            pass


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda line: 7, "expected an object of algorithm, batch, cell, cores, curves"),
        (lambda line: {"cell": line["cell"]}, "expected an object of"),
        (lambda line: line | {"colour": "red"}, "expected an object of"),
        (lambda line: line | {"curves": {"validation": {"accuracy": [], "nll": []}}}, "no curve on the test set"),
        (lambda line: {key: value for key, value in line.items() if key != "seed"}, "missing .* 'seed'"),
        (lambda line: line | {"curves": {"test": {"accuracy": [0.5]}}}, "missing .* 'nll'"),
        (lambda line: line | {"curves": {"test": {"accuracy": ["a"], "nll": [1]}}}, "accuracy is not a list of num"),
        (lambda line: line | {"curves": {"test": {"accuracy": [1], "nll": 1}}}, "nll is not a list of numbers"),
        (lambda line: line | {"curves": {"test": {"accuracy": [80.0], "nll": [1]}}}, "not between 0 and 1"),
        (lambda line: line | {"curves": {"test": {"accuracy": [0.8], "nll": []}}}, "1 rounds of accuracy, but 0"),
    ],
)
def test_a_damaged_line_is_named(finished, tmp_path, change, message):
    path, first = tmp_path / "x.jsonl", finished[0].read_text().splitlines()[0]
    path.write_text(f"{first}\n{json.dumps(change(json.loads(first)))}\n")
    with pytest.raises(DataError, match=rf"x\.jsonl, line 2: not a result of a sweep \(.*{message}"):
        results.load(path)


@pytest.mark.parametrize("content", [b"my notes", b"my notes\n", b"\xff\xfe\n", b'{"cell": 1}\n'])
def test_a_file_of_something_else_is_left_alone(tmp_path, content):
    path = tmp_path / "notes.txt"
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"notes\.txt, line 1: not a result"):
        run(make(), path)
    assert path.read_bytes() == content
    with pytest.raises(DataError, match=r"cannot be written .*; expected a file of results"):
        run(make(), tmp_path)


def test_a_result_of_another_precision_is_no_result_of_this_sweep(finished, tmp_path):
    path = tmp_path / "x.jsonl"
    lines = finished[0].read_text()
    path.write_text(lines + lines.replace('"float64"', '"float32"'))
    assert run(make(), path)[1] == []  # the later lines do not hide the earlier ones
    assert {each.precision for each in make(precision="float64").select(results.load(path))} == {"float64"}
    with pytest.raises(ConfigError, match="tiny is to run in float32, not float64"):
        run(make(precision="float32"), path)


def test_no_mean_is_of_two_precisions(finished):
    """One of two seeds has also run in another one: both count in that which both have, none is lost."""
    done = finished[2]
    other = [replace(each, precision="float32") for each in done if each.seed == 1]
    assert {each.precision for each in make().select(done + other)} == {"float64"}
    assert len(make().select(done + other)) == len(make().select(other + done)) == len(done)


@pytest.mark.parametrize(("table", "short"), WAYS, ids=["batch", "few", "in turn"])
def test_a_checkpoint_of_other_curves_is_not_in_the_way(tmp_path, monkeypatch, table, short):
    monkeypatch.setattr(runner, "SHORT", short)
    monkeypatch.setattr(carry.jax, "default_backend", lambda: "not a cpu")
    table = {**table, "algorithms": {"fedavg": {}}, "sweep": {"every": {"epochs": [1]}}}
    steps = carry_out(cells.make("tiny", table), path := tmp_path / "x.jsonl")
    assert [type(next(steps)) for _ in range(3)] == [Planned, Planned, Advanced]
    steps.close()
    assert len(list(tmp_path.glob("x.jsonl.checkpoints/*.npz"))) == 1  # there after the first round
    table["sweep"]["watch_train"] = True
    _, done = run(cells.make("tiny", table), path)
    assert len(done) == 2 and all("train" in result.curves for result in done)


@pytest.mark.parametrize(("table", "short"), WAYS, ids=["batch", "few", "in turn"])
@pytest.mark.parametrize("damage", [b"not an archive", None], ids=["damaged", "of another version"])
def test_a_checkpoint_that_is_of_no_use_is_not_in_the_way(tmp_path, monkeypatch, table, short, damage):
    monkeypatch.setattr(runner, "SHORT", short)
    monkeypatch.setattr(carry.jax, "default_backend", lambda: "not a cpu")
    sweep = cells.make("tiny", {**table, "algorithms": {"fedavg": {}}, "sweep": {"every": {"epochs": [1]}}})
    steps = carry_out(sweep, path := tmp_path / "x.jsonl")
    assert [type(next(steps)) for _ in range(3)] == [Planned, Planned, Advanced]
    steps.close()
    (left,) = tmp_path.glob("x.jsonl.checkpoints/*.npz")
    if damage:
        left.write_bytes(damage)
    else:
        monkeypatch.setattr(runner.checkpoints, "FORMAT", runner.checkpoints.FORMAT + 1)
    events, done = run(sweep, path)
    assert next(event.round for event in events if isinstance(event, Advanced)) == 1  # from the beginning
    assert len(done) == 2 and not list(tmp_path.glob("*.checkpoints"))


@pytest.mark.parametrize("divide", [runner.one_each, runner.batches], ids=["run", "batch"])
def test_a_checkpoint_of_a_finished_run_goes(finished, tmp_path, divide):
    """One that a process killed between its last line and its last act has left."""
    path = tmp_path / "x.jsonl"
    path.write_text(finished[0].read_text())
    conditions = runner.Conditions(None, False, tmp_path / "x.jsonl.checkpoints")
    left = runner.checkpoint_of(divide(make().final())[-1], conditions)
    left.parent.mkdir()
    left.touch()
    run(make(), path)
    assert not left.parent.exists()


def test_a_sweep_that_states_its_precision_has_it(tmp_path):
    spec, path = tmp_path / "tiny.toml", tmp_path / "tiny.jsonl"
    spec.write_text(
        '[federation]\ndataset = "heart"\n[model]\nname = "logistic"\n[train]\nrounds = 1\nseeds = [1]\n'
        '[algorithms]\nfedavg = {}\n[sweep]\nprecision = "float64"\n'
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
    subprocess.run(command, check=True, timeout=120, capture_output=True, env={**os.environ, "JAX_ENABLE_X64": "0"})
    assert [result.precision for result in results.load(path)] == ["float64"]
