"""Clients and server as the algorithms see them, built from a model and data. Every engine uses these two.

Both are made from a `setup`, all that stays fixed during a run (`engines.setup`).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np

from fedlap.algebra.kronecker import Kronecker, Seen, Sides
from fedlap.algebra.precision import Diagonal, Full, Isotropic, identity
from fedlap.algebra.quadratic import fold, square
from fedlap.algebra.soft_labels import Distilled, Memory, SoftLabels, weigh
from fedlap.algebra.vector import Vector
from fedlap.algorithms.base import Client, Server
from fedlap.arrays import Array, Key, Number, Tree
from fedlap.engines.pace import SolverPace
from fedlap.errors import ConfigError
from fedlap.models.curvature import Curvature, Examples, GaussNewton, gradient, no_turn
from fedlap.models.likelihood import Likelihood
from fedlap.models.model import Trainable
from fedlap.models.narrow import first_dense, narrow

if TYPE_CHECKING:
    from fedlap.engines.setup import Setup  # which is made of what is defined here

# Of a larger memory each step sees a sample of this many points, so that it costs a step no more than its own
# minibatch does. At w_g the gradients of all points but the client's own are zero, and so is their noise.
MEMORY_BATCH = 32
# Uses of a step's key beside the memory's, which draws from the key itself: with one key for all, PVI's noise and the
# network's dropout were the same bits. Far from zero, because a key that is split gives those of 0, 1, 2 ….
DROPOUT, NOISE, OWN = 1_000_001, 1_000_002, 1_000_003

Distil = Callable[[Vector, SoftLabels], Array]  # Σ_i τ_i ℓ(ŷ_i, w)


@dataclass(frozen=True)
class Task:
    """A model, its likelihood and its curvature: part of the program, so compared by value."""

    model: Trainable
    likelihood: Likelihood
    curvature: Curvature


class Pool(NamedTuple):
    """The arrays that all clients' row numbers point into."""

    inputs: Array  # [N, ...]
    labels: Array  # [N]
    memory: Array  # [M, ...]
    points: Array  # M, without the padding of runs that share a program


class Shard(NamedTuple):
    """One client's part of the pool, padded at the end to the length of the longest."""

    rows: Array  # [n_max]
    n: Array
    share: Array
    number: Array  # of its name, for its random stream
    places: Array  # [m] of its own points in the memory
    weights: Array  # [m] N_kc / M_kc, zero where a client has fewer than m points


class Batches(NamedTuple):
    """The minibatches of one client in one round, padded at the end; or of several, stacked."""

    rows: Any  # [steps_max, batch]
    steps: Any

    def at(self, places: np.ndarray) -> "Batches":
        """Those of some of several clients."""
        return Batches(self.rows[places], self.steps[places])

    def all(self) -> "Batches":
        """Those of all of them, drawn already."""
        return self


class Moment(NamedTuple):
    """What all clients know at the start of a round."""

    round: Number
    start: Vector
    key: Key


def client(
    setup: "Setup", shard: Shard, moment: Moment, steps: Number = 1
) -> tuple[Client, Callable[[Array, Number], Client]]:
    """Client k for one round, all of its data, and `minibatch(rows, step)`: the same client seen through these rows.

    Where padding reads a row, it is one of the client's own: zero times another's infinity would not be zero.
    """
    task, pool = setup.task, setup.pool
    real = jnp.arange(len(shard.rows)) < shard.n
    client_rows = jnp.where(real, shard.rows, shard.rows[0])
    places = jnp.where(shard.weights > 0, shard.places, shard.places[:1])
    memory = Memory(pool.memory, places)
    key = jax.random.fold_in(jax.random.fold_in(moment.key, moment.round), shard.number)

    def minibatch(rows: Array, step: Number) -> Client:
        step_key = jax.random.fold_in(key, step)
        dropout, noise, own = (jax.random.fold_in(step_key, use) for use in (DROPOUT, NOISE, OWN))
        return whole._replace(
            loss=_loss(
                task,
                pool,
                jnp.where(rows >= 0, rows, client_rows[0]),
                rows >= 0,
                shard.n,
                lambda w, x: task.model.train(w.tree, x, dropout),
            ),
            distil=sampled_distillation(task, pool.memory, pool.points, step_key),
            noise=standard_normal(noise),
            key=own,
        )

    data = Examples(pool.inputs, pool.labels, client_rows, real.astype(shard.share.dtype), real.sum(), key)
    points = Examples(pool.memory, None, places, shard.weights, len(places), key)
    whole = Client(
        n=shard.n,
        share=shard.share,
        count=setup.count,
        round=moment.round,
        start=moment.start,
        loss=_loss(task, pool, client_rows, real, shard.n, lambda w, x: task.model.apply(w.tree, x)),
        gradient=lambda w: Vector(gradient(task.model, task.likelihood, w.tree, data)),
        hessian=lambda w, structure: _curvature(task, task.curvature, w, structure, data),
        turned=lambda basis: _turned(task, data, basis),
        moments=lambda w, like: _moments(task, w, like, data),
        memory_hessian=lambda w, structure: _memory_curvature(task, w, structure, points),
        soften=lambda w: weigh(shard.weights, _predict(task, w, pool.memory[places])),
        own=memory.place,
        everyone=lambda w, mass: weigh(mass, _predict(task, w, pool.memory)),
        distil=distillation(task, pool.memory),
        noise=standard_normal(key),
        key=jax.random.fold_in(key, OWN),
        argmin=_no_argmin,
        pace=SolverPace(setup.method.algorithm, setup.method.solver, jnp.asarray(steps, jnp.int32)),
    )
    return whole, minibatch


