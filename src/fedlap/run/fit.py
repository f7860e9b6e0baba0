"""A fitted model, apart from the data that it was fitted to."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from fedlap.algebra.vector import Vector
from fedlap.arrays import Array
from fedlap.data import frames, labels, validation
from fedlap.data.coding import Coding
from fedlap.engines.parties import Task
from fedlap.engines.round import State
from fedlap.errors import ConfigError, DataError

if TYPE_CHECKING:
    from fedlap.run.simulation import Simulation  # which makes fits


@dataclass(frozen=True, eq=False)
class Fit:
    """A fitted model, with what it needs to predict and nothing of the data that it was fitted to."""

    method: str  # the algorithm, as text
    task: Task
    classes: tuple  # the label of each output
    shape: tuple[int, ...]  # of one input
    features: tuple | None  # the names of its columns, where they have some
    dtype: np.dtype
    w: Vector
    S: Any  # the algorithm's precision, or its numbers; None where it has none
    precision: Any  # the same without the lag of damping
    coding: Coding | None = None  # how a table's columns become those, where it was one
    delta: Any = None  # the prior's precision by the evidence; None where nobody asked for it
    narrowing: float = 0.0  # what predictions have added to the algorithm's precision

    @classmethod
    def of(cls, simulation: "Simulation", state: State) -> "Fit":
        """The fit of a simulation in a state."""
        pool, federation = simulation.setup.pool.inputs, simulation.federation
        return cls(
            method=str(simulation.algorithm),
            task=simulation.setup.task,
            classes=federation.class_names or tuple(range(federation.classes)),
            shape=pool.shape[1:],
            features=federation.features,
            dtype=pool.dtype,
            w=state.server.w,
            S=simulation.algorithm.precision(state.server),
            precision=simulation.algorithm.precision_ahead(state.server),
            coding=federation.coding,
            delta=getattr(state.server, "delta", None),
        )

    def inputs(self, inputs: Any) -> Array:
        """Inputs to predict for, checked, on the device."""
        if jax.dtypes.canonicalize_dtype(self.dtype) != self.dtype:
            raise ConfigError(f"the model is in {self.dtype}, which JAX has with JAX_ENABLE_X64=1 only")
        inputs = frames.read("inputs", inputs, self.shape, self.features, "the clients' pool", self.coding)
        with np.errstate(over="ignore"):  # what is too large for this precision is infinite, and refused
            inputs = inputs.astype(self.dtype, copy=False)
        validation.finite(inputs, "inputs, row {}".format, self.features)
        return jnp.asarray(inputs)

    def labels(self, given: Any, rows: int) -> Array:
        """The class numbers of labels, one for each of so many rows."""
        read = labels.read("labels", given)
        if len(read) != rows or not rows:
            raise DataError(f"{len(read)} labels for {rows} rows; expected one a row, and a row at least")
        numbered = all(type(name) is int and name == place for place, name in enumerate(self.classes))
        return jnp.asarray(labels.encode("labels", read, len(self.classes), None if numbered else self.classes))
