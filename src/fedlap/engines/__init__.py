"""Where clients run, the same round everywhere.

`vectorised` and `sequential` for some clients of a small and of a large model, `streamed` for clients without number,
`sharded` for several devices, and `loop` to read.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Literal, get_args

import jax

from fedlap.engines import loop, sequential, vectorised
from fedlap.engines.round import Engine
from fedlap.engines.scratch import Scratch
from fedlap.engines.sequential import FEW
from fedlap.engines.sharded import Sharded
from fedlap.engines.streamed import Streamed
from fedlap.errors import ConfigError
from fedlap.files import PathLike
from fedlap.machine import memory, reuse_memory

EngineName = Literal["auto", "vectorised", "sequential", "streamed", "sharded", "loop"]

ENGINES: dict[str, Engine] = {"vectorised": vectorised, "sequential": sequential, "loop": loop}

# Above this many weights a client's step fills a core by itself, and padding all clients to the longest costs
# more than the interpreter saves.
SMALL = 10_000
# Up to so many clients of a small model are one program, with all their states in one array.
MANY = 256
# Numbers in one vector of all clients of a block: so few that a step's vectors stay in a core's cache.
CACHED = 10_752
LEAST = 64  # clients, however long their vectors: what is between blocks costs a millisecond
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
    if name not in get_args(EngineName):
        raise ConfigError(f'engine is "{name}"; expected ' + ", ".join(f'"{known}"' for known in get_args(EngineName)))
    together = small(weights) or jax.default_backend() != "cpu"
    if not together:
        reuse_memory()
    if name == "auto":
        name = _fastest(together, count, scratch is not None)
    if name in ENGINES:
        if scratch is not None:
            raise ConfigError(f'scratch is for engine="streamed" or "sharded", and engine is "{name}"')
        return ENGINES[name]
    outgrown = scratch is not None or count * client_bytes() > memory() / 4
    kept = Scratch(scratch) if outgrown else None
    if name == "sharded":
        return Sharded(MANY if together else IN_TURN, together, kept)
    return Streamed(max(LEAST, min(MANY, CACHED // weights)) if together else IN_TURN, together, kept)


def _fastest(together: bool, count: int, on_disk: bool) -> str:
    if jax.device_count() > 1:
        return "sharded"
    if on_disk or count > (MANY if together else FEW):
        return "streamed"
    return "vectorised" if together else "sequential"


def again(engine: Engine) -> Engine:
    """The same engine for another run; states on disk are in a file of their own, as their sizes may differ."""
    if isinstance(engine, Streamed) and engine.scratch is not None:
        return replace(engine, scratch=Scratch(engine.scratch.folder))
    return engine


def small(weights: int) -> bool:
    """Whether a model has so few weights that many clients, or whole runs, are best one program."""
    return weights <= SMALL
