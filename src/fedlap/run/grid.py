"""Several settings and seeds of a small model at once."""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypedDict, Unpack

import jax
import numpy as np

from fedlap import identity
from fedlap.algorithms.base import AnyAlgorithm
from fedlap.checks import known_keywords
from fedlap.data.federation import Federation
from fedlap.engines import batch
from fedlap.engines.round import State
from fedlap.engines.setup import Plan
from fedlap.errors import ConfigError
from fedlap.models.curvature import Curvature
from fedlap.models.likelihood import Likelihood, categorical
from fedlap.models.model import ModelLike
from fedlap.run import divergence
from fedlap.run.history import History
from fedlap.run.rounds import progress
from fedlap.run.simulation import Simulation
from fedlap.solvers import ServerSolver, Solver
from fedlap.streams import check_seeds

Setting = tuple[AnyAlgorithm, Solver]
Watch = Mapping[str, tuple[Any, Any]]


@known_keywords("simulate_grid")
def simulate_grid(
    settings: Iterable[Setting],
    federations: Federation | list[Federation] | tuple[Federation, ...],
    model: ModelLike,
    *,
    rounds: int,
    seeds: Iterable[int],
    watches: Iterable[Watch] | None = None,
    participation: float = 1.0,
    likelihood: Likelihood = categorical,
    curvature: Curvature | None = None,
    server_solver: ServerSolver | None = None,
    on_divergence: divergence.Way = "warn",
) -> dict[tuple[int, int], History]:
    """Train every setting with every seed, all in one compiled program, and return {(setting, seed): history}.

    The seconds of a history are those of the whole batch.

    Args:
        settings: (algorithm, solver) pairs that differ in their numbers only: one class each, one structure.
        federations: one federation for each seed, or a single one for all of them.
        model: as in `simulate`; small models gain the most.
        rounds: how many communication rounds.
        seeds: the seeds.
        watches: for each seed, further sets to evaluate on: {name: (inputs, labels)}.
        participation, likelihood, curvature, server_solver: as in `simulate`.
        on_divergence: as in `simulate`; one warning for all runs that diverge.

    >>> import numpy as np, fedlap
    >>> x = np.random.default_rng(0).normal(size=(60, 3)); y = (x[:, 0] > 0).astype(int)
    >>> clients = fedlap.Federation.from_arrays(clients=[(x[:20], y[:20]), (x[20:40], y[20:40])], test=(x[40:], y[40:]))
    >>> settings = [(fedlap.FedLap(delta=delta), fedlap.adam(epochs=1, batch=4)) for delta in (0.1, 1.0)]
    >>> histories = fedlap.simulate_grid(settings, clients, fedlap.logistic(), rounds=2, seeds=[0, 1])
    >>> len(histories), histories[1, 0].accuracy.shape
    (4, (2,))
    """
    divergence.check_way(on_divergence)
    runs = Grid.of(
        settings,
        federations,
        model,
        seeds=seeds,
        watches=watches,
        participation=participation,
        likelihood=likelihood,
        curvature=curvature,
        server_solver=server_solver,
    )
    histories = runs.histories(*deque(progress(runs, rounds), maxlen=1).pop())
    lost = {place: history for place, history in histories.items() if history.diverged}
    if lost:
        (setting, seed), first = next(iter(lost.items()))
        message = divergence.message(runs.runs[runs.seeds.index(seed)][setting], first)
        how_many = f"{len(lost)} of {len(histories)} runs diverged; setting {setting}, seed {seed}"
        divergence.tell(f"{how_many}: {message}", on_divergence, stacklevel=3)
    return histories


class Options(TypedDict, total=False):
    """The arguments of `simulate` that all runs of a grid share."""

    participation: float
    likelihood: Likelihood
    curvature: Curvature | None
    server_solver: ServerSolver | None


