"""A site's records for a regression: its file, checked whole, as the rows that the model takes."""

from pathlib import Path

from fedlap.regression.model import Opening, Part, Units
from fedlap.regression.objective import Objective
from fedlap.regression.standard import Scale
from fedlap.study.protocol.regression.agreed import RegressionAgreement
from fedlap.study.protocol.regression.contents import Standard, check_size
from fedlap.study.table.encoding import rare
from fedlap.study.table.table import Checked, check_rows


class RegressionRecords:
    """The checked rows of one member's file."""

    def __init__(self, study: RegressionAgreement, path: str | Path) -> None:
        self.study = study
        self.checked: Checked = check_rows(study.columns, path, study.minimum_rows, study.ignored_columns)
        self.opening: Opening = self._part().opening()
        check_size(study, self.checked.path.name, self.opening.complete)  # before anyone is connected to

    def objective(self, standard: Standard) -> Objective:
        """The loss of the rows, in the units of all sites."""
        units = Units(Scale(standard.shift, standard.spread, None), float(standard.outcome))
        return self._part().objective(units)

    def fingerprint(self) -> str:
        """The sha256 of the rows."""
        return self.checked.fingerprint()

    def warnings(self) -> list[str]:
        """In words, which categories so few rows have that sums over them may tell of single patients."""
        return rare(self.study.columns, self.checked.values, self.study.minimum_rows, "rows")

    def _part(self) -> Part:
        checked, where = self.checked, self.checked.path.name
        rows = self.study.design.matrix(checked.frame(self.study.columns), where=where, numbers=checked.row_numbers)
        return self.study.model.part(rows._replace(kept=checked.row_numbers[rows.kept]), where)
