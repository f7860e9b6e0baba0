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


def on_device(values: Any, dtype: Any = None) -> Array:
    """A copy of some numbers on the device. Nothing is compiled, where `jnp.asarray` compiles a program a shape."""
    return jax.device_put(np.array(values, dtype))
