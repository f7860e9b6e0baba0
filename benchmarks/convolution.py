"""One epoch of a CIFAR-sized convolutional network: fedlap against eager PyTorch.

    pip install -e .[benchmark] && python benchmarks/convolution.py [--images 1280] [--repeats 5]

The network of Zenke et al. with dropout, batch 64, Adam, random images. PyTorch runs eagerly with its fastest
settings on a CPU (channels last, fused Adam). Both may use the same cores: for the epoch of one client, and for those
of as many clients as there are cores. Then fedlap trains them side by side as a federation does, a thread each, and
PyTorch one after the other or a process each.
"""

import argparse
import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from multiprocessing import get_context

BATCH, CLASSES, RATE = 64, 10, 1e-3


def fedlap_epoch(inputs, labels, seed):
    """The compiled epoch, and the weights that it begins with."""
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

    def work():
        jax.block_until_ready(epoch(params, inputs, labels, key))

    return work, jax.device_get(params)


def fedlap_gradient(inputs, labels, params, precision):
    """The gradient of a batch without dropout."""
    import jax

    from fedlap.models.likelihood import categorical
    from fedlap.models.network import zenke_cnn

    jax.config.update("jax_enable_x64", precision == "float64")
    params, inputs = jax.tree.map(lambda leaf: jax.numpy.asarray(leaf, precision), (params, inputs))
    loss = lambda params: categorical.loss(zenke_cnn().apply(params, inputs), labels).mean()
    gradient = jax.device_get(jax.jit(jax.grad(loss))(params))
    jax.config.update("jax_enable_x64", False)
    return list(to_torch(gradient))


def torch_network(params, precision):
    import torch
    from torch import nn

    def block(channels, width):
        first, second = nn.Conv2d(channels, width, 3, padding=1), nn.Conv2d(width, width, 3)
        return first, nn.ReLU(), second, nn.ReLU(), nn.MaxPool2d(2), nn.Dropout(0.25)

    dense = nn.Linear(2304, 512), nn.ReLU(), nn.Dropout(0.5), nn.Linear(512, CLASSES)
    network = nn.Sequential(*block(3, 32), *block(32, 64), nn.Flatten(), *dense)
    network = network.to(memory_format=torch.channels_last, dtype=getattr(torch, precision))
    for target, value in zip(network.parameters(), to_torch(params), strict=True):
        target.data.copy_(torch.tensor(value))
    return network, nn.CrossEntropyLoss()


def torch_data(inputs, labels, precision="float32"):
    import torch

    inputs = torch.tensor(inputs, dtype=getattr(torch, precision)).permute(0, 3, 1, 2)
    return inputs.contiguous(memory_format=torch.channels_last), torch.tensor(labels, dtype=torch.long)


def torch_epoch(inputs, labels, params, threads):
    import torch

    torch.set_num_threads(threads)
    network, loss = torch_network(params, "float32")
    optimiser = torch.optim.Adam(network.parameters(), lr=RATE, fused=True)
    inputs, labels = torch_data(inputs, labels)

    def work():
        network.train()
        whole = len(inputs) // BATCH * BATCH
        for x, y in zip(inputs[:whole].split(BATCH), labels[:whole].split(BATCH), strict=True):
            optimiser.zero_grad()
            loss(network(x), y).backward()
            optimiser.step()

    return work


def torch_gradient(inputs, labels, params, precision):
    network, loss = torch_network(params, precision)
    inputs, labels = torch_data(inputs, labels, precision)
    loss(network.eval()(inputs), labels).backward()
    return [weight.grad.numpy().copy() for weight in network.parameters()]


@contextmanager
def torch_process(*arguments):
    """A process with one thread that holds a client: what starts an epoch of it, and what waits for its end."""
    context = get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(theirs, *arguments))
    process.start()
    ours.recv()
    try:
        yield lambda: ours.send(True), ours.recv
    finally:
        ours.send(False)
        process.join()


def _serve(pipe, inputs, labels, params):
    work = torch_epoch(inputs, labels, params, threads=1)
    pipe.send(True)
    while pipe.recv():
        work()
        pipe.send(True)


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


def compare(inputs, labels, params):
    """Print how far the gradients of a batch are apart: in single precision a tie of a maximum may fall either way."""
    for precision in ("float64", "float32"):
        ours, theirs = (gradient(inputs, labels, params, precision) for gradient in (fedlap_gradient, torch_gradient))
        error = max(float(abs(a - b).max() / abs(b).max()) for a, b in zip(ours, theirs, strict=True))
        print(f"largest difference between the first gradients, {precision}: {error:.0e} of the largest entry")


def one_after_the_other(works):
    for work in works:
        work()


def side_by_side(works):
    with ThreadPoolExecutor(len(works)) as threads:
        list(threads.map(lambda work: work(), works))


def in_processes(clients):
    for start, _ in clients:
        start()
    for _, wait in clients:
        wait()


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

    def draw(client):
        rng = np.random.default_rng(client)
        inputs = rng.random((arguments.images, 32, 32, 3), dtype=np.float32)
        return inputs, rng.integers(0, CLASSES, arguments.images)

    data = [draw(client) for client in range(arguments.threads)]
    ours, starts = zip(*(fedlap_epoch(*each, seed=0) for each in data), strict=True)
    whole = arguments.images // BATCH * BATCH
    one, several = {"fedlap": ours[0]}, {"fedlap, a thread each": lambda: side_by_side(ours)}
    with ExitStack() as stack:
        try:
            import torch  # noqa: F401
        except ImportError:
            print("PyTorch is not installed: pip install -e .[benchmark] adds its rows")
        else:
            inputs, labels = data[0]
            compare(inputs[:BATCH], labels[:BATCH], starts[0])
            theirs = [torch_epoch(*each, starts[0], arguments.threads) for each in data]
            one["PyTorch, eager, channels last, fused Adam"] = theirs[0]
            if arguments.threads > 1:
                processes = [stack.enter_context(torch_process(*each, starts[0])) for each in data]
                several["PyTorch, a process each"] = lambda: in_processes(processes)
                several["PyTorch, one after the other"] = lambda: one_after_the_other(theirs)
        title = f"Zenke network with dropout, {whole} images"
        seconds = interleave(one, arguments.repeats)
        show(f"{title}, {arguments.threads} threads", seconds, list(one)[-1])
        if arguments.threads > 1:
            seconds = interleave(several, arguments.repeats)
            best = min(list(several)[1:] or several, key=lambda name: sorted(seconds[name])[len(seconds[name]) // 2])
            show(f"{title} each, {arguments.threads} clients at once", seconds, best)
    print(f"load average {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
