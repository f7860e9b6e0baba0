"""Networks as plain values: which layers, with which sizes."""

from collections.abc import Callable, Iterable
from dataclasses import fields
from typing import Any

from fedlap.models import network
from fedlap.models.network import Network

LAYERS: dict[str, Callable[..., network.Layer]] = {
    layer.__name__: layer
    for layer in (
        network.Dense,
        network.Convolution,
        network.Activation,
        network.Flatten,
        network.MaxPool,
        network.Dropout,
    )
}
DRAWS: dict[str, network.Draw] = {draw.__name__: draw for draw in (network.uniform, network.zeros)}


def describe(model: Any) -> list[dict[str, Any]] | None:
    """A list of layers, each {"layer": its class, …}; None of a model that is not made of these layers alone."""
    if type(model) is not Network or not all(type(layer) in LAYERS.values() for layer in model.layers):
        return None
    if not all(getattr(layer, "draw", network.uniform) in DRAWS.values() for layer in model.layers):
        return None
    return [{"layer": type(layer).__name__, **_sizes(layer)} for layer in model.layers]


def rebuild(description: Iterable[dict[str, Any]]) -> Network:
    """The network described; a KeyError, TypeError or ValueError if that is none."""
    return Network(tuple(_rebuilt(**layer) for layer in description))


def _sizes(layer: Any) -> dict[str, Any]:
    values = {field.name: getattr(layer, field.name) for field in fields(layer)}
    return values | {"draw": values["draw"].__name__} if "draw" in values else values


def _rebuilt(layer: str, **sizes: Any) -> network.Layer:
    return LAYERS[layer](**sizes | {"draw": DRAWS[sizes["draw"]]} if "draw" in sizes else sizes)
