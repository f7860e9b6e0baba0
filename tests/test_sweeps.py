"""Sweeps: every cell once, whatever happens; what diverges is recorded; the two ways of choosing."""

import contextlib
import json
import multiprocessing
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import fedlap
from fedlap.errors import ConfigError, DataError, FedlapError
from fedlap.processors import cores
from fedlap.sweeps import carry, cells, choose, display, processes, results
from fedlap.sweeps.carry import Advanced, Finished, Planned, carry_out
from fedlap.sweeps.display import Display, Estimate

TABLE = {
    "federation": {"dataset": "heart"},
    "model": {"name": "logistic"},
    "train": {"rounds": 3, "seeds": [1, 2]},
    "solver": {"name": "adam", "batch": 32},
    "algorithms": {"fedavg": {}, "fedlap": {"rho": "evenly"}},
    "sweep": {
        "validation": 0.25,
        "every": {"epochs": [1, 2]},
        "fedlap": {"delta": [0.1, 1.0], "learning_rate": [1e-2]},
    },
}
NETWORK = {**TABLE, "model": {"name": "mlp", "hidden": [800]}}  # 12,802 weights: too many for a compiled batch


def make(table=TABLE, **sweep):
    return cells.make("tiny", {**table, "sweep": {**table["sweep"], **sweep}})


def run(sweep, path, **options):
    events = list(carry_out(sweep, path, **options))
    return events, [result for event in events if isinstance(event, Finished) for result in event.results]


def test_a_grid_is_the_product_of_its_axes():
    sweep = make()
    assert sweep.settings("fedavg") == [{"epochs": 1}, {"epochs": 2}]
    assert sweep.settings("fedlap")[0] == {"epochs": 1, "delta": 0.1, "learning_rate": 1e-2}
    assert len(sweep.search()) == len(sweep.final()) == 2 * (2 + 4)
    cell = sweep.search()[-1]
    assert cell.spec.algorithms == {"fedlap": {"delta": 1.0, "rho": "evenly"}}
    assert (cell.spec.solver["epochs"], cell.spec.solver["learning_rate"], cell.spec.train.seeds) == (2, 1e-2, (2,))


def test_an_axis_may_name_its_section(tmp_path):
    """The server's learning rate beside the clients': the cell of the default is the old one, no batch mixes two."""
    plain = {**TABLE, "algorithms": {"fedlap_func": {"delta": 1.0}}, "train": {"rounds": 1, "seeds": [1]}}
    axes = {"learning_rate": [1e-2], "server_solver.learning_rate": [1e-3, 1e-1]}
    old = cells.make("tiny", {**plain, "sweep": {"fedlap_func": {"learning_rate": [1e-2]}}})
    new = cells.make("tiny", {**plain, "sweep": {"fedlap_func": axes, "validation": 0}})
    same, other = new.final()
    assert same.digest == old.final()[0].digest and same.spec.solver["learning_rate"] == 1e-2
    assert other.spec.server_solver == {**same.spec.server_solver, "learning_rate": 1e-1}
    assert new.narrow(["server_solver.learning_rate=0.1"]).final()[0].digest == other.digest
    _, together = run(new, tmp_path / "x.jsonl")
    _, alone = run(new.narrow(["server_solver.learning_rate=0.1"]), tmp_path / "y.jsonl")
    curves = [result.curves["test"].nll for result in together]
    assert curves[1] == alone[0].curves["test"].nll != curves[0]
    with pytest.raises(ConfigError, match=r"server_solver\.learning_rate is swept; choose .* --only server_solver"):
        cells.make("tiny", {**plain, "sweep": {"fedlap_func": axes}}, overrides=["server_solver.learning_rate=1"])


def test_a_part_of_a_grid_has_the_same_cells():
    part = make().narrow(["epochs=2", "delta=0.1"])
    assert part.settings("fedavg") == [{"epochs": 2}]
    assert part.settings("fedlap") == [{"epochs": 2, "delta": 0.1, "learning_rate": 1e-2}]
    assert {cell.digest for cell in part.search()} < {cell.digest for cell in make().search()}
    with pytest.raises(ConfigError, match="epochs has no value '3'; it has 1, 2"):
        make().narrow(["epochs=1,3"])
    mixed = make(fedavg={"learning_rate": [1e-3]})
    with pytest.raises(ConfigError, match=r"leaves nothing of fedavg's learning_rate, which has 0\.001"):
        mixed.narrow(["learning_rate=1e-2"])
    kept = make(every={"keep": [True, False]}).narrow(["keep=true"])
    assert kept.settings("fedavg") == [{"keep": True}]
    with pytest.raises(ConfigError, match=r"axis.*epohcs.*epochs"):
        make().narrow(["epohcs=3"])


