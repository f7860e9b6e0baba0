"""Classification over sites as scikit-learn does it."""

import warnings
from numbers import Integral
from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from fedlap.algorithms import ALGORITHMS
from fedlap.algorithms.base import AnyAlgorithm
from fedlap.checks import is_number
from fedlap.data.federation import Federation
from fedlap.domains import parameters
from fedlap.errors import ConfigError, DataError, unknown
from fedlap.estimators.padding import in_room, padded
from fedlap.estimators.sites import places_of
from fedlap.machine import double_precision
from fedlap.models import logistic, mlp
from fedlap.models.model import ModelLike
from fedlap.run import divergence
from fedlap.run.history import History
from fedlap.run.simulation import Simulation, count_weights, histories
from fedlap.solvers import SOLVERS, Solver, adam, newton
from fedlap.solvers.newton import LARGEST
from fedlap.solvers.problem import FullBatch

LINEAR = (logistic(bias=True), logistic(bias=False))
ROUNDING = 100  # times the spacing of numbers: weights that move less have not moved


class FedLapClassifier(ClassifierMixin, BaseEstimator):
    """A classifier that is trained over sites, each of which keeps its rows and sends what it learned from them.

    The rows are all in this process: it is the model that a federation would have, in scikit-learn's tools. With the
    defaults, a logistic model with an intercept by FedLap-Cov with full covariances, it is the model that the pooled
    rows would have given, whichever site a row is of.

    What is None is chosen to suit the model: up to 2,000 weights of a logistic one full covariances, Newton's method,
    ρ = 1 and float64; beyond them and for networks diagonal ones, Adam, ρ = 1/K and the precision of X.

    Args:
        delta: the precision of every weight's prior, N(0, 1/δ), intercepts included; 1.0 if not given.
        algorithm: a name, such as "fedlap_cov" or "fedavg", or an algorithm, such as `fedlap.FedLapCov(delta=1.0)`.
        covariance: "full" or "diagonal".
        model: "logistic", which has an intercept, "mlp", or a model, such as `fedlap.mlp(hidden=(50,))`.
        solver: a name, such as "newton" or "adam", or a solver, such as `fedlap.adam(epochs=5)`.
        rounds: the most rounds of communication.
        tol: a run of a solver without minibatches ends when no weight moves by more, relative to the largest; None
            for all rounds.
        posterior: whether probabilities are averages over the posterior, which is less sure far from the rows that
            were seen; else those of the point estimate. FedAvg and its like have no posterior.
        random_state: a seed of everything random.

    Attributes:
        classes_: the labels, in the order of the columns of `predict_proba`.
        coef_, intercept_: of a logistic model; of two classes those of the log-odds of the second.
        history_: what the run left behind, a `fedlap.History`: weights, precision, `save`.
        sites_: the names of the sites.
        n_iter_: how many rounds there were.
        n_features_in_, feature_names_in_: as everywhere in scikit-learn.
    """

    def __init__(
        self,
        *,
        delta: float | str | None = None,
        algorithm: str | AnyAlgorithm = "fedlap_cov",
        covariance: str | None = None,
        model: str | ModelLike = "logistic",
        solver: str | Solver | None = None,
        rounds: int = 50,
        tol: float | None = 1e-6,
        posterior: bool = True,
        random_state: int | np.random.RandomState | None = 0,
    ) -> None:
        self.delta = delta
        self.algorithm = algorithm
        self.covariance = covariance
        self.model = model
        self.solver = solver
        self.rounds = rounds
        self.tol = tol
        self.posterior = posterior
        self.random_state = random_state

    def fit(self, X: Any, y: Any, sites: Any = None) -> Self:
        """Train on rows X with labels y; `sites` has the site of each row, and without it there is a single one."""
        if self.tol is not None and not (is_number(self.tol) and self.tol >= 0):
            raise ConfigError(f"tol is {self.tol!r}; expected a number, 0 or above, or None for all rounds")
        if not isinstance(self.posterior, (bool, np.bool_)):
            raise ConfigError(f"posterior is {self.posterior!r}; expected True or False")
        X, y = validate_data(self, X, y, dtype=(np.float64, np.float32))
        check_classification_targets(y)
        self.classes_, labels = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise DataError(f"y has one class, {self.classes_[0]!r}, in all rows; expected at least two classes")
        places = places_of(sites, len(X))
        names = getattr(self, "feature_names_in_", None)
        federation = Federation(
            name="estimator",
            clients=tuple(places),
            inputs=X,
            labels=labels,
            rows=tuple(places.values()),
            test_inputs=X[:0],
            test_labels=labels[:0],
            classes=len(self.classes_),
            class_names=tuple(self.classes_.tolist()),
            features=None if names is None else tuple(names),
        )
        model = self._model()
        exact = model in LINEAR and count_weights(model, federation) <= LARGEST
        with double_precision(exact or X.dtype == np.float64):
            self.history_ = self._train(federation, model, exact)
        self.sites_ = np.array(federation.clients)
        self.n_iter_ = len(self.history_.seconds)
        self._keep_coefficients()
        return self

    def predict_proba(self, X: Any) -> np.ndarray:
        """The probability of each of `classes_`, averaged over the posterior unless `posterior` is False."""
        check_is_fitted(self)
        X = validate_data(self, X, dtype=(np.float64, np.float32), reset=False)
        with double_precision(self.history_.fit.dtype == np.float64):
            return in_room(lambda rows: self.history_.predict(rows, posterior=self.posterior), X)

    def predict(self, X: Any) -> np.ndarray:
        """The most probable class."""
        check_is_fitted(self)
        return self.classes_[self.predict_proba(X).argmax(1)]

    def _train(self, federation: Federation, model: ModelLike, exact: bool) -> History:
        seed = self.random_state
        run = Simulation.of(
            self._algorithm(exact),
            federation,
            model,
            solver=self._solver(exact),
            seed=int(seed) if isinstance(seed, Integral) else int(check_random_state(seed).randint(2**31)),
            engine="sequential" if len(federation.clients) == 1 else "auto",
        )
        if self.posterior and run.algorithm.precision(run.init().server) is None:
            raise ConfigError(f"{self.algorithm} has no posterior to average over; use posterior=False, or fedlap_cov")
        run = padded(run)
        w, history, moved = np.zeros(run.size), None, np.inf
        least = self._least_move(run)
        for history in histories(run, self.rounds):
            before, w = w, history.final.w
            moved = float(np.abs(w - before).max() / (1 + np.abs(w).max()))
            if moved <= least:
                break
        assert history is not None, "at least one round"
        if (lost := divergence.message(run, history)) is not None:
            divergence.tell(lost, stacklevel=4)
        elif history.doubt:
            warnings.warn(history.doubt, UserWarning, stacklevel=3)
        elif least > 0 and not run.one_shot and not moved <= least:
            warnings.warn(
                f"in round {len(history.seconds)} weights still move by {moved:.1e}, and tol is {self.tol}; "
                "give more rounds, columns of one scale, a larger delta, or tol=None for so many rounds",
                ConvergenceWarning,
                stacklevel=3,
            )
        return history

    def _least_move(self, run: Simulation) -> float:
        """By how much weights must move lest the run ends; below 0 if it goes on whatever they do."""
        if self.tol is None or not isinstance(run.solver, FullBatch):
            return -1.0
        return max(self.tol, ROUNDING * float(np.finfo(run.setup.pool.inputs.dtype).eps))

    def _model(self) -> ModelLike:
        named = {"logistic": LINEAR[0], "mlp": mlp()}
        if not isinstance(self.model, str):
            return self.model
        if self.model not in named:
            raise unknown("model", self.model, named)
        return named[self.model]

    def _algorithm(self, exact: bool) -> AnyAlgorithm:
        given = {"delta": self.delta, "covariance": self.covariance}
        given = {name: value for name, value in given.items() if value is not None}
        if not isinstance(self.algorithm, str):
            if given:
                name, value = next(iter(given.items()))
                raise ConfigError(f"{name} is {value!r} beside {self.algorithm}; expected it in the algorithm alone")
            return self.algorithm
        if self.algorithm not in ALGORITHMS:
            raise unknown("algorithm", self.algorithm, ALGORITHMS)
        maker = ALGORITHMS[self.algorithm]
        known = parameters(maker)
        for name, value in given.items():
            if name not in known:
                raise ConfigError(f"{name} is {value!r}, and {self.algorithm} has none; leave it out")
        full = {"covariance": "full" if exact else "diagonal"}
        chosen = {name: value for name, value in {"delta": 1.0, **full, **given}.items() if name in known}
        if self.algorithm == "fedlap_cov" and exact and chosen["covariance"] == "full":
            chosen["rho"] = 1.0  # Newton's method
        return maker(**chosen)

    def _solver(self, exact: bool) -> Solver:
        if self.solver is None:
            return newton() if exact else adam()
        if not isinstance(self.solver, str):
            return self.solver
        if self.solver not in SOLVERS:
            raise unknown("solver", self.solver, SOLVERS)
        return SOLVERS[self.solver]()

    def _keep_coefficients(self) -> None:
        for name in ("coef_", "intercept_"):  # of an earlier fit with another model
            self.__dict__.pop(name, None)
        if self.history_.fit.task.model not in LINEAR:
            return
        weights, count = self.history_.weights, len(self.classes_)
        coefficients = weights["1.weight"]
        intercepts = weights.get("1.bias", np.zeros(count, coefficients.dtype))
        if count == 2:
            coefficients, intercepts = np.diff(coefficients, axis=0), np.diff(intercepts)
        self.coef_, self.intercept_ = coefficients, intercepts
