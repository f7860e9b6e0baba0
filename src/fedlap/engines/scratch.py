"""Clients' states on disk, where together they outgrow memory."""

import math
import os
import tempfile
import threading
import weakref
from pathlib import Path
from typing import Any

import jax
import numpy as np

from fedlap.arrays import Tree
from fedlap.files import PathLike, writing


class Scratch:
    """A file without a name, of one slot a state: it is gone with the process, however that ends.

    A state that nobody refers to any more gives its slot back, so that rounds stay pure: what was read from a state
    once can be read from it again.
    """

    def __init__(self, folder: PathLike | None = None) -> None:
        self.folder = Path(folder or tempfile.gettempdir())
        with writing(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=self.folder) as file:
                self._descriptor = os.dup(file.fileno())
        weakref.finalize(self, os.close, self._descriptor)
        self._free: list[int] = []
        self._end, self._lock = 0, threading.Lock()

    def keep(self, state: Tree) -> Tree:
        """The same state with its arrays on disk; all states of a scratch file have the same shapes."""
        leaves, structure = jax.tree.flatten(state)
        arrays = [np.asarray(leaf, order="C") for leaf in leaves]
        slot = self._slot(sum(array.nbytes for array in arrays))
        kept, offset = [], slot.offset
        for array in arrays:
            with writing(self.folder, array.nbytes):
                _write(self._descriptor, array, offset)
            kept.append(OnDisk(self, slot, offset, array.shape, array.dtype))
            offset += array.nbytes
        return jax.tree.unflatten(structure, kept)

    def read(self, offset: int, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        """The array that begins at a place of the file."""
        array = np.empty(shape, dtype)
        view, done = _bytes(array), 0
        while done < array.nbytes:
            done += os.preadv(self._descriptor, [view[done:]], offset + done)
        return array

    def _slot(self, size: int) -> "Slot":
        with self._lock:
            offset = self._free.pop() if self._free else self._end
            self._end = max(self._end, offset + size)
        slot = Slot(offset)
        weakref.finalize(slot, self._free.append, offset)
        return slot


class Slot:
    """A place in the file that is taken for as long as this object lives."""

    __slots__ = ("__weakref__", "offset")

    def __init__(self, offset: int) -> None:
        self.offset = offset


class OnDisk:
    """An array on disk: `np.asarray` reads it."""

    __slots__ = ("_scratch", "_slot", "dtype", "offset", "shape")

    def __init__(self, scratch: Scratch, slot: Slot, offset: int, shape: tuple[int, ...], dtype: np.dtype) -> None:
        self._scratch, self._slot, self.offset = scratch, slot, offset
        self.shape, self.dtype = shape, dtype

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.asarray(self._scratch.read(self.offset, self.shape, self.dtype), dtype)

    def __reduce__(self) -> tuple:
        """Pickled, it is the array."""
        return np.array, (np.asarray(self),)

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


def _bytes(array: Any) -> memoryview:
    """An array as bytes; NumPy does not tell a type checker that its arrays are buffers."""
    return memoryview(array.reshape(-1).view(np.uint8))


def _write(descriptor: int, array: np.ndarray, offset: int) -> None:
    view, done = _bytes(array), 0
    while done < array.nbytes:
        done += os.pwrite(descriptor, view[done:], offset + done)
