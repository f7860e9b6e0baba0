"""All clients in one vmap, one compiled program a round: fastest for small models on a CPU, and on accelerators."""

from typing import Any, NamedTuple

import jax
import numpy as np

from fedlap.arrays import on_device
from fedlap.engines.clients import stack
from fedlap.engines.parties import Batches, Moment
from fedlap.engines.round import ClientState, State, client_round, server_round
from fedlap.engines.setup import Setup

draws_ahead = True  # while the device is at work


def prepare(setup: Setup, state: State) -> State:
    """The state before the first round, with clients stacked: leaf by leaf, [K, …]."""
    repeat = lambda leaf: on_device(np.broadcast_to(leaf, (setup.count, *leaf.shape)))
    return state._replace(clients=jax.tree.map(repeat, state.clients))


def advance(setup: Setup, state: State, drawn: np.ndarray, batches: Batches) -> State:
    """One round, all clients at once."""
    new = _compiled(setup, state, Moved.of(drawn, batches))
    return new._replace(round=state.round + 1)


def regroup(setup: Setup, state: State, clients: list[ClientState]) -> State:
    """The state with these clients instead, each as it comes, and the server's line over what they have sent."""
    stacked = stack(clients)
    server = _server(setup, state.server, stacked.contribution, None)
    return State(state.round, server, server.w, stacked)


class Moved(NamedTuple):
    """Who takes part in a round, as a compiled program takes it."""

    drawn: Any  # [K] 1 for who takes part; None if all do
    places: Any  # [D] theirs; None if all do
    batches: Batches  # [D, …] theirs

    @classmethod
    def of(cls, drawn: np.ndarray, batches: Batches) -> "Moved":
        if np.all(drawn):
            return cls(None, None, batches)
        return cls(np.asarray(drawn, np.float64), np.flatnonzero(drawn).astype(np.int32), batches)


def federated_round(setup: Setup, state: State, moved: Moved) -> State:
    """One round of the clients who take part and of the server."""
    moment, broadcast = Moment(state.round, state.start, setup.key), setup.method.algorithm.broadcast(state.server)
    on_clients = jax.vmap(lambda client, shard, batches: client_round(setup, broadcast, client, shard, batches, moment))
    clients, places = state.clients, moved.places
    if places is None:
        clients = on_clients(clients, setup.shards, moved.batches)
    else:
        own, shards = (jax.tree.map(lambda leaf: leaf[places], tree) for tree in (clients, setup.shards))
        new = on_clients(own, shards, moved.batches)
        clients = jax.tree.map(lambda old, some: old.at[places].set(some), clients, new)
    server = server_round(setup, state.server, clients.contribution, moved.drawn)
    return State(state.round + 1, server, server.w, clients)


_compiled, _server = jax.jit(federated_round), jax.jit(server_round)
