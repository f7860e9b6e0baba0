"""Checks of numbers: to Python `True` is one, to a setting it is not."""

import math
from numbers import Integral, Real
from typing import Any, TypeGuard

from fedlap.errors import ConfigError


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
