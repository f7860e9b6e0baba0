"""Newton's method, which turns every algorithm into its theory on small models."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from fedlap.algebra.hyperparameters import hyper, hyperparameters
from fedlap.algebra.pytrees import as_call
from fedlap.algebra.symmetric import rounding, solve, unit, unless
from fedlap.arrays import Array, Tree
from fedlap.errors import ConfigError
from fedlap.solvers.problem import FullBatch

LARGEST = 2_000  # weights: an eigendecomposition of some seconds


@hyperparameters
class Newton(FullBatch):
    """Damped Newton on all the data, until the gradient is rounding."""

    steps: int = hyper("count", static=True, default=100)

    __repr__ = as_call("newton")

    def solve(self, function: Callable[[Tree], Array], start: Tree) -> Tree:
        x, unflatten = ravel_pytree(start)
        if x.size > LARGEST:
            raise ConfigError(
                f"newton needs the Hessian of all {x.size:,} weights and takes at most {LARGEST:,}; "
                "use adam or lbfgs for this model"
            )
        value = lambda x: function(unflatten(x))
        gradient, hessian = jax.grad(value), jax.hessian(value)
        precision = jnp.finfo(x.dtype).eps

        def direction(x, g):
            """−H⁻¹g, not at all along directions without curvature; and what gives H a unit diagonal."""
            H = hessian(x)
            d = -solve(H, 0.0, g, jnp.zeros_like(g))
            d = unless(jnp.isfinite(d).all(), d, lambda: -_turned(H, g))
            return d, unit(jnp.abs(jnp.diagonal(H)))

        def backtrack(x, g, d):
            before, slope = value(x), g @ d

            def too_far(t):
                # Near the minimum a decrease is below what f can show, by more than f's own size tells when large
                # terms cancel in it; the slope still shows it.
                after, slope_after = jax.value_and_grad(lambda t: value(x + t * d))(t)
                falls = after <= before + 1e-4 * t * slope + 10 * precision * jnp.abs(before)
                flattens = jnp.abs(slope_after) <= jnp.abs(slope) / 2
                level = after <= before + jnp.sqrt(precision) * (1 + jnp.abs(before))
                return ~(falls | (flattens & level)) & (t > 1e-10)

            # The answer is kept and not asked for again: `vmap` has a loop's condition twice in its program, in which
            # two roundings of one value may differ, and such a loop would never end.
            halve = lambda carry: (carry[0] / 2, too_far(carry[0] / 2))
            one = jnp.ones((), x.dtype)
            return jax.lax.while_loop(lambda carry: carry[1], halve, (one, too_far(one)))[0]

        # How steep it is, and how far from zero, is measured with a unit diagonal too: weights are large where units
        # are small. Near the minimum a step squares the error; if it does not even halve the slope, that is rounding.
        def unfinished(carry):
            i, _, _, before, steep, size = carry
            stuck = (steep < jnp.sqrt(precision) * (1 + size)) & (steep > before / 2)
            return (i < self.steps) & (steep > precision * (1 + size)) & ~stuck

        def step(carry):
            i, x, g, _, before, _ = carry
            d, scale = direction(x, g)
            x = x + backtrack(x, g, d) * d
            g = gradient(x)
            return i + 1, x, g, before, jnp.abs(scale * g).max(), jnp.abs(x / scale).max()

        infinity, zero = jnp.full((), jnp.inf, x.dtype), jnp.zeros((), x.dtype)
        return unflatten(jax.lax.while_loop(unfinished, step, (0, x, gradient(x), infinity, infinity, zero))[1])


def _turned(H: Array, g: Array) -> Array:
    """H⁻¹g with negative curvature turned, for objectives that are not convex."""
    scale = unit(jnp.abs(jnp.diagonal(H)))
    values, vectors = jnp.linalg.eigh(scale[:, None] * H * scale)
    sizes = jnp.abs(values)
    flat = sizes <= rounding(H) * sizes.max()
    return scale * (vectors @ jnp.where(flat, 0, (vectors.T @ (scale * g)) / jnp.where(flat, 1, sizes)))


newton = Newton
