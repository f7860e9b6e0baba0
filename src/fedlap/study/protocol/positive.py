"""Whether a matrix can be a curvature, or a sum of squares: nothing in it is below zero."""

import numpy as np

from fedlap.errors import DataError


def check_positive(name: str, matrix: np.ndarray, what: str, known: float = 0.0) -> None:
    """DataError unless a matrix is symmetric and nowhere below zero, to rounding of its own diagonal.

    `known` is the part of it to which a matrix that was made by subtraction is known.
    """
    diagonal = np.diagonal(matrix).astype(np.float64)
    if (diagonal < 0).any():
        raise DataError(f"{name}: {what} has a diagonal below zero; no curvature is negative")
    scale = 1 / np.sqrt(np.where(diagonal > 0, diagonal, 1.0))  # columns may differ by ten powers of ten
    with np.errstate(over="ignore", invalid="ignore"):
        unit = scale[:, None] * matrix.astype(np.float64) * scale
    rounding = max(known, 100 * len(matrix) * float(np.finfo(matrix.dtype).eps))
    if not np.abs(unit).max(initial=0) <= 1 + rounding or np.abs(unit - unit.T).max(initial=0) > rounding:
        raise DataError(f"{name}: {what} is no matrix of a curvature, which is symmetric and largest on its diagonal")
    if len(matrix) and np.linalg.eigvalsh(unit)[0] < -rounding:
        raise DataError(f"{name}: {what} curves downwards in some direction; no curvature is negative")
