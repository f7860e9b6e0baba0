"""Functions and classes by name, and tables of plain values that stand for their arguments."""

import inspect
import tomllib
from collections.abc import Callable, Mapping
from typing import Any

from fedlap.domains import domains_of, from_run, parameters
from fedlap.errors import ConfigError, unknown

Makers = Mapping[str, Callable]
Table = dict[str, Any]


def keys(maker: Callable) -> list[str]:
    """The names a table may give to a class or a function."""
    return list(parameters(maker))


def defaults(makers: Makers, table: Table, section: str, selector: str) -> Table:
    """A table with all its defaults filled in; its key `selector` names the maker."""
    if selector not in table:
        raise ConfigError(f"{section}.{selector} is missing; expected one of {', '.join(makers)}")
    if not isinstance(table[selector], str):
        raise ConfigError(f"{section}.{selector} is {table[selector]!r}; expected one of {', '.join(makers)}")
    if table[selector] not in makers:
        raise unknown(f"{section}.{selector}", table[selector], makers)
    rest = {key: value for key, value in table.items() if key != selector}
    return {selector: table[selector], **fill(makers[table[selector]], rest, section)}


def fill(maker: Callable, table: Table, section: str) -> Table:
    """The arguments of a function or class as plain values: those given, and the defaults of the others.

    No default is filled in where a run has its own value.
    """
    known, of_maker, runs = parameters(maker), domains_of(maker), from_run(maker)
    for key in table:
        if key not in known:
            raise unknown(f"key in [{section}]", key, known)
    filled = {}
    for key, parameter in known.items():
        if key in table:
            filled[key] = of_maker[key].normal(f"{section}.{key}", table[key])
        elif parameter.default is inspect.Parameter.empty:
            raise ConfigError(f"{section}.{key} is missing")
        elif key not in runs:
            filled[key] = of_maker[key].format(parameter.default)
    return filled


def named(section: str, makers: Makers, table: Table) -> Any:
    """The thing that a filled table with a `name` stands for."""
    arguments = {key: value for key, value in table.items() if key != "name"}
    return make(makers[table["name"]], arguments, section)


def make(maker: Callable, arguments: Table, section: str) -> Any:
    """The thing that a maker makes of plain values."""
    return maker(**to_arguments(maker, arguments, section))


def to_arguments(maker: Callable, arguments: Table, section: str) -> Table:
    """Arguments as their maker takes them, from plain values."""
    of_maker = domains_of(maker)
    return {key: of_maker[key].read(f"{section}.{key}", value) for key, value in arguments.items()}


def plain_value(word: str) -> Any:
    """A word of the command line as TOML reads it, where a bare word is a string."""
    try:
        return tomllib.loads(f"value = {word}")["value"]
    except tomllib.TOMLDecodeError:
        return word.strip()
