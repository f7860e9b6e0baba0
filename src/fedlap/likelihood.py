"""Likelihoods: what a model's outputs f say about a label, and the curvature of that."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp


@dataclass(frozen=True)
class Categorical:
    """Softmax classification: p = softmax(f)."""

    def loss(self, outputs, labels):
        """−log p_y = log Σ_c exp f_c − f_y, per example."""
        # A one-hot product, because the gradient of indexing is a scatter, which XLA:CPU runs as a loop.
        return self.soft_loss(outputs, 1, jax.nn.one_hot(labels, outputs.shape[-1], dtype=outputs.dtype))

    def soft_loss(self, outputs, mass, targets):
        """m log Σ_c exp f_c − tᵀf, per example.

        For targets t ≥ 0 that sum to m this is m cross-entropies; it is linear in (m, t) whatever their sign
        and sum, so the difference of two soft labels is a soft label.
        """
        return mass * jax.nn.logsumexp(outputs, axis=-1) - (targets * outputs).sum(-1)

    def probabilities(self, outputs):
        return jax.nn.softmax(outputs, axis=-1)

    def factor(self, outputs):
        """F = diag(√p) − p√pᵀ, so that FFᵀ = Λ = diag(p) − ppᵀ, the Hessian of the loss: [n, C, C]."""
        p = self.probabilities(outputs)
        root = jnp.sqrt(p)
        return root[:, None, :] * (jnp.eye(p.shape[-1], dtype=p.dtype) - p[:, :, None])

    def sampled_factor(self, outputs, key, samples):
        """Columns (p − e_y)/√M for M draws y ~ p, so that E[FFᵀ] = Λ: [n, C, M]."""
        draws = jax.random.categorical(key, outputs[:, None, :], shape=(len(outputs), samples))
        hot = jax.nn.one_hot(draws, outputs.shape[-1], axis=1, dtype=outputs.dtype)
        return (self.probabilities(outputs)[:, :, None] - hot) / jnp.sqrt(jnp.asarray(samples, outputs.dtype))


categorical = Categorical()
