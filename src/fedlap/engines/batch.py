"""Many runs of a small model as one program: seeds are one more axis, and so are settings.

Settings of one seed share its minibatches, so the gathering of data is done once for all of them; that is why
seeds are the outer axis and settings the inner one.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from fedlap.algebra.vector import Vector
from fedlap.arrays import Array, Tree
from fedlap.engines.evaluate import evaluate as metrics
from fedlap.engines.parties import Batches, Task
from fedlap.engines.round import State
from fedlap.engines.scores import Metrics
from fedlap.engines.setup import Plan, Setup
from fedlap.engines.vectorised import Moved, federated_round


class BatchRun(Protocol):
    """A run as a batch sees it: what is asked of a simulation."""

    @property
    def setup(self) -> Setup: ...
    @property
    def sets(self) -> Sequence[tuple[Array, Array]]: ...
    def init(self) -> State: ...


class Stack(NamedTuple):
    """All seeds' arrays as one, with the axis of the seeds: None where they are the same for all and kept once."""

    tree: Tree
    axes: Tree


def stack(trees: Sequence[Tree], fill: int = 0) -> Stack:
    """Stack leaves that differ, padding them at the end to a common shape; share those that do not."""

    def join(*leaves: Any) -> Stack:
        if all(leaf.shape == leaves[0].shape and _same(leaf, leaves[0]) for leaf in leaves[1:]):
            return Stack(leaves[0], None)
        if _is_key(leaves[0]):
            return Stack(jnp.stack(leaves), 0)
        shape = np.max([leaf.shape for leaf in leaves], axis=0)
        return Stack(np.stack([_pad(leaf, shape, fill) for leaf in leaves]), 0)

    joined = jax.tree.map(join, *trees)
    pick = lambda i: jax.tree.map(lambda leaf: leaf[i], joined, is_leaf=lambda leaf: isinstance(leaf, Stack))
    return Stack(pick(0), pick(1))


def stack_seeds(trees: Sequence[Tree]) -> Tree:
    """Stack all leaves, padded, whether they differ or not: what changes from round to round."""
    padded = lambda leaves: np.stack([_pad(leaf, np.max([l.shape for l in leaves], axis=0), 0) for leaf in leaves])
    return jax.tree.map(lambda *leaves: jnp.asarray(padded(leaves)), *trees)


def _pad(leaf: Any, shape: Sequence[int], fill: int) -> np.ndarray:
    width = [(0, want - have) for want, have in zip(shape, leaf.shape, strict=True)]
    return np.pad(np.asarray(leaf), width, constant_values=fill) if width else np.asarray(leaf)


class Prepared(NamedTuple):
    """All that stays fixed for all runs, and the state each of them begins with."""

    setup: Stack  # its method [settings, …], shared by all seeds
    tests: list[Stack]  # each set to evaluate on, with how many rows of it are no padding
    states: State  # [seeds, settings, …]


def prepare(runs: Sequence[Sequence[BatchRun]]) -> Prepared:
    """Simulations, a list of settings for each seed, put together on the host: nothing to compile."""
    first = [settings[0] for settings in runs]
    joined = lambda *leaves: np.stack([np.asarray(leaf) for leaf in leaves])
    methods = jax.tree.map(lambda *leaves: jnp.asarray(joined(*leaves)), *(run.setup.method for run in runs[0]))
    states = [jax.tree.map(joined, *(run.init()._replace(round=()) for run in settings)) for settings in runs]
    sets = [[(*data, np.asarray(len(data[1]))) for data in run.sets] for run in first]
    return Prepared(
        stack([replace(run.setup, method=methods) for run in first]),
        [stack([data[i] for data in sets]) for i in range(len(sets[0]))],
        stack_seeds(states)._replace(round=0),
    )


def advance(prepared: Prepared, states: State, plans: Sequence[Plan]) -> State:
    """One round of every run, by the plan of each seed."""
    rows = stack([plan.batches.rows for plan in plans], fill=-1)
    steps = stack([plan.batches.steps for plan in plans])
    moved = [Moved.of(plan.drawn, Batches((), ())) for plan in plans]
    stacked = stack_seeds(moved)._replace(batches=Batches(rows.tree, steps.tree))
    axes = Axes((prepared.setup.axes, Moved(0, 0, Batches(rows.axes, steps.axes))))
    new = _compiled(axes, prepared.setup.tree, states, stacked)
    return new._replace(round=states.round + 1)


def evaluate(prepared: Prepared, states: State) -> np.ndarray:
    """The scores of every run on every set, [5 · sets, seeds, settings]."""
    task = prepared.setup.tree.task
    tests = [_evaluate(task, Axes(test.axes), states.server.w, test.tree) for test in prepared.tests]
    return np.concatenate([np.array(numbers) for numbers in tests])


def select(states: State, seed: int, setting: int) -> State:
    """The state of one run."""
    return jax.tree.map(lambda leaf: leaf[seed, setting], states._replace(round=()))._replace(round=states.round)


class Axes:
    """Which leaves have a seed axis, in a form that jit can compare."""

    def __init__(self, tree: Tree) -> None:
        leaves, self.structure = jax.tree.flatten(tree, is_leaf=lambda x: x is None)
        self.leaves = tuple(leaves)

    @property
    def tree(self) -> Tree:
        return jax.tree.unflatten(self.structure, self.leaves)

    def __hash__(self) -> int:
        return hash((self.leaves, self.structure))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Axes) and (self.leaves, self.structure) == (other.leaves, other.structure)


@partial(jax.jit, static_argnums=0)
def _compiled(axes: Axes, setup: Setup, states: State, moved: Moved) -> State:
    state_axes = states._replace(round=None, server=0, start=0, clients=0, sums=None)
    setting_axes = replace(setup, method=0, pool=None, shards=None, key=None)
    setup_axes, moved_axes = axes.tree
    over_settings = jax.vmap(federated_round, in_axes=(setting_axes, state_axes, None), out_axes=state_axes)
    over_seeds = jax.vmap(over_settings, in_axes=(setup_axes, state_axes, moved_axes), out_axes=state_axes)
    return over_seeds(setup, states, moved)


@partial(jax.jit, static_argnums=(0, 1))
def _evaluate(task: Task, axes: Axes, w: Vector, tests: Tree) -> Metrics:
    over_settings = jax.vmap(lambda w, test: metrics(task, w, *test), in_axes=(0, None))
    return jax.vmap(over_settings, in_axes=(0, axes.tree))(w, tests)


def _same(a: Any, b: Any) -> bool:
    return a is b or np.array_equal(_on_host(a), _on_host(b))


def _on_host(leaf: Any) -> np.ndarray:
    return np.asarray(jax.random.key_data(leaf) if _is_key(leaf) else leaf)


def _is_key(leaf: Any) -> bool:
    return jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
