"""Calibration of a study's last model: cells that no site has fewer rows in than it allows, and what they come to."""

import json

import numpy as np
import pytest

import scored
from fedlap.errors import DataError
from fedlap.study.protocol.calibration import RANKS, Calibrated, area, calibrated, calibration, read_calibrated


def drawn(rows, classes=2, seed=0):
    rng = np.random.default_rng(seed)
    outputs = 2 * rng.normal(size=(rows, classes))
    p = np.exp(outputs) / np.exp(outputs).sum(1, keepdims=True)
    return p, (rng.gumbel(size=(rows, classes)) + 0.7 * outputs).argmax(1)


def said(part, least=1):
    """What a site says, as the server reads it."""
    facts = json.loads(json.dumps({"calibration": calibrated(*part, least)._asdict()}))
    return read_calibrated("ash", facts, len(part[0]))


def together(parts):
    return np.concatenate([p for p, _ in parts]), np.concatenate([y for _, y in parts])


# What a site says -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("least", [1, 5, 10, 40])
def test_no_cell_is_over_fewer_rows_than_the_site_allows(least):
    for seed in range(20):
        p, labels = drawn(60, seed=seed)
        found = said((p, labels), least)
        assert all(rows >= least for _, rows, _, _ in found.reliability)
        assert all(min(zeros, ones) >= least for _, zeros, ones in found.ranking)
        assert sum(rows for _, rows, _, _ in found.reliability) == 60
        assert sum(right for *_, right in found.reliability) == (p.argmax(1) == labels).sum()
        ranked = sum(zeros for _, zeros, _ in found.ranking), sum(ones for *_, ones in found.ranking)
        enough = min(np.bincount(labels, minlength=2)) >= least
        assert ranked == (tuple(np.bincount(labels, minlength=2)) if enough else (0, 0))


def test_of_too_few_rows_nothing_is_said():
    assert said(drawn(9), 9).reliability and not calibrated(*drawn(9), 10).reliability
    assert not said(drawn(30, classes=3)).ranking  # a ranking is of two classes


def test_cells_are_read_alike_in_one_process_and_from_a_network():
    """There they are tuples, as the site made them; here lists, as JSON has them."""
    part = drawn(200)
    assert read_calibrated("ash", {"calibration": calibrated(*part, 5)._asdict()}, 200) == said(part, 5)


# What they come to ----------------------------------------------------------------------------------------------------


def test_where_nothing_is_merged_the_ece_is_that_of_all_rows():
    """But for rounding: of each site's mean confidence in a bin, and of its Brier score, to two decimals."""
    parts = [drawn(3000, classes=3, seed=seed) for seed in range(3)]
    found, wanted = calibration(said(part) for part in parts), scored.scores(*together(parts))
    assert found.ece_bins == len(np.unique(np.ceil(15 * together(parts)[0].max(1))))
    np.testing.assert_allclose((found.brier, found.ece), (wanted[2], wanted[3]), atol=0.005)
    assert found.auc is None and sum(cell[2] for cell in found.reliability) == 9000


@pytest.mark.parametrize("least", [5, 10, 20])
def test_merged_the_ece_is_never_above_that_of_all_bins_and_the_auc_within_its_bound(least):
    """By the triangle inequality; the confidence of a cell is rounded to 0.01."""
    for seed in range(4):
        parts = [drawn(rows, seed=10 * seed + rows) for rows in (60, 80, 120)]
        found, wanted = calibration(said(part, least) for part in parts), scored.scores(*together(parts))
        assert found.ece <= wanted[3] + 0.005 and 1 <= found.ece_bins <= 8
        assert abs(found.auc - wanted[4]) <= found.auc_bound and found.auc_rows == 260


def test_the_bound_is_tight_where_a_cell_hides_an_order():
    """One cell each: of two sites whose rows could be in either order, the AUC may be all or nothing."""
    one = Calibrated(0.0, ((15, 4, 3.0, 2),), ((RANKS, 2, 2),))
    assert area([one, one]) == (0.5, 0.5, 8)
    apart = Calibrated(0.0, ((15, 4, 3.0, 2),), ((50, 3, 1), (RANKS, 0, 3)))
    assert area([apart]) == (9 / 12 + 3 / 24, 3 / 24, 7)
    assert area([Calibrated()]) == (None, None, None) and calibration([Calibrated()]).ece is None


# What is refused ----------------------------------------------------------------------------------------------------


GOOD = {"brier": 1.0, "reliability": [[9, 3, 1.7, 2], [15, 1, 0.9, 1]], "ranking": [[50, 1, 1], [100, 1, 1]]}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"brier": 9.0}, "a Brier score of 9.0 on 4 held-back rows"),
        ({"brier": "low"}, "a Brier score of 'low'"),
        ({"reliability": [[15, 3, 2.0, 1]]}, "a reliability of 3 rows; it holds back 4"),
        ({"reliability": [[14, 4, 3.0, 1]]}, r"end at \[14\]; expected them up to 15"),
        ({"reliability": [[9, 3, 1.7, 2], [9, 1, 0.9, 1], [15, 0, 0.0, 0]]}, "expected them up to 15, one by one"),
        ({"reliability": [[9, 3, 1.7, 4], [15, 1, 0.9, 1]]}, "4 right of 3 rows"),
        ({"reliability": [[9, 3, 2.9, 2], [15, 1, 0.9, 1]]}, "a confidence of 2.9; that cannot be"),
        ({"reliability": [[15, 4.5, 3.0, 1]]}, "its reliability is no list of cells"),
        ({"reliability": {}}, "its reliability is no list of cells"),
        ({"ranking": [[100, 1, 1]]}, "a ranking of 2 rows; it holds back 4"),
        ({"ranking": [[100, -1, 5]]}, "its ranking is no list of cells"),
        ({"more": 1}, "its calibration is not brier, reliability, ranking"),
    ],
)
def test_what_cannot_be_is_refused(change, words):
    assert read_calibrated("ash", {"calibration": GOOD}, 4).brier == 1.0
    with pytest.raises(DataError, match=f"^ash: .*{words}"):
        read_calibrated("ash", {"calibration": GOOD | change}, 4)
