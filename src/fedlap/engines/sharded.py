"""Clients spread over all devices, of this process or of several: each block is one program, a part of it on each.

Every process has the whole federation, draws the same plan and runs the same server's line. The state of a client is
with one process, by its place, and so is its work; between processes go the server's sums and nothing else.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from fedlap.arrays import Tree
from fedlap.engines.setup import Setup
from fedlap.engines.streamed import Block, Scene, Streamed, Work, some_clients
from fedlap.errors import ConfigError

CLIENTS = "clients"  # the one axis of the mesh


@dataclass(frozen=True)
class Sharded(Streamed):
    """The engine; `size` is how many clients are on each device at a time."""

    _setups: dict[str, Setup] = field(default_factory=dict, repr=False)

    @property
    def threads(self) -> int:
        """One: the devices are busy with one block."""
        return 1

    def blocks(self, places: np.ndarray, order: np.ndarray) -> Iterator[Block]:
        """Blocks in which each process has clients of its own, and each of its devices as much to do as the others."""
        processes, devices = jax.process_count(), jax.local_device_count()
        longest = max(np.bincount(places % processes, minlength=processes))
        count = -(-longest // (self.size * devices))
        each = min(self.size, _coarse(-(-longest // (count * devices)))) * devices
        own = order[self.mine(places)[order]]
        dealt = np.arange(each).reshape(-1, devices).T.ravel()  # in turn, as cards are: sizes are in order
        for begin in range(0, longest, each):
            part = own[begin : begin + each]
            # A client of this process for padding, or one that it knows nothing of: in its first state.
            filled = np.concatenate([part, np.full(each - len(part), own[0] if len(own) else order[0])])
            yield Block(filled[dealt], (np.arange(each) < len(part))[dealt])

    def mine(self, places: np.ndarray) -> np.ndarray:
        return places % jax.process_count() == jax.process_index()

    def run(self, scene: Scene, work: Work, changes: bool) -> tuple[Tree, list[Tree]]:
        """A block on all devices of all processes: the new states of this process's clients, and the sums of all."""
        new, parts = _compiled(self.mesh, changes, self.together, *self.placed(scene, work))
        return jax.tree.map(lambda leaf: _local(leaf)[work.real], new), jax.tree.map(_first, parts)

    def placed(self, scene: Scene, work: Work) -> tuple[Scene, Work]:
        """What is the same for all on every device, and of the clients to each device its own."""
        shared = self._put(scene._replace(setup=None), PartitionSpec())._replace(setup=self._everywhere(scene.setup))
        return shared, self._put(work, PartitionSpec(CLIENTS))

    def _everywhere(self, setup: Setup) -> Setup:
        """The setup on every device, put there once: it has all the data."""
        if self._setups.get("given") is not setup:
            self._setups.update(given=setup, placed=self._put(setup, PartitionSpec()))
        return self._setups["placed"]

    def _put(self, tree: Tree, spec: PartitionSpec) -> Any:
        """Arrays of this process as its part of arrays of all devices."""
        sharding = NamedSharding(self.mesh, spec)

        def put(leaf: Any) -> jax.Array:
            if isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
                return jax.random.wrap_key_data(put(jax.random.key_data(leaf)))
            return jax.make_array_from_process_local_data(sharding, np.asarray(leaf))

        return jax.tree.map(put, tree)

    @cached_property
    def mesh(self) -> Mesh:
        if jax.device_count() != jax.process_count() * jax.local_device_count():
            several = f"{jax.local_device_count()} of all {jax.device_count()} devices, {jax.process_count()} processes"
            raise ConfigError(f"this process has {several}; expected as many devices of each process")
        return jax.make_mesh((jax.device_count(),), (CLIENTS,))


def of_block(mesh: Mesh, changes: bool, together: bool, scene: Scene, work: Work) -> tuple[Tree, Tree]:
    """The new states of a block's clients, spread over the mesh, and what they add to the server's sums, or change."""
    alone, spread = PartitionSpec(), PartitionSpec(CLIENTS)

    def on_device(scene: Scene, work: Work) -> tuple[Tree, Tree]:
        new, parts = some_clients(changes, together, scene, work)
        return new, jax.lax.psum(parts, CLIENTS)

    mapped = jax.shard_map(
        on_device,
        mesh=mesh,
        in_specs=(alone, spread),
        out_specs=(spread, alone),
        check_vma=False,  # a client's loop begins with what is the same everywhere and ends with what is not
    )
    return mapped(scene, work)


_compiled = jax.jit(of_block, static_argnums=(0, 1, 2))


def _coarse(number: int) -> int:
    """At least so many, of few numbers: each is a program, and how many clients a process has is left to chance."""
    step = max(1, 2 ** (int(number).bit_length() - 3))
    return -(-number // step) * step


def _local(leaf: jax.Array) -> np.ndarray:
    """The rows of an array that this process has."""
    shards = sorted(leaf.addressable_shards, key=lambda shard: shard.index[0].start or 0)
    return np.concatenate([np.asarray(shard.data) for shard in shards])


def _first(leaf: jax.Array) -> jax.Array:
    """What every device has, as an array of this process."""
    return leaf.addressable_data(0)
