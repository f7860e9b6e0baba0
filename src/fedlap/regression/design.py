"""Design matrices: from a formula and the frames of several sites to one matrix a site, the same columns everywhere.

The design is agreed on by all sites, never taken from one site's rows. Each site describes its columns, the server
makes a design of the descriptions, and with it each site makes a matrix of its own rows.
"""

import ast
import warnings
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from fedlap.data.frames import column_names
from fedlap.data.validation import listing
from fedlap.errors import ConfigError, DataError, nearest, unknown
from fedlap.regression.formulas import CLASSES, MOMENTS, NUMBER, Parsed, argument, call_of, identifier, library, parse
from fedlap.regression.roles import NONE, Roles, check_no_text, check_rows, check_success
from fedlap.regression.variables import (
    Values,
    array_of,
    conform,
    describe,
    merge,
    pooled_moments,
    read,
    row_count,
    template,
)

__all__ = ["Design", "Roles", "SiteRows", "agree", "describe", "designs", "divide", "variables"]


class SiteRows(NamedTuple):
    """The rows of one site: those without a missing value in any column that is used."""

    x: np.ndarray  # [n, P]
    y: np.ndarray | None  # [n], of classes their numbers
    offset: np.ndarray | None
    weights: np.ndarray | None
    trials: np.ndarray | None
    duration: np.ndarray | None
    event: np.ndarray | None
    kept: np.ndarray  # [n], where the rows are in the frame
    left_out: int
    names: tuple[str, ...]  # of the columns of x

    def take(self, places: np.ndarray) -> "SiteRows":
        """Some of the rows, copied."""
        by_row = ("x", "y", "offset", "weights", "trials", "duration", "event", "kept")
        arrays = {name: getattr(self, name) for name in by_row}
        return self._replace(**{name: None if each is None else each[places].copy() for name, each in arrays.items()})

    @property
    def sums(self) -> np.ndarray:
        """The sum of each column."""
        return self.x.sum(0)


