"""What a regression's study file decides about its runs."""

from pathlib import Path
from typing import Protocol

from fedlap.regression.design import Design
from fedlap.regression.glm import GlmModel
from fedlap.regression.hazards import CoxModel
from fedlap.study.protocol.permits import SiteRules
from fedlap.study.protocol.terms import Named
from fedlap.study.table.columns import Column

MOST_STEPS = 200  # requests that a site answers in one run
FOR_EACH = 20  # more of them for each member, where each is to be left out once
MOST_POINTS = 4096  # weights of one request for losses


class RegressionAgreement(Protocol):
    """The part of a study that decides about a regression: nothing here needs more of one."""

    @property
    def path(self) -> Path: ...
    @property
    def folder(self) -> Path: ...
    @property
    def digest(self) -> str: ...
    @property
    def columns(self) -> tuple[Column, ...]: ...
    @property
    def ignored_columns(self) -> tuple[str, ...]: ...
    @property
    def minimum_rows(self) -> int: ...
    @property
    def members(self) -> tuple[Named, ...]: ...
    @property
    def design(self) -> Design: ...
    @property
    def model(self) -> GlmModel | CoxModel: ...
    @property
    def parameters_per_row(self) -> float: ...
    @property
    def robust(self) -> bool: ...
    @property
    def influence(self) -> bool: ...
    @property
    def deadline(self) -> float: ...
    @property
    def retries(self) -> int: ...
    def policy(self, data: str | Path, /) -> SiteRules:
        """What the site of a data file allows; ConfigError if the study is none for it."""
        ...

    def member(self, name: str, /) -> object:
        """The member of this name; ConfigError if there is none."""
        ...


def most_steps(study: RegressionAgreement) -> int:
    """How many requests a site answers in one run, so that nobody can ask for ever."""
    return MOST_STEPS + (FOR_EACH * len(study.members) if study.influence else 0)


def most_points(study: RegressionAgreement) -> int:
    """At how many weights a site says its loss in one request; one is less than a round says."""
    return MOST_POINTS if study.influence else 1
