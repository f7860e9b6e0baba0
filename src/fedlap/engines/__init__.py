"""Where clients run: `vectorised`, `sequential`, `streamed`, or the readable `loop`; the same round in all of them."""

from collections.abc import Callable
from typing import Literal

import jax

from fedlap.engines import loop, sequential, vectorised
from fedlap.engines.round import Engine
from fedlap.engines.scratch import Scratch
from fedlap.engines.sequential import FEW
from fedlap.engines.streamed import Streamed
from fedlap.errors import ConfigError
from fedlap.files import PathLike
from fedlap.machine import memory

EngineName = Literal["auto", "vectorised", "sequential", "streamed", "loop"]

ENGINES: dict[str, Engine] = {"vectorised": vectorised, "sequential": sequential, "loop": loop}

# Above this many weights a client's step fills a core by itself, and padding all clients to the longest costs
# more than the interpreter saves.
SMALL = 10_000
# Up to so many clients of a small model are one program, with all their states in one array.
MANY = 256
# Numbers in one vector of all clients of a block: so few that a step's vectors stay in a core's cache.
CACHED = 16_384
# Clients of a larger model that run one after the other in a block: enough that what is between blocks is nothing.
IN_TURN = 16


def choose(
    name: str,
    weights: int,
    count: int = 1,
    client_bytes: Callable[[], int] = lambda: 0,
    scratch: PathLike | None = None,
) -> Engine:
    """The engine of that name, or the faster one for so many clients of a model of so many weights.

    States go to the folder `scratch`, or to one of the system's if they would take more than a quarter of the memory.
    """
    together = small(weights) or jax.default_backend() != "cpu"
    if scratch is not None and name not in ("auto", "streamed"):
        raise ConfigError(f'scratch is for engine="streamed", and engine is "{name}"; leave one of them out')
    if name in ENGINES:
        return ENGINES[name]
    if name == "auto" and scratch is None and count <= (MANY if together else FEW):
        return vectorised if together else sequential
    if name not in ("auto", "streamed"):
        raise ConfigError(f'engine is "{name}"; expected "auto", "streamed", ' + ", ".join(f'"{n}"' for n in ENGINES))
    size = max(IN_TURN, min(MANY, CACHED // weights)) if together else IN_TURN
    outgrown = count * client_bytes() > memory() / 4
    return Streamed(size, together, Scratch(scratch) if outgrown or scratch is not None else None)


def small(weights: int) -> bool:
    """Whether a model has so few weights that many clients, or whole runs, are best one program."""
    return weights <= SMALL