@dataclass(frozen=True)
class Design:
    """What sites have agreed on: a formula, and the kind, range and levels of each column in it.

    It is plain data. Whoever has it makes the same columns of any frame, today or from a file.
    """

    formula: str
    roles: Roles
    variables: Mapping[str, Mapping[str, Any]]

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The columns of the matrix, as formulaic names them; the model of a duration has no intercept."""
        names = self._spec.column_names
        return tuple(name for name in names if not (name == "Intercept" and self.roles.duration is not None))

    @property
    def classes(self) -> tuple[Any, ...]:
        """The classes of the outcome: the first is the reference."""
        outcome = self._parsed.outcome
        return tuple(self.variables[outcome]["levels"]) if outcome and self.roles.outcome == "classes" else ()

    def used(self, outcome: bool = True) -> list[str]:
        """The columns that a frame must have; without outcome, those that a prediction needs."""
        left = self._parsed.left_needs if outcome else {}
        return list(dict.fromkeys([*left, *self._parsed.right_needs, *self._roles(outcome).values()]))

    def matrix(
        self, frame: Any, outcome: bool = True, where: str = "the frame", numbers: np.ndarray | None = None
    ) -> SiteRows:
        """The rows of a frame; errors name them by their `numbers`, which count from 0 if none are given.

        Without outcome, only the right side and the offset are used: all that a prediction needs.
        """
        columns = {name: self._read(frame, name, where) for name in self.used(outcome)}
        gone = np.zeros(row_count(frame, where), bool)
        numbers = np.arange(len(gone)) if numbers is None else numbers
        for column in columns.values():
            gone |= column.missing
        kept = np.flatnonzero(~gone)
        if not len(kept):
            empty = [name for name, column in columns.items() if column.missing.all()]
            why = f": column {empty[0]!r} has no value" if empty else ""
            raise DataError(f"{where} has no rows without a missing value{why}; expected at least one")
        agreed = {name: conform(name, self.variables[name], columns[name], kept, where, numbers) for name in columns}
        x = self._right(agreed, numbers[kept], where)
        roles = {role: np.asarray(agreed[name], np.float64) for role, name in self._roles(outcome).items()}
        y = self._outcome(agreed, numbers[kept], where) if outcome and self._parsed.left is not None else None
        check_rows(roles, y, numbers[kept], self.roles, where)
        offset = roles.get("offset")
        if "exposure" in roles:
            offset = np.log(roles["exposure"]) + (0 if offset is None else offset)
        others = [roles.get(role) for role in ("weights", "trials", "duration", "event")]
        return SiteRows(x, y, offset, *others, kept=kept, left_out=int(gone.sum()), names=self.names)

    def as_dict(self) -> dict[str, Any]:
        """The design as data that JSON carries without loss."""
        roles = {name: value for name, value in asdict(self.roles).items() if value is not None}
        agreed = {name: dict(each) for name, each in self.variables.items()}
        return {"formula": self.formula, "roles": roles, "variables": agreed, "names": list(self.names)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "Design":
        """The design that `as_dict` made data of."""
        lacking = [key for key in ("formula", "roles", "variables", "names") if key not in data]
        if lacking:
            raise ConfigError(f"a saved design lacks {listing(lacking)}; expected what as_dict gives")
        known = [field.name for field in fields(Roles)]
        for name in data["roles"]:
            if name not in known:
                raise unknown("role in a saved design", name, known)
        design = cls(data["formula"], Roles(**data["roles"]), data["variables"])
        if list(design.names) != list(data["names"]):
            raise ConfigError(
                f"a saved design has the columns {listing(data['names'])} but its formula gives "
                f"{listing(design.names)} here; expected the same: was it saved with another version of formulaic?"
            )
        return design

    @cached_property
    def _parsed(self) -> Parsed:
        return parse(self.formula)

    @cached_property
    def _spec(self) -> Any:
        """What formulaic makes of a frame that stands for all sites, with the means that all rows have."""
        agreed = {name: self.variables[name] for name in self._parsed.right_needs}
        frame = template(agreed)
        spec = _evaluated(self._parsed.right, frame, ConfigError, "the formula cannot be used").model_spec
        for expression, state in spec.transform_state.items():
            _set_moments(expression, state, agreed)
        return spec

    def _roles(self, outcome: bool) -> dict[str, str]:
        """The columns that have a role; of new rows they only need those that are part of a prediction."""
        columns = self.roles.columns()
        return columns if outcome else {name: columns[name] for name in ("offset", "exposure") if name in columns}

    def _read(self, frame: Any, name: str, where: str) -> Values:
        names = column_names(frame) or ()
        if names and name not in names:
            near = nearest(name, [str(each) for each in names])
            raise DataError(f"{where} has no column {name!r}" + (f"; did you mean {near!r}?" if near else ""))
        return read(frame, name, where)

    def _right(self, agreed: dict[str, Any], numbers: np.ndarray, where: str) -> np.ndarray:
        frame = _frame({name: agreed[name] for name in self._parsed.right_needs}, len(numbers))
        x = np.asarray(_evaluated(self._spec, frame, DataError, where), np.float64)
        x = np.ascontiguousarray(x[:, [self._spec.column_names.index(name) for name in self.names]])
        if not np.isfinite(x).all():
            row, column = np.argwhere(~np.isfinite(x))[0].tolist()
            raise DataError(
                f"{where}, row {numbers[row]}: {self.names[column]} is {x[row, column]}; expected a finite number"
            )
        return x

    def _outcome(self, agreed: dict[str, Any], numbers: np.ndarray, where: str) -> np.ndarray:
        parsed = self._parsed
        if parsed.outcome is None:
            frame = _frame({name: agreed[name] for name in parsed.left_needs}, len(numbers))
            y = np.asarray(_evaluated(parsed.left, frame, DataError, where), np.float64)
            if y.shape[1:] != (1,):
                raise ConfigError(f"the left side of {self.formula!r} gives {y.shape[1]} columns; expected one")
            if not np.isfinite(y).all():
                row = int(np.argmin(np.isfinite(y[:, 0])))
                raise DataError(f"{where}, row {numbers[row]}: the outcome is {y[row, 0]}; expected a finite number")
            return np.ascontiguousarray(y[:, 0])
        values = agreed[parsed.outcome]
        if self.roles.outcome == "classes":
            place = {level: number for number, level in enumerate(self.classes)}
            return np.array([place[value] for value in np.asarray(values).tolist()], np.float64)
        if self.roles.success is not None:
            return (np.asarray(values) == self.roles.success).astype(np.float64)
        return np.asarray(values, np.float64)


def variables(formula: str, roles: Roles = NONE) -> dict[str, list[str]]:
    """The columns that a site describes, and what is needed of each."""
    parsed = parse(formula)
    if parsed.left is None and roles.duration is None:
        raise ConfigError(f"the formula {formula!r} has no outcome; expected 'outcome ~ {formula.strip(' ~')}'")
    if parsed.left is not None and roles.duration is not None:
        raise ConfigError(
            f"the formula {formula!r} has an outcome beside duration and event; expected the right side alone"
        )
    if parsed.outcome is None and roles.few and parsed.left is not None and roles.outcome != "binary":
        raise ConfigError(f"the left side of {formula!r} is computed; expected a column for success or classes")
    needs = {name: set(each) for name, each in parsed.right_needs.items()}
    for name, each in parsed.left_needs.items():
        needs.setdefault(name, set()).update(each)
    if parsed.outcome is not None:
        needs[parsed.outcome].add(CLASSES if roles.few else NUMBER)
    for name in roles.columns().values():
        needs.setdefault(name, set()).add(NUMBER)
    return {name: sorted(each) for name, each in needs.items()}


def agree(formula: str, descriptions: Mapping[str, Mapping[str, Any]], roles: Roles = NONE) -> Design:
    """The design that follows from what sites told of their columns, by the names of the sites."""
    if not descriptions:
        raise DataError("there are no sites; expected at least one")
    needed = variables(formula, roles)
    outcome = parse(formula).outcome
    agreed = {}
    for name, needs in needed.items():
        told = {site: description["variables"][name] for site, description in descriptions.items()}
        if name == outcome and not roles.few:
            check_no_text(name, told)
        agreed[name] = merge(name, needs, told)
    design = Design(formula, roles, agreed)
    if outcome is not None and roles.few:
        check_success(outcome, agreed[outcome], roles)
    if not design.names:  # and what else is wrong with the formula is found here, before any site works
        raise ConfigError(f"the formula {formula!r} gives no columns; expected at least one")
    return design


def divide(frame: Any, site: str) -> dict[str, dict[Any, np.ndarray]]:
    """One frame as the frames of its sites: `site` is the column that names them."""
    names = column_names(frame)
    if names is None or site not in names:
        near = nearest(site, [str(each) for each in names or ()])
        raise DataError(f"there is no column {site!r} to divide by" + (f"; did you mean {near!r}?" if near else ""))
    column = read(frame, site, "the frame")
    if column.missing.any():
        raise DataError(f"the frame, row {np.argmax(column.missing)}: column {site!r} is missing; expected a site")
    values = column.values
    if column.kind == "number" and (values == np.floor(values)).all():
        values = values.astype(np.int64)
    arrays = {name: array_of(frame, name, "the frame") for name in names}
    return {str(value): {name: array[values == value] for name, array in arrays.items()} for value in np.unique(values)}


def designs(
    formula: str,
    sites: Any,
    *,
    site: str | None = None,
    weights: str | None = None,
    offset: str | None = None,
    exposure: str | None = None,
    trials: str | None = None,
    success: Any = None,
    duration: str | None = None,
    event: str | None = None,
    outcome: str = "number",
) -> tuple[Design, dict[str, SiteRows]]:
    """All steps in one process: the design of a formula over sites, and the rows of each.

    `sites` is a dictionary of frames, or one frame that the column `site` divides.
    """
    roles = Roles(weights, offset, exposure, trials, duration, event, success, outcome)
    needed = variables(formula, roles)
    frames = divide(sites, site) if site is not None else _frames(sites)
    design = agree(formula, {name: describe(frame, needed, f"site {name!r}") for name, frame in frames.items()}, roles)
    return design, {name: design.matrix(frame, where=f"site {name!r}") for name, frame in frames.items()}


def _frames(sites: Any) -> Mapping[str, Any]:
    if not isinstance(sites, Mapping) or any(column_names(frame) is None for frame in sites.values()):
        raise ConfigError(
            "sites is one frame; expected a dictionary of frames by the names of the sites, "
            "or site='...', the column that divides the frame"
        )
    for name in sites:
        if not isinstance(name, str) or not name:
            raise ConfigError(f"a site is named {name!r}; expected a text")
    return sites


def _set_moments(expression: str, state: dict[str, Any], agreed: Mapping[str, Mapping[str, Any]]) -> None:
    """Give a function that centres or scales the mean and the spread of all rows, instead of the template's."""
    call = call_of(expression)
    if call is None or not isinstance(call.func, ast.Name) or call.func.id not in MOMENTS:
        return
    name = ast.unparse(call.args[0])
    column = next(agreed[each] for each in agreed if identifier(each) == name)
    centred = _computed(call, 1, "center")
    centre = None if centred else 0.0 if state["center"] is None else float(state["center"])
    mean, spread = pooled_moments(column, centre, state["ddof"])
    if centred:
        state["center"] = np.float64(mean)
    if call.func.id != "center" and _computed(call, 2, "scale" if call.func.id == "scale" else "rescale"):
        state["scale"] = np.float64(spread)


def _computed(call: ast.Call, place: int, name: str) -> bool:
    """Whether a function takes this moment from the data, as it does unless it is told otherwise."""
    given = argument(call, place, name)
    return given is None or (isinstance(given, ast.Constant) and given.value is True)


def _frame(columns: dict[str, Any], rows: int) -> Any:
    import pandas

    return pandas.DataFrame(columns, index=pandas.RangeIndex(rows))


def _evaluated(formula: Any, frame: Any, kind: type[Exception], where: str) -> Any:
    """A matrix that formulaic makes; what it cannot make is an error of this kind."""
    errors = library().errors
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("error", errors.DataMismatchWarning)  # a level that would silently become zeros
        try:
            return formula.get_model_matrix(frame, output="numpy", na_action="ignore")
        except (errors.FormulaicError, errors.FormulaicWarning, ValueError, TypeError, KeyError) as error:
            raise kind(f"{where}: {error}") from error
