"""What columns are there for beside the right side of a formula: the outcome, weights, an offset, durations."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedlap.checks import is_number
from fedlap.data.validation import listing
from fedlap.errors import ConfigError, DataError, nearest, unknown

OUTCOMES = ("number", "binary", "classes")


@dataclass(frozen=True)
class Roles:
    """The columns beside the formula, by their names, and what the outcome is: a number, binary, or classes."""

    weights: str | None = None  # how many rows a row stands for
    offset: str | None = None
    exposure: str | None = None  # its logarithm is added to the offset
    trials: str | None = None  # the outcome is how many of them were a success
    duration: str | None = None
    event: str | None = None
    success: Any = None  # the value of a binary outcome that counts as 1
    outcome: str = "number"

    def __post_init__(self) -> None:
        if isinstance(self.success, np.generic):
            object.__setattr__(self, "success", self.success.item())
        for name, column in self.columns().items():
            if not isinstance(column, str):
                raise ConfigError(f"{name} is {type(column).__name__}; expected the name of a column")
        if self.outcome not in OUTCOMES:
            raise unknown("outcome", self.outcome, OUTCOMES)
        if (self.duration is None) != (self.event is None):
            lacking = "event" if self.event is None else "duration"
            raise ConfigError(f"{lacking} is not given; expected duration and event, or neither")
        if self.success is not None and not (isinstance(self.success, (str, bool)) or is_number(self.success)):
            raise ConfigError(f"success is {self.success!r}; expected one value of the outcome")
        if self.success is not None and (self.trials is not None or self.outcome == "classes"):
            other = "trials" if self.trials is not None else "classes"
            raise ConfigError(f"success and {other} are given; expected one of them: success makes the outcome 0 and 1")

    def columns(self) -> dict[str, Any]:
        """The columns that have a role, by the name of it."""
        names = ("weights", "offset", "exposure", "trials", "duration", "event")
        return {name: getattr(self, name) for name in names if getattr(self, name) is not None}

    @property
    def few(self) -> bool:
        """Whether the outcome has a few values that matter one by one."""
        return self.trials is None and (self.success is not None or self.outcome != "number")


NONE = Roles()


def check_no_text(name: str, told: Mapping[str, Mapping[str, Any]]) -> None:
    """Raise a ConfigError for an outcome that is text everywhere and should be a number."""
    if all(each["kind"] in ("category", "empty") for each in told.values()):
        levels = sorted({level for each in told.values() for level in each.get("levels", ())})
        if levels:
            raise ConfigError(
                f"outcome {name!r} is text: {listing(levels)}; expected numbers. If one of them counts as 1 and the "
                f"others as 0, say so: success={levels[-1]!r}"
            )


def check_success(name: str, variable: Mapping[str, Any], roles: Roles) -> None:
    """Raise a ConfigError for a binary outcome of which it is not known what a success is."""
    levels = variable["levels"]
    if roles.success is not None:
        if roles.success not in levels:
            near = nearest(str(roles.success), [str(level) for level in levels])
            hint = f"; did you mean {near!r}?" if near and isinstance(levels[0], str) else ""
            raise ConfigError(f"success is {roles.success!r}; expected a value of {name!r}: {listing(levels)}{hint}")
    elif roles.outcome == "binary" and not set(levels) <= {0, 1}:
        raise ConfigError(
            f"outcome {name!r} has the values {listing(levels)}; expected 0 and 1, or truth values. "
            f"Say which one counts as 1, as success={levels[-1]!r} does"
        )


def check_rows(
    columns: Mapping[str, np.ndarray], y: np.ndarray | None, numbers: np.ndarray, roles: Roles, where: str
) -> None:
    """Raise a DataError for a value that its role does not allow; `numbers` are those of the rows."""
    rules = {
        "weights": (lambda v: v > 0, "a number above 0"),
        "exposure": (lambda v: v > 0, "a number above 0"),
        "trials": (lambda v: (v >= 1) & (v == np.floor(v)), "a whole number, 1 or above"),
        "duration": (lambda v: v >= 0, "a number, 0 or above"),
        "event": (lambda v: (v == 0) | (v == 1), "0 or 1, or a truth value"),
    }
    for role, (rule, expected) in rules.items():
        if role in columns and not (good := rule(columns[role])).all():
            row = int(np.argmin(good))
            raise DataError(
                f"{where}, row {numbers[row]}: column {getattr(roles, role)!r}, the {role}, is {columns[role][row]:g}; "
                f"expected {expected}"
            )
    if y is not None and "trials" in columns:
        good = (y >= 0) & (y <= columns["trials"]) & (y == np.floor(y))
        if not good.all():
            row = int(np.argmin(good))
            raise DataError(
                f"{where}, row {numbers[row]}: the outcome is {y[row]:g} of {columns['trials'][row]:g} trials; "
                "expected a whole number from 0 to them"
            )
