"""Ten seeds that chose nothing: the differences between methods, of results that are made up."""

import numpy as np
import pytest
from scipy import stats

from fedlap.errors import DataError
from fedlap.experiments.results import Curve
from papers import make_up, paper_of_one_row
from reproduction.experiments import more_seeds
from reproduction.rows import HONEST, PAPER


def test_a_difference_has_the_interval_of_a_paired_t_test():
    first, second = np.random.default_rng(0).uniform(size=(2, 10))
    found, wanted = more_seeds.Difference.of(first, second), stats.ttest_rel(first, second)
    assert found.mean == pytest.approx(100 * np.mean(first - second))
    assert found[1:] == pytest.approx([100 * end for end in wanted.confidence_interval(0.95)])
    assert str(more_seeds.Difference(1.23, -0.04, 2.5)) == "+1.2 (0.0 to +2.5)"
    assert str(more_seeds.Difference(-10.04, -20.0, -0.06)) == "−10.0 (−20.0 to −0.1)"


@pytest.fixture
def row(tmp_path):
    """A row with FedAvg's winners on the ten seeds: one epoch, chosen on test, is ten points above five."""
    paper = paper_of_one_row(tmp_path)
    row, sweep = paper.row("row"), more_seeds.sweep_of(paper.row("row"))
    file = more_seeds.file_of(row)
    file.parent.mkdir(parents=True)
    level = lambda cell: 0.7 if cell.setting["epochs"] == 1 else 0.6
    curves = lambda cell: {"test": Curve([level(cell) + cell.seed / 1e4] * 3, [1.0] * 3)}
    make_up(row, sweep.final({"fedavg": row.winners["fedavg"]}), curves, file)
    return row


def test_a_method_is_compared_with_the_settings_that_won(row):
    seeds = more_seeds.read(row)
    steps = np.arange(10) / 1e4
    np.testing.assert_allclose(seeds.accuracies("fedavg", PAPER), 0.71 + steps)
    np.testing.assert_allclose(seeds.accuracies("fedavg", HONEST), 0.61 + steps)
    table = more_seeds.table([seeds, seeds], PAPER, [("fedavg", "fedavg"), ("fedlap", "fedavg")])
    assert table.splitlines() == [
        "| difference | A row | A row |",
        "| --- | --- | --- |",
        "| FedAvg − FedAvg | 0.0 (0.0 to 0.0) | 0.0 (0.0 to 0.0) |",
    ]


def test_a_method_whose_seeds_have_not_all_run_is_not_compared(row):
    seeds = more_seeds.read(row)
    assert len(seeds.accuracies("fedavg", HONEST)) == 10 and seeds.accuracies("fedlap", PAPER) is None
    fewer = [result for result in seeds.results if (result.algorithm, result.seed) != ("fedavg", 104)]
    with pytest.raises(DataError, match="fedavg: 9 of 10 seeds have run"):
        seeds._replace(results=fewer).accuracies("fedavg", PAPER)
