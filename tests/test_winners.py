"""The table that a sweep ends with, of results that are made up: what wins, by what, and what is said of it."""

from dataclasses import replace

import pytest
from rich.console import Console

from fedlap.cli.display import show_table
from fedlap.experiments import sweep as cells
from fedlap.experiments.results import Curve, Result
from fedlap.experiments.summary import as_text, summarise

TABLE = {
    "federation": {"dataset": "heart"},
    "model": {"name": "logistic"},
    "train": {"rounds": 2, "seeds": [1, 2]},
    "algorithms": {"fedavg": {}, "fedlap": {}, "bcm": {"delta": 1.0}},
    "sweep": {
        "validation": 0.25,
        "fedavg": {"epochs": [3, 4]},
        "fedlap": {"delta": [0.1, 1.0, 10.0]},
        "part": {"fedlap": {"delta": [1.0, 10.0]}},
    },
}
VALIDATION = {3: 0.6, 4: 0.7, 0.1: 0.9, 1.0: 0.8, 10.0: 0.7}  # accuracy of each value that is swept
TEST = {3: 0.9, 4: 0.8, 0.1: 0.70, 1.0: 0.75, 10.0: 0.85, None: 0.5}


def make(**changes):
    table = {**TABLE, "sweep": {**TABLE["sweep"], **changes.pop("sweep", {})}, **changes}
    return cells.make("made up", table)


def results(sweep, lost=()):
    """Of every cell: seed 2 is two points above seed 1, and runs of the values in `lost` diverge."""
    found = []
    for cell in (*sweep.search(), *sweep.final()):
        value = next(iter(cell.setting.values()), None)
        more = 0.02 * (cell.seed - 1)
        scores = {"test": TEST[value] + more} | ({"validation": VALIDATION[value]} if cell.held_out else {})
        nll = [float("nan") if value in lost else 1.0] * 2
        curves = {name: Curve.of([score] * 2, nll) for name, score in scores.items()}
        found.append(Result.of(cell, curves, 1.0, classes=2))
    return found


def printed(sweep, found, columns=120):
    console = Console(width=columns)
    with console.capture() as capture:
        show_table(console, as_text(sweep, summarise(sweep, found)))
    return capture.get()


def test_the_winner_is_chosen_by_validation_and_shown_on_the_test_set():
    """By the test set another would have won; a part of the grid has a winner of its own."""
    sweep = make()
    found = {each.algorithm: each for each in summarise(sweep, results(sweep))}
    assert {name: each.setting for name, each in found.items()} == {
        "fedavg": {"epochs": 4},
        "fedlap": {"delta": 0.1},
        "fedlap (part)": {"delta": 1.0},
        "bcm": {},
    }
    assert [each.settings for each in found.values()] == [2, 3, 2, 1]
    assert found["fedavg"].accuracy == pytest.approx((0.81, 0.01))
    text = printed(sweep, results(sweep))
    for words in ("81.0 (1.0)", "71.0 (1.0)", "76.0 (1.0)", "51.0 (1.0)", "1.000 (0.000)", "delta 0.1"):
        assert words in text
    assert "25 % of each client's rows, held out" in " ".join(text.split())


def test_without_validation_the_test_set_chooses_and_the_table_says_so():
    sweep = make(sweep={"validation": 0})
    found = {each.algorithm: each.setting for each in summarise(sweep, results(sweep))}
    assert found["fedavg"] == {"epochs": 3} and found["fedlap"] == {"delta": 10.0}
    words = " ".join(printed(sweep, results(sweep)).split())
    assert "chosen by accuracy on the test set itself, which flatters" in words


def test_the_training_rows_choose_nothing():
    """Without a test set and without validation there is no winner among several; one of a kind stays."""
    sweep = make(sweep={"validation": 0})
    blind = [replace(each, curves={"train": each.curves["test"]}) for each in results(sweep)]
    assert [each.algorithm for each in summarise(sweep, blind)] == ["bcm"]


def test_where_each_has_one_setting_nothing_was_chosen():
    sweep = cells.make("made up", {**TABLE, "algorithms": {"bcm": {"delta": 1.0}}, "sweep": {}})
    assert "one setting each, nothing was chosen" in " ".join(printed(sweep, results(sweep)).split())


def test_runs_that_diverged_are_counted_and_do_not_win():
    sweep = make()
    found = {each.algorithm: each for each in summarise(sweep, results(sweep, lost={4, 0.1}))}
    assert found["fedavg"].setting == {"epochs": 3} and (found["fedavg"].lost, found["fedavg"].tried) == (4, 8)
    assert found["fedlap"].setting == {"delta": 1.0} and found["fedlap (part)"].lost == 0
    text = printed(sweep, results(sweep, lost={3, 4}))
    assert "2 of 2 diverged" in text and "8 of 8" in text and "nan" not in text


def test_one_seed_shows_no_deviation():
    sweep = make(train={"rounds": 2, "seeds": [1]})
    text = printed(sweep, results(sweep))
    assert "80.0" in text and "one seed" in text and "(" not in text.replace("(part)", "")


def test_no_number_is_cut_at_40_columns():
    sweep = make()
    wide, narrow = (printed(sweep, results(sweep), columns).split() for columns in (120, 40))
    assert {word for word in wide if any(map(str.isdigit, word))} <= set(narrow)
    assert max(map(len, printed(sweep, results(sweep), 40).splitlines())) <= 40


def test_a_sweep_that_has_not_run_has_no_table():
    assert summarise(make(), []) == []
