"""A 2-D convolution that stays fast inside a loop on a CPU, and a max-pool whose gradient does."""

import jax
import jax.numpy as jnp
from jax import lax


def convolve(inputs, weight, padding=0):
    """y[n,i,j,o] = Σ_abc x[n,i+a,j+b,c] w[a,b,c,o], stride 1, after `padding` zeros on every side."""
    return _correlate(pad(inputs, padding), weight)


def pad(images, width):
    """`width` zeros on every side."""
    return jnp.pad(images, ((0, 0), (width, width), (width, width), (0, 0))) if width else images


def patches(images, size):
    """P[n,i,j] = x[n, i:i+k, j:j+k], flattened: a convolution is P @ W."""
    height, width = images.shape[1] - size + 1, images.shape[2] - size + 1
    shifted = [images[:, i : i + height, j : j + width] for i in range(size) for j in range(size)]
    return jnp.concatenate(shifted, axis=-1)


def max_pool(images, size):
    """The largest of each size × size window; rows and columns that fill no window are dropped."""
    n, height, width, channels = images.shape
    height, width = height // size, width // size
    windows = images[:, : height * size, : width * size]
    # Not reduce_window, whose gradient is a select-and-scatter that XLA runs on one core.
    return windows.reshape(n, height, size, width, size, channels).max((2, 4))


def _product_or_library(inputs, weight):
    # XLA's convolution leaves its fast path inside a loop on CPUs and is 47 times slower there; on accelerators it
    # is the right one. Which one it is to be is known when the program is lowered, not when it is traced.
    return lax.platform_dependent(inputs, weight, cpu=_by_product, default=_by_library)


def _forward(inputs, weight):
    # Not the patches: they are nine times the inputs, and reading them back costs as much as cutting them again.
    return _product_or_library(inputs, weight), (inputs, weight)


def _backward(residuals, cotangent):
    return lax.platform_dependent(*residuals, cotangent, cpu=_by_product_backward, default=_by_library_backward)


_correlate = jax.custom_vjp(_product_or_library)
_correlate.defvjp(_forward, _backward)


def _by_product(inputs, weight):
    return patches(inputs, len(weight)) @ weight.reshape(-1, weight.shape[-1])


def _by_product_backward(inputs, weight, cotangent):
    """dW = PᵀdY, and dX = the columns of dY Wᵀ added back where the patches were cut."""
    size, _, channels, width = weight.shape
    columns = patches(inputs, size).reshape(-1, size * size * channels)
    flat = cotangent.reshape(-1, width)
    # XLA:CPU is up to twice as fast at dYᵀP as at PᵀdY, and rewrites one as the other unless it is held back.
    weight_gradient = lax.optimization_barrier(flat.T @ columns).T.reshape(weight.shape)

    n, height, breadth, _ = cotangent.shape
    spread = (flat @ weight.reshape(-1, width).T).reshape(n, height, breadth, size, size, channels)
    input_gradient = sum(
        jnp.pad(spread[:, :, :, i, j], ((0, 0), (i, size - 1 - i), (j, size - 1 - j), (0, 0)))
        for i in range(size)
        for j in range(size)
    )
    return input_gradient, weight_gradient


def _by_library(inputs, weight):
    return lax.conv_general_dilated(inputs, weight, (1, 1), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC"))


def _by_library_backward(inputs, weight, cotangent):
    return jax.vjp(_by_library, inputs, weight)[1](cotangent)
