"""The same round as a plain Python loop that compiles nothing: to read, to step through, to compare with."""

import operator

import jax
import numpy as np

from fedlap.engines.clients import Clients
from fedlap.engines.parties import Batches, Moment
from fedlap.engines.round import ClientState, State, client_round, server_round
from fedlap.engines.sequential import prepare
from fedlap.engines.setup import Setup

__all__ = ["advance", "prepare"]


def advance(setup: Setup, state: State, drawn: np.ndarray, batches: Batches) -> State:
    """One round, client after client."""
    with jax.disable_jit():
        moment, broadcast = Moment(state.round, state.start, setup.key), setup.method.algorithm.broadcast(state.server)

        def on_client(k: int, client: ClientState) -> ClientState:
            shard, client_batches = jax.tree.map(operator.itemgetter(k), (setup.shards, batches))
            return client_round(setup, broadcast, client, shard, client_batches, moment)

        clients = Clients(on_client(k, client) if drawn[k] else client for k, client in enumerate(state.clients))
        server = server_round(setup, state.server, clients.contribution, np.asarray(drawn, np.float64))
        return State(state.round + 1, server, server.w, clients)
