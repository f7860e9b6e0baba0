"""Data sets and partitions by name, for settings that come as text."""

import inspect
from collections.abc import Callable, Mapping

from fedlap.data.credit import credit
from fedlap.data.federation import Federation
from fedlap.data.heart import heart
from fedlap.data.images import cifar10, fashion_mnist, mnist
from fedlap.data.partition import Partition, dirichlet, homogeneous, label_rate, natural, two_classes_per_client
from fedlap.errors import ConfigError, unknown

LOADERS: dict[str, Callable[..., Federation]] = {
    loader.__name__: loader for loader in (heart, credit, mnist, fashion_mnist, cifar10)
}
PARTITIONS: dict[str, Callable[..., Partition]] = {
    kind.__name__: kind for kind in (homogeneous, dirichlet, label_rate, two_classes_per_client, natural)
}


def load(name: str, **options: object) -> Federation:
    """The federation of that name; the options are the arguments of its function.

    A partition may be given by its name, or as a mapping of its name and arguments:

    >>> load("heart", preset="paper")
    Federation('heart', 4 clients of 30 to 199 rows, inputs (13,), 2 classes, 254 test rows)
    """
    if name not in LOADERS:
        raise unknown("data set", name, LOADERS)
    _check_arguments(LOADERS[name], options)
    if "partition" in options:
        options["partition"] = as_partition(options["partition"])
    return LOADERS[name](**options)


def as_partition(value: object) -> object:
    """A partition by its name, or by a mapping of its name and arguments; anything else as it is."""
    if isinstance(value, str):
        value = {"name": value}
    if not isinstance(value, Mapping):
        return value
    arguments = dict(value)
    name = arguments.pop("name", None)
    if name not in PARTITIONS:
        raise unknown("partition", name, PARTITIONS)
    _check_arguments(PARTITIONS[name], arguments)
    return PARTITIONS[name](**arguments)


def _check_arguments(function: Callable, arguments: Mapping[str, object]) -> None:
    parameters = inspect.signature(function).parameters
    for name in arguments:
        if name not in parameters:
            raise unknown(f"option of {function.__name__}", name, parameters)
    for name, parameter in parameters.items():
        if parameter.default is parameter.empty and name not in arguments:
            raise ConfigError(f"{function.__name__} needs the option {name!r}")