def server(setup: "Setup", zeros: Vector, participation: Number) -> Server:
    """The server for one round, of which a fraction of the clients is part."""
    task, pool, shards = setup.task, setup.pool, setup.shards

    def argmin(function: Callable[[Tree], Array], start: Tree) -> Tree:
        solver = setup.method.server_solver
        solve = lambda function, start: solver.solve(lambda v: function(v) / shards.n.sum(), start)
        if isinstance(function, Distilled) and getattr(solver, "narrow", False):
            return _narrow_argmin(task, pool.memory, function, start, solve)
        return solve(function, start)

    def memory_hessian(w: Vector, mass: Array, structure: str) -> Diagonal | Full:
        size = len(pool.memory)
        points = Examples(pool.memory, None, jnp.arange(size), mass, size, jax.random.key(0))
        return _memory_curvature(task, w, structure, points)

    points, dtype = shards.places.shape[-1], shards.weights.dtype
    return Server(
        count=setup.count,
        participation=participation,
        zero=jnp.zeros((), dtype),
        zeros=zeros,
        identity=lambda structure: identity(structure, zeros, setup.count),
        basis=lambda: no_turn(task.model, zeros.tree),
        unlabelled=SoftLabels(jnp.zeros(points, dtype), jnp.zeros((points, setup.classes), dtype)),
        silence=SoftLabels(jnp.zeros(len(pool.memory), dtype), jnp.zeros((len(pool.memory), setup.classes), dtype)),
        distil=distillation(task, pool.memory),
        memory_hessian=memory_hessian,
        argmin=argmin,
    )


def _narrow_argmin(task: Task, inputs: Array, function: Distilled, start: Vector, solve: Callable) -> Vector:
    """argmin of a function that sees w through these inputs alone, and through a quadratic; in fewer weights if it can.

    Of an isotropic quadratic, the part that the inputs do not see has its minimum where the quadratic has it.
    """
    posterior, seen = fold(function.posterior), narrow(task.model, inputs)
    if seen is None or not isinstance(posterior.A, Isotropic):
        return solve(function, start)
    inside = lambda w: Vector(seen.inside(w.tree))
    around = square(posterior.A / 2, around=inside(posterior.c))
    found = solve(function._replace(distil=distillation(task, seen.inputs), posterior=around), inside(start))
    return Vector(seen.whole(found.tree, posterior.c.tree))


def _no_argmin(objective: object, start: object) -> Tree:
    raise ConfigError("k.argmin is asked for outside of client_update; expected it there alone")


def _predict(task: Task, w: Vector, inputs: Array) -> Array:
    return task.likelihood.probabilities(task.model.apply(w.tree, inputs))


def _loss(
    task: Task, pool: Pool, rows: Array, real: Array, n: Array, outputs: Callable[[Any, Array], Array]
) -> Callable[[Any], Array]:
    """An unbiased estimate of the sum over all n examples, from those rows that are real."""
    labels = pool.labels[rows]

    def loss(w: Any) -> Array:
        seen = w if isinstance(w, Seen) else Seen(w.tree)
        inputs = pool.inputs[rows] if seen.inputs is None else seen.inputs[seen.place(rows)]
        losses = task.likelihood.loss(outputs(w, inputs), labels)
        return n * jnp.where(real, losses, 0).sum() / real.sum()

    return loss


