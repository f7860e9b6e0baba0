"""A function of the user's that is told of every round: `simulate(..., on_round=...)`."""

import inspect
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np

from fedlap.engines.round import State
from fedlap.engines.scores import Metrics
from fedlap.errors import ConfigError
from fedlap.run.history import History


class RoundEnd(NamedTuple):
    """What `on_round` is told after a round.

    Whoever keeps one keeps all clients' states of that round.
    """

    round: int  # from 1
    metrics: Metrics | None  # of w_g on the test set, if there is one
    watched: dict[str, Metrics]  # on every set of `watch`
    seconds: float  # of this round, evaluation included
    state: State
    history: History  # so far

    @classmethod
    def of(cls, history: History) -> "RoundEnd":
        """The last round of a history."""
        assert history.state is not None, "a history of a run under way has its state"
        last = lambda metrics: Metrics(*(float(values[-1]) for values in metrics))
        test = last(history.test) if len(history.test.nll) else None
        watched = {name: last(metrics) for name, metrics in history.watched.items()}
        return cls(len(history.seconds), test, watched, float(history.seconds[-1]), history.state, history)


OnRound = Callable[[RoundEnd], Any]  # true ends the run


def check_on_round(on_round: object) -> None:
    """Raise a ConfigError unless this can be called with a RoundEnd: after a round, it would be late to say so."""
    if on_round is None:
        return
    expected = "expected a function of one argument, a RoundEnd: round, metrics, state and the history so far"
    if isinstance(on_round, type) or not callable(on_round):
        raise ConfigError(f"on_round is {on_round!r}; {expected}")
    try:
        signature = inspect.signature(on_round)
    except (TypeError, ValueError):  # of compiled code it may not be known
        return
    try:
        signature.bind(None)
    except TypeError as error:
        raise ConfigError(f"on_round takes {signature}; {expected}") from error


def watched_by(on_round: OnRound | None, histories: Iterable[History], done: int) -> Iterator[History]:
    """The same histories, of which `on_round` is told but for the rounds that had been done; up to where it says True.

    Checkpoints have been written by then: what it raises, or ends, can be resumed.
    """
    for history in histories:
        yield history
        if on_round is not None and len(history.seconds) > done and _is_true(on_round(RoundEnd.of(history))):
            return


def _is_true(answer: object) -> bool:
    if answer is None or isinstance(answer, (bool, np.bool_)):
        return bool(answer)
    raise ConfigError(f"on_round returned {answer!r}; expected True to end the run, or False or nothing to go on")
