"""What a study asks of its members' files."""

from typing import Protocol

from fedlap.study.table.columns import Column, Target


class Requirements(Protocol):
    """The part of a study that decides about a table: a `Study` has it, and nothing here needs more of one."""

    @property
    def columns(self) -> tuple[Column, ...]: ...
    @property
    def target(self) -> Target: ...
    @property
    def ignored_columns(self) -> tuple[str, ...]: ...
    @property
    def minimum_rows(self) -> int: ...
    @property
    def test_fraction(self) -> float: ...
    @property
    def seed(self) -> int: ...
    def member(self, name: str, /) -> object:
        """The member of this name; ConfigError if there is none."""
        ...
