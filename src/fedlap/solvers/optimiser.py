"""Any optimiser of optax on minibatches: by its name, whose rate may be swept, or one that is made already."""

import functools
import inspect
from collections.abc import Callable, Mapping
from types import FunctionType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from fedlap.algebra.hyperparameters import hyper, hyperparameters
from fedlap.algebra.pytrees import as_call
from fedlap.domains import Domain
from fedlap.errors import ConfigError
from fedlap.solvers.minibatches import Minibatches, clipped
from fedlap.solvers.rate import RATE, rate


class Closures:
    """An optimiser that is made already, known by a name or else by all that its functions hold.

    What shows itself alike is the same program, and the same run to a checkpoint.
    """

    def __init__(self, transformation: optax.GradientTransformation, name: str | None) -> None:
        self.transformation = transformation
        self._program = transformation if name else None  # a name does not say which
        self._text = name or _shown(tuple(transformation))

    def __repr__(self) -> str:
        return self._text

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Closures) and (self._text, self._program) == (other._text, other._program)

    def __hash__(self) -> int:
        return hash((self._text, self._program))


def _trouble(transformation: Callable[[Any], optax.GradientTransformation]) -> str | None:
    """Why no step can be taken from a gradient and weights alone; None if it can, at whichever rate."""

    def step(rate: Any, weights: Any) -> Any:
        made = transformation(rate)
        return made.update(weights, made.init(weights), weights)

    try:
        jax.eval_shape(step, 0.1, {"weight": jnp.zeros((2, 2)), "bias": jnp.zeros(2)})
    except Exception as error:  # of whichever class: they are not ours
        return str(error)
    return None


@functools.cache
def _is_known(name: str) -> bool:
    """Whether optax has an optimiser of this name that needs a learning rate and nothing else."""
    maker = getattr(optax, name, None)
    if not inspect.isfunction(maker):
        return False
    first, *others = [*inspect.signature(maker).parameters.values(), None]
    needs = [each for each in others if each is not None and each.default is each.empty]
    return first is not None and first.name == "learning_rate" and not needs and _trouble(maker) is None


NAME = Domain(
    'the name of an optimiser of optax that needs a learning rate alone, as "adamw"',
    lambda value: isinstance(value, str) and _is_known(value),
)
MADE = Domain("an optimiser of optax, as optax.adamw(1e-3)", lambda value: isinstance(value, Closures), format=repr)


@hyperparameters
class NamedOptimiser(Minibatches):
    """The optimiser of this name in optax, on minibatches, with a rate that may be swept."""

    optimiser: str = hyper(NAME, static=True)
    learning_rate: Any = hyper(RATE)
    epochs: int = hyper("count", static=True, default=5)
    batch: int = hyper("count", static=True, default=32)
    clip: float | None = hyper("optional positive", default=None)
    keep: bool = hyper("truth", static=True, default=False)

    __repr__ = as_call("optimiser")

    @property
    def _optimiser(self) -> optax.GradientTransformation:
        return clipped(self.clip, getattr(optax, self.optimiser)(rate(self.learning_rate)))


@hyperparameters
class MadeOptimiser(Minibatches):
    """An optimiser that is made already, on minibatches."""

    optimiser: Closures = hyper(MADE, static=True)
    epochs: int = hyper("count", static=True, default=5)
    batch: int = hyper("count", static=True, default=32)
    clip: float | None = hyper("optional positive", default=None)
    keep: bool = hyper("truth", static=True, default=False)

    __repr__ = as_call("optimiser")

    @property
    def _optimiser(self) -> optax.GradientTransformation:
        return clipped(self.clip, self.optimiser.transformation)


