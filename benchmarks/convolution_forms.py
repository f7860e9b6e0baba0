"""The forms of a 3 × 3 convolution that were tried, beside the ones that fedlap has: forward and both gradients.

    python benchmarks/convolution_forms.py [--threads 1] [--repeats 5]

The three wide layers of the network of Zenke et al., 64 images, each a step of a compiled loop as in training.
`library` is XLA's own convolution, which a CPU's may hand to YNNPACK; `by 4` takes four images at a time.
`four by four` is Winograd's form with 36 products for 16 outputs. How far results are from fedlap's is in parts of the
largest number.
"""

import argparse
import os
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from timing import interleave, load, show

from fedlap.models import convolution
from fedlap.models.convolution import both_ways, mapped, pad, stacked

IMAGES, STEPS, GROUP = 64, 10, 4
LAYERS = ((32, 32, 32, 0), (15, 32, 64, 1), (15, 64, 64, 0))  # length, channels, filters, padding

# Winograd's matrices for four outputs of a filter of three (Lavin and Gray, 2016).
SPREAD = np.array(
    [
        [4, 0, -5, 0, 1, 0],
        [0, -4, -4, 1, 1, 0],
        [0, 4, -4, -1, 1, 0],
        [0, -2, -1, 2, 1, 0],
        [0, 2, -1, -2, 1, 0],
        [0, 4, 0, -5, 0, 1],
    ]
)
FILTER = np.array([[6, 0, 0], [-4, -4, -4], [-4, 4, -4], [1, 2, 4], [1, -2, 4], [0, 0, 24]]) / 24
GATHER = np.array([[1, 1, 1, 1, 1, 0], [0, 1, -1, 2, -2, 0], [0, 1, 1, 4, 4, 0], [0, 1, -1, 8, -8, 1]])


def library(images, weight):
    return convolution._by_library(0, images, weight)


def in_groups(function, images, *more):
    """The function of four images at a time, as the library's scratch memory then stays in the cache."""
    groups = [each.reshape(-1, GROUP, *each.shape[1:]) for each in (images, *more)]
    return lax.map(lambda group: function(*lax.optimization_barrier(group)), groups)


def library_by_4(images, weight):
    outputs = in_groups(lambda images: library(images, weight), images)
    return outputs.reshape(-1, *outputs.shape[2:])


def four_by_four(images, weight):
    height, width = images.shape[1] - 2, images.shape[2] - 2
    rows, columns = -(-height // 4), -(-width // 4)
    images = jnp.pad(images, ((0, 0), (0, 4 * rows - height), (0, 4 * columns - width), (0, 0)))
    filters = stacked(both_ways(FILTER, weight))

    def convolved(images):
        begins = [
            [images[:, a : a + 4 * rows - 3 : 4, b : b + 4 * columns - 3 : 4] for b in range(6)] for a in range(6)
        ]
        tiles = stacked(both_ways(SPREAD, begins))
        products = jnp.einsum("kpc,kco->kpo", tiles.reshape(36, -1, tiles.shape[-1]), filters)
        products = products.reshape(6, 6, *tiles.shape[1:-1], -1)
        corners = [jnp.stack(row, 3) for row in both_ways(GATHER, products)]
        outputs = jnp.stack(corners, 2).reshape(len(images), 4 * rows, 4 * columns, -1)
        return outputs[:, :height, :width]

    return mapped(convolved, 36 * rows * columns * sum(weight.shape[2:]), images)


def three_products(images, cotangent):
    """dW from images shifted along a row: a product for each of the filter's rows."""
    height, width, filters = cotangent.shape[1:]

    def of_group(images, cotangent):
        columns = jnp.concatenate([images[:, :, b : b + width] for b in range(3)], -1)
        shifted = [columns[:, a : a + height].reshape(-1, columns.shape[-1]) for a in range(3)]
        return jnp.stack([each.T @ cotangent.reshape(-1, filters) for each in shifted])

    return in_groups(of_group, images, cotangent).sum(0).reshape(3, 3, images.shape[-1], filters)


def forms(layer):
    """By what is asked, the forms of it: functions of one array of images or slopes, and those arrays."""
    length, channels, filters, padding = layer
    draw = lambda i, *shape: jax.random.normal(jax.random.key(i), shape)
    images, weight = draw(0, IMAGES, length, length, channels), draw(1, 3, 3, channels, filters)
    slopes = draw(2, IMAGES, *(length + 2 * padding - 2,) * 2, filters)
    turned, padded = weight[::-1, ::-1].swapaxes(2, 3), partial(pad, width=padding)
    forward = {"fedlap": convolution._winograd, "library": library, "library, by 4": library_by_4}
    forward["four by four"] = four_by_four
    backward = {name: form for name, form in forward.items() if name != "fedlap"}
    yield "forward", images, {name: lambda x, f=form: f(padded(x), weight) for name, form in forward.items()}
    own = {"fedlap": lambda y: convolution._winograd_input_gradient(padding, weight, y)}
    others = {name: lambda y, f=form: f(pad(y, 2 - padding), turned) for name, form in backward.items()}
    yield "gradient of the inputs", slopes, own | others
    own = {"fedlap": lambda y: convolution._winograd_weight_gradient(padded(images), weight, y)}
    yield "gradient of the weights", slopes, own | {"three products": lambda y: three_products(padded(images), y)}


def looped(form, given):
    """A function that does a few steps of a loop, none of which can be left out."""

    @jax.jit
    def steps(given):
        step = lambda _, carry: (lax.optimization_barrier(carry[0] * 1.0001), form(carry[0]))
        return lax.fori_loop(0, STEPS, step, (given, form(given)))[1]

    return lambda: jax.block_until_ready(steps(given))


def distance(found, ours):
    return float(np.abs(np.asarray(found) - ours).max() / np.abs(ours).max())


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: arguments.threads])  # XLA asks when it starts
    for layer in LAYERS:
        length, channels, filters, padding = layer
        for asked, given, contestants in forms(layer):
            ours = np.asarray(contestants["fedlap"](given))
            apart = ", ".join(f"{name} {distance(form(given), ours):.0e}" for name, form in contestants.items())
            seconds = interleave({name: looped(form, given) for name, form in contestants.items()}, arguments.repeats)
            show(
                f"{length} × {length} × {channels} → {filters}, padding {padding}: {asked}, {STEPS + 1} of",
                seconds,
                "fedlap",
            )
            print(f"apart from fedlap's: {apart}; load {load()}")


if __name__ == "__main__":
    main()
