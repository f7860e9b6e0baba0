"""Studies across real sites: what their members agree on, what each does with its own file, and the fitted model.

A coordinator makes a study (`new_study`, from a text such as `example_study()` or `study_text(…)` gives) and runs it
(`Coordinator`); a site checks its file (`check_file`), sees what would leave it (`statistics`, `Site.explain`) and
answers requests (`Site`); anyone uses the model (`load`). A name is imported when it is first used.
"""

from typing import TYPE_CHECKING

from fedlap.lazy import lazy_names

if TYPE_CHECKING:  # for editors and type checkers, which do not run __getattr__; the same names as in _HOMES
    from fedlap.study.agreement.contract import Member, Study
    from fedlap.study.agreement.draft import draft_columns
    from fedlap.study.agreement.example import example_files, example_study
    from fedlap.study.agreement.policy import SitePolicy
    from fedlap.study.agreement.reading import read_study
    from fedlap.study.agreement.regression import RegressionStudy
    from fedlap.study.agreement.scaffold import new_regression, new_study
    from fedlap.study.agreement.template import regression_text, study_text
    from fedlap.study.model import Fitted, load, save_outcome
    from fedlap.study.protocol.audit import verify
    from fedlap.study.protocol.checkpoint import RoundReport
    from fedlap.study.protocol.coordinator import Coordinator, Outcome
    from fedlap.study.protocol.inquiry import Event, Transport
    from fedlap.study.protocol.messages import Reply, Request, decode, encode
    from fedlap.study.protocol.metrics import Score
    from fedlap.study.protocol.regression.coordinator import RegressionCoordinator, RegressionOutcome
    from fedlap.study.protocol.regression.site import RegressionSite
    from fedlap.study.protocol.respondent import Sent
    from fedlap.study.protocol.site import Site
    from fedlap.study.results import RegressionModel, load_regression, save_regression
    from fedlap.study.table.columns import Column, Target
    from fedlap.study.table.encoding import Pooled, Statistics, pool, statistics
    from fedlap.study.table.table import Checked, check_file, check_inputs

__all__ = [
    "Checked",
    "Column",
    "Coordinator",
    "Event",
    "Fitted",
    "Member",
    "Outcome",
    "Pooled",
    "RegressionCoordinator",
    "RegressionModel",
    "RegressionOutcome",
    "RegressionSite",
    "RegressionStudy",
    "Reply",
    "Request",
    "RoundReport",
    "Score",
    "Sent",
    "Site",
    "SitePolicy",
    "Statistics",
    "Study",
    "Target",
    "Transport",
    "check_file",
    "check_inputs",
    "decode",
    "draft_columns",
    "encode",
    "example_files",
    "example_study",
    "load",
    "load_regression",
    "new_regression",
    "new_study",
    "pool",
    "read_study",
    "regression_text",
    "save_outcome",
    "save_regression",
    "statistics",
    "study_text",
    "verify",
]

_HOMES = {
    "agreement.contract": "Member Study",
    "agreement.draft": "draft_columns",
    "agreement.example": "example_files example_study",
    "agreement.policy": "SitePolicy",
    "agreement.reading": "read_study",
    "agreement.regression": "RegressionStudy",
    "agreement.scaffold": "new_regression new_study",
    "agreement.template": "regression_text study_text",
    "model": "Fitted load save_outcome",
    "protocol.audit": "verify",
    "protocol.checkpoint": "RoundReport",
    "protocol.coordinator": "Coordinator Outcome",
    "protocol.inquiry": "Event Transport",
    "protocol.messages": "Reply Request decode encode",
    "protocol.metrics": "Score",
    "protocol.regression.coordinator": "RegressionCoordinator RegressionOutcome",
    "protocol.regression.site": "RegressionSite",
    "protocol.respondent": "Sent",
    "protocol.site": "Site",
    "results": "RegressionModel load_regression save_regression",
    "table.columns": "Column Target",
    "table.encoding": "Pooled Statistics pool statistics",
    "table.table": "Checked check_file check_inputs",
}

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_names(__name__, _HOMES)
