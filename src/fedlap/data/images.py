"""MNIST, Fashion-MNIST and CIFAR-10, divided among clients."""

from collections.abc import Callable

import numpy as np

from fedlap.checks import whole_number
from fedlap.data import formats as files
from fedlap.data import sources
from fedlap.data.federation import Federation, default_names
from fedlap.data.partition import Partition, homogeneous
from fedlap.data.validation import Seed, fraction_of_rows, generator
from fedlap.errors import ConfigError, DataError, unknown

_EVENLY = homogeneous()

Split = tuple[np.ndarray, np.ndarray]  # images of bytes, labels
Scaling = Callable[..., list[np.ndarray]]  # scaling(the whole training set, *images) gives the images as inputs


def mnist(
    clients: int = 10,
    partition: Partition = _EVENLY,
    fraction: float = 1.0,
    preset: str = "standard",
    seed: Seed = 0,
    data_dir: sources.DataFolder = None,
) -> Federation:
    """MNIST, handwritten digits, [N, 28, 28], in [0, 1] in both presets.

    Args:
        clients: how many clients.
        partition: how the training points are divided among them.
        fraction: how much of the training set to use, of each class alike; which points depends on the seed.
        preset: "paper", the inputs of the paper's experiments, or "standard".
        seed: of the fraction and of the partition.
        data_dir: a data folder to look in first (see `fedlap.data.sources`).
    """
    scalings = {"paper": _unit, "standard": _unit}
    return _federation("mnist", _idx_splits, scalings, clients, partition, fraction, preset, seed, data_dir)


def fashion_mnist(
    clients: int = 10,
    partition: Partition = _EVENLY,
    fraction: float = 1.0,
    preset: str = "standard",
    seed: Seed = 0,
    data_dir: sources.DataFolder = None,
) -> Federation:
    """Fashion-MNIST, articles of clothing, [N, 28, 28]; the arguments are those of `mnist`.

    Preset "paper" leaves pixels at 0 … 255, which the paper's numbers need; "standard" scales them to [0, 1].
    """
    scalings = {"paper": _raw, "standard": _unit}
    return _federation("fashion_mnist", _idx_splits, scalings, clients, partition, fraction, preset, seed, data_dir)


def cifar10(
    clients: int = 10,
    partition: Partition = _EVENLY,
    fraction: float = 1.0,
    preset: str = "standard",
    seed: Seed = 0,
    data_dir: sources.DataFolder = None,
) -> Federation:
    """CIFAR-10, colour photographs, [N, 32, 32, 3]; the arguments are those of `mnist`.

    Preset "paper" scales pixels to [0, 1]; "standard" then gives each channel mean 0 and deviation 1 over the
    whole training set, whatever the fraction, so that runs of all seeds see the same scale.
    """
    scalings = {"paper": _unit, "standard": _standardised}
    return _federation("cifar10", _cifar_splits, scalings, clients, partition, fraction, preset, seed, data_dir)


def _federation(
    name: str,
    splits: Callable[[dict[str, bytes]], tuple[Split, Split]],
    scalings: dict[str, Scaling],
    clients: int,
    partition: Partition,
    fraction: float,
    preset: str,
    seed: int,
    data_dir: sources.Folder | None,
) -> Federation:
    if preset not in scalings:
        raise unknown("preset", preset, scalings)
    if not callable(partition):
        raise ConfigError(f"partition is {partition!r}; expected a partition such as homogeneous()")
    clients, fraction = whole_number("clients", clients, least=1), fraction_of_rows(fraction)
    # Two streams, so that a seed's partition does not depend on how the fraction was drawn.
    subset_rng, partition_rng = generator(seed).spawn(2)
    (whole, labels), (test_images, test_labels) = splits(sources.read(name, data_dir))
    images = whole
    if fraction < 1:
        chosen = _balanced(labels, fraction, subset_rng)
        images, labels = whole[chosen], labels[chosen]
    rows = partition(labels, clients, partition_rng)
    inputs, test_inputs = scalings[preset](whole, images, test_images)
    return Federation(
        name=name,
        clients=tuple(default_names(clients)),
        inputs=inputs,
        labels=labels,
        rows=rows,
        test_inputs=test_inputs,
        test_labels=test_labels,
        classes=10,
    )


def _idx_splits(contents: dict[str, bytes]) -> tuple[Split, Split]:
    splits = []
    for stem in ("train", "t10k"):
        images_file, labels_file = f"{stem}-images-idx3-ubyte", f"{stem}-labels-idx1-ubyte"
        images = files.idx_array(contents[images_file], images_file, dimensions=3)
        labels = files.idx_array(contents[labels_file], labels_file, dimensions=1)
        if len(images) != len(labels):
            raise DataError(f"{len(images)} images in {images_file} but {len(labels)} labels in {labels_file}")
        splits.append((images, labels))
    return splits[0], splits[1]


def _cifar_splits(contents: dict[str, bytes]) -> tuple[Split, Split]:
    names = [f"data_batch_{number}.bin" for number in range(1, 6)]
    images, labels = zip(*(files.cifar_arrays(contents[name], name) for name in names), strict=True)
    test = files.cifar_arrays(contents["test_batch.bin"], "test_batch.bin")
    return (np.concatenate(images), np.concatenate(labels)), test


def _balanced(labels: np.ndarray, fraction: float, rng: np.random.Generator) -> np.ndarray:
    """Row numbers of a random fraction of each class, at least one point of each."""
    chosen = []
    for label in np.unique(labels):
        members = rng.permutation(np.flatnonzero(labels == label))
        chosen.append(members[: max(1, round(fraction * len(members)))])
    return np.sort(np.concatenate(chosen))


def _raw(train: np.ndarray, *images: np.ndarray) -> list[np.ndarray]:
    return [array.astype(np.float32) for array in images]


def _unit(train: np.ndarray, *images: np.ndarray) -> list[np.ndarray]:
    return [np.divide(array, 255, dtype=np.float32) for array in images]


def _standardised(train: np.ndarray, *images: np.ndarray) -> list[np.ndarray]:
    # From counts of the byte values: exact, where float32 sums over 50 million pixels are off by percents.
    counts = np.stack([np.bincount(train[..., channel].ravel(), minlength=256) for channel in range(3)])
    values = np.arange(256) / 255
    mean = counts @ values / counts.sum(axis=1)
    deviation = np.sqrt(counts @ values**2 / counts.sum(axis=1) - mean**2)
    scaled = _unit(train, *images)
    for array in scaled:
        array -= mean.astype(np.float32)
        array /= deviation.astype(np.float32)
    return scaled
