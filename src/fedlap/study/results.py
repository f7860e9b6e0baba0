"""What a regression over real sites has found, as files: tables for people, and a model that predicts.

coefficients.csv    every coefficient with its standard error, interval and p-value
summary.txt         the same for reading, with what it was fitted to and how
rounds.jsonl        pooled loss and Newton's decrement, round by round
influence.csv       (influence = true) every coefficient without each site, and the site's share of the log-likelihood
model/              what is needed to predict; plain JSON
"""

import csv
import io
import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from fedlap import files
from fedlap.checks import is_number
from fedlap.errors import ConfigError, DataError, FedlapError
from fedlap.files import read_description
from fedlap.regression.glm import GlmFit, GlmModel
from fedlap.regression.prediction import Prediction
from fedlap.regression.summary import label
from fedlap.study.agreement.regression import RegressionStudy, resolve_regression
from fedlap.study.protocol.regression.coordinator import AnyFit, RegressionOutcome
from fedlap.study.table.problems import shown
from fedlap.study.table.table import Checked, check_new_rows

FORMAT = 1
CARD = "regression.json"


@dataclass(frozen=True, eq=False)
class RegressionModel:
    """A regression that has been read from its file, ready to predict."""

    study: RegressionStudy
    parameters: np.ndarray
    covariance: np.ndarray
    card: dict[str, Any]

    def check(self, path: str | Path) -> Checked:
        """A file of new patients: the columns that a prediction needs, held to the study's rules."""
        used = self.study.design.used(outcome=False)
        columns = [column for column in self.study.columns if column.name in used]
        others = [column.name for column in self.study.columns if column.name not in used]
        return check_new_rows(columns, path, (*others, *self.study.ignored_columns))

    def predict(self, patients: str | Path | Checked, interval: float | None = None, observation: bool = False) -> Any:
        """A frame of the outcome that is expected for each row of a file; with `interval`, where that surely lies.

        With `observation`, further where a new outcome surely lies.
        """
        model, design = self.study.model, self.study.design
        if not isinstance(model, GlmModel):
            raise ConfigError(
                "a Cox regression predicts no outcome without a baseline hazard, and these stay at the sites"
            )
        checked = patients if isinstance(patients, Checked) else self.check(patients)
        frame = checked.frame(self.study.columns)
        rows = design.matrix(frame, outcome=False, where=checked.path.name, numbers=checked.row_numbers)
        degrees, scale = self.card["degrees"], self.card.get("scale")  # which cards once did not have
        degrees = math.inf if degrees is None else degrees
        rule = Prediction(model.family, design, self.parameters, self.covariance, degrees, scale)
        return rule.of(rows._replace(kept=checked.row_numbers[rows.kept]), interval, observation)


def save_regression(folder: str | Path, study: RegressionStudy, outcome: RegressionOutcome) -> Path:
    """Write what a run of a regression has come to."""
    folder, fit = Path(folder), outcome.fit
    (folder / "model").mkdir(parents=True, exist_ok=True)
    names = [label(name) for name in fit.index]
    files.write(folder / "coefficients.csv", _csv(_coefficients(outcome, names)))
    files.write(folder / "summary.txt", outcome.summary + "\n")
    files.write(folder / "rounds.jsonl", "".join(json.dumps(line) + "\n" for line in _rounds(fit)))
    if outcome.without:
        files.write(folder / "influence.csv", _csv(_influence(outcome, names)))
    # Last, for who finds a model finds all of it.
    card = {**_card(study, outcome), "names": names}
    files.write(folder / "model" / CARD, json.dumps(card, indent=2, allow_nan=False, ensure_ascii=False) + "\n")
    return folder


def load_regression(folder: str | Path) -> RegressionModel:
    """Read the model of a regression and check it."""
    path = Path(folder) / CARD
    card = read_description(path, (FORMAT,), "regression", "fitted")
    try:
        study = resolve_regression(card["study"], path)
        parameters, covariance = np.array(card["parameters"], float), np.array(card["covariance"], float)
        if card["digest"] != study.digest or card["design"] != json.loads(json.dumps(study.design.as_dict())):
            raise DataError(f"{path}: its design is not that of its study; the file has been changed")
        size, degrees = study.model.size, card["degrees"]
        finite = np.isfinite(parameters).all() and np.isfinite(covariance).all()
        if parameters.shape != (size,) or covariance.shape != (size, size) or not finite:
            raise DataError(f"{path}: {parameters.shape} parameters; expected {size} finite ones, and their covariance")
        if degrees is not None and not (is_number(degrees) and degrees > 0):
            raise DataError(f"{path}: its degrees of freedom are {shown(degrees)}; expected a number above 0, or null")
        scale = card.get("scale")
        if scale is not None and not (is_number(scale) and scale > 0):
            raise DataError(f"{path}: its scale is {shown(scale)}; expected a number above 0, or null")
    except (KeyError, TypeError, ValueError) as error:
        if isinstance(error, FedlapError):
            raise
        raise DataError(f"{path}: not the file of a regression ({type(error).__name__}: {error})") from error
    return RegressionModel(study, parameters, covariance, card)


def _card(study: RegressionStudy, outcome: RegressionOutcome) -> dict[str, Any]:
    fit = outcome.fit
    return {
        "format": FORMAT,
        "study": study.shared(),
        "digest": study.digest,
        "run": outcome.run,
        "design": study.design.as_dict(),
        "parameters": fit.params.to_numpy().tolist(),
        "covariance": fit.cov_params().to_numpy().tolist(),
        "degrees": fit.degrees if math.isfinite(fit.degrees) else None,
        "scale": fit.scale if isinstance(fit, GlmFit) else None,
        "rows": dict(fit.regression.rows),
        "without": list(outcome.lost),  # members left out for good, of whom nothing is in the fit
        "rounds": fit.rounds,
        "converged": fit.converged,
        "log_likelihood": fit.llf,
        "log_likelihood_null": outcome.log_likelihood_null,
        "versions": {name: version(name) for name in ("fedlap", "formulaic", "numpy", "scipy")},
    }


def _coefficients(outcome: RegressionOutcome, names: Sequence[str]) -> Iterable[Sequence[Any]]:
    fit, robust = outcome.fit, outcome.robust
    parts = [fit.params, fit.bse, fit.tvalues, fit.pvalues, *fit.conf_int().to_numpy().T]
    head = ["name", "coefficient", "standard_error", "t" if math.isfinite(fit.degrees) else "z", "p", "lower", "upper"]
    if robust is not None:
        parts += [robust.bse, robust.pvalues]
        head += ["robust_standard_error", "robust_p"]
    yield head
    for name, *numbers in zip(names, *parts, strict=True):
        yield [name, *(float(number) for number in numbers)]


def _influence(outcome: RegressionOutcome, names: Sequence[str]) -> Iterable[Sequence[Any]]:
    yield ["without", "share_of_log_likelihood", "name", "coefficient", "standard_error"]
    for site, (coefficients, errors) in outcome.without.items():
        for name, coefficient, error in zip(names, coefficients.tolist(), errors.tolist(), strict=True):
            yield [site, outcome.shares[site], name, coefficient, error]


def _rounds(fit: AnyFit) -> Iterable[dict[str, Any]]:
    number = lambda value: float(value) if math.isfinite(value) else None
    for k, round in enumerate(fit.optimum.rounds, 1):
        yield {"round": k, "loss": number(round.loss), "decrement": number(round.decrement), "note": round.note}


def _csv(rows: Iterable[Sequence[Any]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()