def test_a_digest_changes_with_whatever_changes_a_result():
    first = make().search()[0]
    table = {**TABLE, "model": {"name": "logistic", "bias": True}}
    others = [replace(first, held_out=0.0), make().search()[1], make().search()[2], make(table).search()[0]]
    assert len({first.digest, *(cell.digest for cell in others)}) == 5
    assert cells.make("another name", TABLE).search()[0].digest == first.digest
    whole, real = (make(fedlap={"delta": [value]}).final()[-1] for value in (1, 1.0))
    assert whole.digest == real.digest and make(fedlap={"delta": [2]}).final()[-1].digest != real.digest


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


def test_a_line_says_how_it_came_about(finished):
    path, _, done = finished
    assert results.load(path) == done
    line = json.loads(path.read_text().splitlines()[0])
    assert line["fedlap"] == results.version() and line["seconds"] > 0
    again = fedlap.spec.resolve(line["spec"].pop("name"), line["spec"])
    cell = replace(make().search()[0], spec=again, seed=line["seed"], held_out=line["held_out"])
    assert cell.digest == line["cell"]


def test_a_version_names_the_commit(tmp_path):
    """Of a clone; a package that is installed elsewhere has its number only."""
    number = re.escape(fedlap.__version__)
    assert re.fullmatch(rf"{number}(\+[0-9a-f]{{10}}(\.changed)?)?", results.version())
    package = tmp_path / "src/fedlap"
    shutil.copytree(Path(fedlap.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__"))

    def seen():
        words = "from fedlap.sweeps import results; print(results.version())"
        environment = {**os.environ, "PYTHONPATH": str(tmp_path / "src")}
        return subprocess.run(
            [sys.executable, "-c", words], env=environment, capture_output=True, text=True, check=True
        ).stdout.strip()

    def git(*words):
        identity = ("-c", "user.name=a", "-c", "user.email=a@example.org")
        command = ["git", "-C", tmp_path, *identity, *words]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    assert seen() == fedlap.__version__
    git("init")
    git("add", "src")
    git("commit", "-m", "a clone")
    commit = git("rev-parse", "--short=10", "HEAD")
    assert seen() == f"{fedlap.__version__}+{commit}"
    (tmp_path / "results.jsonl").write_text("results are no change of the code")
    assert seen() == f"{fedlap.__version__}+{commit}"
    (package / "__init__.py").write_text((package / "__init__.py").read_text() + "\n")
    assert seen() == f"{fedlap.__version__}+{commit}.changed"


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


def test_an_accuracy_to_look_out_for_makes_no_other_run():
    """Nor does it change the digests of results that have no such accuracy."""
    aimed = {**TABLE, "train": {**TABLE["train"], "target_accuracy": 0.8}}
    assert [cell.digest for cell in make(aimed).search()] == [cell.digest for cell in make().search()]
    more = {**TABLE, "train": {**TABLE["train"], "rounds": 4}}
    assert not {cell.digest for cell in make(more).search()} & {cell.digest for cell in make().search()}


def test_settings_that_won_before_run_without_a_search(finished, tmp_path):
    _, _, done = finished
    sweep = make()
    best = choose.winners(done, sweep)
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
    chosen = choose.choose(sweep.select(done), "fedavg", choose.PAPER, sweep.finals)
    assert (chosen.setting, chosen.settings) == ({"learning_rate": 1e-2}, 1)
    assert choose.choose(sweep.select(done), "fedavg", choose.HONEST, sweep.finals) is None
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


@pytest.mark.parametrize("table", [TABLE, NETWORK], ids=["batch", "in turn"])
def test_a_stopped_run_goes_on_from_its_last_round(tmp_path, monkeypatch, table):
    """To the same bits as one that was never stopped, as a compiled batch and one by one as on an accelerator."""
    monkeypatch.setattr(carry, "CHECKPOINT_SHARE", np.inf)
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
    command = [sys.executable, "-c", "from fedlap.cli import main; main()", "sweep", str(spec), "--output", str(path)]
    process = subprocess.Popen(
        [*command, "--jobs", "2"],
        start_new_session=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "JAX_ENABLE_X64": "1"},  # as in this process, so that its results count
    )
    try:
        deadline = time.monotonic() + 120
        while not (path.exists() and b"\n" in path.read_bytes()):
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.02)
        assert len(session_members(process.pid)) >= 4  # two workers, and their queues
        process.kill()
        process.wait()
        while session_members(process.pid):
            assert time.monotonic() < deadline
            time.sleep(0.05)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
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
    for way in (choose.PAPER, choose.HONEST):
        assert choose.choose(done, "fedavg", way, "all").setting["learning_rate"] == 1e-3


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


