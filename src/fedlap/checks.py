"""Checks of what a user says: numbers, and names of keywords."""

import functools
import inspect
import math
from collections.abc import Callable
from numbers import Integral, Real
from typing import Any, ParamSpec, TypeGuard, TypeVar

from fedlap.errors import ConfigError, unknown

# Numbers: to Python `True` is one, to a setting it is not -------------------------------------------------------------


def is_whole(value: Any, least: int = 0, most: float = math.inf) -> TypeGuard[int]:
    """Whether a value is a whole number in a range."""
    return isinstance(value, Integral) and not isinstance(value, bool) and least <= int(value) <= most


def is_number(value: Any) -> TypeGuard[float]:
    """Whether a value is a finite number; an array of one number is."""
    if getattr(value, "shape", None) == ():
        value = value.item()
    if isinstance(value, bool) or not isinstance(value, Real):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # a whole number beyond all floats
        return False


def whole_number(what: str, value: object, least: int) -> int:
    """A setting that counts something, as an int; `what` is its name in the message."""
    if not is_whole(value, least):
        raise ConfigError(f"{what} is {value!r}; expected a whole number, {least} or above")
    return int(value)


# Keywords: a misspelt one is an error for the user, with the name that was meant --------------------------------------

P = ParamSpec("P")
R = TypeVar("R")


def known_keywords(owner: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """A decorator: a ConfigError for a keyword that the function, called `owner` in the message, does not have."""

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        names = [name for name in inspect.signature(function).parameters if name not in ("self", "cls")]

        @functools.wraps(function)
        def checked(*args: P.args, **keywords: P.kwargs) -> R:
            for name in keywords:
                if name not in names:
                    raise unknown(f"argument of {owner}", name, names)
            return function(*args, **keywords)

        return checked

    return decorate
