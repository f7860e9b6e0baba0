"""Names of a package that are imported when they are first used."""

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

Homes = Mapping[str, str]  # modules of a package, each with its public names, separated by spaces


def home_of_each(homes: Homes) -> dict[str, str]:
    """The module that each name is from."""
    return {name: module for module, names in homes.items() for name in names.split()}


def lazy_names(package: str, homes: Homes) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """`__getattr__` and `__dir__` of a package whose public names have these homes.

    A checker of types that sees them believes every name: they go below `if not TYPE_CHECKING`.
    """
    names, known = home_of_each(homes), vars(sys.modules[package])

    def __getattr__(name: str) -> Any:
        """A public name, or one of the modules that have them: imported now, and found without this the next time."""
        if name in homes:
            return import_module(f".{name}", package)
        if name not in names:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        known[name] = getattr(import_module(f".{names[name]}", package), name)
        return known[name]

    def __dir__() -> list[str]:
        return sorted({*known, *known["__all__"]})

    return __getattr__, __dir__
