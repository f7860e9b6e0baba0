"""Networks as plain values: which layers, with which sizes."""

from dataclasses import fields

from fedlap.models import layers
from fedlap.models.network import Network

LAYERS = {
    layer.__name__: layer
    for layer in (
        layers.Dense,
        layers.Convolution,
        layers.Activation,
        layers.Flatten,
        layers.MaxPool,
        layers.Dropout,
    )
}
DRAWS = {draw.__name__: draw for draw in (layers.uniform, layers.zeros)}


def describe(model):
    """A list of layers, each {"layer": its class, …}; None of a model that is not made of these layers alone."""
    if type(model) is not Network or not all(type(layer) in LAYERS.values() for layer in model.layers):
        return None
    if not all(getattr(layer, "draw", layers.uniform) in DRAWS.values() for layer in model.layers):
        return None
    return [{"layer": type(layer).__name__, **_sizes(layer)} for layer in model.layers]


def rebuild(description):
    """The network described; a KeyError, TypeError or ValueError if that is none."""
    return Network(tuple(_rebuilt(**layer) for layer in description))


def _sizes(layer):
    values = {field.name: getattr(layer, field.name) for field in fields(layer)}
    return values | {"draw": values["draw"].__name__} if "draw" in values else values


def _rebuilt(layer, **sizes):
    return LAYERS[layer](**sizes | {"draw": DRAWS[sizes["draw"]]} if "draw" in sizes else sizes)
