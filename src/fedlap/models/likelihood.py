"""Likelihoods: what a model's outputs f say about a label, and the curvature of that."""

from dataclasses import dataclass
from typing import Protocol

import jax
import jax.numpy as jnp

from fedlap.arrays import Array, ArrayLike, Key


class Likelihood(Protocol):
    """What is asked of a likelihood; its methods as in `Categorical`."""

    def loss(self, outputs: Array, labels: Array) -> Array: ...
    def soft_loss(self, outputs: Array, mass: Array, targets: Array) -> Array: ...
    def probabilities(self, outputs: Array) -> Array: ...
    def factor(self, outputs: Array) -> Array: ...
    def sampled_factor(self, outputs: Array, key: Key, samples: int) -> Array: ...


@dataclass(frozen=True)
class Categorical:
    """Softmax classification: p = softmax(f)."""

    def loss(self, outputs: Array, labels: Array) -> Array:
        """−log p_y = log Σ_c exp f_c − f_y, per example."""
        # A one-hot product, because the gradient of indexing is a scatter, which XLA:CPU runs as a loop.
        return self.soft_loss(outputs, 1, jax.nn.one_hot(labels, outputs.shape[-1], dtype=outputs.dtype))

    def soft_loss(self, outputs: Array, mass: ArrayLike, targets: Array) -> Array:
        """m log Σ_c exp f_c − tᵀf, per example.

        For targets t ≥ 0 that sum to m this is m cross-entropies; it is linear in (m, t) whatever their sign
        and sum, so the difference of two soft labels is a soft label.
        """
        return mass * _log_partition(outputs) - (targets * outputs).sum(-1)

    def probabilities(self, outputs: Array) -> Array:
        return jax.nn.softmax(outputs, axis=-1)

    def factor(self, outputs: Array) -> Array:
        """F with FFᵀ = Λ = diag(p) − ppᵀ, the Hessian of the loss in f: [n, C, C − 1].

        diag(√p) − p√pᵀ is such a factor, but √p is in its null space. The reflection I − uuᵀ/(1 + √p_C) with
        u = √p + e_C takes √p to −e_C and so leaves the last column zero; the others are those of
        F = diag(√p) (I − uuᵀ/(1 + √p_C)).
        """
        root = jnp.sqrt(self.probabilities(outputs))
        identity = jnp.eye(root.shape[-1], dtype=root.dtype)
        u = root + identity[-1]
        reflection = identity - u[:, :, None] * u[:, None, :] / u[:, -1:, None]
        return root[:, :, None] * reflection[:, :, :-1]

    def sampled_factor(self, outputs: Array, key: Key, samples: int) -> Array:
        """Columns (p − e_y)/√M for M draws y ~ p, so that E[FFᵀ] = Λ: [n, C, M]."""
        draws = jax.random.categorical(key, outputs[:, None, :], shape=(len(outputs), samples))
        hot = jax.nn.one_hot(draws, outputs.shape[-1], axis=1, dtype=outputs.dtype)
        return (self.probabilities(outputs)[:, :, None] - hot) / jnp.sqrt(jnp.asarray(samples, outputs.dtype))


# Derivatives are stated for the sake of the second: p_i − p_i² loses all its digits where an example is nearly certain,
# and with them goes the constant that may be added to all outputs. p_i Σ_j p_j (t_i − t_j) loses none.
@jax.custom_vjp
def _log_partition(outputs: Array) -> Array:
    """log Σ_c exp f_c."""
    return jax.nn.logsumexp(outputs, axis=-1)


_log_partition.defvjp(
    lambda outputs: (jax.nn.logsumexp(outputs, axis=-1), outputs),
    lambda outputs, cotangents: (_share(outputs, cotangents),),
)


@jax.custom_jvp
def _share(outputs: Array, amounts: Array) -> Array:
    """amounts · softmax(outputs), per example."""
    powers = jnp.exp(outputs - outputs.max(-1, keepdims=True))
    return (amounts / powers.sum(-1))[..., None] * powers


@_share.defjvp
def _share_jvp(primals, tangents):
    (outputs, amounts), (t, amount_tangents) = primals, tangents
    p = _share(outputs, jnp.ones_like(amounts))
    differences = ((t[..., :, None] - t[..., None, :]) * p[..., None, :]).sum(-1)
    return _share(outputs, amounts), _share(outputs, amount_tangents) + amounts[..., None] * p * differences


categorical = Categorical()