def _curvature(task: Task, kind: Curvature, w: Vector | Seen, structure: str, examples: Examples) -> Diagonal | Full:
    if isinstance(w, Seen) and w.inputs is not None:
        examples = examples._replace(inputs=w.inputs, rows=w.place(examples.rows))
    if structure == "diagonal":
        return Diagonal(Vector(kind.diagonal(task.model, task.likelihood, w.tree, examples)))
    return Full(kind.full(task.model, task.likelihood, w.tree, examples))


TURNED = 256  # rows at a time: clients are padded to the longest, and padding is not worth turning


def _turned(task: Task, data: Examples, basis: Kronecker) -> Callable[[Vector], Seen]:
    """x ↦ Ux. Where a network begins with a dense layer, a client's inputs are turned here, and in no step."""
    _check_moments(task.curvature)
    layer = first_dense(task.model)
    if layer is None:
        return basis.at
    own = cast(tuple, basis.tree)[layer]
    sides, rows = own["weight"], data.rows
    size = min(TURNED, len(rows))
    padded = jnp.pad(rows, (0, -len(rows) % size), mode="edge")

    def turn(step: Number, turned: Array) -> Array:
        some = data.inputs[jax.lax.dynamic_slice_in_dim(padded, step * size, size)]
        return jax.lax.dynamic_update_slice_in_dim(turned, some.reshape(size, -1) @ sides.columns, step * size, 0)

    room = jnp.zeros((len(padded), len(sides.columns)), data.inputs.dtype)
    turned = jax.lax.fori_loop(0, -(-data.used // size), turn, room)
    order = jnp.argsort(rows)
    place = lambda which: order[jnp.searchsorted(rows[order], which)]
    rest = Kronecker((*basis.tree[:layer], {**own, "weight": Sides(sides.rows, None)}, *basis.tree[layer + 1 :]))
    return lambda x: rest.at(x)._replace(inputs=turned, place=place)


def _check_moments(kind: Any) -> None:
    if not callable(getattr(kind, "moments", None)):
        raise ConfigError(f"curvature {kind!r} has no `moments`, which a Kronecker covariance needs; try GaussNewton()")


def _moments(task: Task, w: Vector, like: Kronecker, examples: Examples) -> Kronecker:
    kind: Any = task.curvature
    return kind.moments(task.model, task.likelihood, w.tree, examples, like)


def _memory_curvature(task: Task, w: Vector, structure: str, points: Examples) -> Diagonal | Full:
    """The Hessian of Σ_i τ_i ℓ(ŷ_i, w) at ŷ = f(x; w).

    The residual is zero there: Gauss–Newton is the whole Hessian and needs no label.
    """
    return _curvature(task, GaussNewton(), w, structure, points)


def distillation(task: Task, inputs: Array) -> Distil:
    """Σ_i τ_i ℓ(ŷ_i, w) over all of these memory points, as a function of w and the soft labels."""

    def distil(w: Vector, labels: SoftLabels) -> Array:
        outputs = task.model.apply(w.tree, inputs)
        return task.likelihood.soft_loss(outputs, labels.mass, labels.targets).sum()

    return distil


def sampled_distillation(task: Task, inputs: Array, points: Number, key: Key) -> Distil:
    """An unbiased estimate of the same sum from MEMORY_BATCH of the first `points` inputs; the rest is padding.

    A memory of no more points than that is taken whole.
    """
    if len(inputs) <= MEMORY_BATCH:
        return distillation(task, inputs)
    drawn = jax.random.randint(key, (MEMORY_BATCH,), 0, points)
    places = jnp.where(points <= MEMORY_BATCH, jnp.arange(MEMORY_BATCH), drawn)
    sampled = distillation(task, inputs[places])
    factor = jnp.maximum(points / MEMORY_BATCH, 1)
    return lambda w, labels: factor * sampled(w, SoftLabels(labels.mass[places], labels.targets[places]))


def standard_normal(key: Key) -> Callable[[int, Vector], Vector]:
    """Independent draws of this key, as a function of how many and of a vector of their shape."""

    def noise(samples: int, like: Vector) -> Vector:
        leaves, structure = jax.tree.flatten(like)
        keys = jax.random.split(key, len(leaves))
        draws = [jax.random.normal(k, (samples, *leaf.shape), leaf.dtype) for k, leaf in zip(keys, leaves, strict=True)]
        return jax.tree.unflatten(structure, draws)

    return noise
