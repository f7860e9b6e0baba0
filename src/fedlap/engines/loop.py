"""The same round as a plain Python loop that compiles nothing: to read, to step through, to compare with."""

import operator

import jax
import numpy as np

from ..parties import Moment
from .clients import Clients
from .round import State, client_round, server_round
from .sequential import prepare

__all__ = ["advance", "prepare"]


def advance(setup, state, drawn, batches):
    with jax.disable_jit():
        moment, told = Moment(state.round, state.start, setup.key), setup.method.algorithm.broadcast(state.server)
        clients = list(state.clients)
        for k in np.flatnonzero(drawn):
            shard, mine = jax.tree.map(operator.itemgetter(k), (setup.shards, batches))
            clients[k] = client_round(
                setup.task, setup.count, setup.method, told, clients[k], setup.pool, shard, mine, moment
            )
        clients = Clients(clients)
        server = server_round(
            *setup.static, setup.method, state.server, clients.contribution, setup.pool, setup.shards, np.float64(drawn)
        )
        return State(state.round + 1, server, server.w, clients)
