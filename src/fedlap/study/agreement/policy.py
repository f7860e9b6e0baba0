"""What one site allows, whatever a study's server asks: `policy.toml` beside the site's data file.

members = 3                  the fewest members of a study that this site takes part in
columns = ["age", "sex"]     the columns that a study may use; if not given, all
runs = 1                     how many runs of one study this site begins; `fedlap study agree` agrees to one more
minimum_rows = 10            the fewest rows that a sum may be over
parameters_per_row = 0.1     the most parameters of a full covariance, or of a regression, for each row
metrics = true               whether results on rows held back are reported

The file is the site's alone: no server sees or changes it. A study may be stricter, and then the study's word counts.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Protocol

from fedlap.checks import is_number, whole_number
from fedlap.errors import ConfigError, unknown
from fedlap.study.agreement.contract import read_table
from fedlap.study.table.columns import Column

NAME = "policy.toml"
MEANINGS = {
    "members": "the fewest members of a study",
    "columns": "the columns that a study may use",
    "runs": "how many runs of one study are begun here; `fedlap study agree` agrees to one more",
    "minimum_rows": "the fewest rows that a sum may be over",
    "parameters_per_row": "the most parameters of a full covariance, or of a regression, for each row",
    "metrics": "whether results on rows held back are reported",
}
ALWAYS = (
    "Always: rounds in their order, each answered once; a first model that follows from the study; pooled means and",
    "deviations that are possible within the study's ranges, and with this site's own sums; no model whose curvature",
    "comes from a few rows. What is refused, and by which rule, is said here and not on the network.",
)


class Proposal(Protocol):
    """The part of a study that a site's policy looks at."""

    @property
    def path(self) -> Path: ...
    @property
    def columns(self) -> tuple[Column, ...]: ...
    @property
    def members(self) -> Sequence[object]: ...
    @property
    def minimum_rows(self) -> int: ...


@dataclass(frozen=True, kw_only=True)
class SitePolicy:
    """The rules of one site, with the values that hold where it says nothing."""

    members: int = 3
    columns: tuple[str, ...] | None = None
    runs: int = 1
    minimum_rows: int = 10
    parameters_per_row: float = 0.1
    metrics: bool = True
    path: Path | None = None  # of the file that says so

    @classmethod
    def beside(cls, data: str | Path) -> "SitePolicy":
        """The policy beside a site's data file; the usual one if there is none."""
        path = Path(data).parent / NAME
        if not os.path.lexists(path):
            return cls()
        if not path.is_file():  # a link to nothing is no word of the operator's for the usual policy
            raise ConfigError(f"{path}: not a file; expected one, or none for the usual policy")
        try:
            return cls._parse(read_table(path)[0], path)
        except ConfigError as error:
            raise error if str(error).startswith(str(path)) else ConfigError(f"{path}: {error}") from error

    @classmethod
    def _parse(cls, table: dict[str, Any], path: Path) -> "SitePolicy":
        for key in table:
            if key not in MEANINGS:
                raise unknown("key", key, MEANINGS)
        policy = cls(**{**table, "path": path})
        whole_number("members", policy.members, 2)
        whole_number("runs", policy.runs, 0)
        whole_number("minimum_rows", policy.minimum_rows, 2)
        if not is_number(policy.parameters_per_row) or policy.parameters_per_row <= 0:
            raise ConfigError(f"parameters_per_row is {policy.parameters_per_row!r}; expected a number above 0")
        if not isinstance(policy.metrics, bool):
            raise ConfigError(f"metrics is {policy.metrics!r}; expected true or false")
        columns = table.get("columns")
        if columns is None:
            return policy
        if not isinstance(columns, list) or not all(isinstance(name, str) for name in columns):
            raise ConfigError(f"columns is {columns!r}; expected a list of names")
        return replace(policy, columns=tuple(columns))

    @property
    def source(self) -> str:
        """Where the rules come from, for messages."""
        return str(self.path) if self.path else f"the usual policy (there is no {NAME} beside the data file)"

    def for_study(self, study: Proposal) -> "SitePolicy":
        """The stricter of this policy and a study's own words; ConfigError if the study is not one for this site."""
        count = len(study.members)
        if count < self.members:
            raise ConfigError(
                f"{study.path}: the study has {count} members, and this site takes part with {self.members} or more "
                f"(members, {self.source}): with few, each can work out the others' sums. To agree, write "
                f"members = {count} into {NAME} beside the data file"
            )
        target = getattr(study, "target", None)
        used = [*(column.name for column in study.columns), *([target.name] if target else [])]
        for name in used:
            if self.columns is not None and name not in self.columns:
                raise ConfigError(
                    f"{study.path}: the study uses the column {name!r}, which is not among the columns that this site "
                    f"allows (columns, {self.source}); to agree, add it there"
                )
        return replace(self, minimum_rows=max(self.minimum_rows, study.minimum_rows))

    def lines(self) -> list[str]:
        """The policy in words, a line for each rule."""
        values = {item.name: getattr(self, item.name) for item in fields(self) if item.name in MEANINGS}
        said = {name: _toml(value) for name, value in values.items()}
        width = max(map(len, said))
        return [
            f"what this site allows: {self.source}",
            *(f"  {name:<{width}} = {value}    {MEANINGS[name]}" for name, value in said.items()),
            *ALWAYS,
        ]


# Of files that one person has all of: there is nobody to protect them from.
OWN_FILES = SitePolicy(members=1, runs=10**9, minimum_rows=1, parameters_per_row=1e9)


def _toml(value: Any) -> str:
    if value is None:
        return "all of the study's"
    if isinstance(value, tuple):
        return "[" + ", ".join(f'"{name}"' for name in value) + "]"
    return str(value).lower() if isinstance(value, bool) else f"{value:g}"
