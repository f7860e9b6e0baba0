"""Divergence, when a run is lost: its NLL is far worse than that of a model that knows nothing, and getting worse.

Far worse, because a network that is too sure of itself may creep above the NLL of knowing nothing and still be right
about most rows; getting worse, because a run on badly scaled inputs may begin there and learn all the same.
"""

import math
import warnings
from collections.abc import Sequence
from numbers import Real
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from fedlap.errors import ConfigError, DivergedError, DivergedWarning
from fedlap.models.likelihood import Categorical, Likelihood
from fedlap.solvers.newton import LARGEST

if TYPE_CHECKING:
    from fedlap.run.history import History  # which asks here whether a run is lost
    from fedlap.run.simulation import Simulation

Way = Literal["warn", "raise", "ignore"]  # what to do about a run that is lost
WAYS = get_args(Way)
FAR = 3  # times the NLL of a model that knows nothing
LASTING = 3  # rounds: one bad round, or two, are noise
HOPELESS = 100  # times that NLL: lost, were it in one round only


def ignorance(likelihood: Likelihood, classes: int) -> float:
    """The NLL of a model that knows nothing; infinite where the likelihood is the user's own and nobody can say."""
    return math.log(classes) if isinstance(likelihood, Categorical) else math.inf


def lost_since(nll: Sequence[float | None] | np.ndarray, ignorance: float) -> int | None:
    """The first of the rounds from which on a run is lost, counted from 1, or None. An NLL that is no number is None.

    >>> lost_since([0.65, 203, 215], ignorance=0.69), lost_since([12, 6, 3, 0.5], ignorance=0.69)
    (2, None)
    """
    nll = np.array(nll, float)
    if not np.isfinite(nll).all():
        return int(np.isfinite(nll).argmin()) + 1
    hopeless = HOPELESS * ignorance
    # A blow-up may swing: into one bad round out of a better one, and back to where it still knows less than nothing.
    swings = len(nll) > 2 and nll[-2] > max(hopeless, nll[-3]) and nll[-1] > ignorance
    if nll[-1] > hopeless or swings:
        return int((nll > hopeless).argmax()) + 1
    # Or it goes round in circles: it knows much, loses it, and loses it again, or does not find it in many rounds.
    far = (nll[1:] > FAR * ignorance) & (nll[:-1] <= ignorance / 2)
    all_known = (nll[1:] > ignorance / 10) & (nll[:-1] <= ignorance / 1000)  # such as of data that can be separated
    losses = np.flatnonzero(far | all_known) + 1
    if len(losses) and losses[-1] >= len(nll) / 2:
        unfound = len(nll) - losses[-1] > LASTING and nll[-1] > 2 * nll[losses[-1] - 1]
        if len(losses) > 1 or unfound:
            return int(losses[0]) + 1
    near = np.flatnonzero(nll <= FAR * ignorance)
    begins = int(near[-1]) + 1 if len(near) else 0
    since = nll[max(begins - 1, 0) :]  # with the last round that was not lost, if there is one
    half = len(since) // 2
    worse = len(nll) - begins >= LASTING and np.median(since[-half:]) > np.median(since[:half])
    return begins + 1 if worse else None


def message(run: "Simulation", history: "History") -> str | None:
    """Since when a run is lost, and what to change; None if it is not."""
    since, nll = history.diverged_since, history.judged.nll
    of = "test" if len(history.nll) else "training"
    if since is None:
        return None
    if np.isfinite(nll).all():
        nothing = ignorance(run.setup.task.likelihood, run.federation.classes)
        swings = len(nll) > 1 and nll[-2] > nll[-1]
        worst = f"its {of} NLL ({nll[-1 - swings]:.3g} in round {len(nll) - swings})"
        how = f"from round {since} on {worst} is far worse than {nothing:.3g}, that of a model that knows nothing"
    else:
        how = f"in round {since} its {of} NLL is not finite"
    *first, last = advice(run)
    tries = f"{', '.join(first)} or {last}" if first else last
    return f"{type(run.algorithm).__name__} diverged: {how}; try {tries}"


def advice(run: "Simulation") -> list[str]:
    """What may help a run that is lost, by what its method and its solver have."""
    algorithm, changes = run.algorithm, []
    rho: Any = getattr(algorithm, "rho", None)
    if _is_number(rho) and rho > 1 / len(run.federation.clients):
        changes.append("rho=evenly")
        if getattr(algorithm, "covariance", None) == "diagonal" and run.size <= LARGEST:
            changes.append('covariance="full"')
    if hasattr(run.solver, "learning_rate"):
        changes.append("a smaller learning rate")
    changes += [f"a larger {name}" for name in ("delta", "alpha") if hasattr(algorithm, name)]
    return changes or ["inputs of one scale"]


def _is_number(value: Any) -> bool:
    return isinstance(value, Real) or getattr(value, "shape", None) == ()


def check_way(way: str) -> None:
    """Raise a ConfigError unless `way` is one of WAYS."""
    if way not in WAYS:
        raise ConfigError(f"on_divergence is {way!r}; expected " + ", ".join(f'"{known}"' for known in WAYS))


def tell(text: str, way: Way = "warn", stacklevel: int = 2) -> None:
    """Warn of a run that is lost, or raise; the stack level is that of `warnings.warn`."""
    if way == "raise":
        raise DivergedError(text)
    if way == "warn":
        warnings.warn(text, DivergedWarning, stacklevel=stacklevel + 1)
