"""What functions take and return, as types: the few names that all rooms share."""

from typing import Any

import jax
import numpy as np
from jax.typing import ArrayLike

Array = jax.Array
Key = jax.Array  # of jax.random
Number = float | jax.Array  # one number: Python's own, or an array without axes
Tree = Any  # of arrays: a model's weights, what a client remembers, what a solver keeps

__all__ = ["Array", "ArrayLike", "Key", "Number", "Tree", "on_device"]


ALIGNMENT = 64  # bytes; memory that begins at a multiple of them is used by XLA:CPU as it is


def on_device(values: Any, dtype: Any = None) -> Array:
    """A copy of some numbers on the device. Nothing is compiled, where `jnp.asarray` compiles a program a shape.

    And one copy: of memory at any other place XLA would make a second one.
    """
    given = np.asarray(values, dtype)
    memory = np.empty(given.nbytes + ALIGNMENT, np.uint8)
    begin = -memory.ctypes.data % ALIGNMENT
    copy = memory[begin : begin + given.nbytes].view(given.dtype).reshape(given.shape)
    np.copyto(copy, given)
    return jax.device_put(copy)