def result(setting, seed, held_out, test, validation=None, revision=1):
    """At one level throughout; diverged where that is None."""
    curve = lambda level: results.Curve([level] * 3, [None if level is None else 1 - level] * 3)
    levels = {"test": test} | ({"validation": validation} if held_out else {})
    curves, diverged = {name: curve(level) for name, level in levels.items()}, None in levels.values()
    return results.Result("", "fedlap", setting, seed, held_out, diverged, 1.0, 1, "", {}, curves, revision=revision)


def test_each_way_of_choosing_looks_at_its_own_numbers():
    a, b, c = {"delta": 1.0}, {"delta": 2.0}, {"delta": 3.0}
    searched = [result(a, 1, 0.2, test=0.6, validation=0.9), result(b, 1, 0.2, test=0.8, validation=0.5)]
    trained = [result(a, 1, 0, test=0.9), result(b, 1, 0, test=0.7), result(c, 1, 0, test=None)]
    way = lambda way, finals: choose.choose(searched + trained, "fedlap", way, finals).setting
    assert way(choose.HONEST, "all") == way(choose.HONEST, "winners") == a
    assert way(choose.PAPER, "all") == a  # of the runs on all rows
    assert way(choose.PAPER, "winners") == b  # of the search
    assert choose.choose([], "fedlap", choose.PAPER, "all") is None
    # Without a search nothing was honestly chosen, and what there is is shown.
    assert choose.choose(trained[:1], "fedlap", choose.HONEST, "winners") is None
    assert choose.choose(trained, "fedlap", choose.HONEST, "all") is None
    assert choose.choose(trained[:1], "fedlap", choose.PAPER, "winners").setting == a
    assert choose.choose(trained, "fedlap", choose.PAPER, "winners").setting == a
    # A setting with fewer seeds has not finished, and is no candidate yet.
    more = [*trained, result(b, 2, 0, test=0.7)]
    assert choose.choose(more, "fedlap", choose.PAPER, "all").setting == b


def test_between_equal_accuracies_the_smaller_nll_wins():
    curve = lambda nll: {"test": results.Curve([0.5] * 3, [nll] * 3)}
    runs = [replace(result({"delta": nll}, 1, 0, 0.5), curves=curve(nll)) for nll in (0.9, 0.3, 0.6)]
    assert choose.choose(runs, "fedlap", choose.PAPER, "all").setting == {"delta": 0.3}


def test_runs_to_report_are_those_on_all_rows_by_seed():
    a, b = {"delta": 1.0}, {"delta": 2.0}
    runs = [result(a, 3, 0, 0.5), result(a, 1, 0, 0.5), result(a, 2, 0.2, 0.5, 0.5), result(b, 2, 0, 0.5)]
    assert choose.finals(runs, "fedlap", a) == [runs[1], runs[0]]


def test_the_honest_way_does_not_see_that_the_test_set_diverged():
    a, b = {"delta": 1.0}, {"delta": 2.0}
    searched = [result(a, 1, 0.2, test=None, validation=0.9), result(b, 1, 0.2, test=0.8, validation=0.2)]
    assert choose.choose(searched, "fedlap", choose.HONEST, "winners").setting == a
    assert choose.choose(searched, "fedlap", choose.PAPER, "winners").setting == b


