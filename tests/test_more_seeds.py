"""Ten seeds that chose nothing: the differences between methods, and that the page shows them."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest
from fedlap.paper.rows import HONEST, PAPER, Paper
from scipy import stats

from fedlap.errors import DataError
from fedlap.experiments.results import load

ROOT = Path(__file__).parent.parent
ROWS = Paper.find(ROOT / "paper")


@pytest.fixture(scope="module")
def script():
    place = ROOT / "paper/experiments/more_seeds.py"
    spec = importlib.util.spec_from_file_location(place.stem, place)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_difference_has_the_interval_of_a_paired_t_test(script):
    first, second = np.random.default_rng(0).uniform(size=(2, 10))
    found, wanted = script.Difference.of(first, second), stats.ttest_rel(first, second)
    assert found.mean == pytest.approx(100 * np.mean(first - second))
    assert found[1:] == pytest.approx([100 * end for end in wanted.confidence_interval(0.95)])
    assert str(script.Difference(1.23, -0.04, 2.5)) == "+1.2 (0.0 to +2.5)"
    assert str(script.Difference(-10.04, -20.0, -0.06)) == "−10.0 (−20.0 to −0.1)"


def test_the_page_shows_the_committed_results(script):
    rows = [script.read(ROWS.row(name)) for name in script.ROWS]
    assert script.table(rows, PAPER) in (ROOT / "docs/reproduction.md").read_text(), "paper/experiments/more_seeds.py"


def test_seeds_that_chose_settings_are_not_among_these(script):
    for name in (*script.ROWS, *script.STANDARD):
        row = ROWS.row(name)
        results = load(script.file_of(row))
        assert {result.seed for result in results} == set(script.SEEDS)
        assert not {result.seed for result in row.candidates} & set(script.SEEDS)
        wanted = {cell.digest for cell in script.sweep_of(row).final(row.winners)}
        assert {result.cell for result in results} == wanted  # nothing is left to run, and nothing is of an older grid
        assert not any(result.diverged for result in results)


def test_a_method_whose_seeds_have_not_all_run_is_not_compared(script):
    row = script.read(ROWS.row("flamby"))
    assert len(row.accuracies("fedlap", HONEST)) == 10 and row.accuracies("fedlap_func", PAPER) is None
    fewer = [result for result in row.results if (result.algorithm, result.seed) != ("fedlap", 104)]
    with pytest.raises(DataError, match="fedlap: 9 of 10 seeds have run"):
        row._replace(results=fewer).accuracies("fedlap", PAPER)
