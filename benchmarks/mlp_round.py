"""A FedLap round of the paper's Fashion-MNIST size: fedlap against eager PyTorch, and what it costs in memory.

    pip install -e .[benchmark] && python benchmarks/mlp_round.py [--data-dir FOLDER]

10 Dirichlet clients of 6,000 images in all (a tenth of Fashion-MNIST, or random pixels without a data folder), the
784-200-100-10 network, batch 32, 5 local epochs of Adam. PyTorch runs once with two threads inside its operators
and once as two processes of one thread that share the clients between them.
"""

import argparse
import multiprocessing
import os

import jax
import numpy as np
from timing import interleave, show

import fedlap

DELTA, EPOCHS, BATCH, RATE = 1e-2, 5, 32, 1e-3


def federation(data_dir):
    split = fedlap.dirichlet(sizes=1.0, classes=0.5)
    if data_dir:
        return fedlap.data.fashion_mnist(fraction=0.1, partition=split, preset="standard", seed=1, data_dir=data_dir)
    rng = np.random.default_rng(0)
    inputs, labels = rng.random((6000, 28, 28), dtype=np.float32), np.repeat(np.arange(10), 600)
    rows = split(labels, 10, rng)
    clients = [(inputs[r], labels[r]) for r in rows]
    return fedlap.Federation.from_arrays(clients=clients, test=(inputs[:1000], labels[:1000]))


class Torch:
    """The clients given, trained by an eager loop; the dual and the prox are added to the gradient."""

    def __init__(self, data, rows, weights, duals, clients, threads):
        import torch

        torch.set_num_threads(threads)
        self.torch, self.clients, self.sizes = torch, clients, data.sizes
        self.inputs = torch.tensor(data.inputs.reshape(len(data.inputs), -1))
        self.labels = torch.tensor(data.labels, dtype=torch.long)
        self.batches = {
            k: [torch.tensor(r[r >= 0].astype(np.int64)) for r in rows[k] if (r >= 0).any()] for k in clients
        }
        self.centre = [torch.tensor(w) for w in weights]
        self.duals = {k: [torch.tensor(v) for v in duals[k]] for k in clients}

    def __call__(self):
        torch = self.torch
        answers = {}
        for k in self.clients:
            model = torch.nn.Sequential(
                torch.nn.Linear(784, 200),
                torch.nn.ReLU(),
                torch.nn.Linear(200, 100),
                torch.nn.ReLU(),
                torch.nn.Linear(100, 10),
            )
            parameters = list(model.parameters())
            with torch.no_grad():
                for p, w in zip(parameters, self.centre, strict=True):
                    p.copy_(w)
            optimiser = torch.optim.Adam(parameters, lr=RATE, fused=True)
            scale = DELTA / float(self.sizes[k])
            constant = [v - w for v, w in zip(self.duals[k], self.centre, strict=True)]
            for batch in self.batches[k]:
                optimiser.zero_grad(set_to_none=True)
                torch.nn.functional.cross_entropy(model(self.inputs[batch]), self.labels[batch]).backward()
                with torch.no_grad():
                    gradients = [p.grad for p in parameters]
                    torch._foreach_add_(gradients, constant, alpha=scale)
                    torch._foreach_add_(gradients, parameters, alpha=scale)
                optimiser.step()
            answers[k] = [p.detach().numpy() for p in parameters]
        return answers


def worker(pipe, *arguments):
    """A process that trains its clients whenever it is told to."""
    train = Torch(*arguments)
    while True:
        try:
            pipe.recv()
        except EOFError:  # nobody is left to ask
            return
        train()
        pipe.send(True)


def two_processes(data, rows, weights, duals):
    order = np.argsort(-data.sizes)
    halves, loads = ([], []), [0, 0]
    for k in order:  # the largest first, to whoever has less
        half = int(loads[1] < loads[0])
        halves[half].append(int(k))
        loads[half] += data.sizes[k]
    context, pipes = multiprocessing.get_context("spawn"), []
    for half in halves:
        ours, theirs = context.Pipe()
        arguments = (theirs, data, rows, weights, duals, half, 1)
        context.Process(target=worker, args=arguments, daemon=True).start()
        pipes.append(ours)

    def work():
        for pipe in pipes:
            pipe.send(True)
        for pipe in pipes:
            pipe.recv()

    return work


