"""The exact diagonal Gauss–Newton matrix against one epoch of training, and against PyTorch by hand.

    pip install -e .[benchmark] && python benchmarks/curvature.py

The 784-200-100-10 network on 6,000 points, batch 32 for the epoch. PyTorch, which is left out if it is not
installed, uses the same formula with chunks of 200 points: what a careful user would write.
"""

import argparse
from functools import partial

import jax
import jax.numpy as jnp
import optax
from jax import lax
from timing import interleave, show

from fedlap.models.curvature import Examples, GaussNewton
from fedlap.models.likelihood import categorical
from fedlap.models.network import mlp

BATCH, CHUNK, CLASSES, RATE = 32, 200, 10, 1e-3
MODEL, KEY = mlp(), jax.random.key(0)
OPTIMISER = optax.adam(RATE)


@jax.jit
def epoch(params, inputs, labels, rows):
    """One epoch of Adam, its moments starting anew."""

    def step(i, carry):
        params, moments = carry
        mine = lax.dynamic_slice_in_dim(rows, i * BATCH, BATCH)
        loss = lambda p: categorical.loss(MODEL.train(p, inputs[mine], KEY), labels[mine]).mean()
        update, moments = OPTIMISER.update(jax.grad(loss)(params), moments)
        return optax.apply_updates(params, update), moments

    return lax.fori_loop(0, len(rows) // BATCH, step, (params, OPTIMISER.init(params)))[0]


@partial(jax.jit, static_argnums=0)
def diagonal(curvature, params, inputs, labels, rows):
    examples = Examples(inputs, labels, rows, jnp.ones(len(rows)), len(rows), KEY)
    return curvature.diagonal(MODEL, categorical, params, examples)


def torch_diagonal(params, inputs, threads):
    import torch

    torch.set_num_threads(threads)
    layers = [layer for layer in params if layer]
    weights, biases = ([torch.tensor(layer[name]) for layer in layers] for name in ("weight", "bias"))
    inputs = torch.tensor(inputs)

    @torch.no_grad()
    def work():
        total = [tuple(map(torch.zeros_like, layer)) for layer in zip(weights, biases, strict=True)]
        for chunk in inputs.split(CHUNK):
            entering = [chunk]
            for weight, bias in zip(weights[:-1], biases[:-1], strict=True):
                entering.append(torch.relu(torch.addmm(bias, entering[-1], weight.T)))
            p = torch.softmax(torch.addmm(biases[-1], entering[-1], weights[-1].T), 1)
            root = p.sqrt()
            columns = torch.diag_embed(root) - root[:, :, None] * p[:, None, :]
            for i in reversed(range(len(weights))):
                squares = columns.square().sum(1)
                total[i][0].addmm_(squares.T, entering[i].square())
                total[i][1].add_(squares.sum(0))
                if i:
                    columns = (columns @ weights[i]) * (entering[i] > 0)[:, None, :]
        return total

    return work


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--points", type=int, default=6000)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--threads", type=int, default=2, help="of PyTorch")
    arguments = parser.parse_args()

    inputs = jax.random.uniform(KEY, (arguments.points, 784))
    labels = jax.random.randint(KEY, (arguments.points,), 0, CLASSES)
    rows = jax.random.permutation(KEY, arguments.points)
    given = MODEL.init(KEY, inputs, CLASSES), inputs, labels, rows

    exact, sampled = "diagonal Gauss–Newton, exact", "diagonal Gauss–Newton, one draw a point"
    contestants = {
        "one epoch of training": lambda: jax.block_until_ready(epoch(*given)),
        exact: lambda: jax.block_until_ready(diagonal(GaussNewton(), *given)),
        sampled: lambda: jax.block_until_ready(diagonal(GaussNewton(samples=1), *given)),
    }
    try:
        by_torch = torch_diagonal(jax.device_get(given[0]), jax.device_get(inputs), arguments.threads)
    except ImportError:
        print("PyTorch is not installed: pip install -e .[benchmark] adds its row")
    else:
        found = jax.tree.leaves(contestants[exact]())
        expected = [leaf.numpy() for layer in by_torch() for leaf in reversed(layer)]
        error = max(float(abs(a - b).max() / abs(b).max()) for a, b in zip(found, expected, strict=True))
        print(f"largest difference between fedlap and PyTorch: {error:.0e} of the largest entry")
        contestants[f"PyTorch by hand, {arguments.threads} threads"] = by_torch
    seconds = interleave(contestants, arguments.repeats)
    show(f"784-200-100-10 network, {arguments.points} points", seconds, "one epoch of training")


if __name__ == "__main__":
    main()
