"""A federation in one process: start it, step it by hand, or let `simulate` do all rounds."""

import dataclasses
import functools
import math
import warnings
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import numpy as np

from fedlap import identity
from fedlap.algebra.evidence import overcount
from fedlap.algebra.hyperparameters import check
from fedlap.algebra.vector import Vector
from fedlap.algorithms.base import AnyAlgorithm
from fedlap.arrays import Array, on_device
from fedlap.checks import known_keywords
from fedlap.data.federation import Federation, fingerprint
from fedlap.engines import EngineName, again, brief, choose
from fedlap.engines.evaluate import evaluate
from fedlap.engines.parties import Task
from fedlap.engines.requirements import check_likelihood
from fedlap.engines.round import Engine, Method, State, initial
from fedlap.engines.scores import Metrics
from fedlap.engines.setup import Past, Plan, Setup, draw_plan, everyone, make_setup
from fedlap.engines.streamed import first_client
from fedlap.errors import ConfigError
from fedlap.files import PathLike
from fedlap.machine import keep_compiled_programs
from fedlap.models.curvature import Curvature, GaussNewton
from fedlap.models.likelihood import Likelihood, categorical
from fedlap.models.model import ModelLike, as_model, check_outputs
from fedlap.run import divergence
from fedlap.run.history import TRAIN, History
from fedlap.run.rounds import Begun, load_begun, progress
from fedlap.run.watching import OnRound, check_on_round, watched_by
from fedlap.solvers import ServerSolver, Solver, adam, annealed
from fedlap.streams import check_seed


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Simulation:
    """One run, ready to go: `state = run.init()`, then `state = run.step(state)` as often as you like.

    Its methods are pure: what changes from round to round is in the state and nowhere else.
    """

    algorithm: AnyAlgorithm
    federation: Federation
    solver: Solver
    server_solver: ServerSolver
    seed: int
    participation: float
    setup: Setup
    size: int  # how many weights
    engine: Engine
    test: tuple[Array, Array] | None
    watch: dict[str, tuple[Array, Array]]
    past: tuple[Past, ...] = ()  # what clients' earlier data have said for good

    @classmethod
    @known_keywords("Simulation.of")
    def of(
        cls,
        algorithm: AnyAlgorithm,
        federation: Federation,
        model: ModelLike,
        *,
        solver: Solver | None = None,
        seed: int = 0,
        participation: float = 1.0,
        likelihood: Likelihood = categorical,
        curvature: Curvature | None = None,
        server_solver: ServerSolver | None = None,
        engine: EngineName = "auto",
        scratch: PathLike | None = None,
        watch: Mapping[str, tuple[Any, Any]] | None = None,
    ) -> "Simulation":
        """Check everything and put the data on the device. Arguments are those of `simulate`."""
        keep_compiled_programs()
        solver, server_solver = solver or adam(), server_solver or annealed()
        _check_part("algorithm", algorithm, ("client_update",), "FedLap(delta=1.0)", "@fedlap.algorithm")
        _check_part(
            "solver",
            solver,
            ("minimise", "init", "step_count"),
            "adam(), or optimiser(optax.adam(0.1))",
            "@fedlap.hyperparameters",
        )
        _check_part("server_solver", server_solver, ("solve",), "annealed()", "@fedlap.hyperparameters")
        if not isinstance(federation, Federation):
            kind = type(federation).__name__  # and not the thing itself, which may be somebody's data
            raise ConfigError(f"federation is of type {kind}; expected for example Federation.from_arrays(...)")
        seed = check_seed("seed", seed)
        _check_participation(participation, len(federation.clients))
        task = Task(as_model(model), likelihood, curvature or GaussNewton())
        setup = make_setup(task, Method(algorithm, solver, server_solver), federation, seed)
        inputs, weights = _shapes(task.model, federation)
        check_outputs(task.model, weights, inputs, federation.classes)
        check_likelihood(setup)
        as_test = lambda inputs_, labels: (on_device(inputs_, inputs.dtype), on_device(labels))
        test = as_test(federation.test_inputs, federation.test_labels) if federation.has_test else None
        watched = {name: as_test(*federation.checked(name, data)) for name, data in (watch or {}).items()}
        if test is None and TRAIN not in watched:
            rows = np.concatenate(federation.rows)
            watched[TRAIN] = as_test(federation.inputs[rows], federation.labels[rows])
        size = Vector(weights).size
        if (text := overcount(algorithm, size, int(federation.sizes.sum()))) is not None:
            warnings.warn(text, UserWarning, stacklevel=3)
        chosen = choose(engine, size, len(federation.clients), lambda: _client_bytes(setup), scratch)
        return cls(
            algorithm, federation, solver, server_solver, seed, participation, setup, size, chosen, test, watched
        )

    def among(self, federation: Federation, past: tuple[Past, ...]) -> "Simulation":
        """The same run over another federation of the same kind, with what earlier data have said for good."""
        _check_participation(self.participation, len(federation.clients))
        method = Method(self.algorithm, self.solver, self.server_solver)
        setup = make_setup(self.setup.task, method, federation, self.seed, past)
        return dataclasses.replace(self, federation=federation, setup=setup, engine=again(self.engine), past=past)

    def __repr__(self) -> str:
        return f"Simulation({self.algorithm}, {self.federation}, {self.solver}, seed={self.seed})"

    def init(self) -> State:
        begin = brief.initial() if self.engine is brief else initial
        return self.engine.prepare(self.setup, begin(self.setup)._replace(round=0))

    def plan(self, round: int) -> Plan:
        """Who takes part in a round, and with which minibatches."""
        ahead = self.engine.draws_ahead
        return draw_plan(self.solver, self.federation, self.participation, self.seed, round, ahead)

    def step(self, state: State, plan: Plan | None = None) -> State:
        """The next round; its plan may have been drawn ahead of time."""
        return self.engine.advance(self.setup, state, *(plan or self.plan(state.round)))

    @property
    def sets(self) -> tuple[tuple[Array, Array], ...]:
        """What is looked at after a round: the test set, if there is one, then every watched set."""
        return (*(() if self.test is None else (self.test,)), *self.watch.values())

    def evaluate(self, state: State) -> Metrics:
        """The scores on the test set."""
        if self.test is None:
            raise ConfigError("the federation has no test set; pass one, Federation.from_arrays(..., test=(x, y))")
        return evaluate(self.setup.task, state.server.w, *self.test)

    def look(self, state: State) -> np.ndarray:
        """The scores on each of `sets`."""
        score = brief.evaluate() if self.engine is brief else evaluate
        metrics = [score(self.setup.task, state.server.w, *each) for each in self.sets]
        return np.array([float(number) for scores in metrics for number in scores])

    @property
    def columns(self) -> tuple[int, ...]:
        """The shape of a round in the table: seconds, then what `look` sees."""
        return (1 + len(Metrics._fields) * len(self.sets),)

    @property
    def one_shot(self) -> bool:
        return self.algorithm.one_shot and everyone(self.participation)

    def describe(self) -> dict[str, str]:
        """What makes two runs the same run, as text; a checkpoint refuses to continue another one."""
        parts = {
            "algorithm": self.algorithm,
            "model": self.setup.task.model,
            "likelihood": self.setup.task.likelihood,
            "curvature": self.setup.task.curvature,
            "solver": self.solver,
            "server_solver": self.server_solver,
        }
        numbers = {"participation": self.participation, "seed": self.seed, "precision": self.setup.pool.inputs.dtype}
        description = {name: identity.text(identity.of(part)) for name, part in parts.items()}
        description |= {name: repr(number) for name, number in numbers.items()}
        if self.algorithm.revision > 1:
            description["algorithm"] += f", revision {self.algorithm.revision}"
        if self.watch:
            description["watch"] = ", ".join(f"{name} {fingerprint(*data)}" for name, data in self.watch.items())
        if self.past:
            said = (f"{name} {fingerprint(*jax.tree.leaves(sent), memory)}" for name, sent, memory in self.past)
            description["past"] = ", ".join(said)
        return {**description, "federation": self.federation.fingerprint()}


