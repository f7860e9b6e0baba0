"""What a method asks of a likelihood, found out before the first round."""

from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from fedlap.engines.parties import Moment
from fedlap.engines.round import initial, score
from fedlap.errors import ConfigError
from fedlap.models.likelihood import categorical

if TYPE_CHECKING:
    from fedlap.engines.setup import Setup

# Each method of a likelihood, and what it is for.
METHODS = {
    "loss": ("loss(outputs, labels)", "every method trains and is scored by it"),
    "probabilities": ("probabilities(outputs)", "predictions and soft labels are made of them"),
    "soft_loss": ("soft_loss(outputs, mass, targets)", "memory points are learned from by it"),
    "factor": ("factor(outputs)", "GaussNewton, the curvature, is made of it"),
    "sampled_factor": ("sampled_factor(outputs, key, samples)", "GaussNewton(samples=…), the curvature, is made of it"),
}
ALWAYS = ("loss", "probabilities")


def check_likelihood(setup: "Setup") -> None:
    """Raise a ConfigError that names what a likelihood of one's own lacks and this method asks for.

    Or what it gives in another shape, which would broadcast in silence. If it lacks any of METHODS the first round is
    traced, and not run, to see whether that is asked for.
    """
    likelihood: Any = setup.task.likelihood
    if isinstance(likelihood, type):
        raise ConfigError(f"likelihood is the class {likelihood.__name__}; expected an instance of it")
    if type(likelihood).__hash__ is None:
        raise ConfigError(
            f"likelihood {type(likelihood).__name__} has no hash, by which compiled programs are found again; "
            "expected a class with @dataclass(frozen=True)"
        )
    missing = [name for name in METHODS if not callable(getattr(likelihood, name, None))]
    for name in missing:
        if name in ALWAYS:
            raise _lacks(likelihood, name, "every method")
    if likelihood != categorical:
        _check_shapes(likelihood, tuple(missing), setup.classes)
    if missing:
        method = type(setup.method.algorithm).__name__
        stand_in: Any = Incomplete(likelihood, tuple(missing), method)
        jax.eval_shape(lambda: _first_round(setup, stand_in))


@lru_cache
def _check_shapes(likelihood: Any, missing: tuple[str, ...], classes: int) -> None:
    """Raise a ConfigError for what is not a number, or a row of them, for each example; once for each likelihood."""
    n, draws = 7, 3

    def result(name: str) -> Any:
        f = jnp.zeros((n, classes))
        more = {
            "loss": (jnp.zeros(n, int),),
            "soft_loss": (jnp.ones(n), f),
            "sampled_factor": (jax.random.key(0), draws),
        }
        return getattr(likelihood, name)(f, *more.get(name, ()))

    for name in [name for name in METHODS if name not in missing]:
        shape = getattr(jax.eval_shape(partial(result, name)), "shape", None)
        columns = (shape or ())[-1:]  # of a factor as many as it likes
        row = {"probabilities": (classes,), "factor": (classes, *columns), "sampled_factor": (classes, draws)}
        if shape != (wanted := (n, *row.get(name, ()))):
            found = "is no array" if shape is None else f"has the shape {list(shape)}"
            raise ConfigError(
                f"likelihood {type(likelihood).__name__}: {METHODS[name][0]} of {n} examples and {classes} classes "
                f"{found}; expected {list(wanted)}"
            )


@dataclass(frozen=True)
class Incomplete:
    """A likelihood that says what it lacks when it is asked for that."""

    likelihood: Any
    missing: tuple[str, ...]
    method: str

    def __getattr__(self, name: str) -> Any:
        if name in self.missing:
            raise _lacks(self.likelihood, name, self.method)
        return getattr(self.likelihood, name)


def _lacks(likelihood: Any, name: str, who: str) -> ConfigError:
    written, purpose = METHODS[name]
    return ConfigError(f"likelihood {type(likelihood).__name__} has no {written}, and {who} needs it: {purpose}")


def _first_round(setup: "Setup", likelihood: Any) -> None:
    """All that a client of the first round asks of the likelihood: in its objective, its curvature, its labels."""
    setup = replace(setup, task=replace(setup.task, likelihood=likelihood))
    state = initial(setup)
    broadcast = setup.method.algorithm.broadcast(state.server)
    score(setup, broadcast, state.clients.factor, 0, Moment(0, state.start, setup.key))
