"""A surer posterior for predictions, N(w, (S + νI)⁻¹), and the ν that labelled rows which nobody trained on ask for.

A diagonal takes the weights of a network for independent. Where they are more than the rows, most of them are known to
no more than the prior, one by one, and their variances add up to predictions that know nothing. The posterior of a
stronger prior, at the same w, has the shape that the data gave it without that width: the prior precision "post hoc" of
Laplace's method (Daxberger et al., 2021). One number is chosen, by rows that have no other part.
"""

import dataclasses
import math
from collections.abc import Callable

from fedlap.algebra.precision import as_precision
from fedlap.engines.predictive import Posterior
from fedlap.errors import ConfigError
from fedlap.run.fit import Fit

DECADES = tuple(10.0**power for power in range(-3, 7))
FINER = (10**-0.5, 10**0.5)  # beside the best of them


def narrowed(fit: Fit, by: float) -> Fit:
    """The fit whose precision is larger by this number on every weight."""
    Posterior.of(fit.task, fit.w, fit.precision)  # or an error that says why there is none
    precision = by + as_precision(fit.precision, fit.w)
    return dataclasses.replace(fit, precision=precision, narrowing=fit.narrowing + by)


def least(loss: Callable[[float], float]) -> float:
    """The number, 0 among them, with the least loss: by decades, and then half a decade beside the best."""
    found = {by: loss(by) for by in (0.0, *DECADES)}
    best = min(found, key=found.__getitem__)
    found |= {best * step: loss(best * step) for step in FINER if best}
    best = min(found, key=found.__getitem__)
    if not math.isfinite(found[best]):
        raise ConfigError("the loss of the labelled rows is not finite; expected a run that has not diverged")
    return best
