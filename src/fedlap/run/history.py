"""What a run leaves behind: its curves, and a model that predicts."""

import dataclasses
import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from fedlap.domains import WHOLE
from fedlap.engines.evaluate import Metrics, predict
from fedlap.engines.round import State
from fedlap.errors import ConfigError
from fedlap.files import PathLike
from fedlap.models.likelihood import Likelihood, categorical
from fedlap.models.model import ModelLike
from fedlap.run import divergence, membership, saved
from fedlap.run.divergence import ignorance, lost_since
from fedlap.run.fit import Fit
from fedlap.run.rounds import progress

if TYPE_CHECKING:
    from fedlap.run.simulation import Simulation  # which makes histories

REFRESH = 10  # rounds after a change of members, unless told otherwise


class Final(NamedTuple):
    """The answer: the flat mean, and the precision S_g ([P] or [P, P]) where the algorithm has one.

    S_g is what the algorithm itself goes by. With damping ρ < 1 it is too small in the first rounds, see
    `History.precision`.

    Flat numbers are in the order of `jax.flatten_util.ravel_pytree` of the model's tree: layer after layer and, within
    a layer, by name. With `logistic(bias=True)` that is the biases, one a class, and then the rows of the [classes,
    features] matrix. `History.weights` has the same numbers in the same order by name.
    """

    w: np.ndarray
    S: np.ndarray | None


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class History:
    """What a run leaves behind.

    It pickles, and `save` keeps it in a folder that `fedlap.load` reads, without the clients' data either way.
    """

    fit: Fit
    accuracy: np.ndarray  # of w_g on the test set, after each round
    nll: np.ndarray
    seconds: np.ndarray  # wall time of each round, evaluation included
    watched: dict[str, Metrics]  # the same two on every set of `watch`
    state: State | None = None  # after the last round; None of a history that was loaded
    simulation: "Simulation | None" = None  # the run and its data; None of a history that was loaded or pickled

    @classmethod
    def of(cls, simulation: "Simulation", state: State, table: np.ndarray) -> "History":
        """The history of a run, from its table.

        That has a row a round: seconds, then accuracy and NLL of the test set and of each watched set.
        """
        seconds, accuracy, nll, *rest = table.T
        watched = {name: Metrics(*rest[2 * i : 2 * i + 2]) for i, name in enumerate(simulation.watch)}
        return cls(Fit.of(simulation, state), accuracy, nll, seconds, watched, state, simulation)

    def __repr__(self) -> str:
        last = f"accuracy {self.accuracy[-1]:.3f}, NLL {self.nll[-1]:.3f}"
        return f"History({self.fit.method}, {len(self.nll)} rounds, {last})"

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "simulation": None}

    @property
    def final(self) -> Final:
        return Final(np.asarray(self.fit.w), None if self.fit.S is None else np.asarray(self.fit.S))

    @property
    def precision(self) -> np.ndarray | None:
        """How sure the model is: `final.S` without the lag of damping; None where the algorithm has no precision.

        After R rounds S_g holds the part 1 − (1 − ρ)^R of what the clients know: with ten clients and ρ = 1/K a quarter
        after three rounds. Here each client's part is divided by that: δI + Σ_k V_k / (1 − Π(1 − ρ)). Use this one for
        standard errors and intervals. A client that was never drawn adds nothing, as nothing is known of its data.
        """
        return None if self.fit.precision is None else np.asarray(self.fit.precision)

    @property
    def weights(self) -> dict[str, np.ndarray]:
        """The weights in their shapes, by their place in the model: {"1.weight": [classes, features]} of `logistic()`.

        One after the other they are `final.w`.
        """
        return {name: np.asarray(array) for name, array in self.fit.w.named.items()}

    @property
    def diverged_since(self) -> int | None:
        """The round from which on the test NLL says that the run is lost, counted from 1."""
        return lost_since(self.nll, ignorance(self.fit.task.likelihood, len(self.classes)))

    @property
    def diverged(self) -> bool:
        return self.diverged_since is not None

    @property
    def classes(self) -> tuple:
        """The label of each column of `predict`, as in the data that the federation was made from."""
        return self.fit.classes

    def predict(self, inputs: Any) -> np.ndarray:
        """Class probabilities at the point estimate, a column for each of `classes`.

        A table's columns are matched by name to those of the clients; an array's are taken to be in their order.
        """
        return np.asarray(predict(self.fit.task, self.fit.w, self.fit.inputs(inputs)))

    def without(self, client: str, *, rounds: int = REFRESH) -> "History":
        """The history after a client has left: its factor divided out of the model, then so many rounds of the others.

        Its first entry is the model right after the division, before any round. Where losses are quadratic and the
        covariance is full, that is already what the others alone would have come to; with convex losses the rounds
        bring it there, see `stationarity`. A network may be poor at first, and end elsewhere than training anew.
        """
        return self._after(membership.without, rounds, client)

    def join(self, client: str, data: tuple[Any, Any], *, rounds: int = REFRESH) -> "History":
        """The history after a client has joined with (inputs, labels), then so many rounds of all.

        Its first entry is the model before any of them, to which the newcomer has added nothing.
        """
        return self._after(membership.join, rounds, client, data)

    def update(self, client: str, data: tuple[Any, Any], *, rounds: int = REFRESH) -> "History":
        """The history after a client has got newer (inputs, labels) in place of its old ones, then so many rounds.

        What the old rows have said, the client's factor, is part of the prior from now on, and the rows are gone. It
        is all they had to say where the factor is: of quadratic losses with a full covariance. A diagonal keeps the
        diagonal of their curvature, FedLap their slope alone; let the run converge first.
        """
        return self._after(membership.update, rounds, client, data)

    def stationarity(self) -> float:
        """How far the model is from what pooling the members' data would give: the slope of that objective at w_g.

        ‖Σ_k ∇ℓ_k(w_g) − ∇log p_0(w_g)‖ over all rows of all members, zero at the pooled optimum. It is a certificate
        that a client that left has no say any more. PVI's is an estimate, of a Gaussian's two parameters.
        """
        return membership.stationarity(*self._live("stationarity"))

    def _live(self, what: str) -> tuple["Simulation", State]:
        """The run and its state, if this history has them."""
        if self.simulation is None or self.state is None:
            raise ConfigError(
                f"{what}: this history was loaded or pickled, without the clients; expected one from simulate"
            )
        return self.simulation, self.state

    def _after(self, change: Callable[..., "membership.Changed"], rounds: int, *who: Any) -> "History":
        WHOLE.check("rounds", rounds)
        began = time.perf_counter()
        run, state = change(*self._live(change.__name__), *who)
        scores = run.look(state)
        table = np.concatenate([[time.perf_counter() - began], scores])[None]
        state, table = deque(progress(run, rounds + 1, begun=(state, table)), maxlen=1).pop()
        history = History.of(run, state, table)
        if (text := divergence.message(run, history)) is not None:
            divergence.tell(text, stacklevel=4)
        return history

    def save(self, folder: PathLike) -> None:
        """Write it into a new folder, which `fedlap.load` reads: JSON and NumPy arrays, none of them a client's."""
        saved.save(folder, self.fit, self.accuracy, self.nll, self.seconds, self.watched)


def load(folder: PathLike, model: ModelLike | None = None, likelihood: Likelihood = categorical) -> History:
    """A history that was saved: its curves, `final`, `weights` and `predict`.

    Args:
        folder: where `history.save` wrote it.
        model: the model, if it is not made of fedlap's own layers: a Flax module, or `fedlap.Model(init, apply)`.
        likelihood: as it was in `simulate`.
    """
    return History(*saved.load(folder, model, likelihood))
