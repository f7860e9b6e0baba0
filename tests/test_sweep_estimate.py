"""How long a sweep will take, and how it tells."""

import pytest

from fedlap.cli import display
from fedlap.cli.display import Display, Estimate
from fedlap.experiments import results
from fedlap.experiments import sweep as cells
from fedlap.experiments.runner import Advanced, Finished, Planned
from sweeping import NETWORK, TABLE, make, run


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
