"""Constructors as schemas: a field states its domain, and the same field is option, sweep axis and trace leaf."""

import dataclasses
import math
from numbers import Real
from typing import Any, TypeVar, dataclass_transform

import jax.core

from fedlap.algebra.pytrees import register
from fedlap.errors import ConfigError
from fedlap.keywords import known_keywords

C = TypeVar("C", bound=type)

DOMAINS = {
    "positive": ("a number above 0", lambda x: _is_number(x) and x > 0),
    "nonnegative": ("a number, 0 or above", lambda x: _is_number(x) and x >= 0),
    "damping": (
        "a number in (0, 1], evenly, by_share or a schedule of them",
        lambda x: _is_rule(x) or (_is_number(x) and 0 < x <= 1),
    ),
    "count": ("a whole number above 0", lambda x: isinstance(x, int) and not isinstance(x, bool) and x > 0),
    "whole": ("a whole number, 0 or above", lambda x: isinstance(x, int) and not isinstance(x, bool) and x >= 0),
    "optional positive": ("a number above 0, or none", lambda x: x is None or (_is_number(x) and x > 0)),
    "truth": ("true or false", lambda x: isinstance(x, bool)),
    "structure": ('"diagonal" or "full"', lambda x: x in ("diagonal", "full")),
}


REAL = ("positive", "nonnegative", "optional positive", "damping")  # a 1 of these is 1.0


def hyper(domain: str, *, static: bool = False, **default: Any) -> Any:
    """A hyper-parameter of the named domain; `static` ones are part of the program and compile anew."""
    return dataclasses.field(metadata={"domain": domain, "static": static}, **default)


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(hyper,))
def hyperparameters(cls: C) -> C:
    """A frozen dataclass of keyword arguments, whose numbers are leaves: a sweep over them compiles once.

    Making one checks it, so that the line with the mistake is the line that fails.
    """
    cls.__post_init__ = check
    cls = dataclasses.dataclass(frozen=True, kw_only=True)(cls)
    cls.__init__ = known_keywords(cls.__name__)(cls.__init__)
    return register(cls)


def check(thing: Any) -> None:
    """Raise a ConfigError that names the first hyper-parameter outside its domain."""
    for field in dataclasses.fields(thing):
        check_value(type(thing).__name__, field.name, getattr(thing, field.name), field.metadata["domain"])


def check_value(owner: str, name: str, value: Any, domain: str) -> None:
    expected, holds = DOMAINS[domain]
    if isinstance(value, jax.core.Tracer):
        return  # a compiled program has no value to look at yet
    if not holds(value):
        raise ConfigError(f"{owner}: {name} is {value!r}; expected {expected}")


def _is_number(x):
    scalar = isinstance(x, Real) or getattr(x, "shape", None) == ()
    return scalar and not isinstance(x, bool) and math.isfinite(x)


def _is_rule(x):
    """A function alone is none: it could not be an argument of a compiled program."""
    return callable(x) and dataclasses.is_dataclass(x) and not isinstance(x, type)
