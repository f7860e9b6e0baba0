"""Data: federations, ready-made ones, and ways to divide points among clients."""

from fedlap.data.by_name import LOADERS, load
from fedlap.data.catalogue import DATASETS
from fedlap.data.credit import credit
from fedlap.data.federation import Federation
from fedlap.data.heart import heart
from fedlap.data.images import cifar10, fashion_mnist, mnist
from fedlap.data.partition import PARTITIONS, dirichlet, homogeneous, label_rate, natural, two_classes_per_client
from fedlap.data.sources import bring, fetch, verify

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
