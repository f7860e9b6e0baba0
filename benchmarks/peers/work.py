"""The work of one round, the same for every contestant: data, minibatches, weights to begin with. NumPy only."""

import dataclasses
from dataclasses import dataclass

import numpy as np

ALGORITHMS = ("FedAvg", "FedProx")


@dataclass(frozen=True)
class Work:
    """What a round is made of. Weights are in PyTorch's order and layout."""

    model: str  # "logistic", "mlp" or "cnn"
    algorithm: str
    inputs: np.ndarray  # [N, ...], client after client; images have their channels last
    labels: np.ndarray  # [N]
    sizes: np.ndarray  # [K] rows of each client
    rows: np.ndarray  # [K, steps, batch] minibatches as row numbers, −1 for none
    steps: np.ndarray  # [K] how many of them count
    weights: tuple[np.ndarray, ...]
    epochs: int  # that the minibatches make up
    rate: float  # of Adam
    alpha: float  # of FedProx, ½α‖w − w_g‖²

    def batches(self, client: int) -> list[np.ndarray]:
        """A client's minibatches in their order, as row numbers; the last of an epoch may be short."""
        return [rows[rows >= 0].astype(np.int64) for rows in self.rows[client, : self.steps[client]]]

    @property
    def clients(self) -> range:
        return range(len(self.sizes))

    @property
    def prox(self) -> float:
        """α where the algorithm has one; FedAvg is FedProx with none."""
        return self.alpha if self.algorithm == "FedProx" else 0.0

    def double(self) -> "Work":
        """The same in double precision; of a CNN its first two clients, for double convolutions are slow in FedJAX."""
        count = 2 if self.model == "cnn" else len(self.sizes)
        rows = self.sizes[:count].sum()
        return dataclasses.replace(
            self,
            inputs=self.inputs[:rows].astype(np.float64),
            labels=self.labels[:rows],
            sizes=self.sizes[:count],
            rows=self.rows[:count],
            steps=self.steps[:count],
            weights=tuple(weight.astype(np.float64) for weight in self.weights),
        )


def save(work: Work, path) -> None:
    fields = {field.name: getattr(work, field.name) for field in dataclasses.fields(Work)}
    fields |= {f"weights{place}": weight for place, weight in enumerate(fields.pop("weights"))}
    np.savez(path, **fields)


def load(path, algorithm: str) -> Work:
    with np.load(path) as file:
        names = {field.name for field in dataclasses.fields(Work)}
        fields = {name: file[name] for name in file.files if name in names}
        weights = tuple(file[f"weights{place}"] for place in range(len(file.files) - len(fields)))
    fields = {name: value.item() if value.ndim == 0 else value for name, value in fields.items()}
    return Work(**{**fields, "weights": weights, "algorithm": algorithm})


# Layouts --------------------------------------------------------------------------------------------------------------


def channels_last(weights) -> list[np.ndarray]:
    """PyTorch's weights for images with channels last: convolutions [h, w, in, out], dense ones [out, in] as before."""
    return _converted(weights, _dense_last, lambda weight: weight.transpose(2, 3, 1, 0), channels=0)


def channels_first(weights) -> list[np.ndarray]:
    """The way back."""
    return _converted(weights, _dense_first, lambda weight: weight.transpose(3, 2, 0, 1), channels=3)


def _converted(weights, dense, convolution, channels):
    """Each weight converted; a dense one after a convolution sees its channels, which PyTorch flattens first."""
    converted, width = [], None
    for weight in weights:
        if weight.ndim == 4:
            width, weight = weight.shape[channels], convolution(weight)
        elif weight.ndim == 2:
            weight, width = (weight if width is None else dense(weight, width)), None
        converted.append(np.ascontiguousarray(weight))
    return converted


def _dense_last(weight, channels):
    return weight.reshape(len(weight), channels, -1).transpose(0, 2, 1).reshape(weight.shape)


def _dense_first(weight, channels):
    return weight.reshape(len(weight), -1, channels).transpose(0, 2, 1).reshape(weight.shape)
