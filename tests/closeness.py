"""How near two answers are, and what of a state is compared."""

import jax
import numpy as np

from fedlap.algebra.kronecker import Rotated
from fedlap.algebra.precision import Diagonal

EXACT = 1e-8


def weights(states):
    """w_g of each state, one row each."""
    return np.stack([flat(state.server.w) for state in states])


def assert_same(found, wanted, tolerance=EXACT):
    error = distance(found, wanted)
    assert error < tolerance, f"off by {error:.1e}"


def flat(vector):
    """[P], or [K, P] of stacked vectors: in the order of the oracle."""
    (leaf,) = jax.tree.leaves(vector)
    return np.asarray(leaf).reshape(*leaf.shape[:-2], -1)


def dense(precision):
    """[P, P], or [K, P, P], of a precision of either structure."""
    if isinstance(precision, Rotated):
        return np.asarray(precision.full)
    if not isinstance(precision, Diagonal):
        return np.asarray(precision.flat)
    diagonal = flat(precision)
    return diagonal[..., None] * np.eye(diagonal.shape[-1])


def distance(found, wanted):
    """‖found − wanted‖ / ‖wanted‖, and infinite where something is not a number; what is below 1e-3 counts as 1e-3."""
    found, wanted = np.asarray(found), np.asarray(wanted)
    assert found.shape == wanted.shape, f"{found.shape} is not {wanted.shape}"
    error = np.linalg.norm(found - wanted) / max(np.linalg.norm(wanted), 1e-3)
    return error if np.isfinite(error) else np.inf


def same_bits(a, b):
    """Whether two trees have the same structure and the same arrays, bit for bit."""
    if jax.tree.structure(a) != jax.tree.structure(b):
        return False
    pairs = zip(map(np.asarray, jax.tree.leaves(a)), map(np.asarray, jax.tree.leaves(b)), strict=True)
    return all(x.dtype == y.dtype and x.shape == y.shape and x.tobytes() == y.tobytes() for x, y in pairs)
