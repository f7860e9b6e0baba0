"""Keywords that are checked: a misspelt one is an error for the user, with the name that was meant."""

import functools
import inspect
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from fedlap.errors import unknown

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
