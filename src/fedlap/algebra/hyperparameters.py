"""Hyper-parameters as fields of a class: each states its domain, and is option, sweep axis and trace leaf alike."""

import dataclasses
from typing import Any, TypeVar, dataclass_transform

from fedlap.algebra.damping import DAMPING
from fedlap.algebra.evidence import PRIOR
from fedlap.algebra.pytrees import is_traced, register
from fedlap.checks import known_keywords
from fedlap.domains import (
    COUNT,
    FRACTION,
    NONNEGATIVE,
    POSITIVE,
    STRUCTURE,
    TRUTH,
    WHOLE,
    Domain,
    choice,
    domains_of,
    optional,
    parameters,
)
from fedlap.errors import ConfigError, unknown

DOMAINS = {
    "positive": POSITIVE,
    "nonnegative": NONNEGATIVE,
    "fraction": FRACTION,
    "damping": DAMPING,
    "prior": PRIOR,
    "count": COUNT,
    "whole": WHOLE,
    "optional positive": optional(POSITIVE),
    "truth": TRUTH,
    "structure": STRUCTURE,
}

__all__ = ["DOMAINS", "check", "choice", "hyper", "hyperparameters", "options"]

Class = TypeVar("Class", bound=type)


def hyper(domain: str | Domain, *, static: bool = False, **default: Any) -> Any:
    """A hyper-parameter of a domain, one of DOMAINS by its name or your own.

    `static` ones are part of the program and compile anew.
    """
    if isinstance(domain, str):
        if domain not in DOMAINS:
            raise unknown("domain", domain, DOMAINS)
        domain = DOMAINS[domain]
    if not isinstance(domain, Domain):
        raise ConfigError(f"hyper: domain is {domain!r}; expected a Domain, or one of {', '.join(DOMAINS)}")
    return dataclasses.field(metadata={"domain": domain, "static": static}, **default)


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(hyper,))
def hyperparameters(cls: Class) -> Class:
    """A class decorator: a frozen dataclass of keyword arguments, whose numbers are leaves of a pytree.

    A sweep over them compiles once. Making one checks it, so that the line with the mistake is the line that fails.
    """
    cls.__post_init__ = _settle
    cls = dataclasses.dataclass(frozen=True, kw_only=True)(cls)
    cls.__init__ = known_keywords(cls.__name__)(cls.__init__)
    return register(cls)


def _settle(thing: Any) -> None:
    """Read a word that stands for a value, such as "evidence", as a settings file would, and check everything."""
    for field in dataclasses.fields(thing):
        value = getattr(thing, field.name)
        if isinstance(value, str) and not field.metadata["static"]:
            meant = field.metadata["domain"].read(f"{type(thing).__name__}: {field.name}", value)
            object.__setattr__(thing, field.name, meant)
    check(thing)


def check(thing: Any) -> None:
    """Raise a ConfigError that names the first hyper-parameter outside its domain."""
    for field in dataclasses.fields(thing):
        value = getattr(thing, field.name)
        if not is_traced(value):  # a compiled program has no value to look at yet
            field.metadata["domain"].check(f"{type(thing).__name__}: {field.name}", value)


def options(cls: type) -> list[str]:
    """The hyper-parameters of a class as a command line sets them: `delta`, `rho=evenly`."""
    domains = domains_of(cls)
    return [
        name if parameter.default is parameter.empty else f"{name}={_text(domains[name].format(parameter.default))}"
        for name, parameter in parameters(cls).items()
    ]


def _text(plain: Any, inner: bool = False) -> str:
    """A plain value as `--set` takes it, where a word by itself needs no quotes."""
    if isinstance(plain, dict):
        return "{" + ", ".join(f"{key} = {_text(item, inner=True)}" for key, item in plain.items()) + "}"
    if isinstance(plain, list):
        return "[" + ", ".join(_text(item, inner=True) for item in plain) + "]"
    if isinstance(plain, str):
        return f'"{plain}"' if inner else plain
    return str(plain).lower() if plain is None or isinstance(plain, bool) else str(plain)
