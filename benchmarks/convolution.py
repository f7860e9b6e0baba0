"""One epoch of a CIFAR-sized convolutional network: fedlap against eager PyTorch.

    pip install -e .[benchmark] && python benchmarks/convolution.py [--images 1280]

The network of Zenke et al. with dropout, batch 64, Adam, random images. PyTorch runs eagerly with its fastest
settings on a CPU (channels last, fused Adam). Both may use the same number of cores.
"""

import argparse
import os

BATCH, CLASSES, RATE = 64, 10, 1e-3


def fedlap_epoch(inputs, labels, seed):
    """The compiled epoch, and the gradient of a batch without dropout for comparison."""
    import jax
    import optax
    from jax import lax

    from fedlap.models.likelihood import categorical
    from fedlap.models.network import zenke_cnn

    model, key, optimiser = zenke_cnn(), jax.random.key(seed), optax.adam(RATE)
    inputs, labels = jax.numpy.asarray(inputs), jax.numpy.asarray(labels)
    params = model.init(key, inputs[:1], CLASSES)

    @jax.jit
    def epoch(params, inputs, labels, key):
        def step(i, carry):
            params, moments = carry
            x, y = (lax.dynamic_slice_in_dim(each, i * BATCH, BATCH) for each in (inputs, labels))
            outputs = lambda p: model.train(p, x, jax.random.fold_in(key, i))
            gradient = jax.grad(lambda p: categorical.loss(outputs(p), y).mean())(params)
            update, moments = optimiser.update(gradient, moments)
            return optax.apply_updates(params, update), moments

        return lax.fori_loop(0, len(inputs) // BATCH, step, (params, optimiser.init(params)))[0]

    @jax.jit
    def gradient(params, inputs, labels):
        return jax.grad(lambda p: categorical.loss(model.apply(p, inputs), labels).mean())(params)

    def work():
        jax.block_until_ready(epoch(params, inputs, labels, key))

    return work, jax.device_get(params), jax.device_get(gradient(params, inputs[:BATCH], labels[:BATCH]))


def torch_epoch(inputs, labels, params, threads):
    import torch
    from torch import nn

    torch.set_num_threads(threads)

    def block(channels, width):
        first, second = nn.Conv2d(channels, width, 3, padding=1), nn.Conv2d(width, width, 3)
        return first, nn.ReLU(), second, nn.ReLU(), nn.MaxPool2d(2), nn.Dropout(0.25)

    dense = nn.Linear(2304, 512), nn.ReLU(), nn.Dropout(0.5), nn.Linear(512, CLASSES)
    network = nn.Sequential(*block(3, 32), *block(32, 64), nn.Flatten(), *dense)
    network = network.to(memory_format=torch.channels_last)
    for target, value in zip(network.parameters(), to_torch(params), strict=True):
        target.data.copy_(torch.tensor(value))
    optimiser = torch.optim.Adam(network.parameters(), lr=RATE, fused=True)
    loss = nn.CrossEntropyLoss()
    inputs = torch.tensor(inputs).permute(0, 3, 1, 2).contiguous(memory_format=torch.channels_last)
    labels = torch.tensor(labels, dtype=torch.long)

    def work():
        network.train()
        whole = len(inputs) // BATCH * BATCH
        for x, y in zip(inputs[:whole].split(BATCH), labels[:whole].split(BATCH), strict=True):
            optimiser.zero_grad()
            loss(network(x), y).backward()
            optimiser.step()

    network.eval()
    loss(network(inputs[:BATCH]), labels[:BATCH]).backward()
    gradient = [weight.grad.numpy().copy() for weight in network.parameters()]
    return work, gradient


def to_torch(params):
    """The layers' weights in PyTorch's order of axes; it flattens channels before positions."""
    for layer in filter(None, params):
        weight = layer["weight"]
        if weight.ndim == 4:
            weight = weight.transpose(3, 2, 0, 1)
        elif weight.shape[1] == 2304:
            weight = weight.reshape(-1, 6, 6, 64).transpose(0, 3, 1, 2).reshape(-1, 2304)
        yield weight
        yield layer["bias"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=int, default=5000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), help="of both")
    arguments = parser.parse_args()

    # XLA takes one thread for each processor it may run on, and asks only when it starts.
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: arguments.threads])
    import numpy as np
    from timing import interleave, show

    rng = np.random.default_rng(0)
    inputs = rng.random((arguments.images, 32, 32, 3), dtype=np.float32)
    labels = rng.integers(0, CLASSES, arguments.images)
    ours, params, gradient = fedlap_epoch(inputs, labels, seed=0)
    contestants = {"fedlap": ours}
    try:
        theirs, their_gradient = torch_epoch(inputs, labels, params, arguments.threads)
    except ImportError:
        print("PyTorch is not installed: pip install -e .[benchmark] adds its row")
    else:
        pairs = zip(to_torch(gradient), their_gradient, strict=True)
        error = max(float(abs(a - b).max() / abs(b).max()) for a, b in pairs)
        print(f"largest difference between the first gradients: {error:.0e} of the largest entry")
        contestants["PyTorch, eager, channels last, fused Adam"] = theirs
    seconds = interleave(contestants, arguments.repeats)
    whole = arguments.images // BATCH * BATCH
    title = f"Zenke network with dropout, {whole} images, {arguments.threads} threads"
    show(title, seconds, list(contestants)[-1])


if __name__ == "__main__":
    main()
