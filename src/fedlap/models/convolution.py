"""A 2-D convolution that stays fast inside a loop on a CPU, and a max-pool whose gradient does."""

import math
from typing import cast

import jax
import jax.numpy as jnp
from jax import lax

from fedlap.arrays import Array

# Numbers in the patches of the images convolved at a time: a megabyte, so that they are still in a core's
# cache when they are multiplied. From main memory the products run at half the speed.
CACHED = 260_000


def convolve(inputs: Array, weight: Array, padding: int = 0) -> Array:
    """y[n,i,j,o] = Σ_abc x[n,i+a,j+b,c] w[a,b,c,o], stride 1, after `padding` zeros on every side."""
    return _correlate(pad(inputs, padding), weight)


def pad(images: Array, width: int) -> Array:
    """The images with `width` zeros on every side."""
    return jnp.pad(images, ((0, 0), (width, width), (width, width), (0, 0))) if width else images


def patches(images: Array, size: int) -> Array:
    """P[n,i,j] = x[n, i:i+k, j:j+k] as one row, so that a convolution is P @ W."""
    height, width = images.shape[1] - size + 1, images.shape[2] - size + 1
    shifted = [images[:, i : i + height, j : j + width] for i in range(size) for j in range(size)]
    return jnp.concatenate(shifted, axis=-1)


def max_pool(images: Array, size: int) -> Array:
    """The largest of each size × size window; rows and columns that fill no window are dropped."""
    n, height, width, channels = images.shape
    height, width = height // size, width // size
    windows = images[:, : height * size, : width * size]
    # Not reduce_window, whose gradient XLA:CPU computes slowly.
    return windows.reshape(n, height, size, width, size, channels).max((2, 4))


def _product_or_library(inputs: Array, weight: Array) -> Array:
    # XLA's convolution loses its fast path inside a loop on CPUs and is 47 times slower there; on an
    # accelerator it is the right one. Where a program will run is known when it is lowered, not when traced.
    return lax.platform_dependent(inputs, weight, cpu=_by_product, default=_by_library)


def _forward(inputs, weight):
    # Not the patches: they are k² times the inputs, and to read them back costs as much as to cut them again.
    return _product_or_library(inputs, weight), (inputs, weight)


def _backward(residuals, cotangent):
    arguments = (*residuals, cotangent)
    return lax.platform_dependent(*arguments, cpu=_by_product_backward, default=_by_library_backward)


_correlate = jax.custom_vjp(_product_or_library)
_correlate.defvjp(_forward, _backward)


def _by_product(inputs: Array, weight: Array) -> Array:
    matrix = weight.reshape(-1, weight.shape[-1])
    outputs = lax.map(lambda images: patches(images, len(weight)) @ matrix, cache_groups(weight, inputs, inputs))
    return outputs.reshape(len(inputs), *outputs.shape[2:])


def _by_product_backward(inputs: Array, weight: Array, cotangent: Array) -> tuple[Array, Array]:
    # Two loops, so that the one whose result is not asked for is not run.
    grouped = cache_groups(weight, inputs, cotangent)
    input_gradient = lax.map(lambda cotangent: _input_gradient(weight, cotangent), grouped)

    def add(total, group):
        return total + _weight_gradient(weight, *group), None

    weight_gradient, _ = lax.scan(add, jnp.zeros_like(weight), (cache_groups(weight, inputs, inputs), grouped))
    return input_gradient.reshape(inputs.shape), weight_gradient


def _weight_gradient(weight: Array, inputs: Array, cotangent: Array) -> Array:
    """dW = PᵀdY."""
    columns = patches(inputs, len(weight))
    columns, cotangent = columns.reshape(-1, columns.shape[-1]), cotangent.reshape(-1, weight.shape[-1])
    # XLA:CPU is up to twice as fast at dYᵀP as at PᵀdY, and rewrites one as the other unless it is held back.
    return lax.optimization_barrier(cotangent.T @ columns).T.reshape(weight.shape)


def _input_gradient(weight: Array, cotangent: Array) -> Array:
    """dX is dP = dY Wᵀ, added up where the patches were cut."""
    size, _, channels, width = weight.shape
    columns = cotangent @ weight.reshape(-1, width).T
    columns = columns.reshape(*columns.shape[:-1], size, size, channels)
    last = size - 1
    added = sum(
        jnp.pad(columns[..., i, j, :], ((0, 0), (i, last - i), (j, last - j), (0, 0)))
        for i in range(size)
        for j in range(size)
    )
    return cast(Array, added)


def cache_groups(weight: Array, inputs: Array, images: Array) -> Array:
    """The images in groups whose patches fit the cache, [groups, images in a group, ...]."""
    n, numbers = len(inputs), math.prod(inputs.shape[1:]) * len(weight) ** 2
    group = max(m for m in range(1, max(n, 1) + 1) if n % m == 0 and (m == 1 or m * numbers <= CACHED))
    return images.reshape(n // group, group, *images.shape[1:])


def _by_library(inputs: Array, weight: Array) -> Array:
    layout = ("NHWC", "HWIO", "NHWC")
    return lax.conv_general_dilated(inputs, weight, (1, 1), "VALID", dimension_numbers=layout)


def _by_library_backward(inputs: Array, weight: Array, cotangent: Array) -> tuple[Array, Array]:
    return jax.vjp(_by_library, inputs, weight)[1](cotangent)
