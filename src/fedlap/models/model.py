"""What a model is: `init(key, inputs, classes)`, `apply(params, inputs)` and `train(params, inputs, key)`.

`init` looks at the shape of a batch of inputs only, `apply` is deterministic, and `train` may draw (dropout).
"""

from dataclasses import dataclass

import jax

from fedlap.errors import ConfigError
from fedlap.models.modules import Linen, Nnx, Wrapped, is_linen, is_nnx


@dataclass(frozen=True, init=False)
class Model:
    """A model made of functions: `init(key, inputs)`, `apply(params, inputs)`, `train(params, inputs, key)`.

    Without `train`, training uses `apply`. Functions are compared by identity: pass the same ones again, not
    new lambdas, and the compiled program is found again.
    """

    functions: tuple

    def __init__(self, init, apply, train=None):
        object.__setattr__(self, "functions", (init, apply, train))

    def init(self, key, inputs, classes):
        return self.functions[0](key, inputs)

    def apply(self, params, inputs):
        return self.functions[1](params, inputs)

    def train(self, params, inputs, key):
        _, apply, train = self.functions
        return apply(params, inputs) if train is None else train(params, inputs, key)


def as_model(thing):
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


def check_outputs(model, params, inputs, classes):
    """An error unless the model gives one output a class."""
    found, wanted = jax.eval_shape(model.apply, params, inputs).shape, (len(inputs), classes)
    if found != wanted:
        raise ConfigError(f"the model's outputs have shape {found}; expected {wanted}, one output a class")
