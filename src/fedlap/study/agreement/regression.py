"""The file of a regression over real sites: what is fitted, and what each column may hold.

[study]       name, members, seed, minimum_rows, ignored_columns
[columns]     one table for each column that is used, the outcome too: kind, unit or categories, range, missing
[regression]  formula; family, or duration and event; further columns by their roles; prior_sd; what sites may be asked
[network]     address, deadline, retries

Every column of the design follows from this file, so that no site has to describe its own.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np

from fedlap import identity
from fedlap.checks import is_number
from fedlap.errors import ConfigError, nearest, unknown
from fedlap.regression.cox import TIES
from fedlap.regression.design import Design, Roles, agree, variables
from fedlap.regression.formulas import CLASSES, LEVELS, MOMENT, NUMBER, QUANTILES, RANGE, SPLINES, parse
from fedlap.regression.glm import GlmModel, outcome_of
from fedlap.regression.hazards import CoxModel
from fedlap.regression.prior import normal
from fedlap.regression.variables import PROBABILITIES
from fedlap.study.agreement.contract import CommonStudy, check_sections, common_fields, parse_columns
from fedlap.study.agreement.sections import General, parse_general, parse_network, parse_section
from fedlap.study.table.columns import Column

SECTIONS = ("study", "columns", "regression", "network")
ELSEWHERE = ("rounds", "test_fraction", "share_points")  # what [study] has for a model that predicts
ROLES = ("weights", "offset", "exposure", "trials", "duration", "event")
MOST_COEFFICIENTS = 1_000
OPEN = (1.0, 2.0)  # a column without a range is as if from here to there, to formulas that do not look at its range


@dataclass(frozen=True)
class RegressionSection:
    """The section [regression]."""

    formula: str
    family: str | None = None
    duration: str | None = None
    event: str | None = None
    ties: str | None = None  # "efron" if nothing is said
    weights: str | None = None
    offset: str | None = None
    exposure: str | None = None
    trials: str | None = None
    success: Any = None
    prior_sd: float | None = None
    parameters_per_row: float = 0.33  # at every site; with more of them, sums tell about single patients
    robust: bool = False  # standard errors that hold if the family is wrong: one more sum a site
    influence: bool = False  # each site left out, and its share of the fit: more rounds, and losses at many weights


@dataclass(frozen=True, kw_only=True)
class RegressionStudy(CommonStudy):
    """A study of a regression, and can be run: every setting checked, every default written down."""

    regression: RegressionSection
    model: GlmModel | CoxModel = field(repr=False, compare=False)  # which follows from the rest

    @property
    def digest(self) -> str:
        """The sha256 of all that the members must share and that somebody said: no default is in it."""
        content = {
            "study": identity.said(General, self._general()),
            "columns": identity.of(self.columns),
            "regression": identity.said(RegressionSection, asdict(self.regression)),
        }
        return identity.digest(content)

    def shared(self) -> dict[str, Any]:
        """All sections but [network], which `resolve_regression` reads back to the same digest."""
        said = {name: value for name, value in asdict(self.regression).items() if value is not None}
        columns = [[column.name, column.as_dict()] for column in self.columns]
        return {"study": self._general(), "columns": columns, "regression": said}

    def _general(self) -> dict[str, Any]:
        names = [item.name for item in fields(General) if item.name not in ELSEWHERE]
        general = {name: getattr(self, name) for name in names}
        return {
            **general,
            "members": [member.name for member in self.members],
            "ignored_columns": list(self.ignored_columns),
        }

    @property
    def design(self) -> Design:
        """The design that the formula and the columns give."""
        return self.model.design

    @property
    def parameters_per_row(self) -> float:
        """How many parameters a site may have for each of its rows."""
        return float(self.regression.parameters_per_row)

    @property
    def robust(self) -> bool:
        """Whether sites may be asked for the middle of a robust covariance."""
        return self.regression.robust

    @property
    def influence(self) -> bool:
        """Whether sites may be asked for what leaving each of them out needs."""
        return self.regression.influence


def resolve_regression(table: dict[str, Any], path: str | Path) -> RegressionStudy:
    """Check a table of settings key by key; messages begin with the path."""
    try:
        return _resolve(table, Path(path))
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error


def _resolve(table: dict[str, Any], path: Path) -> RegressionStudy:
    check_sections(table, SECTIONS, ("study", "columns", "regression"))
    for key in ELSEWHERE:
        if key in table["study"]:
            raise ConfigError(f"study.{key} means nothing in a regression; leave it out")
    general = parse_general(table["study"])
    count = len(general.members)
    network = parse_network(table.get("network", {}), count)
    if 0 < network.quorum < count:
        raise ConfigError(
            f"network.quorum is {network.quorum}; a regression needs all {count} members in every round: leave it out"
        )
    columns = parse_columns(table["columns"], general.ignored_columns)
    for column in columns:
        if column.missing not in ("refuse", "drop"):
            raise ConfigError(
                f'columns.{column.name}.missing is "{column.missing}"; expected "refuse" or "drop": '
                "a value that was filled in would count as one that was measured"
            )
    section = _section(table["regression"])
    model = _model(section, _design(section, columns))
    return RegressionStudy(**common_fields(path, general, network, columns), regression=section, model=model)


def _section(table: dict[str, Any]) -> RegressionSection:
    section = parse_section(RegressionSection, table, "regression", ("formula",))
    if section.family is None and section.duration is None and section.event is None:
        raise ConfigError("regression.family is missing; expected a family, or duration and event")
    if section.family is not None and (section.duration is not None or section.event is not None):
        raise ConfigError("regression has a family beside duration and event; expected one of the two")
    if section.family is not None and section.ties is not None:
        raise ConfigError("regression.ties goes with duration and event; leave it out")
    for name in ROLES:
        value = getattr(section, name)
        if value is not None and not isinstance(value, str):
            raise ConfigError(f"regression.{name} is {value!r}; expected the name of a column")
    for name in ("exposure", "trials", "success"):
        if section.family is None and getattr(section, name) is not None:
            raise ConfigError(f"regression.{name} means nothing beside duration and event; leave it out")
    if section.ties is not None and section.ties not in TIES:
        raise unknown("regression.ties", section.ties, TIES)
    if section.prior_sd is not None and (not is_number(section.prior_sd) or section.prior_sd <= 0):
        raise ConfigError(f"regression.prior_sd is {section.prior_sd!r}; expected a number above 0")
    if not is_number(section.parameters_per_row) or not 0 < section.parameters_per_row < 1:
        raise ConfigError(
            f"regression.parameters_per_row is {section.parameters_per_row!r}; expected a number between 0 and 1"
        )
    for name in ("robust", "influence"):
        if not isinstance(getattr(section, name), bool):
            raise ConfigError(f"regression.{name} is {getattr(section, name)!r}; expected true or false")
    if section.robust and section.trials is not None:
        raise ConfigError("regression.robust takes rows one by one, and trials counts them together; leave one out")
    return section


def _model(section: RegressionSection, design: Design) -> GlmModel | CoxModel:
    """What is fitted."""
    prior = None if section.prior_sd is None else normal(section.prior_sd)
    if section.family is None:
        return CoxModel(design, section.ties or TIES[0], prior)
    return GlmModel.of(section.family, design, prior)


def _design(section: RegressionSection, columns: Sequence[Column]) -> Design:
    """The design, from the kinds, categories and ranges of the columns."""
    outcome = "number" if section.family is None else outcome_of(section.family, section.trials)
    roles = Roles(**{name: getattr(section, name) for name in ROLES}, success=section.success, outcome=outcome)
    needed = variables(section.formula, roles)
    known = {column.name: column for column in columns}
    for name in needed:
        if name not in known:
            near = nearest(name, known)
            hint = f"; did you mean {near!r}?" if near else ""
            raise ConfigError(f"the regression uses {name!r}, which is not in [columns]{hint}")
    for name in known:
        if name not in needed:
            raise ConfigError(
                f"columns.{name} is not used by the regression; leave it out, or list it in study.ignored_columns"
            )
    _check_extent(section.formula, known)
    told = {name: _description(known[name], needs, section) for name, needs in needed.items()}
    design = agree(section.formula, {"study.toml": {"rows": 1, "variables": told}}, roles)
    # The first category of the file is the reference, as in every study.
    levels = {name: list(known[name].categories) for name in needed if known[name].kind == "category"}
    ordered = {name: {**design.variables[name], "levels": levels[name]} for name in levels}
    return Design(design.formula, design.roles, {**design.variables, **ordered})


def _check_extent(formula: str, known: Mapping[str, Column]) -> None:
    """Refuse a design of more columns than a site could ever fit: two long lists of categories have their product."""
    columns = 0
    for term in parse(formula).right:
        width = 1
        for factor in term.factors:
            words = [*re.findall(r"\w+", factor.expr), factor.expr.strip("`")]
            categories = [len(known[word].categories) for word in words if word in known and known[word].categories]
            several = words[0] in (*SPLINES, "poly")
            parts = [int(word) for word in words if several and word.isdigit() and len(word) < 4]
            width *= max((1, *categories, *parts))
        columns += width
    if columns > MOST_COEFFICIENTS:
        raise ConfigError(
            f"the formula has up to {columns:,} coefficients; expected at most {MOST_COEFFICIENTS:,}: "
            "merge categories, or leave out products of them"
        )


def _description(column: Column, needs: Sequence[str], section: RegressionSection) -> dict[str, Any]:
    """What a site would tell of a column, from what the study file says of it."""
    name = column.name
    if column.kind == "category":
        if NUMBER in needs:
            raise ConfigError(f'the regression computes with {name!r}; expected columns.{name}.kind = "number"')
        levels = sorted(column.categories)
        return {"kind": "category", "missing": 0, "levels": levels, "counts": [2] * len(levels), "first": [0, ""]}
    if LEVELS in needs:
        raise ConfigError(
            f'the formula has C({name}); expected columns.{name}.kind = "category", and its categories listed'
        )
    if MOMENT in needs:
        raise ConfigError(
            f"the formula takes the mean of {name!r}, which no study file knows; expected numbers that are written "
            f"down, such as I(({name} - 50) / 10)"
        )
    bounded = math.isfinite(column.minimum) and math.isfinite(column.maximum)
    if {RANGE, QUANTILES} & set(needs) and not bounded:
        raise ConfigError(
            f"the formula has a spline or a polynomial of {name!r}; expected columns.{name} to have a minimum and a "
            "maximum, between which it lies"
        )
    low, high = (column.minimum, column.maximum) if bounded else OPEN
    told = {"kind": "number", "missing": 0, "count": 2, "min": low, "max": high, "sum": low + high}
    if QUANTILES in needs:
        told["quantiles"] = (low + (high - low) * np.asarray(PROBABILITIES)).tolist()
    if CLASSES in needs:
        told |= _classes(column, section)
    return told


def _classes(column: Column, section: RegressionSection) -> dict[str, Any]:
    """The classes of an outcome that is a number: 0 and 1."""
    outcome = parse(section.formula).outcome
    if column.name == outcome and (section.success is not None or section.family == "multinomial"):
        raise ConfigError(
            f'the outcome {column.name!r} is one of a few values; expected columns.{column.name}.kind = "category", '
            "and its categories listed"
        )
    return {"levels": [0.0, 1.0], "counts": [1, 1]}
