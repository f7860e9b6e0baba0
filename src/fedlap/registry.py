"""Makers by name: the package's own, those that installed packages offer, and "module:name" of anybody's code."""

import functools
import hashlib
import importlib
import inspect
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, TypeVar, cast

from fedlap.errors import ConfigError, nearest

Maker = TypeVar("Maker", bound=Callable[..., Any])


class Registry(dict[str, Maker]):
    """The package's makers of one kind, a dictionary, that finds further ones when it is asked for them by name.

    One that an installed package offers has the name of its entry point in the group `fedlap.algorithms`,
    `fedlap.models`, `fedlap.solvers`, `fedlap.server_solvers` or `fedlap.datasets`; the package's own come first. Any
    other is written "module:name", of a module that Python finds, also in the working directory. To iterate gives the
    package's own: nothing foreign is run before it is named.
    """

    def __init__(self, group: str, own: Mapping[str, Maker], expected: str, fits: Callable[[Any], bool]) -> None:
        super().__init__(own)
        self.group, self.expected, self.fits = group, expected, fits

    @functools.cached_property
    def installed(self) -> dict[str, EntryPoint]:
        """What installed packages offer, none of it imported."""
        points = entry_points(group=f"fedlap.{self.group}")
        return {point.name: point for point in points if not self.is_packaged(point.name)}

    def is_packaged(self, name: object) -> bool:
        """Whether the package itself has a maker of that name."""
        return super().__contains__(name)

    def __contains__(self, name: object) -> bool:
        return super().__contains__(name) or (isinstance(name, str) and (":" in name or name in self.installed))

    def __missing__(self, name: str) -> Maker:
        if not isinstance(name, str) or name not in self:
            raise KeyError(name)
        if ":" in name:
            thing = _named(name, self.group)
        else:
            with _told(f"{name}, of the installed {_origin(self.installed[name])},"):
                thing = self.installed[name].load()
        if not callable(thing) or not self.fits(thing):
            raise ConfigError(f"{name} is {_shown(thing)}; expected {self.expected}")
        return cast(Any, thing)

    def get(self, name: Any, default: Any = None) -> Any:
        """The maker of a name, foreign ones too; the default where there is none."""
        return self[name] if name in self else default


def source_of(maker: Callable[..., Any]) -> dict[str, str]:
    """The sha256 of the file that a foreign maker is written in; nothing of the package's own.

    A result of other code is another result, and no version says so.
    """
    module = inspect.getmodule(maker)
    if module is None or module.__name__.partition(".")[0] == __package__:
        return {}
    file = getattr(module, "__file__", None)
    if file is None or not Path(file).is_file():
        return {}
    return {"source": hashlib.sha256(Path(file).read_bytes()).hexdigest()}


@contextmanager
def _told(what: str) -> Iterator[None]:
    """What goes wrong in somebody else's module, as one line that names it."""
    try:
        yield
    except Exception as error:  # of whichever class: the module is not ours
        raise ConfigError(f"{what} cannot be imported ({type(error).__name__}: {error})") from error


def _named(path: str, group: str) -> Any:
    """What a "module:name" stands for."""
    module, _, name = path.partition(":")
    words = [*module.split("."), name]
    if not all(word.isidentifier() for word in words):
        raise ConfigError(f'{path!r} in {group}: expected "module:name", such as "my_methods:MyMethod"')
    here = os.getcwd()
    if here not in sys.path and "" not in sys.path:
        sys.path.append(here)  # last: a file here does not stand before anything that is installed
    with _told(f"{path}: the module {module}"):
        found = importlib.import_module(module)
    if not hasattr(found, name):
        near = nearest(name, [each for each in vars(found) if not each.startswith("_")])
        hint = f"; did you mean {near!r}?" if near else ""
        raise ConfigError(f"{path}: {found.__name__} ({found.__file__}) has no {name!r}{hint}")
    return getattr(found, name)


def _origin(point: EntryPoint) -> str:
    return point.dist.name if point.dist is not None else point.value


def _shown(thing: Any) -> str:
    return f"the class {thing.__name__}" if isinstance(thing, type) else f"of type {type(thing).__name__}"