@known_keywords("simulate")
def simulate(
    algorithm: AnyAlgorithm,
    federation: Federation,
    model: ModelLike,
    *,
    rounds: int,
    checkpoint: PathLike | None = None,
    resume: bool = False,
    solver: Solver | None = None,
    seed: int = 0,
    participation: float = 1.0,
    likelihood: Likelihood = categorical,
    curvature: Curvature | None = None,
    server_solver: ServerSolver | None = None,
    engine: EngineName = "auto",
    scratch: PathLike | None = None,
    watch: Mapping[str, tuple[Any, Any]] | None = None,
    on_divergence: divergence.Way = "warn",
    on_round: OnRound | None = None,
) -> History:
    """Train for some rounds and return the history.

    Args:
        algorithm: for example `FedLapCov(delta=1.0)`.
        federation: the clients' data and a test set, for example `Federation.from_arrays(...)`.
        model: `logistic()`, `mlp(...)`, a Flax module, or anything with `init` and `apply`.
        rounds: how many communication rounds (a one-shot method takes one, if all clients take part in it).
        checkpoint: a file to write after every round, atomically; one that exists is an error unless `resume` is set.
        resume: continue from that file, to the same bits as a run that was never stopped, on as many cores.
        solver: the clients' argmin: `adam(...)` by default, `lbfgs()`, `newton()`.
        seed: of everything random.
        participation: a fraction or a number of clients drawn in each round.
        likelihood: what the model's outputs say about a label.
        curvature: `GaussNewton()` by default.
        server_solver: the server's argmin, for FedLap-Func: `annealed(...)` by default.
        engine: "auto", "vectorised", "sequential", "streamed", "sharded" or "loop".
        scratch: a folder for the clients' states, of which only those in use are then in memory; if not given, they
            go to the system's temporary folder if they would take more than a quarter of this machine's memory.
        watch: further sets to evaluate on after every round, {name: (inputs, labels)}; of a federation without a test
            set the clients' own rows are one, called "train".
        on_divergence: "warn", "raise" or "ignore" a run whose test NLL gets far worse than that of knowing nothing;
            without a test set it is the NLL of "train".
        on_round: a function that is called after every round, once its checkpoint is written, with a `RoundEnd`: round,
            metrics, state and the history so far. If it returns True, this was the last round.

    >>> import numpy as np, fedlap
    >>> rng = np.random.default_rng(0)
    >>> x = rng.normal(size=(60, 3)); y = (x[:, 0] > 0).astype(int)
    >>> branches = [(x[:20], y[:20]), (x[20:40], y[20:40])]
    >>> federation = fedlap.Federation.from_arrays(clients=branches, test=(x[40:], y[40:]))
    >>> fedlap.simulate(fedlap.FedLap(delta=1.0), federation, fedlap.logistic(), solver=fedlap.newton(), rounds=5)
    History(FedLap(delta=1.0, rho=by_share), 5 rounds, accuracy ..., NLL ...)
    """
    divergence.check_way(on_divergence)
    check_on_round(on_round)
    if checkpoint is not None and jax.process_count() > 1:
        raise ConfigError("a checkpoint is of one process, and this run has several: leave it out")
    run = Simulation.of(
        algorithm,
        federation,
        model,
        solver=solver,
        seed=seed,
        participation=participation,
        likelihood=likelihood,
        curvature=curvature,
        server_solver=server_solver,
        engine=engine,
        scratch=scratch,
        watch=watch,
    )
    begun = load_begun(run, checkpoint, resume)
    done = 0 if begun is None else begun[0].round
    under_way = histories(run, rounds, checkpoint, begun)
    del begun  # see `progress`
    history = deque(watched_by(on_round, under_way, done), maxlen=1).pop()
    if (text := divergence.message(run, history)) is not None:
        divergence.tell(text, on_divergence, stacklevel=3)
    elif history.doubt:
        warnings.warn(history.doubt, UserWarning, stacklevel=3)
    return history


