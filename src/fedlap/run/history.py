"""What a run leaves behind: its curves, and a model that predicts."""

import dataclasses
import time
import warnings
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, overload

import jax.numpy as jnp
import numpy as np

from fedlap.algebra.evidence import doubt, plain, unsettled
from fedlap.domains import NONNEGATIVE, WHOLE
from fedlap.engines.evaluate import evaluate
from fedlap.engines.predictive import Averaging, Posterior, Predicted, Predictive, entropy, probabilities
from fedlap.engines.round import State
from fedlap.engines.scores import Metrics, metrics_of
from fedlap.errors import ConfigError
from fedlap.files import PathLike
from fedlap.models.likelihood import Likelihood, categorical
from fedlap.models.model import ModelLike
from fedlap.run import divergence, membership, narrowing, saved
from fedlap.run.divergence import ignorance, lost_since
from fedlap.run.fit import Fit
from fedlap.run.rounds import progress

if TYPE_CHECKING:
    from fedlap.run.simulation import Simulation  # which makes histories

REFRESH = 10  # rounds after a change of members, unless told otherwise


TRAIN = saved.TRAIN  # what the clients' own rows are called among the sets that are watched
NO_TEST = Metrics(*(np.zeros(0) for _ in Metrics._fields))


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
    test: Metrics  # of w_g on the test set, after each round; of no rounds where there is no test set
    seconds: np.ndarray  # wall time of each round, evaluation included
    watched: dict[str, Metrics]  # the same on every set of `watch`; without a test set on "train", too
    state: State | None = None  # after the last round; None of a history that was loaded
    simulation: "Simulation | None" = None  # the run and its data; None of a history that was loaded or pickled

    @classmethod
    def of(cls, simulation: "Simulation", state: State, table: np.ndarray) -> "History":
        """The history of a run, from its table.

        That has a row a round: seconds, then the scores on the test set, if there is one, and on each watched set.
        """
        seconds, scores = table[:, 0], table[:, 1:].T
        blocks = [Metrics(*each) for each in np.split(scores, len(scores) // len(Metrics._fields))]
        test = NO_TEST if simulation.test is None else blocks.pop(0)
        watched = dict(zip(simulation.watch, blocks, strict=True))
        return cls(Fit.of(simulation, state), test, seconds, watched, state, simulation)

    @property
    def accuracy(self) -> np.ndarray:
        """How often w_g is right on the test set, after each round; empty, as all five, where there is no test set."""
        return self.test.accuracy

    @property
    def nll(self) -> np.ndarray:
        """The mean of −log p_y on the test set, after each round."""
        return self.test.nll

    @property
    def brier(self) -> np.ndarray:
        """The Brier score on the test set after each round, the mean of Σ_c (p_c − [y = c])²."""
        return self.test.brier

    @property
    def ece(self) -> np.ndarray:
        """The expected calibration error on the test set after each round, over 15 bins of the top probability."""
        return self.test.ece

    @property
    def auc(self) -> np.ndarray:
        """The area under the receiver's curve on the test set after each round; NaN where there are not two classes."""
        return self.test.auc

    def __repr__(self) -> str:
        last = f"accuracy {self.judged.accuracy[-1]:.3f}, NLL {self.judged.nll[-1]:.3f}"
        last = last if len(self.nll) else f"no test set, on the training rows {last}"
        return f"History({self.fit.method}, {len(self.seconds)} rounds, {last})"

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
    def delta(self) -> float | dict[str, float] | None:
        """The prior's precision δ that the evidence has chosen, as in `final.S`; None where it was given as a number.

        With `delta="evidence by layer"` one for each array of `weights`, by its name.
        """
        return plain(self.fit.delta)

    @property
    def doubt(self) -> str | None:
        """What is wrong with `delta`: the evidence has no maximum within bounds, or rounds were too few for it."""
        found = doubt(self.fit.delta)
        if found is None and self.simulation is not None and self.state is not None:
            found = unsettled(self.simulation.algorithm, self.state.server)
        return found

    @property
    def weights(self) -> dict[str, np.ndarray]:
        """The weights in their shapes, by their place in the model: {"1.weight": [classes, features]} of `logistic()`.

        One after the other they are `final.w`.
        """
        return {name: np.asarray(array) for name, array in self.fit.w.named.items()}

    @property
    def judged(self) -> Metrics:
        """The scores by which a run is judged to be lost: of the test set or, without one, of the clients' own rows."""
        return self.test if len(self.test.nll) else self.watched[TRAIN]

    @property
    def diverged_since(self) -> int | None:
        """The round from which on the NLL of `judged` says that the run is lost, counted from 1."""
        return lost_since(self.judged.nll, ignorance(self.fit.task.likelihood, len(self.classes)))

    @property
    def diverged(self) -> bool:
        return self.diverged_since is not None

    @property
    def classes(self) -> tuple:
        """The label of each column of `predict`, as in the data that the federation was made from."""
        return self.fit.classes

    @overload
    def predict(
        self,
        inputs: Any,
        *,
        posterior: bool = False,
        link: str | None = None,
        samples: int | None = None,
        seed: int | None = None,
    ) -> np.ndarray: ...

    @overload
    def predict(
        self,
        inputs: Any,
        *,
        posterior: bool = False,
        link: str | None = None,
        samples: int | None = None,
        seed: int | None = None,
        interval: float,
    ) -> Predicted: ...

    def predict(
        self,
        inputs: Any,
        *,
        posterior: bool = False,
        link: str | None = None,
        samples: int | None = None,
        seed: int | None = None,
        interval: float | None = None,
    ) -> np.ndarray | Predicted:
        """Class probabilities, a column for each of `classes`: at the point estimate, or averaged over the posterior.

        A table's columns are matched by name to those of the clients; an array's are taken to be in their order.

        Args:
            inputs: a row each.
            posterior: average over N(w, S⁻¹), S = `precision`, the model linearised at w: f ~ N(f(x; w), J S⁻¹ Jᵀ).
            link: "probit", a closed form, or "samples", Monte Carlo over the outputs.
            samples: how many draws, 1000 if not given.
            seed: of the draws, 0 if not given.
            interval: a share such as 0.9; the answer then has `probability`, `lower` and `upper`.
        """
        averaging = Averaging.of(
            posterior, link=link, samples=samples, seed=seed, interval=interval, classes=len(self.classes)
        )
        return probabilities(self.fit.task, self.fit.w, self.fit.precision, self.fit.inputs(inputs), averaging)

    def evaluate(
        self,
        inputs: Any,
        labels: Any,
        *,
        posterior: bool = False,
        link: str | None = None,
        samples: int | None = None,
        seed: int | None = None,
    ) -> Metrics:
        """The scores on labelled rows, at the point estimate or averaged over the posterior as in `predict`.

        Labels are those of `classes`.
        """
        rows = self.fit.inputs(inputs)
        numbers = self.fit.labels(labels, len(rows))
        if posterior:
            p = self.predict(inputs, posterior=True, link=link, samples=samples, seed=seed)
            found = metrics_of(jnp.asarray(p), numbers)
        else:
            Averaging.of(False, link=link, samples=samples, seed=seed, interval=None, classes=len(self.classes))
            found = evaluate(self.fit.task, self.fit.w, rows, numbers)
        return Metrics(*map(float, found))

    def predictive(self, inputs: Any) -> Predictive:
        """The model's outputs, before softmax, under the posterior: `mean`, `covariance`, `variance` of every row."""
        return self._posterior.predictive(self.fit.inputs(inputs))

    def sample(self, inputs: Any, samples: int = 100, seed: int = 0) -> np.ndarray:
        """Functions drawn from the posterior, as class probabilities at all inputs: [samples, rows, classes].

        Each is one draw of the weights for all rows, and the model linearised: what rows have in common stays so.
        """
        return self._posterior.sample(self.fit.inputs(inputs), samples, seed)

    def uncertainty(self, inputs: Any, posterior: bool = False) -> np.ndarray:
        """The entropy of each row's class probabilities, in nats: a score of how strange an input is to the model."""
        return entropy(self.predict(inputs, posterior=posterior))

    def narrowed(self, by: float) -> "History":
        """The same history with a surer posterior, N(w, (S + by·I)⁻¹): predictions as by a prior stronger by that much.

        For networks: a diagonal leaves each of their weights to the prior by itself, and all of them together say
        nothing. The point estimate stays, and a change of members begins with the algorithm's own posterior again.
        """
        NONNEGATIVE.check("by", by)
        return dataclasses.replace(self, fit=narrowing.narrowed(self.fit, by))

    def calibrated(
        self,
        inputs: Any,
        labels: Any,
        *,
        link: str | None = None,
        samples: int | None = None,
        seed: int | None = None,
    ) -> "History":
        """The history `narrowed` by what gives these labelled rows the least NLL; by how much is `narrowing`.

        They should be rows that nobody trained on, and not those that the answer is judged by.
        """

        def loss(by: float) -> float:
            averaged = self.narrowed(by).evaluate(inputs, labels, posterior=True, link=link, samples=samples, seed=seed)
            return averaged.nll

        return self.narrowed(narrowing.least(loss))

    @property
    def narrowing(self) -> float:
        """By how much the precision of predictions is above the algorithm's own, on every weight."""
        return self.fit.narrowing

    @property
    def _posterior(self) -> Posterior:
        return Posterior.of(self.fit.task, self.fit.w, self.fit.precision)

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
        elif history.doubt:
            warnings.warn(history.doubt, UserWarning, stacklevel=3)
        return history

    def save(self, folder: PathLike) -> None:
        """Write it into a new folder, which `fedlap.load` reads: JSON and NumPy arrays, none of them a client's."""
        saved.save(folder, self.fit, self.test, self.seconds, self.watched)


def load(folder: PathLike, model: ModelLike | None = None, likelihood: Likelihood = categorical) -> History:
    """A history that was saved: its curves, `final`, `weights` and `predict`.

    Args:
        folder: where `history.save` wrote it.
        model: the model, if it is not made of fedlap's own layers: a Flax module, or `fedlap.Model(init, apply)`.
        likelihood: as it was in `simulate`.
    """
    return History(*saved.load(folder, model, likelihood))
