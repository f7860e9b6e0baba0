"""How good a model is on the rows that members hold back, all of them together."""

from collections.abc import Iterable
from typing import NamedTuple

from fedlap.study.protocol.contents import HeldBack


class Score(NamedTuple):
    """Accuracy and NLL over the held-back rows of those who answered; None without any."""

    test_rows: int
    accuracy: float | None
    nll: float | None

    def __str__(self) -> str:
        if not self.test_rows:
            return "nothing was reported on rows held back"
        return f"accuracy {self.accuracy:.3f}, NLL {self.nll:.3f} on {self.test_rows} rows held back"


def score(reports: Iterable[HeldBack]) -> Score:
    """The score of what several members report."""
    reports = list(reports)
    rows = sum(report.rows for report in reports)
    if not rows:
        return Score(0, None, None)
    return Score(rows, sum(report.correct for report in reports) / rows, sum(report.nll for report in reports) / rows)