def test_a_method_that_was_changed_is_not_chosen_by_what_it_was():
    old, new, worse = {"delta": 1.0}, {"delta": 2.0}, {"delta": 3.0}
    searched = [result(old, 1, 0.2, 0.9, 0.9), result(new, 1, 0.2, 0.5, 0.5, revision=2)]
    chosen = lambda way: choose.choose(searched, "fedlap", way, "winners")
    assert (chosen(choose.PAPER).setting, chosen(choose.PAPER).settings, chosen(choose.HONEST)) == (new, 1, None)
    searched.append(result(worse, 1, 0.2, 0.4, 0.4, revision=2))
    for way in (choose.PAPER, choose.HONEST):
        assert (chosen(way).setting, chosen(way).settings) == (new, 2)


def test_a_part_of_a_grid_has_winners_of_its_own():
    """Rows chosen from a paper's grid beside a wider one: both are trained on all rows."""
    sweep = cells.make("tiny", {**TABLE, "sweep": {**TABLE["sweep"], "part": {"fedlap": {"delta": [0.1]}}}})
    settings = sweep.settings("fedlap")
    assert [sweep.in_part("fedlap", each) for each in settings] == [True, False, True, False]
    assert all(sweep.in_part("fedavg", each) for each in sweep.settings("fedavg"))
    levels = [0.5, 0.9, 0.6, 0.7]  # of one epoch with delta 0.1 and 1, then of two
    searched = [result(each, 1, 0.2, level, level) for each, level in zip(settings, levels, strict=True)]
    assert choose.winners(searched, sweep)["fedlap"] == [settings[1], settings[2]]
    # Both ways choose the same, which is trained once.
    assert choose.winners(searched, replace(sweep, finals="winners"))["fedlap"] == [settings[1], settings[2]]


def test_the_value_at_a_round_is_the_mean_of_three():
    curve = results.Curve([0.0, 0.3, 0.6, 0.9], [4.0, 3.0, 2.0, 1.0])
    assert choose.value(curve, 3) == pytest.approx((0.3, 3.0))
    assert choose.value(curve, 4) == pytest.approx((0.6, 2.0))
    assert choose.value(curve) == pytest.approx((0.6, 2.0))
    assert choose.value(curve, 1) == pytest.approx((0.0, 4.0))
    assert np.isnan(choose.value(results.Curve([0.5, None], [1.0, None]))).all()


def finished_run(cell, seconds, rounds=3):
    return results.Result.of(cell, {"test": results.Curve([0.5] * rounds, [1.0] * rounds)}, seconds, classes=2)


def test_an_estimate_weighs_algorithms_by_what_they_took():
    """Each run takes five seconds once, and its rounds what its algorithm costs."""
    searched, trained = make().search(), make().final()
    quick = [cell for cell in searched if cell.algorithm == "fedavg"]
    slow = [cell for cell in searched if cell.algorithm == "fedlap"]
    estimate, once = Estimate(), 5.0
    estimate.plan([[cell] for cell in searched], workers=2)
    price = lambda cell: 1.0 if cell.algorithm == "fedavg" else 10.0
    whole = lambda cells: sum(once + price(cell) * cell.cost for cell in cells)
    advance = lambda cell, r: estimate.advance(Advanced([cell], r, once + price(cell) * cell.cost * r / 3))
    assert estimate.seconds is None
    advance(quick[0], 1)
    assert estimate.seconds is None  # that round may have been all compilation
    advance(quick[0], 2)
    left = (quick[0].cost + sum(cell.cost for cell in slow + quick[1:]) * 3) / 3
    assert estimate.seconds == pytest.approx((left + once * len(searched[1:])) / 2)  # fedlap as fedavg, until it begins
    for cell in quick:
        advance(cell, 1)
        estimate.finish([finished_run(cell, whole([cell]))])
    for r in (1, 2):
        advance(slow[0], r)
    assert estimate.seconds == pytest.approx((whole(slow) - once - 10 * slow[0].cost * 2 / 3) / 2)
    estimate.finish([finished_run(slow[0], whole([slow[0]]) - 10 * slow[0].cost / 3, rounds=2)])  # it diverged
    assert estimate.seconds == pytest.approx(whole(slow[1:]) / 2)
    for cell in slow[1:-1]:
        advance(cell, 1)
        estimate.finish([finished_run(cell, whole([cell]))])
    assert estimate.seconds == pytest.approx(whole(slow[-1:]))  # one run has no use for a second process
    estimate.plan([[cell] for cell in trained], workers=1)  # the next phase, at the prices of this one
    assert estimate.seconds == pytest.approx(whole(trained))


