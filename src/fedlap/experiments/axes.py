"""Axes of a grid: the keys of a spec that they set, and checks of both."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from fedlap import identity
from fedlap.algorithms import ALGORITHMS
from fedlap.domains import Domain, domains_of
from fedlap.errors import ConfigError, unknown
from fedlap.settings.arguments import Makers, Table, keys, plain_value
from fedlap.solvers import SERVER_SOLVERS, SOLVERS

Axes = dict[str, list[Any]]  # of an algorithm: the values of each key that is swept


def place(algorithm: str, key: str) -> tuple[str, str]:
    """The section and the key that an axis sets: those it names, or the algorithm's own, or else the solver's."""
    section, dot, name = key.partition(".")
    if dot:
        return section, name
    return (algorithm if key in keys(ALGORITHMS[algorithm]) else "solver"), key


def check_axes(algorithm: str, axes: Mapping[str, Any], table: Table) -> None:
    """Check that each axis of an algorithm sets a key that there is, none twice, and has a list of values."""
    places = {}
    for key, values in axes.items():
        section, name = place(algorithm, key)
        if places.setdefault((section, name), key) != key:
            both = f"{places[section, name]} and {key}"
            raise ConfigError(f"sweep.{algorithm}: {both} are the same axis; expected one of them")
        makers = _makers(algorithm, table)
        if section not in makers or name not in keys(makers[section]):
            known = [*keys(ALGORITHMS[algorithm]), *keys(makers["solver"])]
            known += [f"server_solver.{argument}" for argument in keys(makers["server_solver"])]
            raise unknown(f"key in [sweep.{algorithm}]", key, known)
        if not isinstance(values, list) or not values:
            raise ConfigError(f"sweep.{algorithm}.{key} is {values!r}; expected a list of values")


def check_part(part: Mapping[str, Any], axes: Mapping[str, Axes]) -> None:
    """Check that a part of a grid names some values of some axes of some algorithms."""
    for algorithm, of_part in part.items():
        if algorithm not in axes:
            raise unknown("algorithm in [sweep.part]", algorithm, axes)
        if not isinstance(of_part, dict):
            raise ConfigError(f"sweep.part.{algorithm} is {of_part!r}; expected a section with lists of values")
        for key, values in of_part.items():
            if key not in axes[algorithm]:
                raise unknown(f"axis in [sweep.part.{algorithm}]", key, axes[algorithm])
            known = axes[algorithm][key]
            if not isinstance(values, list) or not values or not all(value in known for value in values):
                raise ConfigError(f"sweep.part.{algorithm}.{key} is {values!r}; expected a list of some of {known}")


def domain(algorithm: str, key: str, table: Table) -> Domain:
    """The domain of the key that an axis sets."""
    section, name = place(algorithm, key)
    return domains_of(_makers(algorithm, table)[section])[name]


def split_values(text: str) -> list[str]:
    """The values of `--only KEY=VALUE,VALUE`, in which a table or a list may have commas of its own."""
    parts, depth = [""], 0
    for sign in text:
        depth += (sign in "{[") - (sign in "}]")
        if sign == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += sign
    return parts


def means(word: str, value: Any, of: Domain) -> bool:
    """Whether a word of the command line stands for a value of the file, both of a domain."""
    wanted = _form(value, of)
    return word == value or (wanted is not None and any(_form(plain, of) == wanted for plain in _readings(word)))


def _readings(word: str) -> Iterator[Any]:
    """The values that a word may be: one of TOML, itself, or a number that Python knows and TOML does not, as `.1`."""
    yield plain_value(word)
    yield word
    try:
        yield float(word)
    except ValueError:
        return


def _form(plain: Any, of: Domain) -> str | None:
    """A text that two plain values share if they stand for the same; None of one that stands for nothing."""
    try:
        return identity.text(identity.of(of.read("a value", plain)))
    except ConfigError:
        return None


def _makers(algorithm: str, table: Table) -> dict[str, Callable]:
    """The classes whose arguments an axis may set: the algorithm, [solver] and [server_solver]."""
    by_section: dict[str, Callable] = {algorithm: ALGORITHMS[algorithm]}
    solvers: dict[str, tuple[Makers, str]] = {
        "solver": (SOLVERS, "adam"),
        "server_solver": (SERVER_SOLVERS, "descent"),
    }
    for section, (makers, default) in solvers.items():
        name = table.get(section, {}).get("name", default)
        if not isinstance(name, str) or name not in makers:
            raise unknown(f"{section}.name", name, makers)
        by_section[section] = makers[name]
    return by_section
