"""Axes of a grid: which key of a spec one sets, and whether it can."""

from fedlap.algorithms import ALGORITHMS
from fedlap.errors import ConfigError, unknown
from fedlap.settings.arguments import keys
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
        makers = {algorithm: ALGORITHMS[algorithm], **_solvers(table)}
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


def means(word, value):
    """Whether a word of the command line stands for a value of the file."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return word == (str(value).lower() if isinstance(value, bool) else value)
    try:
        return float(word) == value
    except ValueError:
        return False


def _solvers(table):
    """The classes of [solver] and [server_solver]."""
    found = {}
    for section, makers, default in (("solver", SOLVERS, "adam"), ("server_solver", SERVER_SOLVERS, "descent")):
        name = table.get(section, {}).get("name", default)
        if not isinstance(name, str) or name not in makers:
            raise unknown(f"{section}.name", name, makers)
        found[section] = makers[name]
    return found
