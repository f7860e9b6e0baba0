"""As `vectorised`, for few rounds: programs are compiled in less time, and that of a round is up to a third slower."""

import functools
from collections.abc import Callable

import jax
import numpy as np

from fedlap.engines import evaluate as scores
from fedlap.engines import round as rounds
from fedlap.engines import vectorised
from fedlap.engines.parties import Batches
from fedlap.engines.round import State
from fedlap.engines.scores import Metrics
from fedlap.engines.setup import Setup

prepare, regroup, draws_ahead = vectorised.prepare, vectorised.regroup, vectorised.draws_ahead

# XLA's older loops, LLVM's -O1, and a program in one piece: to cut it up for many cores costs a tenth of compiling it.
OPTIONS = {
    "xla_cpu_use_fusion_emitters": False,
    "xla_backend_optimization_level": 1,
    "xla_cpu_parallel_codegen_split_count": 1,
}
# LLVM's -O0, for what is run once, or takes no time: scores of a few hundred rows are compiled eight times as fast.
LEAST = {**OPTIONS, "xla_backend_optimization_level": 0}


def advance(setup: Setup, state: State, drawn: np.ndarray, batches: Batches) -> State:
    new = compiled_round()(setup, state, vectorised.Moved.of(drawn, batches))
    return new._replace(round=state.round + 1)


@functools.cache
def compiled_round() -> Callable[[Setup, State, vectorised.Moved], State]:
    """A round, compiled with those options that the compiler has."""
    return jax.jit(vectorised.federated_round, compiler_options=_known(OPTIONS))


@functools.cache
def initial() -> Callable[..., State]:
    """The state before the first round, likewise."""
    return jax.jit(rounds.initial, compiler_options=_known(LEAST))


@functools.cache
def evaluate() -> Callable[..., Metrics]:
    """The scores on a test set, likewise."""
    return jax.jit(scores.evaluate, static_argnums=0, compiler_options=_known(LEAST))


def _known(options: dict[str, bool]) -> dict[str, bool] | None:
    """These options, or none if the compiler does not have them all."""
    return options if _are_known(options) else None


def _are_known(options: dict[str, bool]) -> bool:
    """Whether the compiler has these options: no version promises them."""
    try:
        jax.jit(lambda: 0, compiler_options=options).lower().compile()
    except Exception:  # of whichever class, it says that there is no such option
        return False
    return jax.default_backend() == "cpu"
