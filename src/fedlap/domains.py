"""Domains: which values an argument may have, and how a settings file writes them.

A hyper-parameter names its domain in `hyper`, an argument of a function in its annotation. Settings files, `--set`,
the axes of a sweep and the lines of results read and write a value by its domain, whatever the argument is called.
"""

import dataclasses
import enum
import functools
import inspect
from collections.abc import Callable
from typing import Any

from fedlap.checks import is_number, is_whole
from fedlap.errors import ConfigError


def _tuples(plain: Any) -> Any:
    """A plain value with tuples for its lists: a static argument must be hashable."""
    return tuple(_tuples(item) for item in plain) if isinstance(plain, list) else plain


def _lists(value: Any) -> Any:
    """A value with lists for its tuples."""
    if isinstance(value, dict):
        return {key: _lists(item) for key, item in value.items()}
    return [_lists(item) for item in value] if isinstance(value, (list, tuple)) else value


@dataclasses.dataclass(frozen=True)
class Domain:
    """The values that a hyper-parameter may have.

    Args:
        expected: what these values are, for the message when there is another one.
        holds: whether a value is one of them.
        parse: the value that a plain one of TOML or JSON stands for; if not given, itself, with tuples for its lists.
            What it does not know it may leave to `holds`.
        format: a plain value, which `parse` reads back, of a value that `holds` accepts.

    >>> odd = Domain("an odd whole number", lambda value: isinstance(value, int) and value % 2 == 1)
    >>> odd.check("window", 4)
    Traceback (most recent call last):
    fedlap.errors.ConfigError: window is 4; expected an odd whole number
    """

    expected: str
    holds: Callable[[Any], bool] = dataclasses.field(repr=False)
    parse: Callable[[Any], Any] = dataclasses.field(default=_tuples, repr=False)
    format: Callable[[Any], Any] = dataclasses.field(default=_lists, repr=False)

    def check(self, what: str, value: Any) -> None:
        """Raise a ConfigError that calls the value `what`, unless it is one of these."""
        if not self.holds(value):
            raise ConfigError(f"{what} is {value!r}; expected {self.expected}")

    def read(self, what: str, plain: Any) -> Any:
        """The value that a plain one stands for; an error calls it `what`."""
        try:
            return self.parse(plain)
        except ConfigError as error:
            raise ConfigError(f"{what}: {error}") from error
        except (ValueError, TypeError, ArithmeticError) as error:
            raise ConfigError(f"{what} is {plain!r}; expected {self.expected}") from error

    def normal(self, what: str, plain: Any) -> Any:
        """The one form of a plain value: 1.0 for a 1 that is a real number. One that is refused stays as it is."""
        value = self.read(what, plain)
        return self.format(value) if self.holds(value) else plain


def real(expected: str, holds: Callable[[Any], bool]) -> Domain:
    """Numbers, of which a file may write 1 for 1.0."""
    return Domain(expected, lambda value: is_number(value) and holds(value), parse=as_real)


def as_real(value: Any) -> Any:
    """A whole number as a float, unless there is none so large; anything else as a static argument needs it."""
    return float(value) if type(value) is int and is_number(value) else _tuples(value)


def choice(*values: Any) -> Domain:
    """One of these values; a file may write 1 for 1.0."""
    *first, last = (f'"{value}"' if isinstance(value, str) else repr(value) for value in values)
    expected = f"{', '.join(first)} or {last}" if first else last

    def parse(plain: Any) -> Any:
        plain = _tuples(plain)
        return next((option for option in values if plain == option and not isinstance(plain, bool)), plain)

    def holds(value: Any) -> bool:
        return any(type(value) is type(option) and value == option for option in values)

    return Domain(expected, holds, parse)


def optional(domain: Domain) -> Domain:
    """The values of a domain, or None, which a file writes "none"."""
    return Domain(
        f"{domain.expected}, or none",
        lambda value: value is None or domain.holds(value),
        lambda plain: None if plain is None or plain == "none" else domain.parse(plain),
        lambda value: None if value is None else domain.format(value),
    )


def whole(least: int, most: int) -> Domain:
    """Whole numbers in a range: of all that is counted there is a number that nobody can mean."""
    return Domain(f"a whole number from {least:,} to {most:,}", lambda value: is_whole(value, least, most))


MOST = 1_000_000  # epochs, rounds, or rows of a batch: a run of more would never end
POSITIVE = real("a number above 0", lambda value: value > 0)
NONNEGATIVE = real("a number, 0 or above", lambda value: value >= 0)
FRACTION = real("a number, 0 or above and below 1", lambda value: 0 <= value < 1)
COUNT = Domain(f"a whole number above 0, at most {MOST:,}", lambda value: is_whole(value, least=1, most=MOST))
WHOLE = Domain(f"a whole number, 0 or above, at most {MOST:,}", lambda value: is_whole(value, most=MOST))
TRUTH = Domain("true or false", lambda value: isinstance(value, bool))
STRUCTURE = dataclasses.replace(
    choice("diagonal", "full"), expected='"diagonal" or "full"; a Kronecker covariance is FedLapKron'
)
ANY = Domain("any value", lambda value: True)  # of an argument that its function checks by itself


class FromRun(enum.Enum):
    """What a run gives to an argument that is not set. No default is filled in: to set it is to say something."""

    SEED = enum.auto()
    DATA_DIR = enum.auto()


@functools.cache  # thousands of cells of a grid ask for the same few
def parameters(maker: Callable) -> dict[str, inspect.Parameter]:
    """The arguments of a class or function by name."""
    return dict(inspect.signature(maker).parameters)


@functools.cache
def domains_of(maker: Callable) -> dict[str, Domain]:
    """The domain of each argument of a class or function."""
    fields = dataclasses.fields(maker) if dataclasses.is_dataclass(maker) else ()
    hyper = {field.name: field.metadata["domain"] for field in fields if "domain" in field.metadata}
    return {name: hyper.get(name) or _noted(parameter, Domain) or ANY for name, parameter in parameters(maker).items()}


@functools.cache
def from_run(maker: Callable) -> dict[str, FromRun]:
    """The arguments of a class or function that a run may fill in, each with what it is given."""
    sources = {name: _noted(parameter, FromRun) for name, parameter in parameters(maker).items()}
    return {name: source for name, source in sources.items() if source is not None}


def _noted(parameter: inspect.Parameter, kind: type) -> Any:
    """The note of that kind in an annotation `Annotated[type, note]`, or None."""
    notes = getattr(parameter.annotation, "__metadata__", ())
    return next((note for note in notes if isinstance(note, kind)), None)
