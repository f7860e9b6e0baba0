"""The two ways of choosing settings, on results that are made up."""

from dataclasses import replace

import numpy as np
import pytest

from fedlap.experiments import results, summary
from fedlap.experiments import sweep as cells
from sweeping import TABLE


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
    way = lambda way, finals: summary.choose(searched + trained, "fedlap", way, finals).setting
    assert way(summary.HONEST, "all") == way(summary.HONEST, "winners") == a
    assert way(summary.PAPER, "all") == a  # of the runs on all rows
    assert way(summary.PAPER, "winners") == b  # of the search
    assert summary.choose([], "fedlap", summary.PAPER, "all") is None
    # Without a search nothing was honestly chosen, and what there is is shown.
    assert summary.choose(trained[:1], "fedlap", summary.HONEST, "winners") is None
    assert summary.choose(trained, "fedlap", summary.HONEST, "all") is None
    assert summary.choose(trained[:1], "fedlap", summary.PAPER, "winners").setting == a
    assert summary.choose(trained, "fedlap", summary.PAPER, "winners").setting == a
    # A setting with fewer seeds has not finished, and is no candidate yet.
    more = [*trained, result(b, 2, 0, test=0.7)]
    assert summary.choose(more, "fedlap", summary.PAPER, "all").setting == b


def test_between_equal_accuracies_the_smaller_nll_wins():
    curve = lambda nll: {"test": results.Curve([0.5] * 3, [nll] * 3)}
    runs = [replace(result({"delta": nll}, 1, 0, 0.5), curves=curve(nll)) for nll in (0.9, 0.3, 0.6)]
    assert summary.choose(runs, "fedlap", summary.PAPER, "all").setting == {"delta": 0.3}


def test_runs_to_report_are_those_on_all_rows_by_seed():
    a, b = {"delta": 1.0}, {"delta": 2.0}
    runs = [result(a, 3, 0, 0.5), result(a, 1, 0, 0.5), result(a, 2, 0.2, 0.5, 0.5), result(b, 2, 0, 0.5)]
    assert summary.finals(runs, "fedlap", a) == [runs[1], runs[0]]


def test_the_honest_way_does_not_see_that_the_test_set_diverged():
    a, b = {"delta": 1.0}, {"delta": 2.0}
    searched = [result(a, 1, 0.2, test=None, validation=0.9), result(b, 1, 0.2, test=0.8, validation=0.2)]
    assert summary.choose(searched, "fedlap", summary.HONEST, "winners").setting == a
    assert summary.choose(searched, "fedlap", summary.PAPER, "winners").setting == b


def test_a_method_that_was_changed_is_not_chosen_by_what_it_was():
    old, new, worse = {"delta": 1.0}, {"delta": 2.0}, {"delta": 3.0}
    searched = [result(old, 1, 0.2, 0.9, 0.9), result(new, 1, 0.2, 0.5, 0.5, revision=2)]
    chosen = lambda way: summary.choose(searched, "fedlap", way, "winners")
    assert (chosen(summary.PAPER).setting, chosen(summary.PAPER).settings, chosen(summary.HONEST)) == (new, 1, None)
    searched.append(result(worse, 1, 0.2, 0.4, 0.4, revision=2))
    for way in (summary.PAPER, summary.HONEST):
        assert (chosen(way).setting, chosen(way).settings) == (new, 2)


def test_a_part_of_a_grid_has_winners_of_its_own():
    """Rows chosen from a paper's grid beside a wider one: both are trained on all rows."""
    sweep = cells.make("tiny", {**TABLE, "sweep": {**TABLE["sweep"], "part": {"fedlap": {"delta": [0.1]}}}})
    settings = sweep.settings("fedlap")
    assert [sweep.in_part("fedlap", each) for each in settings] == [True, False, True, False]
    assert all(sweep.in_part("fedavg", each) for each in sweep.settings("fedavg"))
    levels = [0.5, 0.9, 0.6, 0.7]  # of one epoch with delta 0.1 and 1, then of two
    searched = [result(each, 1, 0.2, level, level) for each, level in zip(settings, levels, strict=True)]
    assert summary.winners(searched, sweep)["fedlap"] == [settings[1], settings[2]]
    # Both ways choose the same, which is trained once.
    assert summary.winners(searched, replace(sweep, finals="winners"))["fedlap"] == [settings[1], settings[2]]


def test_the_value_at_a_round_is_the_mean_of_three():
    curve = results.Curve([0.0, 0.3, 0.6, 0.9], [4.0, 3.0, 2.0, 1.0])
    assert summary.value(curve, 3) == pytest.approx((0.3, 3.0))
    assert summary.value(curve, 4) == pytest.approx((0.6, 2.0))
    assert summary.value(curve) == pytest.approx((0.6, 2.0))
    assert summary.value(curve, 1) == pytest.approx((0.0, 4.0))
    assert np.isnan(summary.value(results.Curve([0.5, None], [1.0, None]))).all()