def peak_memory(pipe, data_dir):
    """Peak memory of a process that does nothing but two rounds."""
    run = simulation(federation(data_dir))
    state = run.init()
    for _ in range(2):
        state = run.step(state)
        jax.block_until_ready(run.evaluate(state))
    # Not getrusage: a new process inherits the peak of the one that started it.
    pipe.send(next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM")) / 1024)


def simulation(data, algorithm=None):
    solver = fedlap.adam(epochs=EPOCHS, batch=BATCH, learning_rate=RATE)
    return fedlap.Simulation.of(algorithm or fedlap.FedLap(delta=DELTA), data, fedlap.mlp(), solver=solver)


def torch_order(tree):
    """Weights as PyTorch lists them; both keep [outputs, inputs]."""
    return [np.asarray(layer[name]) for layer in tree if layer for name in ("weight", "bias")]


def function_space(data, repeats):
    """How much of FedLap-Func's round is the server's problem, with and without stopping when it is solved."""
    stopping, all_steps = fedlap.descent(steps=5000), fedlap.descent(steps=5000, tolerance=0.0)
    solver = fedlap.adam(epochs=EPOCHS, batch=BATCH, learning_rate=RATE)
    runs = {
        name: fedlap.Simulation.of(algorithm, data, fedlap.mlp(), solver=solver, server_solver=server)
        for name, algorithm, server in (
            ("FedLap-Func, clients alone", fedlap.FedLapFunc(delta=DELTA, tau=0.1), fedlap.descent(steps=0)),
            ("FedLap-Func, server stops when solved", fedlap.FedLapFunc(delta=DELTA, tau=0.1), stopping),
            ("FedLap-Func, server takes 5,000 steps", fedlap.FedLapFunc(delta=DELTA, tau=0.1), all_steps),
        )
    }
    states = {name: run.step(run.step(run.init())) for name, run in runs.items()}
    works = {name: lambda n=name: jax.block_until_ready(runs[n].step(states[n])) for name in runs}
    return interleave(works, repeats)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--data-dir")
    arguments = parser.parse_args()
    data = federation(arguments.data_dir)
    run = simulation(data)
    state = run.step(run.init())
    plan = run.plan(1)
    weights = torch_order(state.server.w.tree)
    duals = [torch_order(client.factor.v.tree) for client in state.clients]
    rows = plan.batches.rows
    print(f"clients of {sorted(data.sizes.tolist())} images, {plan.batches.steps.sum()} steps a round")

    ours = lambda: jax.block_until_ready(run.step(state, plan))
    threads = Torch(data, rows, weights, duals, list(range(10)), 2)
    compare(ours(), threads(), state, data)
    processes = two_processes(data, rows, weights, duals)
    contestants = {"fedlap": ours, "PyTorch, two threads": threads, "PyTorch, two processes": processes}
    show("one round", interleave(contestants, arguments.repeats), "fedlap")

    context = multiprocessing.get_context("spawn")
    for cache in ("on", "off"):  # compiling needs memory too
        os.environ["FEDLAP_COMPILATION_CACHE"] = cache
        here, there = context.Pipe()
        context.Process(target=peak_memory, args=(there, arguments.data_dir), daemon=True).start()
        print(f"peak memory of a process of two rounds, compilation cache {cache}: {here.recv():.0f} MB")
    show("the server's share", function_space(data, max(3, arguments.repeats // 3)), "FedLap-Func, clients alone")


def compare(state, answers, before, data):
    """ReLU networks trained in float32 part at some step by rounding; most clients agree closely."""
    shares = data.sizes / data.sizes.sum()
    distances = []
    for k, (new, old) in enumerate(zip(state.clients, before.clients, strict=True)):
        moved = torch_order(((new.factor.v - old.factor.v) / shares[k]).tree)
        ours = [m + w for m, w in zip(moved, torch_order(before.server.w.tree), strict=True)]
        distances.append(max(np.abs(a - b).max() for a, b in zip(ours, answers[k], strict=True)))
    print("largest difference from PyTorch, client by client:", " ".join(f"{d:.0e}" for d in distances))


if __name__ == "__main__":
    main()
