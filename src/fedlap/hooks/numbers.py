"""What is written of a round, by name."""

import math

from fedlap.engines.scores import Metrics
from fedlap.run.watching import RoundEnd


def numbers(now: RoundEnd) -> dict[str, float]:
    """The numbers of a round: {"test/accuracy": …, "test/nll": …, "seconds": …}, and those of each watched set.

    A score that this kind of data does not have is left out; one of a run that has diverged is not.
    """
    sets: dict[str, Metrics] = {} if now.metrics is None else {"test": now.metrics}
    sets |= {f"watch/{name}": each for name, each in now.watched.items()}
    scores = {
        f"{name}/{score}": value
        for name, metrics in sets.items()
        for score, value in metrics._asdict().items()
        if not (math.isnan(value) and math.isfinite(metrics.nll))
    }
    return {**scores, "seconds": now.seconds}
