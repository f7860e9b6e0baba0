"""A federation without a test set: no curves of one, and still nothing in silence."""

import io
import pickle
from dataclasses import replace

import numpy as np
import pytest
from rich.console import Console

import fedlap
import scored
from drawn import FOUR, federation
from fedlap.cli.display import show_table
from fedlap.errors import ConfigError
from fedlap.experiments import results, runner
from fedlap.experiments import sweep as cells
from fedlap.experiments.summary import as_text, curves, summarise
from sweeping import TABLE, run


def without(made):
    return replace(made, test_inputs=made.test_inputs[:0], test_labels=made.test_labels[:0])


WHOLE = federation(4, FOUR, overlap=True)
OWN = np.concatenate(WHOLE.rows)


def simulate(made, **options):
    options = {"solver": fedlap.newton(), "rounds": 2} | options
    return fedlap.simulate(fedlap.FedLapCov(delta=1.0), made, fedlap.logistic(bias=True), **options)


@pytest.fixture(scope="module")
def history():
    return simulate(without(WHOLE))


def test_a_federation_may_have_no_test_set():
    pair = [[0.0, 1.0], [2.0, 3.0]], ["no", "yes"]
    made = fedlap.Federation.from_arrays(clients=[pair, pair])
    assert repr(made).endswith("2 classes, no test set)") and not made.has_test
    assert made.test_inputs.shape == (0, 2) and made.test[1].shape == (0,)
    held_out = made.hold_out(0.5, seed=0)
    assert held_out.has_test and held_out.sizes.tolist() == [1, 1]
    assert made.fingerprint() != fedlap.Federation.from_arrays(clients=[pair, pair], test=pair).fingerprint()


def test_the_same_model_comes_out_and_the_clients_own_rows_are_watched(history):
    np.testing.assert_array_equal(history.final.w, simulate(WHOLE).final.w)
    assert [len(scores) for scores in history.test] == [0] * 5 and history.accuracy.shape == history.auc.shape == (0,)
    assert list(history.watched) == ["train"] and len(history.seconds) == 2 and not history.diverged
    wanted = scored.scores(history.predict(WHOLE.inputs[OWN]), WHOLE.labels[OWN])
    np.testing.assert_allclose(np.array(history.watched["train"])[:, -1], wanted, rtol=1e-10)
    shown = f"2 rounds, no test set, on the training rows accuracy {wanted[0]:.3f}, NLL {wanted[1]:.3f})"
    assert repr(history).endswith(shown)


def test_it_pickles_saves_and_goes_on(history, tmp_path):
    history.save(tmp_path / "run")
    for found in (fedlap.load(tmp_path / "run"), pickle.loads(pickle.dumps(history))):
        assert repr(found) == repr(history) and found.nll.shape == (0,)
        np.testing.assert_array_equal(found.watched["train"], history.watched["train"])
    path = tmp_path / "run.npz"
    simulate(without(WHOLE), rounds=1, checkpoint=path)
    resumed = simulate(without(WHOLE), checkpoint=path, resume=True)
    np.testing.assert_array_equal(resumed.watched["train"], history.watched["train"])


def test_a_run_is_lost_by_its_training_loss():
    lost = fedlap.adam(epochs=5, batch=4, learning_rate=1e30)
    with pytest.warns(fedlap.DivergedWarning, match=r"from round 1 on its training NLL \(.* is far worse than 0.693"):
        assert simulate(without(WHOLE), solver=lost).diverged_since == 1
    with pytest.raises(fedlap.DivergedError, match="in round 1 its training NLL is not finite"):
        simulate(without(WHOLE), solver=replace(lost, learning_rate=1e308), on_divergence="raise")


def test_nothing_is_evaluated_on_what_is_not_there():
    made = fedlap.Simulation.of(fedlap.FedAvg(), without(WHOLE), fedlap.logistic())
    with pytest.raises(ConfigError, match=r"the federation has no test set; pass one, .*test=\(x, y\)"):
        made.evaluate(made.init())


def test_a_grid_has_test_sets_everywhere_or_nowhere():
    settings = [(fedlap.FedLap(delta=delta), fedlap.adam(epochs=1, batch=4)) for delta in (0.1, 1.0)]
    grid = lambda *each: fedlap.simulate_grid(settings, list(each), fedlap.logistic(), rounds=1, seeds=[0, 1])
    found = grid(without(WHOLE), without(WHOLE))[1, 1]
    assert found.nll.shape == (0,) and found.watched["train"].nll.shape == (1,)
    with pytest.raises(ConfigError, match="not all federations have a test set"):
        grid(WHOLE, without(WHOLE))


# Settings files -----------------------------------------------------------------------------------------------------


@pytest.fixture
def untested(monkeypatch):
    """Data sets come without their test sets."""
    read = runner._federation
    monkeypatch.setattr(runner, "_federation", lambda arguments: without(read(arguments)))
    monkeypatch.setattr(runner._federation, "cache_clear", lambda: None, raising=False)


def shown(sweep, found):
    console = Console(width=140, file=io.StringIO())
    text = as_text(sweep, summarise(sweep, found))
    show_table(console, text)
    return text, console.file.getvalue()


def test_a_table_of_training_rows_says_so(untested, tmp_path):
    table = {key: value for key, value in TABLE.items() if key != "sweep"}
    sweep = cells.make("tiny", {**table, "algorithms": {"fedavg": {}}, "train": {"rounds": 2, "seeds": [1]}})
    _, done = run(sweep, tmp_path / "x.jsonl")
    assert results.load(tmp_path / "x.jsonl") == done and list(done[0].curves) == ["train"]
    text, printed = shown(sweep, done)
    assert text.title.startswith("no test set; on the training rows: one seed") and "no test set" in printed
    assert text.rows[0][1] == f"{100 * np.mean(done[0].curves['train'].accuracy):.1f}"
    curves(summarise(sweep, done), "tiny", tmp_path / "curves.png")
    assert (tmp_path / "curves.png").exists()


def test_a_sweep_chooses_by_rows_held_out_or_refuses(untested, tmp_path):
    table = {**TABLE, "algorithms": {"fedlap": {"rho": "evenly"}}, "train": {"rounds": 2, "seeds": [1]}}
    search = {"fedlap": {"delta": [0.1, 1.0]}, "every": {"epochs": [1]}}
    blind = cells.make("tiny", {**table, "sweep": {**search, "validation": 0}})
    with pytest.raises(ConfigError, match=r"tiny: no test set to choose settings by; expected validation above 0"):
        run(blind, tmp_path / "blind.jsonl")
    sweep = cells.make("tiny", {**table, "sweep": {**search, "validation": 0.25}})
    _, done = run(sweep, tmp_path / "x.jsonl")
    assert {tuple(result.curves) for result in done if result.held_out} == {("validation", "train")}
    assert {tuple(result.curves) for result in done if not result.held_out} == {("train",)}
    text, _ = shown(sweep, done)
    assert "no test set" in text.title and "chosen by accuracy on 25 %" in text.title and len(text.rows) == 1
