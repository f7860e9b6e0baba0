"""How near two answers are, for the tests of the paper's claims."""

import numpy as np

from conftest import distance, flat

EXACT = 1e-8


def weights(states):
    """w_g of each state, one row each."""
    return np.stack([flat(state.server.w) for state in states])


def assert_same(found, wanted, tolerance=EXACT):
    error = distance(found, wanted)
    assert error < tolerance, f"off by {error:.1e}"
