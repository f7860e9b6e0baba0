"""Where clients run: `vectorised`, `sequential`, or the readable `loop`; the same round in all of them."""

from typing import Literal

import jax

from fedlap.engines import loop, sequential, vectorised
from fedlap.engines.round import Engine
from fedlap.errors import ConfigError

EngineName = Literal["auto", "vectorised", "sequential", "loop"]

ENGINES: dict[str, Engine] = {"vectorised": vectorised, "sequential": sequential, "loop": loop}

# Above this many weights a client's step fills a core by itself, and padding all clients to the longest costs
# more than the interpreter saves.
SMALL = 10_000


def choose(name: str, weights: int) -> Engine:
    """The engine of that name, or the faster one for a model of so many weights."""
    if name == "auto":
        return vectorised if small(weights) or jax.default_backend() != "cpu" else sequential
    if name not in ENGINES:
        raise ConfigError(f'engine is "{name}"; expected "auto", ' + ", ".join(f'"{n}"' for n in ENGINES))
    return ENGINES[name]


def small(weights: int) -> bool:
    """Whether a model has so few weights that many clients, or whole runs, are best one program."""
    return weights <= SMALL
