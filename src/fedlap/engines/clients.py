"""The states of all clients where they are kept one by one, read as if they were stacked."""

from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedlap.arrays import Tree


class Clients(tuple):
    """A ClientState for each client, and `factor`, `solver` and `contribution` of all of them, [K, …].

    What is stacked is stacked when somebody asks: in a round a client's state is replaced and never copied.
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


def stack(trees: Iterable[Tree]) -> Tree:
    """Trees of arrays as one, [K, …], copied and not compiled: a program of K arguments takes K² to compile."""
    return jax.tree.map(lambda *leaves: jnp.asarray(np.stack(leaves)), *trees)


def _flatten_with_keys(clients: Clients) -> tuple[list[tuple[Any, Any]], None]:
    return [(jax.tree_util.SequenceKey(k), client) for k, client in enumerate(clients)], None


jax.tree_util.register_pytree_with_keys(
    Clients, _flatten_with_keys, lambda _, children: Clients(children), lambda clients: (tuple(clients), None)
)
