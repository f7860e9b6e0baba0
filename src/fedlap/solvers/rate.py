"""A learning rate: a number, or a schedule of optax by its name, as a settings file can say it."""

import inspect
import math
from collections.abc import Callable
from typing import Any

import optax

from fedlap.algebra.pytrees import is_traced, pytree, static
from fedlap.checks import is_number
from fedlap.domains import POSITIVE, Domain, as_real
from fedlap.errors import ConfigError, unknown

LATE = 10**9  # steps, after which a schedule has come to its end
KNOWN = [name for name, made in vars(optax.schedules).items() if inspect.isfunction(made)]


@pytree
class Schedule:
    """A schedule of optax by its name and numbers, which are part of the program: each is compiled for itself."""

    schedule: str = static()
    numbers: tuple[tuple[str, Any], ...] = static()

    def __repr__(self) -> str:
        return repr(_format(self))

    @property
    def made(self) -> Callable[[Any], Any]:
        """What optax makes of it."""
        return getattr(optax.schedules, self.schedule)(**dict(self.numbers))


def rate(learning_rate: Any) -> Any:
    """A learning rate as optax takes it."""
    return learning_rate.made if isinstance(learning_rate, Schedule) else learning_rate


def _is_rate(value: Any) -> bool:
    return isinstance(value, Schedule) or is_traced(value) or POSITIVE.holds(value)


def _parse(plain: Any) -> Any:
    """A number, or { schedule = "cosine_decay_schedule", init_value = 0.1, decay_steps = 100 }."""
    if not isinstance(plain, dict):
        return as_real(plain)
    numbers = dict(plain)
    if "schedule" not in numbers:
        raise ConfigError(f"{plain} is no schedule, which has a key schedule, and its numbers by their names in optax")
    name = numbers.pop("schedule")
    if name not in KNOWN:
        raise unknown("schedule of optax", name, KNOWN)
    for key, number in numbers.items():
        if not (isinstance(number, bool) or is_number(number)):
            raise ConfigError(f"{key} of {name} is {number!r}; expected a number")
    schedule = Schedule(name, tuple(sorted(numbers.items())))
    try:
        ends = [float(schedule.made(step)) for step in (0, LATE)]
    except Exception as error:  # of whichever class: it is not ours
        raise ConfigError(f"optax makes no {name} of {numbers}: {error}") from error
    if not all(math.isfinite(end) and end >= 0 for end in ends):
        raise ConfigError(f"{name} goes from {ends[0]:g} to {ends[1]:g}; expected rates of 0 or above")
    return schedule


def _format(value: Any) -> Any:
    """What `_parse` reads as this rate."""
    return {"schedule": value.schedule, **dict(value.numbers)} if isinstance(value, Schedule) else value


RATE = Domain(
    "a number above 0, or { schedule = …, … }, a schedule of optax and its numbers", _is_rate, _parse, _format
)