@dataclass(frozen=True, eq=False)
class Grid:
    """Many runs, ready to go as one."""

    seeds: tuple[int, ...]
    runs: list[list[Simulation]]  # [seeds][settings]
    prepared: batch.Prepared

    @classmethod
    def of(
        cls,
        settings: Iterable[Setting],
        federations: Federation | list[Federation] | tuple[Federation, ...],
        model: ModelLike,
        *,
        seeds: Iterable[int],
        watches: Iterable[Watch] | None = None,
        **options: Unpack[Options],
    ) -> "Grid":
        """Check everything and put the data on the device. Arguments are those of `simulate_grid`."""
        settings, seeds = _pairs(settings), check_seeds("seeds", seeds)
        several = list(federations) if isinstance(federations, (list, tuple)) else [federations] * len(seeds)
        if len(several) != len(seeds):
            raise ConfigError(f"{len(several)} federations for {len(seeds)} seeds; expected one each, or one for all")
        watches = [{}] * len(seeds) if watches is None else list(watches)
        if len(watches) != len(seeds):
            raise ConfigError(f"{len(watches)} watches for {len(seeds)} seeds; expected one each")
        runs = [
            [
                Simulation.of(
                    algorithm, federation, model, solver=solver, seed=seed, engine="vectorised", watch=watch, **options
                )
                for algorithm, solver in settings
            ]
            for federation, seed, watch in zip(several, seeds, watches, strict=True)
        ]
        _check_alike(runs)
        if len({(run.test is None, *run.watch) for run, *_ in runs}) > 1:
            raise ConfigError("not all federations have a test set, or watch the same sets; expected the same of each")
        return cls(seeds, runs, batch.prepare(runs))

    @property
    def first(self) -> list[Simulation]:
        """The first run of each seed, for what its settings share."""
        return [settings[0] for settings in self.runs]

    @property
    def columns(self) -> tuple[int, ...]:
        return (*self.runs[0][0].columns, len(self.runs), len(self.runs[0]))

    @property
    def one_shot(self) -> bool:
        return self.runs[0][0].one_shot

    def init(self) -> State:
        return self.prepared.states

    def plan(self, round: int) -> list[Plan]:
        return [run.plan(round) for run in self.first]

    def step(self, state: State, plan: Sequence[Plan]) -> State:
        return batch.advance(self.prepared, state, plan)

    def look(self, state: State) -> np.ndarray:
        return batch.evaluate(self.prepared, state)

    def describe(self) -> dict[str, str]:
        """What makes two grids the same."""
        methods = [[identity.of(run.algorithm), identity.of(run.solver)] for run in self.runs[0]]
        return {"grid": identity.digest([methods, *(run.describe() for run in self.first)])}

    def histories(self, states: State, table: np.ndarray) -> dict[tuple[int, int], History]:
        """The history of each run, {(setting, seed): history}."""
        return {
            (j, seed): History.of(self.runs[i][j], batch.select(states, i, j), table[:, :, i, j])
            for i, seed in enumerate(self.seeds)
            for j in range(len(self.runs[i]))
        }


def _pairs(settings: Iterable[Setting]) -> list[Setting]:
    """The (algorithm, solver) pairs, at least one."""
    listed = list(settings) if isinstance(settings, Iterable) else []
    if not listed:
        raise ConfigError(f"settings is {settings!r}; expected a list of pairs (algorithm, solver), at least one")
    for place, pair in enumerate(listed):
        if not isinstance(pair, (list, tuple)) or len(pair) != 2:
            raise ConfigError(f"settings[{place}] is {pair!r}; expected a pair (algorithm, solver)")
    return listed


def _check_alike(runs: list[list[Simulation]]) -> None:
    first = runs[0][0]
    for run in (run for settings in runs for run in settings):
        if jax.tree.structure(run.setup) != jax.tree.structure(first.setup):
            raise ConfigError(
                f"{run.algorithm} with {run.solver} is not the same program as {first.algorithm} with {first.solver}: "
                "settings of one grid may differ in their numbers only"
            )
