"""The four workloads, drawn once by fedlap and written to files that every contestant reads."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

import fedlap
from benchmarks.peers.work import Work, channels_first, channels_last
from fedlap.models.network import Dropout, Network

ALPHA = 0.1
SEED = 0
NAMES = ("weight", "bias")  # as PyTorch orders them


@dataclass(frozen=True)
class Workload:
    """A model, who holds which data, and how a client trains on it."""

    title: str
    model: str
    clients: Callable  # data_dir → [(inputs, labels), …]
    solver: fedlap.adam


def _rows(sizes, shape, classes):
    """Random clients of these sizes."""
    rng = np.random.default_rng(0)
    return [(rng.normal(size=(n, *shape)).astype(np.float32), rng.integers(0, classes, n)) for n in sizes]


def _credit(data_dir):
    return _rows([36] * 5 + [67] * 5, (42,), 2)


def _thousand(data_dir):
    return _rows([20] * 1000, (42,), 2)


def _cifar_sized(data_dir):
    return _rows([64, 128] * 5, (32, 32, 3), 10)


def _fashion(data_dir):
    """A tenth of Fashion-MNIST in ten Dirichlet shares; random pixels without a folder."""
    split = fedlap.dirichlet(sizes=1.0, classes=0.5)
    if data_dir:
        data = fedlap.data.fashion_mnist(fraction=0.1, partition=split, preset="standard", seed=1, data_dir=data_dir)
        return [(data.inputs[rows], data.labels[rows]) for rows in data.rows]
    rng = np.random.default_rng(0)
    inputs, labels = rng.random((6000, 28, 28), dtype=np.float32), np.repeat(np.arange(10), 600)
    return [(inputs[rows], labels[rows]) for rows in split(labels, 10, rng)]


WORKLOADS = {
    "logistic-10": Workload("Logistic regression, 10 clients", "logistic", _credit, fedlap.adam(epochs=10, batch=4)),
    "logistic-1000": Workload(
        "Logistic regression, 1,000 clients", "logistic", _thousand, fedlap.adam(epochs=1, batch=4)
    ),
    "mlp": Workload(
        "MLP 784-200-100-10, a tenth of Fashion-MNIST, 10 clients",
        "mlp",
        _fashion,
        fedlap.adam(epochs=5, batch=32),
    ),
    "cnn": Workload(
        "Zenke CNN without dropout, 960 images, 10 clients", "cnn", _cifar_sized, fedlap.adam(epochs=1, batch=64)
    ),
}


def network(model: str) -> Network:
    """The model of that name, without dropout, which no two libraries draw alike."""
    built = {"logistic": fedlap.logistic, "mlp": fedlap.mlp, "cnn": fedlap.zenke_cnn}[model]()
    return Network(tuple(layer for layer in built.layers if not isinstance(layer, Dropout)))


def federation(clients) -> fedlap.Federation:
    return fedlap.Federation.from_arrays(clients=clients, test=clients[0])


def to_flat(tree) -> list[np.ndarray]:
    """fedlap's weights in PyTorch's order and layout."""
    return channels_first([np.asarray(layer[name]) for layer in tree for name in NAMES if name in layer])


def to_tree(weights, like) -> tuple[dict[str, np.ndarray], ...]:
    """The way back, into layers like these."""
    flat = iter(channels_last(weights))
    return tuple({name: next(flat) for name in NAMES if name in layer} for layer in like)


def draw(workload: Workload, data_dir) -> Work:
    """The first round of a workload, as fedlap's plan has it."""
    clients = workload.clients(data_dir)
    run = fedlap.Simulation.of(
        fedlap.FedAvg(), federation(clients), network(workload.model), solver=workload.solver, seed=SEED
    )
    batches = run.plan(0).batches.all()
    return Work(
        model=workload.model,
        algorithm="FedAvg",
        inputs=run.federation.inputs.astype(np.float32),
        labels=run.federation.labels.astype(np.int64),
        sizes=run.federation.sizes,
        rows=batches.rows,
        steps=batches.steps,
        weights=tuple(to_flat(run.init().server.w.tree)),
        epochs=workload.solver.epochs,
        rate=float(workload.solver.learning_rate),
        alpha=ALPHA,
    )
