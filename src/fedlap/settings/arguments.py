"""Functions and classes by name, and tables of plain values that stand for their arguments."""

import dataclasses
import functools
import inspect

from fedlap.algebra.damping import format_damping, parse_damping
from fedlap.algebra.hyperparameters import REAL
from fedlap.errors import ConfigError, unknown

PER_SEED = "seed"  # an argument of data sets that are divided anew for every seed
OPEN = (PER_SEED, "data_dir")  # no default is filled in for these: to say them is to say something


@functools.cache  # thousands of cells of a grid ask for the same few
def parameters(maker):
    return inspect.signature(maker).parameters


def keys(maker):
    """The names a table may give to a class or a function."""
    return list(parameters(maker))


def defaults(makers, table, section, selector):
    """A table with all its defaults filled in; its key `selector` names the maker."""
    if selector not in table:
        raise ConfigError(f"{section}.{selector} is missing; expected one of {', '.join(makers)}")
    if not isinstance(table[selector], str):
        raise ConfigError(f"{section}.{selector} is {table[selector]!r}; expected one of {', '.join(makers)}")
    if table[selector] not in makers:
        raise unknown(f"{section}.{selector}", table[selector], makers)
    rest = {key: value for key, value in table.items() if key != selector}
    return {selector: table[selector], **fill(makers[table[selector]], rest, section)}


def fill(maker, table, section):
    """The arguments of a function or class: those given, and the defaults of the others that are plain values."""
    known, real = parameters(maker), _real(maker)
    for key in table:
        if key not in known:
            raise unknown(f"key in [{section}]", key, known)
    filled = {}
    for key, parameter in known.items():
        if key in table:
            filled[key] = float(table[key]) if key in real and type(table[key]) is int else table[key]
        elif parameter.default is inspect.Parameter.empty:
            raise ConfigError(f"{section}.{key} is missing")
        elif key not in OPEN:
            filled[key] = plain(parameter.default)
    return filled


@functools.cache
def _real(maker):
    """Of a class of hyper-parameters those that are real numbers: `delta = 1` and `delta = 1.0` are one setting."""
    fields = dataclasses.fields(maker) if dataclasses.is_dataclass(maker) else ()
    return {field.name for field in fields if field.metadata.get("domain") in REAL}


def named(section, makers, table):
    """The thing that a filled table with a `name` stands for."""
    arguments = {key: value for key, value in table.items() if key != "name"}
    return make(makers[table["name"]], arguments, section)


def make(maker, arguments, section):
    """The thing itself."""
    return maker(**to_arguments(arguments, section))


def to_arguments(arguments, section):
    """Arguments as their maker takes them, from plain values."""
    arguments = {key: tuple(value) if isinstance(value, list) else value for key, value in arguments.items()}
    if "rho" in arguments:
        arguments["rho"] = parse_damping(arguments["rho"], f"{section}.rho")
    if arguments.get("clip") == "none":
        arguments["clip"] = None
    return arguments


def plain(value):
    """A value as TOML or JSON could hold it."""
    if dataclasses.is_dataclass(value):
        fields = {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
        return format_damping(value) or {"name": type(value).__name__, **fields}
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value
