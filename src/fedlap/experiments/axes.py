"""Axes of a grid: which key of a spec one sets, and whether it can."""

from collections.abc import Iterator
from typing import Any

from fedlap import identity
from fedlap.algorithms import ALGORITHMS
from fedlap.domains import Domain, domains_of
from fedlap.errors import ConfigError, unknown
from fedlap.settings.arguments import keys, plain_value
from fedlap.solvers import SERVER_SOLVERS, SOLVERS


def place(algorithm, key):
    """The section and the key that an axis sets: those it names, or the algorithm's own, or else the solver's."""
    section, dot, name = key.partition(".")
    if dot:
        return section, name
    return (algorithm if key in keys(ALGORITHMS[algorithm]) else "solver"), key


def check_axes(algorithm, axes, table):
    places = {}
    for key, values in axes.items():
        section, name = place(algorithm, key)
        if places.setdefault((section, name), key) != key:
            both = f"{places[section, name]} and {key}"
            raise ConfigError(f"sweep.{algorithm}: {both} are the same axis; expected one of them")
        makers = _makers(algorithm, table)
        if section not in makers or name not in keys(makers[section]):
            known = [*keys(ALGORITHMS[algorithm]), *keys(makers["solver"])]
            known += [f"server_solver.{each}" for each in keys(makers["server_solver"])]
            raise unknown(f"key in [sweep.{algorithm}]", key, known)
        if not isinstance(values, list) or not values:
            raise ConfigError(f"sweep.{algorithm}.{key} is {values!r}; expected a list of values")


def check_part(part, axes):
    """Some values of some axes of some algorithms."""
    for algorithm, mine in part.items():
        if algorithm not in axes:
            raise unknown("algorithm in [sweep.part]", algorithm, axes)
        if not isinstance(mine, dict):
            raise ConfigError(f"sweep.part.{algorithm} is {mine!r}; expected a section with lists of values")
        for key, values in mine.items():
            if key not in axes[algorithm]:
                raise unknown(f"axis in [sweep.part.{algorithm}]", key, axes[algorithm])
            known = axes[algorithm][key]
            if not isinstance(values, list) or not values or not all(value in known for value in values):
                raise ConfigError(f"sweep.part.{algorithm}.{key} is {values!r}; expected a list of some of {known}")


def domain(algorithm: str, key: str, table: dict[str, Any]) -> Domain:
    """The domain of the key that an axis sets."""
    section, name = place(algorithm, key)
    return domains_of(_makers(algorithm, table)[section])[name]


def words(text: str) -> list[str]:
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
    """What a word may be: a value of TOML, itself, or a number that Python knows and TOML does not, as `.1`."""
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


def _makers(algorithm, table):
    """The classes whose arguments an axis may set: the algorithm, [solver] and [server_solver]."""
    found = {algorithm: ALGORITHMS[algorithm]}
    for section, makers, default in (("solver", SOLVERS, "adam"), ("server_solver", SERVER_SOLVERS, "descent")):
        name = table.get(section, {}).get("name", default)
        if not isinstance(name, str) or name not in makers:
            raise unknown(f"{section}.name", name, makers)
        found[section] = makers[name]
    return found
