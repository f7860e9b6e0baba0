"""What a model is: `init(key, inputs, classes)`, `apply(params, inputs)` and `train(params, inputs, key)`.

`init` looks at the shape of a batch of inputs only, `apply` is deterministic, and `train` may draw (dropout).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import jax

from fedlap.arrays import Array, Key, Tree
from fedlap.errors import ConfigError
from fedlap.models.modules import Linen, Nnx, Wrapped, is_linen, is_nnx


class Trainable(Protocol):
    """A model as all of fedlap sees it."""

    def init(self, key: Key, inputs: Array, classes: int) -> Tree: ...
    def apply(self, params: Tree, inputs: Array) -> Array: ...
    def train(self, params: Tree, inputs: Array, key: Key) -> Array: ...


class Module(Protocol):
    """Whatever has `init` and `apply`: models, and modules of `flax.linen` and of other libraries."""

    def init(self, *args: Any, **options: Any) -> Any: ...
    def apply(self, *args: Any, **options: Any) -> Any: ...


ModelLike = Module | Callable[..., Any]  # a module of `flax.nnx` has a call alone


@dataclass(frozen=True, init=False)
class Model:
    """A model made of functions: `init(key, inputs)`, `apply(params, inputs)`, `train(params, inputs, key)`.

    Without `train`, training uses `apply`. Functions are compared by identity: pass the same ones again, not
    new lambdas, and the compiled program is found again.
    """

    functions: tuple[Callable[..., Any], Callable[..., Any], Callable[..., Any] | None]

    def __init__(
        self,
        init: Callable[[Key, Array], Tree],
        apply: Callable[[Tree, Array], Array],
        train: Callable[[Tree, Array, Key], Array] | None = None,
    ) -> None:
        object.__setattr__(self, "functions", (init, apply, train))

    def init(self, key: Key, inputs: Array, classes: int) -> Tree:
        return self.functions[0](key, inputs)

    def apply(self, params: Tree, inputs: Array) -> Array:
        return self.functions[1](params, inputs)

    def train(self, params: Tree, inputs: Array, key: Key) -> Array:
        _, apply, train = self.functions
        return apply(params, inputs) if train is None else train(params, inputs, key)


def as_model(thing: Any) -> Trainable:
    """A model as it is, or a module of Flax or another library as a model."""
    has = lambda *names: all(callable(getattr(thing, name, None)) for name in names)
    if isinstance(thing, type):
        raise ConfigError(f"model is the class {thing.__name__}; expected an instance, {thing.__name__}(...)")
    if is_linen(thing):
        return Linen.of(thing)
    if is_nnx(thing):
        return Nnx.of(thing)
    if has("init", "apply", "train"):
        return thing
    if has("init", "apply"):
        return Wrapped.of(thing)
    raise ConfigError(f"model is {thing!r}; expected a model, a Flax module or fedlap.Model(init, apply)")


def check_outputs(model: Trainable, params: Tree, inputs: Any, classes: int) -> None:
    """Raise a ConfigError unless the model gives one output a class."""
    shape, expected = jax.eval_shape(model.apply, params, inputs).shape, (len(inputs), classes)
    if shape != expected:
        raise ConfigError(f"the model's outputs have shape {shape}; expected {expected}, one output a class")