def optimiser(
    optimiser: str | optax.GradientTransformation,
    *,
    learning_rate: Any = None,
    epochs: int = 5,
    batch: int = 32,
    clip: float | None = None,
    keep: bool = False,
    name: str | None = None,
) -> NamedOptimiser | MadeOptimiser:
    """A local solver that takes the steps of an optimiser of optax: `optimiser(optax.adamw(1e-3), epochs=5, batch=32)`.

    Args:
        optimiser: of optax, with any schedule, which counts the steps of a round, or with `keep` of all rounds; or the
            name of one, as "adamw".
        learning_rate: of an optimiser that is named; one that is made already has its own. A number, which may be
            swept, or a schedule as in a settings file: `{"schedule": "cosine_decay_schedule", "init_value": 0.1,
            "decay_steps": 100}`.
        epochs: passes over a client's rows in a round.
        batch: rows of a minibatch.
        clip: the longest gradient; a longer one is made so short.
        keep: whether what it remembers, and its count of steps, survive from round to round.
        name: what a checkpoint knows it by, if it is made with functions that are not optax's own.
    """
    common: dict[str, Any] = {"epochs": epochs, "batch": batch, "clip": clip, "keep": keep}
    if not (isinstance(optimiser, tuple) and callable(getattr(optimiser, "update", None))):
        if name is not None:
            raise ConfigError(f"optimiser: name is {name!r}; expected none, for {optimiser!r} is one")
        NAME.check("optimiser", optimiser)
        learning_rate = RATE.read("optimiser: learning_rate", learning_rate)
        return NamedOptimiser(optimiser=optimiser, learning_rate=learning_rate, **common)  # pyright: ignore[reportArgumentType]
    if learning_rate is not None:
        raise ConfigError(f"optimiser: learning_rate is {learning_rate}; expected none, for this optimiser has its own")
    if name is not None and not (isinstance(name, str) and name):
        raise ConfigError(f"optimiser: name is {name!r}; expected some letters")
    if (trouble := _trouble(lambda _: optimiser)) is not None:
        raise ConfigError(f"optimiser: it takes no step from a gradient and weights alone: {trouble}")
    return MadeOptimiser(optimiser=Closures(optimiser, name), **common)


def _shown(value: Any) -> str:
    """All that an optimiser's functions hold, as text; ConfigError where that says not all of it."""
    if isinstance(value, FunctionType):
        held = dict(
            zip(value.__code__.co_freevars, (cell.cell_contents for cell in value.__closure__ or ()), strict=True)
        )
        held |= _defaults(value)
        words = (f"{key}={_shown(item)}" for key, item in held.items())
        return f"{_named(value).replace('.<locals>', '')}({', '.join(words)})"
    if isinstance(value, functools.partial):
        return f"partial({_shown(value.func)}, {_shown(value.args)}, {_shown(value.keywords)})"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {_shown(item)}" for key, item in value.items()) + "}"
    if isinstance(value, (tuple, list)):
        return "[" + ", ".join(map(_shown, value)) + "]"
    if isinstance(value, (np.ndarray, np.generic, jax.Array)):
        return f"{value.dtype}{np.asarray(value).tolist()}"
    if isinstance(value, float) and value.is_integer():
        return repr(int(value))  # optax makes one of the other when it is used
    if value is None or isinstance(value, (bool, int, float, str, np.dtype)):
        return repr(value)
    return _named(value)


def _defaults(function: FunctionType) -> dict[str, Any]:
    """The arguments of a function that have a default, but for those of nothing."""
    known = inspect.signature(function).parameters.values()
    return {each.name: each.default for each in known if each.default is not each.empty and each.default is not None}


def _named(value: Any) -> str:
    """A function or class of optax or JAX by its name. Of anything else a name does not say what it does."""
    if getattr(value, "__module__", "").partition(".")[0] not in ("optax", "jax") or not hasattr(value, "__qualname__"):
        raise ConfigError(
            f"optimiser: it is made with {value!r}, which is not optax's own, so that a checkpoint could not tell it "
            'from another; give it a name: optimiser(…, name="…")'
        )
    return value.__qualname__
