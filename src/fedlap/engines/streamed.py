"""Some clients at a time, each such block a compiled program, on as many threads as there are cores.

For clients without number. What is in memory is the blocks under way: clients' states may be on disk, minibatches are
drawn by the thread that needs them, and the server's sums are added up from block to block. Where few of many take
part, a sum changes by what they have changed, so that a round costs as much as its own clients and not as all.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np

from fedlap.algebra.running import Running
from fedlap.arrays import Array, Number, Tree
from fedlap.engines import sums
from fedlap.engines.clients import Clients, unstack
from fedlap.engines.parties import Batches, Moment
from fedlap.engines.round import ClientState, State, client_round, server_line
from fedlap.engines.scratch import Scratch
from fedlap.engines.setup import Setup
from fedlap.engines.versions import Versions, put
from fedlap.machine import cores


@dataclass(frozen=True)
class Streamed:
    """The engine, with how many clients are one program, and how they run in it."""

    size: int  # clients in a block
    together: bool  # all clients of a block in one vmap, or one after the other
    scratch: Scratch | None = None  # where states are kept; in memory if None

    draws_ahead = False  # each thread draws the minibatches of its block

    def prepare(self, setup: Setup, state: State) -> State:
        """The state before the first round: one client for all of them, and what the server's line adds up."""
        totals, needed = first_sums(setup, state.server, state.clients)
        client = jax.tree.map(np.asarray, remembered(setup, state.clients, needed))
        keep = Clients.repeat if self.scratch else Versions.repeat
        return state._replace(clients=keep(client, setup.count), sums=totals)

    def advance(self, setup: Setup, state: State, drawn: np.ndarray, batches: Any) -> State:
        """One round, a block after the other on each core."""
        places = np.flatnonzero(drawn)
        everybody, fraction = len(places) == setup.count, len(places) / setup.count
        moment = Moment(state.round, state.start, setup.key)
        totals = None if everybody else state.sums
        run = partial(_block, self.together, not everybody, setup, state.server, moment=moment, participation=fraction)
        changed = Changed(state.clients, places, self.scratch)

        def on_block(block: Block) -> Any:
            own = places[block.which]
            clients, own_batches = state.clients.at(own), batches.at(block.which)
            new, parts = jax.block_until_ready(run(clients, own.astype(np.int32), block.real, own_batches))
            changed.put(block, new)
            return parts

        order = np.argsort(-batches.steps, kind="stable")  # largest first, so that no thread is left with the longest
        planned = list(blocks(order, self.size))
        with ThreadPoolExecutor(max_workers=len(cores())) as threads:
            for parts in threads.map(on_block, planned):
                totals = _begin(parts) if totals is None else _add(totals, parts)
        server = _server(setup, state.server, totals, fraction)
        lasting = [None if before is None else now for before, now in zip(state.sums, totals, strict=True)]
        return State(state.round + 1, server, server.w, changed.clients(), lasting)


class Changed:
    """The new states of the clients who take part, put together from blocks."""

    def __init__(self, clients: Clients | Versions, places: np.ndarray, scratch: Scratch | None) -> None:
        self._before, self._places, self._scratch = clients, places, scratch
        self._new: Any = [None] * len(places) if isinstance(clients, Clients) else clients.room(len(places))

    def put(self, block: "Block", stacked: Tree) -> None:
        """The new states of a block's clients."""
        which, new = block.which[: block.count], jax.tree.map(lambda leaf: np.asarray(leaf)[: block.count], stacked)
        if isinstance(self._before, Versions):
            put(self._new, which, new)
            return
        keep = self._scratch.keep if self._scratch else lambda client: jax.tree.map(np.copy, client)
        for place, client in zip(which.tolist(), unstack(new, block.count), strict=True):
            self._new[place] = keep(client)

    def clients(self) -> Clients | Versions:
        """All clients after the round."""
        return self._before.replaced(self._places, self._new)


class Block(NamedTuple):
    """Some of the clients drawn, by their place among them; filled up with the first, which are not real."""

    which: np.ndarray
    real: np.ndarray
    count: int


def blocks(order: np.ndarray, size: int) -> Iterator[Block]:
    """The clients drawn, in this order, in blocks of one size, not above the given one."""
    several = -(-len(order) // size)
    even = -(-len(order) // several)
    for begin in range(0, len(order), even):
        own = order[begin : begin + even]
        filled = np.concatenate([own, np.full(even - len(own), own[0])])
        yield Block(filled, np.arange(even) < len(own), len(own))


def first_sums(setup: Setup, server: Any, client: ClientState) -> tuple[list[Any], bool]:
    """What the server's line adds up over all clients before the first round, and whether any of it lasts."""
    totals = _first(setup, server, client.contribution)
    return totals, any(total is not None for total in totals)


def remembered(setup: Setup, client: ClientState, needed: bool) -> ClientState:
    """A client's state without a contribution that is its factor, or that no sum needs."""
    return client._replace(contribution=None) if setup.method.algorithm.sends_factor or not needed else client


@partial(jax.jit, static_argnums=(0, 1))
def _block(
    together: bool,
    changes: bool,
    setup: Setup,
    server: Any,
    clients: ClientState,
    places: Array,
    real: Array,
    batches: Batches,
    moment: Moment,
    participation: Number,
) -> tuple[ClientState, list[Tree]]:
    """The new states of some clients, and what they add to the server's sums, or change in them."""
    algorithm, shards = setup.method.algorithm, jax.tree.map(lambda leaf: leaf[places], setup.shards)
    broadcast, line = algorithm.broadcast(server), server_line(setup, server, participation)

    def on_client(these: tuple[ClientState, Any, Batches]) -> ClientState:
        return client_round(setup, broadcast, *these, moment)

    each = (clients, shards, batches)
    new = jax.vmap(on_client)(each) if together else jax.lax.map(on_client, each)
    part = lambda sent: sums.Part(sent, shards.places, setup.pool.memory, real=real)
    sent_before = clients.factor if algorithm.sends_factor else clients.contribution
    before = part(sent_before) if changes and sent_before is not None else None
    parts = sums.parts(line, part(new.contribution), before)
    return new if clients.contribution is not None else new._replace(contribution=None), parts


@jax.jit
def _first(setup: Setup, server: Any, sent: Tree) -> list[Any]:
    """The sums that last, of clients who have all sent the same; None for the others."""
    places, memory = setup.shards.places, setup.pool.memory
    one = sums.Part(jax.tree.map(lambda leaf: leaf[None], sent), places[:1], memory)
    found: list[Any] = []

    def answer(wish: sums.Wish) -> Any:
        first = wish.first(sent, places, memory) if wish.lasting else None
        found.append(None if first is None else Running.of(first))
        return wish.of(one) if first is None else first

    sums.heard(server_line(setup, server, 1.0), answer)
    return found


@jax.jit
def _begin(parts: list[Tree]) -> list[Running]:
    return list(map(Running.of, parts))


@jax.jit
def _add(totals: list[Any], parts: list[Tree]) -> list[Running]:
    return [Running.of(part) if total is None else total + part for total, part in zip(totals, parts, strict=True)]


@jax.jit
def _server(setup: Setup, server: Any, totals: list[Running], participation: Number) -> Any:
    line = server_line(setup, server, participation)
    return line(sums.given(total.total for total in totals))