def test_an_estimate_learns_what_epochs_cost():
    """Where the server does all the work, a round of two epochs takes as long as one of one."""
    fedlap = [cell for cell in make().search() if cell.algorithm == "fedlap"]
    first, second = ([cell for cell in fedlap if cell.epochs == epochs] for epochs in (1, 2))
    estimate, a_round = Estimate(), 30.0
    estimate.plan([[cell] for cell in first + second], workers=1)
    for cell in (first[0], second[0]):
        for r in (1, 2, 3):
            estimate.advance(Advanced([cell], r, a_round * r))
        estimate.finish([finished_run(cell, a_round * 3)])
    assert estimate.seconds == pytest.approx(a_round * 3 * len(first[1:] + second[1:]))


def test_the_longest_runs_begin_first(tmp_path):
    """On one process, so that the order is seen; in a file's order the one epoch of fedavg would be first."""
    sweep = make(NETWORK, finals="all", validation=0).narrow(["delta=1"])
    _, results_ = run(sweep, tmp_path / "long.jsonl", jobs=1)
    assert [result.setting["epochs"] for result in results_] == [2] * 4 + [1] * 4


def test_an_estimate_pays_for_a_program_once():
    """Compilation of a batch is paid by it, not by each of its runs: a large batch after a small one is no dearer."""
    small, large = make().search()[:1], [cell for cell in make().search() if cell.algorithm == "fedlap"]
    estimate = Estimate()
    estimate.plan([small, large], workers=0)
    for r in (1, 2):
        estimate.advance(Advanced(small, r, 100 + r * small[0].cost / 3))
    cost = sum(cell.cost for cell in large)
    assert estimate.seconds == pytest.approx(small[0].cost / 3 + 100 + cost)


def test_an_estimate_of_jobs_of_one_round():
    cells_ = cells.make("tiny", {**TABLE, "algorithms": {"bcm": {"delta": 1.0}}, "sweep": {}}).final()
    estimate = Estimate()
    estimate.plan([[cell] for cell in cells_], workers=1)
    estimate.advance(Advanced(cells_[:1], 1, 7.0))
    assert estimate.seconds is None
    estimate.finish([finished_run(cells_[0], 7.0, rounds=1)])
    assert estimate.seconds == pytest.approx(7.0)


@pytest.mark.parametrize(("seconds", "lines"), [(0, 4), (60, 1)])
def test_a_log_file_gets_a_line_now_and_then(seconds, lines, tmp_path, monkeypatch, capsys):
    """Where there is no terminal, a bar shows only in the end: a run in the background would be silent for hours."""
    monkeypatch.setattr(display, "LOG_SECONDS", seconds)
    sweep = make()
    cells = sweep.search()[:1]
    result = finished_run(cells[0], 160.0)
    with Display(sweep, tmp_path / "tiny.jsonl") as shown:
        shown.show(Planned("final", [], done=0, workers=0, later=None))  # nothing to do is not worth a line
        shown.show(Planned("search", [cells], done=1, workers=2, later=[]))
        shown.show(Advanced(cells, round=1, seconds=80.0))
        shown.show(Advanced(cells, round=2, seconds=120.0))
        shown.show(Finished([result], tmp_path / "checkpoint"))
        told = [line for line in capsys.readouterr().out.splitlines() if " runs; " in line]
    assert len(told) == lines
    expected = [
        "search, rows held out: 1 of 2 runs; time left: not known before the second round ends",
        "search, rows held out: 1 of 2 runs; time left: not known before the second round ends; fedavg, round 1",
        "search, rows held out: 1 of 2 runs; about 40 s left; fedavg, round 2",
        "search, rows held out: 2 of 2 runs; done",
    ]
    assert [line.split(" ", 1)[1] for line in told] == expected[:lines]


