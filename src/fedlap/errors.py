"""The errors fedlap raises on purpose, and its warnings; a command line shows their message alone."""

import difflib
from collections.abc import Iterable


class FedlapError(Exception):
    """An error whose message is meant for the user."""


class DataError(FedlapError, ValueError):
    """Data that cannot be used; the message names the file, client, row or column."""


class ConfigError(FedlapError, ValueError):
    """A setting that cannot be used; the message names the setting and what was expected."""


class DivergedError(FedlapError):
    """A run that got lost, where the caller asked for an error; the message says since when and what to change."""


class DivergedWarning(UserWarning):
    """A run that got lost; the message says since when and what to change."""


def unknown(kind: str, value: object, choices: Iterable[str]) -> ConfigError:
    """The error for a name that is not one of the choices, with the nearest choice if one is near."""
    choices = sorted(choices)
    near = nearest(str(value), choices)
    hint = f"; did you mean {near!r}?" if near else ""
    return ConfigError(f"unknown {kind} {value!r}{hint} (choices: {', '.join(choices)})")


def nearest(text: str, choices: Iterable[str]) -> str | None:
    """The choice that a misspelt text most likely stands for, if one is near; capitals make no difference."""
    lowered = {choice.lower(): choice for choice in choices}
    near = difflib.get_close_matches(text.lower(), lowered, n=1)
    return lowered[near[0]] if near else None
