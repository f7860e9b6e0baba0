"""The round, written once: what a client does and what the server does. Engines only decide where."""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from .. import parties
from ..vector import Vector


class ClientState(NamedTuple):
    """All that survives a round on one client, and the last it has sent."""

    site: Any
    solver: Any
    contribution: Any


class State(NamedTuple):
    """All that survives a round; a checkpoint is exactly this."""

    round: int  # on the host, so that asking for it does not wait for the device
    server: Any
    start: Vector
    clients: Any  # site, solver and contribution of every client, [K, …]: a ClientState, stacked, or Clients


class Method(NamedTuple):
    """An algorithm and its solvers. Their numbers are leaves, so a sweep over them compiles once."""

    algorithm: Any
    solver: Any
    server_solver: Any


def client_round(task, count, method, told, client, pool, shard, batches, moment):
    """Lines 1 and 2 on one client, which knows of the server's state what is broadcast."""
    k, minimiser = parties.client(task, count, pool, shard, moment, method.solver, client.solver, batches)
    q = method.algorithm.client_update(told, client.site, k)
    t = method.algorithm.site_update(told, client.site, q, k)
    return ClientState(t, minimiser.state, method.algorithm.contribution(t, q, k))


def server_round(task, count, classes, method, server, contributions, pool, shards, drawn):
    """Line 3."""
    zeros = jax.tree.map(jnp.zeros_like, server.w)
    s = parties.server(task, count, pool, shards, zeros, classes, drawn, method.server_solver)
    return method.algorithm.server_update(server, contributions, s)


@partial(jax.jit, static_argnums=(0, 1, 2))
def initial(task, count, classes, method, pool, shards, batches, key):
    """The state before the first round, with one client for all: what a client that never moves would send."""
    start = Vector(task.model.init(jax.random.fold_in(key, 0), pool.inputs[:1], classes))
    zeros = jax.tree.map(jnp.zeros_like, start)
    s = parties.server(task, count, pool, shards, zeros, classes, jnp.ones(count), method.server_solver)
    g, t = method.algorithm.init(s, start)
    shard, mine = jax.tree.map(lambda leaf: leaf[0], (shards, batches))
    k, minimiser = parties.client(task, count, pool, shard, parties.Moment(0, start, key), Still(), (), mine)
    q = method.algorithm.client_update(method.algorithm.broadcast(g), t, k)
    contribution = method.algorithm.contribution(t, q, k)
    return State(0, g, start, ClientState(t, method.solver.init(minimiser.state), contribution))


class Still:
    """A solver that stays where it starts; its state is what argmin ranges over."""

    def minimise(self, problem, state):
        return problem.start, problem.start
