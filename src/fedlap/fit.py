"""A fitted model, apart from the data that it was fitted to."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .data import validation
from .errors import ConfigError
from .parties import Task
from .vector import Vector


@dataclass(frozen=True, eq=False)
class Fit:
    """What a model needs to predict: nothing of the data that it was fitted to."""

    method: str  # the algorithm, in words
    task: Task
    classes: int
    shape: tuple[int, ...]  # of one input
    dtype: np.dtype
    w: Vector
    S: Any  # the precision, or its numbers; None where the algorithm has none

    @classmethod
    def of(cls, simulation, state):
        inputs, algorithm, server = simulation.setup.pool.inputs, simulation.algorithm, state.server
        task, classes = simulation.setup.task, simulation.federation.classes
        precision = algorithm.precision(server)
        return cls(str(algorithm), task, classes, inputs.shape[1:], inputs.dtype, server.w, precision)

    def inputs(self, inputs):
        """Inputs to predict for, checked, on the device."""
        if jax.dtypes.canonicalize_dtype(self.dtype) != self.dtype:
            raise ConfigError(f"the model is in {self.dtype}, which JAX has with JAX_ENABLE_X64=1 only")
        inputs = validation.floating("inputs", inputs)
        if inputs.shape[1:] != self.shape:
            raise ConfigError(f"inputs have shape {inputs.shape[1:]} each; the model was trained on {self.shape}")
        with np.errstate(over="ignore"):  # what is too large for this precision is infinite, and refused
            inputs = inputs.astype(self.dtype, copy=False)
        validation.finite(inputs, "inputs, row {}".format)
        return jnp.asarray(inputs)