def test_a_plan_tells_what_will_follow(finished):
    search, final = (event for event in finished[1] if isinstance(event, Planned))
    assert {cell.digest for job in search.later for cell in job} == {cell.digest for cell in final.cells}
    assert [len(job) for job in search.jobs] == [2, 2, 4, 4]  # one program for each number of epochs
    assert final.later == []
    one_shot = cells.make("tiny", {**TABLE, "algorithms": {"bcm": {"delta": 1.0}}, "sweep": {}}).final()[0]
    assert one_shot.rounds == 1


def test_one_writer_a_file(tmp_path):
    with results.writer(tmp_path / "x.jsonl"), pytest.raises(DataError, match="another sweep is writing"):
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


@pytest.mark.parametrize("table", [TABLE, NETWORK], ids=["batch", "in turn"])
def test_a_checkpoint_of_other_curves_is_not_in_the_way(tmp_path, monkeypatch, table):
    monkeypatch.setattr(carry.jax, "default_backend", lambda: "not a cpu")
    table = {**table, "algorithms": {"fedavg": {}}, "sweep": {"every": {"epochs": [1]}}}
    steps = carry_out(cells.make("tiny", table), path := tmp_path / "x.jsonl")
    assert [type(next(steps)) for _ in range(3)] == [Planned, Planned, Advanced]
    steps.close()
    assert len(list(tmp_path.glob("x.jsonl.checkpoints/*.npz"))) == 1  # there after the first round
    table["sweep"]["watch_train"] = True
    _, done = run(cells.make("tiny", table), path)
    assert len(done) == 2 and all("train" in result.curves for result in done)


@pytest.mark.parametrize("table", [TABLE, NETWORK], ids=["batch", "in turn"])
@pytest.mark.parametrize("damage", [b"not an archive", None], ids=["damaged", "of another version"])
def test_a_checkpoint_that_is_of_no_use_is_not_in_the_way(tmp_path, monkeypatch, table, damage):
    monkeypatch.setattr(carry.jax, "default_backend", lambda: "not a cpu")
    sweep = cells.make("tiny", {**table, "algorithms": {"fedavg": {}}, "sweep": {"every": {"epochs": [1]}}})
    steps = carry_out(sweep, path := tmp_path / "x.jsonl")
    assert [type(next(steps)) for _ in range(3)] == [Planned, Planned, Advanced]
    steps.close()
    (left,) = tmp_path.glob("x.jsonl.checkpoints/*.npz")
    if damage:
        left.write_bytes(damage)
    else:
        monkeypatch.setattr(carry.checkpoints, "FORMAT", carry.checkpoints.FORMAT + 1)
    events, done = run(sweep, path)
    assert next(event.round for event in events if isinstance(event, Advanced)) == 1  # from the beginning
    assert len(done) == 2 and not list(tmp_path.glob("*.checkpoints"))


@pytest.mark.parametrize("divide", [carry._one_each, carry._batches], ids=["run", "batch"])
def test_a_checkpoint_of_a_finished_run_goes(finished, tmp_path, divide):
    """One that a process killed between its last line and its last act has left."""
    path = tmp_path / "x.jsonl"
    path.write_text(finished[0].read_text())
    left = carry._checkpoint(divide(make().final())[-1], False, tmp_path / "x.jsonl.checkpoints")
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
    command = [sys.executable, "-c", "from fedlap.cli import main; main()", "sweep", str(spec), "--output", str(path)]
    subprocess.run(command, check=True, timeout=120, capture_output=True, env={**os.environ, "JAX_ENABLE_X64": "0"})
    assert [result.precision for result in results.load(path)] == ["float64"]


def cores_seen(item, tell):
    return cores()


@pytest.mark.parametrize(
    ("mine", "workers", "dealt"),
    [([4, 6, 7, 9], 2, [[4, 6], [7, 9]]), ([4, 6, 7], 2, [[4], [6]]), ([4, 6], 3, [[4], [6], [4]])],
)
def test_cores_are_dealt_to_processes(mine, workers, dealt):
    assert processes._deal(mine, workers) == dealt


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


