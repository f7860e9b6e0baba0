"""Some clients at a time, each such block a compiled program, on as many threads as there are cores.

For clients without number. What is in memory is the blocks under way: clients' states may be on disk, minibatches are
drawn by the thread that needs them, and the server's sums are added up from block to block. Where few of many take
part, a sum changes by what they have changed, so that a round costs as much as its own clients and not as all.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedlap.algebra.running import Running
from fedlap.algorithms.base import AnyAlgorithm
from fedlap.arrays import Array, Number, Tree
from fedlap.engines import sums
from fedlap.engines.clients import Clients, Spilled, on_host, unstack
from fedlap.engines.parties import Batches, Moment
from fedlap.engines.persistent import Persistent, put
from fedlap.engines.round import ClientState, State, client_round, server_line
from fedlap.engines.scratch import Scratch
from fedlap.engines.sequential import run_client
from fedlap.engines.setup import Setup
from fedlap.machine import cores, give_memory_back, threads


@dataclass(frozen=True)
class Streamed:
    """The engine, with how many clients are one program, and how they run in it."""

    size: int  # clients in a block
    together: bool  # all clients of a block in one vmap, or one after the other
    scratch: Scratch | None = None  # where states are kept; in memory if None

    draws_ahead = False  # each thread draws the minibatches of its block

    def prepare(self, setup: Setup, state: State) -> State:
        """The state before the first round: one client for all of them, and what the server's line adds up."""
        line, one = lambda *of: server_line(setup, *of), _one(setup, state.clients.contribution)
        sums.check_terms(setup.method.algorithm, line, state.server, one)
        totals = _first(setup, state.server, state.clients.contribution)
        client = jax.tree.map(np.asarray, first_client(setup, state.server, state.clients))
        clients = Spilled([client] * setup.count, self.scratch) if self.scratch else Persistent.of(client, setup.count)
        return state._replace(clients=clients, sums=totals)

    def advance(self, setup: Setup, state: State, drawn: np.ndarray, batches: Any) -> State:
        """One round, a block after the other on each core."""
        places = np.flatnonzero(drawn)
        everybody, fraction = len(places) == setup.count, len(places) / setup.count
        scene = Scene(setup, state.server, Moment(state.round, state.start, setup.key), fraction)
        changed = Changed(state.clients, places, self.mine(places))
        totals = None if everybody else state.sums

        def on_block(block: Block) -> list[Tree]:
            own = places[block.which].astype(np.int32)
            work = Work(state.clients.at(own), own, block.real, batches.at(block.which))
            new, parts = self.run(scene, work, not everybody)
            changed.put(block.which[block.real], new)
            return jax.block_until_ready(parts)

        order = np.argsort(-batches.steps, kind="stable")  # largest first, so that no thread is left with the longest
        with threads(self.threads) as several:
            for parts in several.map(on_block, self.blocks(places, order)):
                totals = _begin(parts) if totals is None else _add(totals, parts)
        server = _server(setup, state.server, totals, fraction)
        if self.scratch:
            give_memory_back()
        lasting = [None if before is None else now for before, now in zip(state.sums, totals or [], strict=True)]
        return State(state.round + 1, server, server.w, changed.clients(), lasting)

    def regroup(self, setup: Setup, state: State, clients: list[ClientState]) -> State:
        """The state with these clients instead, each as it comes, and the server's line over what they have sent.

        For lines whose sums all last: none of them is over the clients of one round.
        """
        scene, totals = Scene(setup, state.server, Moment(state.round, state.start, setup.key), 1.0), None
        for begin in range(0, len(clients), self.size):
            places = np.arange(begin, min(begin + self.size, len(clients)), dtype=np.int32)
            parts = _together(scene, places, on_host(clients[place].contribution for place in places), None)
            totals = _begin(parts) if totals is None else _add(totals, parts)
        server = _server(setup, state.server, totals or [], 1.0)
        if setup.method.algorithm.sends_factor:
            clients = [client._replace(contribution=None) for client in clients]
        if self.scratch:
            kept = Spilled([self.scratch.keep(client) for client in clients], self.scratch)
        else:
            kept = Persistent(on_host(clients))
        return State(state.round, server, server.w, kept, totals)

    @property
    def threads(self) -> int:
        """As many as there are cores; an accelerator has work enough with two blocks."""
        return len(cores()) if jax.default_backend() == "cpu" else 2

    def mine(self, places: np.ndarray) -> np.ndarray:
        """Which of the clients at these places are this process's."""
        return np.ones(len(places), bool)

    def blocks(self, places: np.ndarray, order: np.ndarray) -> Iterator["Block"]:
        """The clients at these places, in this order, a block after the other."""
        return blocks(order, self.size)

    def run(self, scene: "Scene", work: "Work", changes: bool) -> tuple[Tree, list[Tree]]:
        """The new states of a block's clients, stacked or a list, and what they add to the server's sums.

        Or what they change in them.
        """
        return _compiled(changes, True, scene, work) if self.together else _in_turn(changes, scene, work)


