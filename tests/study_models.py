"""A study's model with random weights, as it lies on disk."""

import jax
import jax.numpy as jnp
import numpy as np

from fedlap.algebra.vector import Vector
from fedlap.study import model as fitted
from fedlap.study.table import encoding
from studies import study

SETTINGS = study(model={"bias": True})
POOLED = encoding.Pooled(np.float64(8), np.array([8.0, 7.0]), np.array([50.0, 2.0]), np.array([10.0, 1.0]))


def weights(seed=0):
    """Random numbers in the tree of the study's model."""
    inputs = jnp.zeros((1, len(encoding.features(SETTINGS))))
    tree = SETTINGS.method.make_model().init(jax.random.key(0), inputs, 2)
    rng = np.random.default_rng(seed)
    return jax.tree.map(lambda leaf: rng.normal(size=leaf.shape).astype(np.float32), tree)


def save_model(folder):
    return fitted.save(folder / "model", SETTINGS, POOLED, Vector(weights()), card={"rounds": 20})
