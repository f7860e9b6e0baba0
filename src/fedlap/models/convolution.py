"""A 2-D convolution that stays fast inside a loop on a CPU, and a max-pool whose gradient does."""

import math
from collections.abc import Callable, Sequence
from functools import partial, reduce
from typing import cast

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from fedlap.arrays import Array

# Numbers in what is multiplied at a time: a megabyte, so that it is still in a core's cache then.
CACHED = 500_000

# From so many channels on, both of images and of filters, the products of Winograd's form are worth making.
MANY = 16


def convolve(inputs: Array, weight: Array, padding: int = 0) -> Array:
    """y[n,i,j,o] = Σ_abc x[n,i+a,j+b,c] w[a,b,c,o], stride 1, after `padding` zeros on every side."""
    return _correlate(inputs, weight, padding)


def pad(images: Array, width: int) -> Array:
    """The images with `width` zeros on every side; a negative width takes as much away."""
    sides = ((0, 0, 0), (width, width, 0), (width, width, 0), (0, 0, 0))
    return lax.pad(images, jnp.zeros((), images.dtype), sides) if width else images


def patches(images: Array, size: int) -> Array:
    """P[n,i,j] = x[n, i:i+k, j:j+k] as one row, so that a convolution is P @ W."""
    height, width = images.shape[1] - size + 1, images.shape[2] - size + 1
    shifted = [images[:, i : i + height, j : j + width] for i in range(size) for j in range(size)]
    return jnp.concatenate(shifted, axis=-1)


def max_pool(images: Array, size: int) -> Array:
    """The largest of each size × size window; rows and columns that fill no window are dropped."""
    n, height, width, channels = images.shape
    height, width = height // size, width // size
    windows = images[:, : height * size, : width * size].reshape(n, height, size, width, size, channels)
    # Not a reduction, whose gradient XLA:CPU computes slowly: it looks for ties, and divides.
    rows = reduce(jnp.maximum, [windows[:, :, i] for i in range(size)])
    return reduce(jnp.maximum, [rows[:, :, :, j] for j in range(size)])


# Where it runs --------------------------------------------------------------------------------------------------------


def _product_or_library(inputs: Array, weight: Array, padding: int) -> Array:
    # XLA's convolution loses its fast path inside a loop on CPUs and is 47 times slower there; on an
    # accelerator it is the right one. Where a program will run is known when it is lowered, not when traced.
    by_product, by_library = partial(_by_product, padding), partial(_by_library, padding)
    return lax.platform_dependent(inputs, weight, cpu=by_product, default=by_library)


def _forward(inputs, weight, padding):
    # Not what is multiplied: it is larger than the inputs, and to read it back costs as much as to make it again.
    return _product_or_library(inputs, weight, padding), (inputs, weight)


def _backward(padding, residuals, cotangent):
    by_product, by_library = partial(_by_product_backward, padding), partial(_by_library_backward, padding)
    return lax.platform_dependent(*residuals, cotangent, cpu=by_product, default=by_library)


_correlate = jax.custom_vjp(_product_or_library, nondiff_argnums=(2,))
_correlate.defvjp(_forward, _backward)


def _by_library(padding: int, inputs: Array, weight: Array) -> Array:
    sides, layout = [(padding, padding)] * 2, ("NHWC", "HWIO", "NHWC")
    return lax.conv_general_dilated(inputs, weight, (1, 1), sides, dimension_numbers=layout)


def _by_library_backward(padding: int, inputs: Array, weight: Array, cotangent: Array) -> tuple[Array, Array]:
    return jax.vjp(partial(_by_library, padding), inputs, weight)[1](cotangent)


# By products ----------------------------------------------------------------------------------------------------------


def _by_product(padding: int, inputs: Array, weight: Array) -> Array:
    images = pad(inputs, padding)
    if _suits_winograd(weight):
        return _winograd(images, weight)
    if weight.shape[2] < MANY:
        return _of_planes(images, weight)
    matrix = weight.reshape(-1, weight.shape[-1])
    numbers = math.prod(images.shape[1:]) * len(weight) ** 2
    return mapped(lambda images: patches(images, len(weight)) @ matrix, numbers, images)


