"""The states of all clients where they are kept one by one, read as if they were stacked."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedlap.arrays import Tree
from fedlap.engines.scratch import Scratch


class Clients(tuple):
    """A ClientState for each client, and `factor`, `solver` and `contribution` of all of them, [K, …].

    What is stacked is stacked when somebody asks: in a round a client's state is replaced and never copied. Where there
    are many, a contribution that is the factor, or that no sum of the server's needs, is None.
    """

    __slots__ = ()

    @property
    def factor(self) -> Tree:
        return stack(client.factor for client in self)

    @property
    def solver(self) -> Tree:
        return stack(client.solver for client in self)

    @property
    def contribution(self) -> Tree:
        return stack(client.contribution for client in self)

    def of(self, clients: Iterable[Tree]) -> "Clients":
        """Other clients, kept where these are."""
        return Clients(clients)

    def keep(self, client: Tree) -> Tree:
        """A client's state as it is kept here."""
        return client

    def at(self, places: np.ndarray) -> Tree:
        """The states of some clients, stacked on the host."""
        return on_host([self[place] for place in places.tolist()])

    def replaced(self, places: np.ndarray, new: Sequence[Tree]) -> "Clients":
        """All clients, with new states for some."""
        clients = list(self)
        for place, client in zip(places.tolist(), new, strict=True):
            clients[place] = client
        return self.of(clients)


class Spilled(Clients):
    """Clients whose states are on disk, but for those that they all begin with."""

    scratch: Scratch

    def __new__(cls, clients: Iterable[Tree], scratch: Scratch) -> "Spilled":
        made = super().__new__(cls, clients)
        made.scratch = scratch
        return made

    def of(self, clients: Iterable[Tree]) -> "Spilled":
        return Spilled(clients, self.scratch)

    def keep(self, client: Tree) -> Tree:
        return self.scratch.keep(client)

    def __reduce__(self) -> tuple:
        """Pickled, they are clients in memory: the file stays with its process."""
        return Clients, (tuple(self),)


def stack(trees: Iterable[Tree]) -> Tree:
    """Trees of arrays as one, [K, …], copied and not compiled: a program of K arguments takes K² to compile."""
    return jax.tree.map(jnp.asarray, on_host(trees))


def on_host(trees: Iterable[Tree]) -> Tree:
    """Trees of arrays as one, [K, …], in NumPy."""
    return jax.tree.map(lambda *leaves: np.stack(leaves), *trees)


def unstack(stacked: Tree, count: int) -> list[Tree]:
    """The first so many rows of a stack, one by one, on the host."""
    leaves, structure = jax.tree.flatten(jax.tree.map(np.asarray, stacked))
    return [jax.tree.unflatten(structure, [leaf[k] for leaf in leaves]) for k in range(count)]


def one_by_one(clients: Any, count: int) -> list[Any]:
    """The ClientState of each of so many clients, on the host, however an engine keeps them."""
    if isinstance(clients, Clients):
        return [jax.tree.map(np.asarray, client) for client in clients]
    return unstack(getattr(clients, "stacked", clients), count)


def _register(kind: type, make: Callable[[Any, Iterable[Tree]], Clients], place: Callable[[Any], Any]) -> None:
    keyed = lambda clients: [(jax.tree_util.SequenceKey(k), client) for k, client in enumerate(clients)]
    jax.tree_util.register_pytree_with_keys(
        kind,
        lambda clients: (keyed(clients), place(clients)),
        make,
        lambda clients: (tuple(clients), place(clients)),
    )


_register(Clients, lambda _, clients: Clients(clients), lambda _: None)
_register(Spilled, lambda scratch, clients: Spilled(clients, scratch), lambda clients: clients.scratch)
