"""Modules of Flax, `linen` and `nnx`, and of other libraries, as models.

A module learns in its own way whether it trains: a flag of its call, an attribute, or attributes of its
layers. Each is found and set, so that dropout is on in training, and off in init, evaluation and curvature. Flax is
imported when one of its modules is given, not before.
"""

import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field, fields
from functools import partial
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np

from fedlap.arrays import Array, Key, Tree
from fedlap.data.federation import fingerprint
from fedlap.errors import ConfigError

# The names of flags, and what they say in training.
FLAGS = {
    "train": True,
    "training": True,
    "is_training": True,
    "deterministic": False,
    "inference": False,
    "use_running_average": False,
}


@dataclass(frozen=True)
class Wrapped:
    """Anything with `init(key, inputs)` and `apply(params, inputs)`."""

    module: Any = field(compare=False)
    identity: Any = field(repr=False)  # the module, or its number where its attributes cannot be compared by value

    @classmethod
    def of(cls, module: Any) -> Self:
        return cls(module, module if _hashable(module) else id(module))  # nn.Sequential([...]) has a list in it

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self).of, (self.module,)  # in another process the module has another number

    def init(self, key: Key, inputs: Array, classes: int) -> Tree:
        return self._without_state(self.module.init(key, inputs))

    def apply(self, params: Tree, inputs: Array) -> Array:
        return self.module.apply(params, inputs)

    def train(self, params: Tree, inputs: Array, key: Key) -> Array:
        return self.module.apply(params, inputs)

    def _without_state(self, variables: Tree) -> Tree:
        if isinstance(variables, Mapping) and "params" in variables and len(variables) > 1:
            raise _stateful(self.module, [name for name in variables if name != "params"])
        return variables


@dataclass(frozen=True)
class Linen(Wrapped):
    """A module of `flax.linen`.

    If it has a flag, its layers do what its code says. If it has none, those of its layers that have one get it.
    """

    def init(self, key: Key, inputs: Array, classes: int) -> Tree:
        return _promoted(self._without_state(self._call("init", key, inputs, training=False)))

    def apply(self, params: Tree, inputs: Array) -> Array:
        from flax.errors import InvalidRngError

        try:
            return self._call("apply", params, inputs, training=False)
        except InvalidRngError as error:
            raise _random(self.module) from error

    def train(self, params: Tree, inputs: Array, key: Key) -> Array:
        # Flax takes the key of "params" for every name that has none.
        rngs = {"dropout": key, "params": jax.random.fold_in(key, 1)}
        return self._call("apply", params, inputs, training=True, rngs=rngs)

    def _call(self, method: str, first: Any, inputs: Array, training: bool, **options: Any) -> Any:
        from flax.linen import intercept_methods

        module, flags = self.module, _flags(training)
        own = {name: flags[name] for name in _attributes(module) if name in flags}
        has_flag = own or flags.keys() & inspect.signature(module.__call__).parameters
        args, kwargs = _arguments(module, inputs, {name: flags[name] for name in flags if name not in own})
        module = module.clone(**own) if own else module
        with nullcontext() if has_flag else intercept_methods(partial(_call_with, flags)):
            return getattr(module, method)(first, *args, **kwargs, **options)


def _promoted(weights: Tree) -> Tree:
    """Weights in the precision of the run: Flax draws float32 even where JAX has float64."""
    real = jnp.zeros(()).dtype
    return jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.promote_types(leaf.dtype, real)), weights)


def _call_with(
    flags: dict[str, bool], call: Callable[..., Any], args: tuple, kwargs: dict[str, Any], context: Any
) -> Any:
    """Call a layer with each of its flags that the caller has left out."""
    module = context.module  # bound, so one of this call's own
    if context.method_name == "__call__":
        bound = inspect.signature(call).bind_partial(*args, **kwargs)
        for name, value in flags.items():
            argument = bound.arguments.get(name)
            if isinstance(argument, bool) and argument != value:
                raise ConfigError(
                    f"{type(module).__name__} is called with {name}={argument} in training and in evaluation alike; "
                    f"expected a flag of the module that is passed ({', '.join(FLAGS)})"
                )
            if argument is None and name in _attributes(module):
                object.__setattr__(module, name, value)
            elif argument is None and name in bound.signature.parameters:
                bound.arguments[name] = value
        args, kwargs = bound.args, bound.kwargs
    return call(*args, **kwargs)


