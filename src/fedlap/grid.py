"""Several settings and seeds of a small model at once."""

import time

import jax
import jax.numpy as jnp
import numpy as np

from .engines import grid
from .errors import ConfigError
from .simulation import History, Simulation


def simulate_grid(settings, federations, model, *, rounds, seeds, **options):
    """Train every setting with every seed, all in one compiled program, and return {(setting, seed): history}.

    Args:
        settings: (algorithm, solver) pairs that differ in their numbers only: one class each, one structure.
        federations: one federation for each seed, or a single one for all of them.
        model: as in `simulate`; small models gain the most.
        rounds: how many communication rounds.
        seeds: the seeds.
        options: participation, likelihood, curvature and server_solver, as in `simulate`.

    >>> import numpy as np, fedlap
    >>> x = np.random.default_rng(0).normal(size=(60, 3)); y = (x[:, 0] > 0).astype(int)
    >>> clients = fedlap.Federation.from_arrays(clients=[(x[:20], y[:20]), (x[20:40], y[20:40])], test=(x[40:], y[40:]))
    >>> settings = [(fedlap.FedLap(delta=delta), fedlap.adam(epochs=1, batch=4)) for delta in (0.1, 1.0)]
    >>> histories = fedlap.simulate_grid(settings, clients, fedlap.logistic(), rounds=2, seeds=[0, 1])
    >>> len(histories), histories[1, 0].accuracy.shape
    (4, (2,))
    """
    seeds = list(seeds)
    federations = list(federations) if isinstance(federations, (list, tuple)) else [federations] * len(seeds)
    if len(federations) != len(seeds):
        raise ConfigError(f"{len(federations)} federations for {len(seeds)} seeds; expected one each, or one for all")
    runs = [
        [
            Simulation.of(algorithm, federation, model, solver=solver, seed=seed, engine="vectorised", **options)
            for algorithm, solver in settings
        ]
        for federation, seed in zip(federations, seeds, strict=True)
    ]
    first = [of_seed[0] for of_seed in runs]
    _check_alike(runs)
    rounds = 1 if first[0].algorithm.one_shot else rounds

    methods = jax.tree.map(lambda *leaves: jnp.stack(leaves), *(run.setup.method for run in runs[0]))
    start = [[run.init() for run in of_seed] for of_seed in runs]
    states = _stack_states(start)
    fixed = tuple(grid.stack([getattr(run.setup, part) for run in first]) for part in ("pool", "shards", "key"))
    tests = grid.stack([run.test for run in first])
    task, table = first[0].setup.task, []
    for round in range(rounds):
        began = time.perf_counter()
        drawn = [run.drawn(round) for run in first]
        batches = [run.batches(round, active) for run, active in zip(first, drawn, strict=True)]
        states = grid.advance(first[0].setup.static, methods, states, fixed, batches, np.array(drawn))
        metrics = np.array(grid.evaluate_all(task, grid.Axes(tests.axes), states.server.w, tests.tree))
        table.append([*metrics, np.full(metrics.shape[1:], time.perf_counter() - began)])
    columns = np.moveaxis(np.array(table), 0, -1)  # [accuracy nll seconds, seeds, settings, rounds]
    return {
        (j, seed): History(runs[i][j], _one(states, i, j), *columns[:, i, j])
        for i, seed in enumerate(seeds)
        for j in range(len(settings))
    }


def _check_alike(runs):
    first = runs[0][0]
    for run in (run for of_seed in runs for run in of_seed):
        alike = (run.setup.static, jax.tree.structure(run.setup.method))
        if alike != (first.setup.static, jax.tree.structure(first.setup.method)):
            raise ConfigError(
                f"{run.algorithm} with {run.solver} is not the same program as {first.algorithm} with {first.solver}: "
                "settings of one grid may differ in their numbers only"
            )


def _stack_states(states):
    of_seeds = [jax.tree.map(lambda *leaves: jnp.stack(leaves), *[s._replace(round=()) for s in row]) for row in states]
    return grid.stack_seeds(of_seeds)._replace(round=0)


def _one(states, i, j):
    return jax.tree.map(lambda leaf: leaf[i, j], states._replace(round=()))._replace(round=states.round)
