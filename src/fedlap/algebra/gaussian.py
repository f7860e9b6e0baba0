"""What variational inference asks of Gaussians: KL divergence and the expected log of a factor."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from fedlap.algebra.precision import Diagonal
from fedlap.algebra.vector import Vector
from fedlap.arrays import Array, Number
from fedlap.errors import ConfigError


class LogGaussian(NamedTuple):
    """N(m, diag(eᵘ)⁻¹) in coordinates without constraints, for gradient descent over Gaussians."""

    m: Vector
    u: Vector

    @property
    def S(self) -> Diagonal:
        return Diagonal(self.u.map(jnp.exp))

    @classmethod
    def of(cls, w: Vector, S: Diagonal) -> "LogGaussian":
        if not isinstance(S, Diagonal):
            raise ConfigError('a Gaussian that is fitted by draws has a diagonal covariance; expected "diagonal"')
        return cls(w, S.d.map(jnp.log))

    def expect(self, function: Callable[[Vector], Array], noise: Vector) -> Array:
        """E_q[function(w)] over reparameterised samples w = m + S^{−1/2} ε, one for each row of noise."""
        deviation = self.u.map(lambda u: jnp.exp(-u / 2))
        return jax.vmap(lambda epsilon: function(self.m + deviation.times(epsilon)))(noise).mean()


def kl(q: LogGaussian, w: Vector, S: Diagonal) -> Array:
    """KL(q ‖ N(w, S⁻¹)), up to terms that do not depend on q."""
    spread = q.S.solve(S.d)
    return (q.m - w) @ (S @ (q.m - w)) / 2 + _total(spread) / 2 + q.S.logdet() / 2


def expected_log_site(q: LogGaussian, v: Vector, V: Diagonal) -> Array:
    """E_q[vᵀw − ½wᵀVw]."""
    return v @ q.m - q.m @ (V @ q.m) / 2 - _total(q.S.solve(V.d)) / 2


def _total(v: Vector) -> Number:
    return sum(leaf.sum() for leaf in jax.tree.leaves(v))
