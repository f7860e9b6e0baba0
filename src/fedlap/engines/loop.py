"""The same round as a plain Python loop that compiles nothing: to read, to step through, to compare with."""

import operator

import jax
import jax.numpy as jnp
import numpy as np

from fedlap.engines.clients import Clients
from fedlap.engines.parties import Batches, Moment
from fedlap.engines.round import State, client_round, server_round
from fedlap.engines.sequential import draws_ahead, prepare, regroup
from fedlap.engines.setup import Setup

__all__ = ["advance", "draws_ahead", "prepare", "regroup"]


def advance(setup: Setup, state: State, drawn: np.ndarray, batches: Batches) -> State:
    """One round, client after client."""
    with jax.disable_jit():
        moment, broadcast = Moment(state.round, state.start, setup.key), setup.method.algorithm.broadcast(state.server)

        clients = list(state.clients)
        for place, k in enumerate(np.flatnonzero(drawn)):
            shard = jax.tree.map(operator.itemgetter(k), setup.shards)
            own = jax.tree.map(operator.itemgetter(place), batches)
            clients[k] = client_round(setup, broadcast, clients[k], shard, own, moment)
        server = server_round(setup, state.server, Clients(clients).contribution, jnp.asarray(drawn, float))
        return State(state.round + 1, server, server.w, Clients(clients))
