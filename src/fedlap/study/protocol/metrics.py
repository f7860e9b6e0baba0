"""How good a model is on the rows that members hold back, all of them together."""

from collections.abc import Iterable
from typing import NamedTuple

from fedlap.engines.scores import BINS
from fedlap.study.protocol.calibration import Calibrated, calibration
from fedlap.study.protocol.contents import HeldBack


class Score(NamedTuple):
    """Accuracy and NLL over the held-back rows of those who answered; None without any.

    Of the last model alone, also its calibration: `PooledCalibration` says what each of these is.
    """

    test_rows: int
    accuracy: float | None
    nll: float | None
    brier: float | None = None
    ece: float | None = None
    ece_bins: int | None = None
    auc: float | None = None
    auc_bound: float | None = None
    auc_rows: int | None = None
    reliability: list[list[float]] | None = None

    def __str__(self) -> str:
        if not self.test_rows:
            return "nothing was reported on rows held back"
        said = f"accuracy {self.accuracy:.3f}, NLL {self.nll:.3f} on {self.test_rows} rows held back"
        if self.brier is not None:
            said += f"; Brier {self.brier:.3f}, ECE {self.ece:.3f} ({self.ece_bins} of {BINS} bins, small ones merged)"
        if self.auc is not None:
            said += f", AUC {self.auc:.3f} ± {self.auc_bound:.3f} of {self.auc_rows} rows"
        return said


def score(reports: Iterable[HeldBack], cells: Iterable[Calibrated] = ()) -> Score:
    """The score of what several members report; of the last model they also say how it is calibrated."""
    reports = list(reports)
    rows = sum(report.rows for report in reports)
    if not rows:
        return Score(0, None, None)
    accuracy, nll = (sum(getattr(report, name) for report in reports) / rows for name in ("correct", "nll"))
    return Score(rows, accuracy, nll, *calibration(cells))