def _by_product_backward(padding: int, inputs: Array, weight: Array, cotangent: Array) -> tuple[Array, Array]:
    images = pad(inputs, padding)
    size, _, channels, width = weight.shape
    numbers = math.prod(images.shape[1:]) * size**2
    if _suits_winograd(weight):
        to_inputs = _winograd_input_gradient(padding, weight, cotangent)
        return to_inputs, _winograd_weight_gradient(images, weight, cotangent)
    # Each in a loop of its own, so that the one whose result is not asked for is not run.
    input_gradient = mapped(partial(_input_gradient, weight), numbers, cotangent)
    if channels < MANY:
        weight_gradient = (planes(images, size) @ cotangent.reshape(-1, width)).reshape(weight.shape)
    else:
        weight_gradient = summed(partial(_weight_gradient, weight), numbers, images, cotangent)
    return pad(input_gradient, -padding), weight_gradient


def _weight_gradient(weight: Array, images: Array, cotangent: Array) -> Array:
    """dW = PᵀdY."""
    columns = patches(images, len(weight))
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


def planes(images: Array, size: int) -> Array:
    """Pᵀ, [k² channels, positions]: with few channels it is written in longer runs than P."""
    height, width = images.shape[1] - size + 1, images.shape[2] - size + 1
    planes = jnp.moveaxis(images, -1, 0)
    shifted = [planes[:, :, i : i + height, j : j + width] for i in range(size) for j in range(size)]
    return jnp.concatenate(shifted).reshape(size**2 * len(planes), math.prod(shifted[0].shape[1:]))


def _of_planes(images: Array, weight: Array) -> Array:
    size, _, _, width = weight.shape
    # Held back, so that the transposed patches are written once before they are multiplied.
    columns = lax.optimization_barrier(planes(images, size).T)
    shape = (len(images), images.shape[1] - size + 1, images.shape[2] - size + 1, width)
    return (columns @ weight.reshape(-1, width)).reshape(shape)


# In groups that fit the cache -----------------------------------------------------------------------------------------


def mapped(function: Callable[..., Array], numbers: int, *arrays: Array) -> Array:
    """The function of all images, group by group; `numbers` is how many it writes of one image."""
    outputs = lax.map(partial(_apart, function), _groups(numbers, arrays))
    return outputs.reshape(len(arrays[0]), *outputs.shape[2:])


def summed(function: Callable[..., Array], numbers: int, *arrays: Array) -> Array:
    """The sum of the function over groups of images."""
    groups = _groups(numbers, arrays)
    one = jax.eval_shape(function, *(jax.ShapeDtypeStruct(array.shape[1:], array.dtype) for array in groups[1]))
    add = lambda total, group: (total + _apart(function, group), None)
    return lax.scan(add, jnp.zeros(one.shape, one.dtype), groups)[0]


def group_size(images: int, numbers: int) -> int:
    """How many images make a group: a divisor of all, at least one."""
    return max(m for m in range(1, max(images, 1) + 1) if images % m == 0 and (m == 1 or m * numbers <= CACHED))