def histories(
    run: Simulation,
    rounds: int,
    checkpoint: PathLike | None = None,
    begun: Begun | None = None,
    share: float = math.inf,
) -> Iterator[History]:
    """The history so far after every round, for whoever wants to watch; arguments as in `progress`."""
    states = progress(run, rounds, checkpoint, begun, share)
    del begun  # see `progress`
    for state, table in states:
        yield History.of(run, state, table)


def count_weights(model: ModelLike, federation: Federation) -> int:
    """How many weights a model of this federation has, without making them."""
    return Vector(_shapes(as_model(model), federation)[1]).size


def _shapes(model: Any, federation: Federation) -> tuple[Any, Any]:
    """The shapes of one input and of the model's weights, without making them."""
    inputs = jax.ShapeDtypeStruct((1, *federation.inputs.shape[1:]), jax.dtypes.canonicalize_dtype(float))
    return inputs, _weights(model, inputs, federation.classes)


@functools.lru_cache(maxsize=8)  # every run of a sweep asks
def _weights(model: Any, inputs: jax.ShapeDtypeStruct, classes: int) -> Any:
    key = jax.eval_shape(lambda: jax.random.key(0))
    return jax.eval_shape(lambda key, x: model.init(key, x, classes), key, inputs)


def _client_bytes(setup: Setup) -> int:
    """How large a client's state is, without making one."""
    state = jax.eval_shape(initial, setup)
    client = jax.eval_shape(first_client, setup, state.server, state.clients)
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(client))


def _check_part(name: str, thing: Any, methods: tuple[str, ...], example: str, decorator: str) -> None:
    missing = [method for method in methods if not callable(getattr(thing, method, None))]
    if isinstance(thing, type) or methods[0] in missing:
        raise ConfigError(f"{name} is {thing!r}; expected for example {example}")
    if missing:
        raise ConfigError(f"{name} {type(thing).__name__} has no {missing[0]}; expected {', '.join(methods)}")
    if not dataclasses.is_dataclass(thing):
        raise ConfigError(f"{name} {type(thing).__name__} is no value; expected {decorator} above its class")
    check(thing)


def _check_participation(participation: float, count: int) -> None:
    if isinstance(participation, bool) or not isinstance(participation, (int, float)):
        raise ConfigError(f"participation is {participation!r}; expected a fraction or a number of clients")
    if isinstance(participation, int) and not 1 <= participation <= count:
        raise ConfigError(f"participation is {participation} clients; the federation has {count}")
    if isinstance(participation, float) and not 0 < participation <= 1:
        raise ConfigError(f"participation is {participation}; expected a fraction above 0 and at most 1")