@pytest.mark.parametrize(
    ("sweep", "message"),
    [
        ({"validation": 1.5}, "sweep.validation is 1.5"),
        ({"finals": "best"}, "sweep.finals 'best'"),
        ({"finals": "winners", "validation": 0}, "expected rows to choose winners by"),
        ({"fedprox": {"alpha": [1.0]}}, "fedprox"),
        ({"fedlap": {"dleta": [1.0]}}, "dleta.*delta"),
        ({"fedlap": {"server_solver.rate": [1.0]}}, "server_solver.rate.*server_solver.learning_rate"),
        ({"fedlap": {"train.rounds": [1]}}, "train.rounds"),
        ({"fedlap": {"delta": 1.0}}, r"sweep.fedlap.delta is 1.0; expected a list"),
        ({"fedlap": {"delta": []}}, "expected a list"),
        ({"fedlap": 3}, r"sweep.fedlap is 3; expected a section"),
        ({"every": 3}, r"sweep.every is 3; expected a section"),
        ({"search_seeds": 5}, "sweep.search_seeds is 5; expected a list of whole numbers"),
        ({"search_seeds": ["a"]}, "sweep.search_seeds is"),
        ({"watch_train": "yes"}, "sweep.watch_train is 'yes'; expected true or false"),
        ({"precision": "double"}, "sweep.precision 'double'.*float64"),
        ({"search_seeds": [2**70]}, "sweep.search_seeds is .*; expected a list of whole numbers from 0 to 4294967295"),
        ({"fedlap": {"epochs": [1], "solver.epochs": [2]}}, "epochs and solver.epochs are the same axis"),
        ({"part": 3}, r"sweep.part is 3; expected a section"),
        ({"part": {"fedlpa": {"delta": [0.1]}}}, r"algorithm in \[sweep.part\] 'fedlpa'.*fedlap"),
        ({"part": {"fedlap": 3}}, "sweep.part.fedlap is 3; expected a section with lists"),
        ({"part": {"fedlap": {"dleta": [0.1]}}}, r"axis in \[sweep.part.fedlap\] 'dleta'.*delta"),
        (
            {"part": {"fedlap": {"delta": [7.0]}}},
            r"sweep.part.fedlap.delta is \[7.0\]; expected .* some of \[0.1, 1.0\]",
        ),
    ],
)
def test_a_wrong_sweep_is_refused(sweep, message):
    with pytest.raises(ConfigError, match=message):
        make(**sweep)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"train": {"seeds": 62}}, "train.seeds is 62; expected a list of whole numbers"),
        ({"train": {"seeds": []}}, "train.seeds is"),
        ({"solver": {"name": "adma"}}, "solver.name 'adma'.*adam"),
        ({"solver": {"name": ["adam"]}}, r"solver.name \['adam'\]"),
        ({"federation": {"dataset": ["heart"]}}, r"federation.dataset is \['heart'\]; expected one of"),
        ({"train": {"seeds": [1, 2**32]}}, "train.seeds is .*; expected a list of whole numbers from 0 to 4294967295"),
        ({"algorithms": {"fedavg": 3, "fedlap": {}}}, "algorithms.fedavg is 3; expected a table"),
        ({"algorithms": {}}, r"\[algorithms\] is empty; expected some of fedavg"),
    ],
)
def test_a_wrong_spec_of_a_sweep_is_refused(change, message):
    with pytest.raises(ConfigError, match=message):
        make({**TABLE, **change})


def test_what_is_swept_cannot_be_set():
    with pytest.raises(ConfigError, match=r"--set solver\.epochs=7: epochs is swept; choose .* with --only"):
        cells.make("tiny", TABLE, overrides=["solver.epochs=7"])
    with pytest.raises(ConfigError, match="learning_rate is swept"):
        cells.make("tiny", TABLE, overrides=["solver.learning_rate=1e-4"])
    assert cells.make("tiny", TABLE, overrides=["rounds=7"]).search()[0].spec.train.rounds == 7
    slower = cells.make("tiny", TABLE, overrides=["server_solver.learning_rate=1e-4"])
    assert slower.search()[0].spec.server_solver["learning_rate"] == 1e-4
    both = {**TABLE, "algorithms": {"fedlap": {}, "fedlap_cov": {"delta": 1.0}}}
    one = cells.make("tiny", both, overrides=["fedlap_cov.delta=3"]).final()[-1]
    assert one.spec.algorithms["fedlap_cov"]["delta"] == 3


def test_a_spec_without_a_sweep_is_refused():
    with pytest.raises(ConfigError, match=r"\[sweep\] is missing"):
        cells.make("tiny", {key: value for key, value in TABLE.items() if key != "sweep"})
