"""Data: federations, ready-made ones, and ways to divide points among clients."""

from .catalogue import DATASETS
from .credit import credit
from .federation import Federation
from .heart import heart
from .images import cifar10, fashion_mnist, mnist
from .loaders import LOADERS, PARTITIONS, load
from .partition import dirichlet, homogeneous, label_rate, natural, two_classes_per_client
from .sources import bring, fetch, verify

__all__ = [
    "DATASETS",
    "LOADERS",
    "PARTITIONS",
    "Federation",
    "bring",
    "cifar10",
    "credit",
    "dirichlet",
    "fashion_mnist",
    "fetch",
    "heart",
    "homogeneous",
    "label_rate",
    "load",
    "mnist",
    "natural",
    "two_classes_per_client",
    "verify",
]
