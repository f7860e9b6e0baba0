"""The table of a run: every number of it, by hand."""

import numpy as np
import pytest

from fedlap.experiments import summary as report
from fedlap.experiments.experiment import Run


def run(accuracy, nll=None, seed=0, algorithm="fedlap", seconds=0.5):
    accuracy = np.array(accuracy)
    nll = 1 - accuracy if nll is None else np.array(nll)
    return Run(algorithm, seed, accuracy, nll, np.full(len(accuracy), seconds), not np.isfinite(nll).all())


@pytest.mark.parametrize(
    ("accuracy", "first"),
    [
        ([0.5, 0.9, 0.9], 1),  # the first round is round 1
        ([0.4, 0.5, 0.3], 2),  # reached exactly, and lost again
        ([0.4, 0.4, 0.6], 3),
        ([0.4, 0.4, 0.49], None),
        ([np.nan, np.nan], None),
    ],
)
def test_rounds_to_an_accuracy_are_counted_from_one(accuracy, first):
    assert report.first_round(np.array(accuracy), 0.5) == first


def test_a_row_is_the_mean_and_spread_over_seeds_of_the_last_three_rounds():
    runs = [run([0.9, 0.1, 0.2, 0.3], seed=0), run([0.0, 0.3, 0.6, 0.9], nll=[9, 1, 2, 6], seed=1, seconds=1.5)]
    (row,) = report.summarise(runs, target=0.3)
    assert (row.algorithm, row.seeds, row.diverged, row.rounds) == ("fedlap", 2, 0, 4)
    assert row.accuracy == pytest.approx((0.4, 0.2))  # of 0.2 and 0.6
    assert row.nll == pytest.approx((1.9, 1.1))  # of 0.8 and 3
    assert row.reached == (1.5, 0.5)  # rounds 1 and 2
    assert row.seconds == 4.0  # of one run
    assert report.cells(row, 0.3) == ["fedlap", "40.0 (20.0)", "1.900 (1.100)", "2 (0)", "4", "4.0"]
    assert report.cells(row, None) == ["fedlap", "40.0 (20.0)", "1.900 (1.100)", "4", "4.0"]


def test_a_target_that_one_seed_never_reached_has_no_mean():
    for runs in ([run([0.9]), run([0.1], seed=1)], [run([0.1]), run([0.9], seed=1)]):
        (row,) = report.summarise(runs, target=0.5)
        assert row.reached is None and report.cells(row, 0.5)[3] == "–"


def test_one_seed_that_diverged_is_no_number_in_a_mean():
    runs = [run([0.5, 0.7]), run([np.nan, np.nan], seed=1)]
    (row,) = report.summarise(runs, target=None)
    assert row.diverged == 1
    assert report.cells(row, None)[:3] == ["fedlap", "1 of 2 diverged", "–"]


def test_algorithms_stay_in_the_order_in_which_they_ran():
    runs = [run([0.5], algorithm="pvi"), run([0.5], algorithm="bcm"), run([0.7], algorithm="pvi", seed=1)]
    rows = report.summarise(runs, target=None)
    assert [(row.algorithm, row.seeds) for row in rows] == [("pvi", 2), ("bcm", 1)]
    head, ruler, first, _ = report.markdown(rows, None).splitlines()
    assert head == "| algorithm | accuracy % | NLL | rounds | seconds |" and ruler.count("---") == 5
    assert first.startswith("| pvi | 60.0 (10.0) |")
