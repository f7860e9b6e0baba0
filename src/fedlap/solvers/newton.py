"""Newton's method, which turns every algorithm into its theory on small models."""

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from ..errors import ConfigError
from ..hyperparameters import hyper, hyperparameters
from .problem import FullBatch

LARGEST = 2_000  # weights: an eigendecomposition of some seconds


@hyperparameters
class Newton(FullBatch):
    """Damped Newton on all the data, until the gradient is rounding."""

    steps: int = hyper("count", static=True, default=100)

    def solve(self, function, start):
        x, unflatten = ravel_pytree(start)
        if x.size > LARGEST:
            raise ConfigError(
                f"newton needs the Hessian of all {x.size:,} weights and takes at most {LARGEST:,}; "
                "use adam or lbfgs for this model"
            )
        value = lambda x: function(unflatten(x))
        gradient, hessian = jax.grad(value), jax.hessian(value)
        rounding = jnp.finfo(x.dtype).eps

        def direction(x, g):
            # Softmax outputs are determined up to a constant, so H may be singular. Along such directions g is a
            # rounding error, and dividing it by another would make the answer wander; negative curvature is turned.
            # What counts as rounding is measured with a unit diagonal: columns may differ by ten powers of ten.
            H = hessian(x)
            diagonal = jnp.abs(jnp.diagonal(H))
            scale = jax.lax.rsqrt(jnp.where(diagonal > 0, diagonal, 1))
            values, vectors = jnp.linalg.eigh(scale[:, None] * H * scale)
            sizes = jnp.abs(values)
            flat = sizes <= 10 * x.size * rounding * sizes.max()
            d = -scale * (vectors @ jnp.where(flat, 0, (vectors.T @ (scale * g)) / jnp.where(flat, 1, sizes)))
            # The scaling has tilted d against the directions without curvature; it shall not move along them at all.
            null = scale[:, None] * jnp.where(flat, vectors, 0)
            return d - null @ jnp.linalg.solve(null.T @ null + jnp.diag(jnp.where(flat, 0.0, 1.0)), null.T @ d)

        def backtrack(x, g, d):
            before, slope = value(x), g @ d

            def too_far(t):
                # Near the minimum a decrease is below what f can show, by more than f's own size tells when large
                # terms cancel in it; the slope still shows it.
                after, slope_after = jax.value_and_grad(lambda t: value(x + t * d))(t)
                falls = after <= before + 1e-4 * t * slope + 10 * rounding * jnp.abs(before)
                flattens = jnp.abs(slope_after) <= jnp.abs(slope) / 2
                level = after <= before + jnp.sqrt(rounding) * (1 + jnp.abs(before))
                return ~(falls | (flattens & level)) & (t > 1e-10)

            return jax.lax.while_loop(too_far, lambda t: t / 2, jnp.ones((), x.dtype))

        def unfinished(carry):
            i, x, g, moved = carry
            return (i < self.steps) & (jnp.abs(g).max() > rounding) & (moved > rounding * (1 + jnp.abs(x).max()))

        def step(carry):
            i, x, g, _ = carry
            d = direction(x, g)
            move = backtrack(x, g, d) * d
            return i + 1, x + move, gradient(x + move), jnp.abs(move).max()

        start_at = (0, x, gradient(x), jnp.full((), jnp.inf, x.dtype))
        return unflatten(jax.lax.while_loop(unfinished, step, start_at)[1])


newton = Newton
