"""Data sets by name, for settings that come as text."""

from collections.abc import Callable

from fedlap.data.credit import credit
from fedlap.data.federation import Federation
from fedlap.data.from_files import files
from fedlap.data.heart import heart
from fedlap.data.images import cifar10, fashion_mnist, mnist
from fedlap.data.validation import known_options
from fedlap.domains import domains_of
from fedlap.errors import ConfigError, unknown
from fedlap.registry import Registry

_OWN: dict[str, Callable[..., Federation]] = {
    loader.__name__: loader for loader in (heart, credit, mnist, fashion_mnist, cifar10, files)
}
LOADERS = Registry("datasets", _OWN, "a function that returns a Federation", callable)


def load(name: str, **options: object) -> Federation:
    """The federation of that name; the options are the arguments of its function.

    A partition may be given by its name, or as a mapping of its name and arguments:

    >>> load("heart", preset="paper")
    Federation('heart', 4 clients of 30 to 199 rows, inputs (13,), 2 classes, 254 test rows)
    """
    if name not in LOADERS:
        raise unknown("data set", name, LOADERS)
    loader = LOADERS[name]
    known_options(loader, options)
    federation = loader(**{key: domains_of(loader)[key].parse(value) for key, value in options.items()})
    if not isinstance(federation, Federation):
        raise ConfigError(f"{name} returned {type(federation).__name__}; expected a Federation")
    return federation
