"""Small federations of few shapes, a likelihood with quadratic losses, and exact runs on them.

A compiled program costs a second or two and is found again by the shapes of its arrays, so `federation` pads every
draw to the same shapes: a pool of fixed size with rows that nobody owns, and one client of fixed length.
"""

from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

import fedlap
import oracle
from fedlap.algebra.hyperparameters import hyperparameters
from fedlap.data import Federation
from fedlap.engines import brief
from fedlap.solvers.problem import FullBatch


@dataclass(frozen=True)
class Shape:
    """All that a compiled program depends on."""

    clients: int
    features: int
    classes: int
    longest: int = 12  # rows of the largest client
    pool: int = 48
    test: int = 10

    @property
    def weights(self):
        return self.features * self.classes


THREE = Shape(clients=3, features=2, classes=3)  # three clients and three classes
FOUR = Shape(clients=4, features=3, classes=2)


def federation(seed=0, shape=THREE, sizes=None, *, overlap=False, diagonal=False, names=None):
    """Clients that differ in size, in where their inputs lie and in what their labels mean.

    With `overlap` every client has every label at each of some inputs that span the space, so that its loss has a
    minimiser without any regulariser. With `diagonal` every input has one feature, so that XᵀX is diagonal.
    """
    rng = np.random.default_rng(seed)
    least = shape.weights if overlap else 1
    if sizes is None:
        sizes = rng.integers(least, shape.longest + 1, size=shape.clients)
        sizes[rng.integers(shape.clients)] = shape.longest
    inputs, labels = rng.normal(size=(shape.pool, shape.features)), np.zeros(shape.pool, int)
    rows = np.split(rng.permutation(shape.pool)[: sum(sizes)], np.cumsum(sizes)[:-1])
    for mine in rows:
        inputs[mine] += rng.normal(size=shape.features)
        truth = 2 * rng.normal(size=(shape.features, shape.classes))
        noise = rng.gumbel(size=(len(mine), shape.classes))
        labels[mine] = (inputs[mine] @ truth + noise).argmax(1)
        if overlap:
            some = mine[: shape.weights].reshape(shape.features, shape.classes)
            directions = np.linalg.qr(rng.normal(size=(shape.features, shape.features)))[0]
            inputs[some] = rng.uniform(0.7, 1.3) * directions[:, None]
            labels[some] = np.arange(shape.classes)
    if diagonal:
        inputs *= np.eye(shape.features)[np.arange(shape.pool) % shape.features]
    test = rng.normal(size=(shape.test, shape.features)), rng.integers(shape.classes, size=shape.test)
    return Federation(
        name="drawn",
        clients=tuple(names or (f"client-{k}" for k in range(shape.clients))),
        inputs=inputs,
        labels=labels,
        rows=tuple(mine.astype(np.int32) for mine in rows),
        test_inputs=test[0],
        test_labels=test[1],
        classes=shape.classes,
    )


def points(federation):
    """The federation's data as the oracle takes it."""
    of = (federation.of(k) for k in range(len(federation.clients)))
    return [oracle.labelled(inputs, labels, federation.classes) for inputs, labels in of]


def memory(run):
    """Each client's memory points as the oracle takes them, without padding; they have no labels of their own."""
    inputs, shards = np.asarray(run.setup.pool.memory), run.setup.shards
    classes = run.federation.classes
    return [
        oracle.Points(inputs[places[mass > 0]], mass[mass > 0], np.full((np.sum(mass > 0), classes), np.nan))
        for places, mass in zip(np.asarray(shards.places), np.asarray(shards.weights), strict=True)
    ]


@dataclass(frozen=True)
class Squared:
    """½‖f − e_y‖², up to its constant: with a linear model all losses are quadratic."""

    def loss(self, outputs, labels):
        return self.soft_loss(outputs, 1, jax.nn.one_hot(labels, outputs.shape[-1], dtype=outputs.dtype))

    def soft_loss(self, outputs, mass, targets):
        return mass * (outputs**2).sum(-1) / 2 - (targets * outputs).sum(-1)

    def probabilities(self, outputs):
        return outputs

    def factor(self, outputs):
        return jnp.broadcast_to(jnp.eye(outputs.shape[-1], dtype=outputs.dtype), (*outputs.shape, outputs.shape[-1]))


@hyperparameters
class SigmaPoints(FullBatch):
    """Newton over Gaussians, with expectations over ±√P e_i instead of random draws.

    These 2P points have mean 0 and covariance I, so the expectation of a quadratic is exact and so is PVI's argmin.
    """

    def minimise(self, problem, state):
        client = problem.client._replace(noise=lambda samples, like: self.points(samples, like))
        return fedlap.newton().minimise(problem._replace(client=client), state)

    def points(self, samples, like):
        assert samples == 2 * like.size
        rows = jnp.sqrt(1.0 * like.size) * jnp.concatenate([jnp.eye(like.size), -jnp.eye(like.size)])
        return jax.vmap(like.like)(rows)


@hyperparameters
class PlainNewton(FullBatch):
    """Newton's steps and nothing that guards them, which is compiled in a third of the time."""

    def solve(self, function, start):
        x, unflatten = ravel_pytree(start)
        value = lambda x: function(unflatten(x))
        step = lambda _, x: x - jnp.linalg.solve(jax.hessian(value)(x), jax.grad(value)(x))
        return unflatten(jax.lax.fori_loop(0, 10, step, x))


@dataclass(frozen=True)
class Flat:
    """A curvature of zero everywhere."""

    def diagonal(self, model, likelihood, params, examples):
        return jax.tree.map(jnp.zeros_like, params)

    def full(self, model, likelihood, params, examples):
        size = sum(leaf.size for leaf in jax.tree.leaves(params))
        return jnp.zeros((size, size))


# For objectives without a prior, and starts from where plain steps of Newton's lead away.
GUARDED = {"solver": fedlap.newton(), "server_solver": fedlap.newton()}


def trajectory(algorithm, federation, rounds, **options):
    """The run and its states, the first of them before any round; exact argmins unless told otherwise.

    The round is that of `vectorised`, which test_oracle.py runs, compiled with less effort, as are Newton's steps that
    nothing guards: compiling is all it costs. Where these did not end at the argmin, no equation would hold.
    """
    exact = {"solver": PlainNewton(), "server_solver": PlainNewton(), "engine": "vectorised"}
    run = fedlap.Simulation.of(algorithm, federation, options.pop("model", fedlap.logistic()), **exact | options)
    run = replace(run, engine=brief)
    states = [run.init()]
    for _ in range(rounds):
        states.append(run.step(states[-1]))
    return run, states