@dataclass(frozen=True)
class Nnx:
    """A module of `flax.nnx`, as it is now: later changes to it are not seen.

    It has its weights already, so they are the start whatever the seed. In training its random streams are seeded anew
    by the key of the step.
    """

    name: str
    contents: str  # a digest of the structure and the weights
    identity: Any = field(repr=False)
    graphs: dict[bool, Any] = field(repr=False, compare=False)  # of evaluation and of training
    weights: Any = field(repr=False, compare=False)
    streams: Any = field(repr=False, compare=False)
    constants: Any = field(repr=False, compare=False)

    @classmethod
    def of(cls, module: Any) -> "Nnx":
        from flax import nnx

        graphs = {}
        for training in (True, False):
            copy = nnx.clone(module)
            copy.train() if training else copy.eval()
            for _, part in nnx.iter_modules(copy):
                for name in _attributes(part) & FLAGS.keys():
                    setattr(part, name, _flags(training)[name])
            graphs[training], weights, streams, constants = _split(copy)
        variable = lambda leaf: isinstance(leaf, nnx.Variable)
        random = lambda leaf: hasattr(leaf, "dtype") and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
        leaves = jax.tree_util.tree_leaves_with_path(constants, is_leaf=variable)
        if state := [".".join(str(key.key) for key in path) for path, leaf in leaves if variable(leaf) or random(leaf)]:
            raise _stateful(module, state)
        constants = jax.tree.map(lambda leaf: leaf.copy() if isinstance(leaf, np.ndarray) else leaf, constants)
        about = re.sub(r" at 0x[0-9a-f]+", "", repr(graphs[False]))  # an address is another one in the next process
        contents = fingerprint(*jax.tree.leaves((weights, constants)), about=about)
        identity = graphs[False] if _hashable(graphs[False]) else object()
        return cls(type(module).__name__, contents, identity, graphs, weights, streams, constants)

    def init(self, key: Key, inputs: Array, classes: int) -> Tree:
        return _promoted(self.weights)

    def apply(self, params: Tree, inputs: Array) -> Array:
        outputs, streams = self._call(params, inputs, False, self.streams, None)
        if not _same(streams, self.streams):
            raise _random(self)
        return outputs

    def train(self, params: Tree, inputs: Array, key: Key) -> Array:
        from flax import nnx

        leaves, structure = jax.tree.flatten(self.streams)
        streams = jax.tree.unflatten(structure, [_seeded(key, i, leaf) for i, leaf in enumerate(leaves, 1)])
        return self._call(params, inputs, True, streams, nnx.Rngs(jax.random.fold_in(key, 0)))[0]

    def _call(self, params: Tree, inputs: Array, training: bool, streams: Tree, rngs: Any) -> tuple[Array, Tree]:
        from flax import nnx

        # A module shares the variables that it is merged from, and may change them: it gets some of its own.
        states = jax.tree.map(lambda leaf: leaf, (params, streams, self.constants))
        module = nnx.merge(self.graphs[training], *states)
        args, kwargs = _arguments(module, inputs, {**_flags(training), "rngs": rngs})
        outputs = module(*args, **kwargs)
        _, params_after, streams_after, constants_after = _split(module)
        if not _same((params_after, constants_after), (params, self.constants)):
            raise _stateful(self, ["what it changes when it is called"])
        return outputs, streams_after


def is_linen(thing: object) -> bool:
    """Whether a thing is a module of `flax.linen`."""
    return _is_module(thing, "flax.linen")


def is_nnx(thing: object) -> bool:
    """Whether a thing is a module of `flax.nnx`."""
    return _is_module(thing, "flax.nnx")


def _is_module(thing: object, package: str) -> bool:
    return any(base.__name__ == "Module" and base.__module__.startswith(package) for base in type(thing).__mro__)


def _flags(training: bool) -> dict[str, bool]:
    return {name: value == training for name, value in FLAGS.items()}


def _attributes(module: Any) -> set[str]:
    """The names of attributes that are true, false or not yet set; those that can be set anew."""
    names = [attribute.name for attribute in fields(module)] if is_linen(module) else vars(module)
    return {name for name in names if getattr(module, name) is None or isinstance(getattr(module, name), bool)}


def _arguments(module: Any, inputs: Array, offered: Mapping[str, Any]) -> tuple[tuple, dict[str, Any]]:
    """Positional and keyword arguments for a module's call: the inputs, and what it asks for of what is offered."""
    signature = inspect.signature(module.__call__)
    bound = signature.bind_partial(inputs)
    for name, parameter in signature.parameters.items():
        if name in bound.arguments or parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        if name in offered:
            bound.arguments[name] = offered[name]
        elif parameter.default is parameter.empty:
            raise ConfigError(
                f"{type(module).__name__} is called with {name!r}; expected inputs and, if it needs one, "
                f"a flag ({', '.join(FLAGS)})"
            )
    return bound.args, bound.kwargs


def _split(module: Any) -> tuple[Any, Tree, Tree, Tree]:
    from flax import nnx

    graph, weights, streams, constants = nnx.split(module, nnx.Param, nnx.RngState, ...)
    return graph, weights, streams, constants


def _seeded(key: Key, number: int, leaf: Array) -> Array:
    """A stream's key, or its count of draws, which begins at zero."""
    if not jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return jnp.zeros_like(leaf)
    return jax.random.split(jax.random.fold_in(key, number), leaf.shape)


def _same(tree: Tree, other: Tree) -> bool:
    """Whether no leaf has been replaced."""
    leaves, others = jax.tree.leaves(tree), jax.tree.leaves(other)
    return len(leaves) == len(others) and all(a is b for a, b in zip(leaves, others, strict=True))


def _hashable(thing: object) -> bool:
    try:
        hash(thing)
    except TypeError:
        return False
    return True


def _stateful(module: object, state: Iterable[str]) -> ConfigError:
    return ConfigError(f"{_name(module)} keeps state ({', '.join(state)}); expected a module with weights only")


def _random(module: object) -> ConfigError:
    return ConfigError(
        f"{_name(module)} draws random numbers in evaluation; expected a flag that turns them off ({', '.join(FLAGS)})"
    )


def _name(module: object) -> str:
    return module.name if isinstance(module, Nnx) else type(module).__name__