def _groups(numbers: int, arrays: Sequence[Array]) -> tuple[Array, list[Array]]:
    """The groups' numbers and their images, [groups, images in a group, ...]."""
    n = len(arrays[0])
    group = group_size(n, numbers)
    return jnp.arange(n // group), [array.reshape(n // group, group, *array.shape[1:]) for array in arrays]


def _apart(function: Callable[..., Array], group: tuple[Array, list[Array]]) -> Array:
    """The function of one group, whose images are copied first.

    XLA:CPU would otherwise fuse the taking of the group with what is done to it, and read the loop's index anew for
    each number, which no compiler vectorises: twice the time. What goes into a conditional, it copies.
    """
    index, images = group
    none = jax.eval_shape(function, *images)
    always = index >= 0
    return lax.cond(always, function, lambda *_: jnp.zeros(none.shape, none.dtype), *images)


# Winograd's form ------------------------------------------------------------------------------------------------------
# Two by two outputs of a 3 × 3 filter from four by four inputs by 16 products in place of 36: Y = Aᵀ[GWGᵀ ⊙ BᵀXB]A.
# The matrices have small entries, and the outputs are as exact as those of the sum (Lavin and Gray, 2016).

SPREAD = np.array([[1, 0, -1, 0], [0, 1, 1, 0], [0, -1, 1, 0], [0, 1, 0, -1]])  # Bᵀ
FILTER = np.array([[1, 0, 0], [0.5, 0.5, 0.5], [0.5, -0.5, 0.5], [0, 0, 1]])  # G
GATHER = np.array([[1, 1, 1, 0], [0, 1, -1, -1]])  # Aᵀ


def _suits_winograd(weight: Array) -> bool:
    return len(weight) == 3 and min(weight.shape[2:]) >= MANY


def _winograd(images: Array, weight: Array) -> Array:
    height, width = images.shape[1] - 2, images.shape[2] - 2
    rows, columns = -(-height // 2), -(-width // 2)
    filters = stacked(both_ways(FILTER, weight))

    def convolved(images: Array) -> Array:
        tiles = spread(images)
        products = jnp.einsum("kpc,kco->kpo", tiles.reshape(16, -1, tiles.shape[-1]), filters)
        products = products.reshape(4, 4, *tiles.shape[1:-1], -1)
        corners = [jnp.stack(row, 3) for row in both_ways(GATHER, products)]
        outputs = jnp.stack(corners, 2).reshape(len(images), 2 * rows, 2 * columns, -1)
        return outputs[:, :height, :width]

    return mapped(convolved, 16 * rows * columns * sum(weight.shape[2:]), even(images))


def _winograd_input_gradient(padding: int, weight: Array, cotangent: Array) -> Array:
    """dX is a convolution too, of dY and with the filters turned round."""
    return _winograd(pad(cotangent, 2 - padding), weight[::-1, ::-1].swapaxes(2, 3))


def _winograd_weight_gradient(images: Array, weight: Array, cotangent: Array) -> Array:
    """dW = Gᵀ[Σ BᵀXB ⊙ AdYAᵀ]G, the sum over all tiles."""
    channels, width = weight.shape[2:]

    def products(images: Array, cotangent: Array) -> Array:
        corners = [[cotangent[:, r::2, s::2] for s in range(2)] for r in range(2)]
        tiles, factors = spread(images), stacked(both_ways(GATHER.T, corners))
        return jnp.einsum("kpc,kpo->kco", tiles.reshape(16, -1, channels), factors.reshape(16, -1, width))

    images, cotangent = even(images), even(cotangent)
    numbers = 4 * math.prod(cotangent.shape[1:3]) * (channels + width)
    total = summed(products, numbers, images, cotangent)
    return stacked(both_ways(FILTER.T, total.reshape(4, 4, channels, width))).reshape(weight.shape)


def even(images: Array) -> Array:
    """The images with a row and a column of zeros more where their number is odd."""
    more = [(0, length % 2) for length in images.shape[1:3]]
    return jnp.pad(images, [(0, 0), *more, (0, 0)])


def spread(images: Array) -> Array:
    """BᵀXB of all four by four inputs that begin at even places, [16, n, rows, columns, channels]."""
    rows, columns = images.shape[1] - 3, images.shape[2] - 3
    shifted = [[images[:, a : a + rows : 2, b : b + columns : 2] for b in range(4)] for a in range(4)]
    return stacked(both_ways(SPREAD, shifted))


Square = Sequence[Sequence[Array]] | Array


def both_ways(matrix: np.ndarray, square: Square) -> list[list[Array]]:
    """M X Mᵀ of a square of arrays."""
    rows = [[_combination(row, [line[b] for line in square]) for b in range(len(square))] for row in matrix]
    return [[_combination(column, row) for column in matrix] for row in rows]


def _combination(coefficients: np.ndarray, terms: Sequence[Array]) -> Array:
    used = [(float(c), term) for c, term in zip(coefficients, terms, strict=True) if c]
    return cast(Array, sum(term if c == 1 else -term if c == -1 else c * term for c, term in used))


def stacked(square: list[list[Array]]) -> Array:
    """A square of arrays as one, row after row."""
    return jnp.stack([each for row in square for each in row])
