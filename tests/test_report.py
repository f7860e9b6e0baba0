"""The table of a run: every number of it, by hand."""

import numpy as np
import pytest

from fedlap.experiments import summary as report
from fedlap.experiments import sweep as cells
from fedlap.experiments.results import Curve, Result

SETTINGS = {"fedlap": {"delta": 1.0}, "pvi": {"delta": 1.0}, "bcm": {"delta": 1.0}}


def made(*algorithms, target=None, seeds=(0, 1)):
    """A file without [sweep]."""
    table = {
        "federation": {"dataset": "heart"},
        "model": {"name": "logistic"},
        "train": {"seeds": list(seeds)} | ({} if target is None else {"target_accuracy": target}),
        "algorithms": {name: SETTINGS[name] for name in algorithms or ["fedlap"]},
    }
    return cells.make("made up", table)


def run(sweep, accuracy, nll=None, *calibration, seed=0, algorithm="fedlap", seconds=0.5):
    """The result of one run, so many seconds a round."""
    nll = [1 - value for value in accuracy] if nll is None else nll
    (cell,) = (cell for cell in sweep.final() if (cell.algorithm, cell.seed) == (algorithm, seed))
    return Result.of(cell, {"test": Curve.of(accuracy, nll, *calibration)}, seconds * len(accuracy), classes=2)


def row(sweep, runs):
    """The only algorithm, as numbers and as text."""
    found = report.summarise(sweep, runs)
    return found[0], report.as_text(sweep, found).rows[0]


@pytest.mark.parametrize(
    ("accuracy", "first"),
    [
        ([0.5, 0.9, 0.9], 1),  # the first round is round 1
        ([0.4, 0.5, 0.3], 2),  # reached exactly, and lost again
        ([0.4, 0.4, 0.6], 3),
        ([0.4, 0.4, 0.49], None),
        ([None, None], None),
    ],
)
def test_rounds_to_an_accuracy_are_counted_from_one(accuracy, first):
    assert report.first_round(accuracy, 0.5) == first


def test_a_row_is_the_mean_and_spread_over_seeds_of_the_last_three_rounds():
    sweep = made(target=0.3)
    first = run(sweep, [0.9, 0.1, 0.2, 0.3])
    runs = [first, run(sweep, [0.0, 0.3, 0.6, 0.9], nll=[9, 1, 2, 6], seed=1, seconds=1.5)]
    found, text = row(sweep, runs)
    assert (found.algorithm, found.seeds, found.diverged, found.rounds) == ("fedlap", 2, 0, 4)
    assert found.accuracy == pytest.approx((0.4, 0.2))  # of 0.2 and 0.6
    assert found.nll == pytest.approx((1.9, 1.1))  # of 0.8 and 3
    assert found.reached(0.3) == (1.5, 0.5)  # rounds 1 and 2
    assert found.seconds == 4.0  # of one run
    assert text == ["fedlap", "40.0 (20.0)", "1.900 (1.100)", "–", "–", "–", "2 (0)", "4", "4.0"]
    assert row(made(), runs)[1] == ["fedlap", "40.0 (20.0)", "1.900 (1.100)", "–", "–", "–", "4", "4.0"]


def test_calibration_is_the_mean_and_spread_over_seeds_where_all_of_them_have_it():
    """An AUC of several classes is no number, and a file of old results has none of the three."""
    sweep, none = made(), [np.nan] * 4
    brier, ece = ([0.9, 0.1, 0.2, 0.3], [0.5, 0.3, 0.3, 0.3]), ([1, 0.1, 0.1, 0.1], [1, 0.3, 0.3, 0.3])
    new = [run(sweep, [0.5] * 4, [1] * 4, brier[i], ece[i], none, seed=i) for i in (0, 1)]
    found, text = row(sweep, new)
    assert found.calibration("brier") == pytest.approx((0.25, 0.05)) and new[0].curves["test"].auc is None
    assert text[2:6] == ["1.000 (0.000)", "0.250 (0.050)", "0.200 (0.100)", "–"]
    assert row(sweep, [new[0], run(sweep, [0.5] * 4, seed=1)])[1][3:6] == ["–", "–", "–"]
    assert "auc" not in new[0].line() and Result.read(new[0].line()) == new[0]


def test_a_target_that_one_seed_never_reached_has_no_mean():
    sweep = made(target=0.5)
    for first, second in ([0.9], [0.1]), ([0.1], [0.9]):
        found, text = row(sweep, [run(sweep, first), run(sweep, second, seed=1)])
        assert found.reached(0.5) is None and text[6] == "–"


def test_one_seed_that_diverged_is_no_number_in_a_mean():
    sweep = made()
    found, text = row(sweep, [run(sweep, [0.5, 0.7]), run(sweep, [np.nan, np.nan], seed=1)])
    assert found.diverged == 1
    assert text[:6] == ["fedlap", "1 of 2 diverged", "–", "–", "–", "–"]


def test_algorithms_stay_in_the_order_of_the_file():
    """Whichever finished first."""
    sweep = made("pvi", "bcm")
    runs = [run(sweep, [0.5], algorithm="bcm"), run(sweep, [0.5], algorithm="pvi")]
    runs.append(run(sweep, [0.7], algorithm="pvi", seed=1))
    found = report.summarise(sweep, runs)
    assert [(each.algorithm, each.seeds) for each in found] == [("pvi", 2), ("bcm", 1)]
    head, ruler, first, _ = report.as_text(sweep, found).markdown().splitlines()
    assert head == "| algorithm | accuracy % | NLL | Brier | ECE | AUC | rounds | seconds |" and ruler.count("---") == 8
    assert first.startswith("| pvi | 60.0 (10.0) |")


def test_the_picture_says_over_how_many_seeds(monkeypatch):
    titles = []
    monkeypatch.setattr(report, "accuracy_and_nll", lambda lines, title, path, of: titles.append((title, of)))
    sweep = made()
    runs = [run(sweep, [0.5]), run(sweep, [0.5], seed=1)]
    for some in (runs[:1], runs):
        report.curves(report.summarise(sweep, some), "heart", None)
    assert titles == [("heart: one seed", "test"), ("heart: mean and spread over 2 seeds", "test")]