class Changed:
    """The new states of the clients who take part, put together from blocks."""

    def __init__(self, before: Clients | Persistent, places: np.ndarray, mine: np.ndarray) -> None:
        self._before, self._places, count = before, places[mine], int(mine.sum())
        self._row = np.cumsum(mine) - 1  # among this process's own
        self._new: Any = before.room(count) if isinstance(before, Persistent) else [None] * count

    def put(self, which: np.ndarray, new: Tree | list[Tree]) -> None:
        """The new states of some of those who take part, stacked or a list; what is more than them is padding."""
        which = self._row[which]
        if isinstance(self._before, Persistent) and not isinstance(new, list):
            return put(self._new, which, jax.tree.map(lambda leaf: np.asarray(leaf)[: len(which)], new))
        states = new if isinstance(new, list) else unstack(new, len(which))
        for place, client in zip(which.tolist(), states, strict=True):
            if isinstance(self._before, Persistent):
                put(self._new, place, client)
            else:
                self._new[place] = self._before.keep(client)

    def clients(self) -> Clients | Persistent:
        """All clients after the round."""
        return self._before.replaced(self._places, self._new)


class Scene(NamedTuple):
    """What is the same for all blocks of a round."""

    setup: Setup
    server: Any
    moment: Moment
    participation: Number


class Work(NamedTuple):
    """Some clients and what they need for a round, stacked."""

    clients: ClientState
    places: Any
    real: Any  # whether it is a client, or padding
    batches: Batches


class Block(NamedTuple):
    """Some of the clients drawn, by their place among them; filled up with the first, which are not real."""

    which: np.ndarray
    real: np.ndarray


def blocks(order: np.ndarray, size: int) -> Iterator[Block]:
    """The clients drawn, in this order, in blocks of one size, not above the given one."""
    several = -(-len(order) // size)
    even = -(-len(order) // several)
    for begin in range(0, len(order), even):
        own = order[begin : begin + even]
        filled = np.concatenate([own, np.full(even - len(own), own[0])])
        yield Block(filled, np.arange(even) < len(own))


def first_client(setup: Setup, server: Any, client: ClientState) -> ClientState:
    """A client's state as it is kept: without a contribution that is its factor, or that no sum needs."""
    lasting = jax.tree.leaves(jax.eval_shape(_first, setup, server, client.contribution))
    needed = lasting and not setup.method.algorithm.sends_factor
    return client if needed else client._replace(contribution=None)


def _in_turn(changes: bool, scene: Scene, work: Work) -> tuple[list[ClientState], list[Tree]]:
    """A block client after client, a program for each of them and one that adds up what they have sent."""
    algorithm, new, sent, before = scene.setup.method.algorithm, [], [], []
    broadcast, real = algorithm.broadcast(scene.server), np.flatnonzero(work.real)
    for i in real.tolist():
        client, batches = (jax.tree.map(lambda leaf, i=i: leaf[i], of_all) for of_all in (work.clients, work.batches))
        state = run_client(scene.setup, broadcast, client, work.places[i], batches, scene.moment)
        new.append(_like(state, client))
        sent.append(state.contribution)
        before.append(last_sent(algorithm, client))
    known = changes and before[0] is not None
    return new, _added(scene, work.places[real], tuple(sent), tuple(before) if known else None)


def some_clients(changes: bool, together: bool, scene: Scene, work: Work) -> tuple[ClientState, list[Tree]]:
    """The new states of some clients, and what they add to the server's sums, or change in them."""
    setup, algorithm, places = scene.setup, scene.setup.method.algorithm, work.places
    shards, broadcast = jax.tree.map(lambda leaf: leaf[places], setup.shards), algorithm.broadcast(scene.server)
    on_client = lambda these: client_round(setup, broadcast, these[0], these[1], these[2], scene.moment)
    each = (work.clients, shards, work.batches)
    new = jax.vmap(on_client)(each) if together else jax.lax.map(on_client, each)
    before = last_sent(algorithm, work.clients) if changes else None
    return _like(new, work.clients), _parts(scene, places, new.contribution, before, work.real)


_compiled = jax.jit(some_clients, static_argnums=(0, 1))


@jax.jit
def _added(scene: Scene, places: Array, sent: tuple, before: tuple | None) -> list[Tree]:
    stacked = lambda trees: None if trees is None else jax.tree.map(lambda *leaves: jnp.stack(leaves), *trees)
    return _parts(scene, places, stacked(sent), stacked(before))


def _parts(scene: Scene, places: Array, sent: Tree, before: Tree | None, real: Array | None = None) -> list[Tree]:
    """What some clients add to the server's sums; with what they had sent before, what they change in them."""
    part = lambda sent: sums.Several(sent, scene.setup.shards.places[places], scene.setup.pool.memory, real=real)
    line = server_line(scene.setup, scene.server, scene.participation)
    return sums.parts(line, part(sent), None if before is None else part(before))


_together = jax.jit(_parts)


def last_sent(algorithm: AnyAlgorithm, client: ClientState) -> Tree | None:
    """The last contribution of a client, by what is remembered of it."""
    return client.factor if algorithm.sends_factor else client.contribution


def _like(new: ClientState, old: ClientState) -> ClientState:
    """A new state without a contribution if the old one has none."""
    return new._replace(contribution=None) if old.contribution is None else new


@jax.jit
def _first(setup: Setup, server: Any, sent: Tree) -> list[Any]:
    """The sums that last, of clients who have all sent the same; None for the others."""
    places, memory, one = setup.shards.places, setup.pool.memory, _one(setup, sent)
    found: list[Any] = []

    def answer(wish: sums.Wish) -> Any:
        first = wish.first(sent, places, memory) if wish.lasting else None
        found.append(None if first is None else Running.of(first))
        return wish.of(one) if first is None else first

    sums.heard(server_line(setup, server, 1.0), answer)
    return found


def _one(setup: Setup, sent: Tree) -> sums.Several:
    """A client by itself, who has sent this."""
    return sums.Several(jax.tree.map(lambda leaf: leaf[None], sent), setup.shards.places[:1], setup.pool.memory)


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
