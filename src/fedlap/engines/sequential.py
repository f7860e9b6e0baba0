"""One client at a time, each a compiled program, on as many threads as there are cores.

Fastest for larger models on a CPU: nothing is padded, one program serves every client size because its number
of steps is a value, and two clients on two cores beat two cores inside one client's small products.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedlap.arrays import Array, Number, Tree
from fedlap.engines.clients import Clients, stack
from fedlap.engines.parties import Batches, Moment
from fedlap.engines.round import ClientState, State, client_round, server_round
from fedlap.engines.setup import Setup
from fedlap.machine import cores, threads

# Up to so many clients the server's program takes each one's contribution, and adds them up without a copy: thirty
# times faster for a network. To compile it takes the square of their number, so more are stacked before.
FEW = 32


draws_ahead = True


def prepare(setup: Setup, state: State) -> State:
    """The state before the first round, with clients one by one: each is replaced, never copied into a stack."""
    return state._replace(clients=Clients([state.clients] * setup.count))


def advance(setup: Setup, state: State, drawn: np.ndarray, batches: Batches) -> State:
    """One round, several clients at a time."""
    moment, broadcast = Moment(state.round, state.start, setup.key), setup.method.algorithm.broadcast(state.server)

    taking_part = np.flatnonzero(drawn).tolist()

    def on_client(place: int) -> ClientState:
        k, client_batches = taking_part[place], jax.tree.map(lambda leaf: leaf[place], batches)
        return run_client(setup, broadcast, state.clients[k], k, client_batches, moment)

    # Largest first, so that no thread is left alone with the longest client at the end.
    order = np.argsort(-batches.steps, kind="stable").tolist()
    with threads(len(cores())) as several:
        new = dict(zip([taking_part[place] for place in order], several.map(on_client, order), strict=True))
    clients = Clients(new.get(k, client) for k, client in enumerate(state.clients))
    contributions = tuple(client.contribution for client in clients)
    server = run_server(setup, state.server, contributions, drawn)
    return State(state.round + 1, server, server.w, clients)


def regroup(setup: Setup, state: State, clients: list[ClientState]) -> State:
    """The state with these clients instead, each as it comes, and the server's line over what they have sent."""
    everyone = np.ones(len(clients), bool)
    server = run_server(setup, state.server, tuple(client.contribution for client in clients), everyone)
    return State(state.round, server, server.w, Clients(clients))


def run_client(
    setup: Setup, broadcast: Tree, client: ClientState, k: int, batches: Batches, moment: Moment
) -> ClientState:
    """Client k's part of a round. A real site calls this too, with nobody else's rows in its pool."""
    return jax.block_until_ready(_client(setup, broadcast, client, k, batches, moment))


def run_server(setup: Setup, server: Any, contributions: Sequence[Tree], drawn: np.ndarray) -> Any:
    """The server's part of a round, which reads of the pool only the memory points."""
    if len(contributions) > FEW:
        return _server(setup, server, stack(contributions), np.asarray(drawn, np.float64))
    return _server_of_few(setup, server, contributions, np.asarray(drawn, np.float64))


def _on_client(
    setup: Setup, broadcast: Tree, client: ClientState, k: Number, batches: Batches, moment: Moment
) -> ClientState:
    shard = jax.tree.map(lambda leaf: leaf[k], setup.shards)
    return client_round(setup, broadcast, client, shard, batches, moment)


def _on_server_of_few(setup: Setup, server: Any, contributions: Sequence[Tree], drawn: Array) -> Any:
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *contributions)
    return server_round(setup, server, stacked, drawn)


_client, _server, _server_of_few = jax.jit(_on_client), jax.jit(server_round), jax.jit(_on_server_of_few)
