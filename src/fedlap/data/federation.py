"""Data of several clients, and how to make it from arrays."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ..errors import ConfigError, DataError, unknown
from . import validation


@dataclass(frozen=True, eq=False, repr=False)
class Federation:
    """Several clients' data in one pool, each client a list of row numbers, and one test set.

    Making one checks everything in it, so every federation that exists is sound: finite inputs, labels that
    are classes, clients that own at least one row each and share none. Rows that nobody owns are allowed. The
    arrays are read-only.
    """

    name: str
    clients: tuple[str, ...]  # unique; their order is the order of summation
    inputs: np.ndarray  # the pool [N, ...], floating
    labels: np.ndarray  # [N], int32
    rows: tuple[np.ndarray, ...]  # the row numbers of each client, int32
    test_inputs: np.ndarray
    test_labels: np.ndarray
    classes: int
    public: np.ndarray | None = None  # unlabelled inputs that no client owns

    def __post_init__(self):
        """Check all fields and store them in their one form."""
        _set = object.__setattr__
        _set(self, "clients", validation.client_names(tuple(self.clients), len(self.rows)))
        _set(self, "inputs", validation.floating("the pool", self.inputs))
        _set(self, "labels", validation.label_array("the pool", self.labels))
        validation.same_length("the pool", self.inputs, self.labels)
        _set(self, "rows", validation.row_numbers(self.clients, self.rows, len(self.inputs)))
        _set(self, "classes", validation.whole_number("classes", self.classes, least=2))
        validation.finite(self.inputs, self._owner)
        _set(self, "labels", validation.class_labels(self.labels, self.classes, self._owner))

        inputs, labels = self.checked("the test set", (self.test_inputs, self.test_labels))
        _set(self, "test_inputs", inputs)
        _set(self, "test_labels", labels)

        if self.public is not None:
            _set(self, "public", validation.floating("the public inputs", self.public))
            validation.not_empty("the public inputs", self.public)
            validation.same_shape("the public inputs", self.public, "the clients' pool", self.inputs)
            validation.finite(self.public, "the public inputs, row {}".format)

    @classmethod
    def from_arrays(
        cls,
        clients: Sequence[tuple[object, object]],
        test: tuple[object, object],
        names: Sequence[str] | None = None,
        classes: int | None = None,
        public: object | None = None,
        name: str = "arrays",
    ) -> "Federation":
        """A federation from one (inputs, labels) pair per client and one for the test set.

        Args:
            clients: (inputs [N_k, ...], labels [N_k]) of each client.
            test: (inputs, labels) of the test set.
            names: the clients' names; client-0, client-1, … if not given.
            classes: how many classes there are; if not given, 1 + the largest label, at least 2.
            public: inputs that no client owns, if there are any.
            name: a name for the whole.

        >>> pair = [[0.0, 1.0], [2.0, 3.0]], [0, 1]
        >>> Federation.from_arrays(clients=[pair, pair], test=pair)
        Federation('arrays', 2 clients of 2 to 2 rows, inputs (2,), 2 classes, 2 test rows)
        """
        clients = list(clients)
        names = validation.client_names(default_names(len(clients)) if names is None else list(names), len(clients))
        pairs = [_pair(f"client {client!r}", pair) for client, pair in zip(names, clients, strict=True)]
        test_inputs, test_labels = _pair("the test set", test)
        for client, (inputs, _) in zip(names, pairs, strict=True):
            validation.same_shape(f"client {client!r}", inputs, f"client {names[0]!r}", pairs[0][0])
        validation.same_shape("the test set", test_inputs, f"client {names[0]!r}", pairs[0][0])
        if classes is None:
            classes = validation.implied_classes([labels for _, labels in pairs] + [test_labels])
        ends = np.cumsum([len(labels) for _, labels in pairs])
        return cls(
            name=name,
            clients=names,
            inputs=np.concatenate([inputs for inputs, _ in pairs]),
            labels=np.concatenate([labels for _, labels in pairs]),
            rows=tuple(np.split(np.arange(ends[-1], dtype=np.int32), ends[:-1])),
            test_inputs=test_inputs,
            test_labels=test_labels,
            classes=classes,
            public=public,
        )

    @property
    def sizes(self) -> np.ndarray:
        """N_k, how many rows each client owns."""
        return np.array([len(rows) for rows in self.rows])

    @property
    def class_counts(self) -> np.ndarray:
        """How many rows of each class each client owns, [K, C]."""
        return np.stack([np.bincount(self.labels[rows], minlength=self.classes) for rows in self.rows])

    def of(self, client: str | int) -> tuple[np.ndarray, np.ndarray]:
        """Inputs and labels of one client, by its name or by its place in `clients`."""
        if isinstance(client, str):
            if client not in self.clients:
                raise unknown("client", client, self.clients)
            client = self.clients.index(client)
        if not 0 <= client < len(self.clients):
            raise ConfigError(f"client number {client}; expected 0 to {len(self.clients) - 1}")
        return self.inputs[self.rows[client]], self.labels[self.rows[client]]

    def hold_out(self, fraction: float, seed: int) -> "Federation":
        """The federation to tune on: a part of each client's rows is the test set, the real one is gone.

        Each client gives the same fraction of its rows, of each class alike as far as whole rows allow, and
        keeps at least one row.
        """
        fraction, rng = validation.fraction_of_rows(fraction), validation.generator(seed)
        held = [stratified(self.labels[rows], fraction, rng) for rows in self.rows]
        test = np.concatenate([rows[out] for rows, out in zip(self.rows, held, strict=True)])
        if len(test) == 0:
            raise ConfigError(
                f"fraction {fraction} holds out no row: the largest client has {self.sizes.max()} rows; "
                "expected a larger fraction"
            )
        return replace(
            self,
            rows=tuple(rows[~out] for rows, out in zip(self.rows, held, strict=True)),
            test_inputs=self.inputs[test],
            test_labels=self.labels[test],
        )

    def checked(self, what: str, pair: object) -> tuple[np.ndarray, np.ndarray]:
        """Inputs like those of the clients and their labels, to evaluate on, in their one form."""
        inputs, labels = _pair(what, pair)
        validation.not_empty(what, inputs)
        validation.same_shape(what, inputs, "the clients' pool", self.inputs)
        where = lambda row: f"{what}, row {row}"
        validation.finite(inputs, where)
        return inputs, validation.class_labels(labels, self.classes, where)

    def fingerprint(self) -> str:
        """The sha256 of the contents, which two federations share if a run cannot tell them apart."""
        public = () if self.public is None else (self.public,)
        arrays = (self.inputs, self.labels, *self.rows, self.test_inputs, self.test_labels, *public)
        return fingerprint(*arrays, about=repr((self.clients, self.classes)))

    def __repr__(self) -> str:
        """One line of sizes."""
        public = "" if self.public is None else f", {len(self.public)} public rows"
        sizes = self.sizes
        return (
            f"Federation({self.name!r}, {len(sizes)} clients of {sizes.min()} to {sizes.max()} rows, "
            f"inputs {self.inputs.shape[1:]}, {self.classes} classes, "
            f"{len(self.test_labels)} test rows{public})"
        )

    def _owner(self, row: int) -> str:
        for name, rows in zip(self.clients, self.rows, strict=True):
            if row in rows:
                return f"client {name!r}, row {int(np.argmax(rows == row))}"
        return f"the pool, row {row}, which no client owns"


def fingerprint(*arrays, about="") -> str:
    """The sha256 of some arrays and a text."""
    digest = hashlib.sha256(about.encode())
    for array in map(np.asarray, arrays):
        # Shapes too, so that no two lists of arrays run together to the same bytes.
        digest.update(f"{array.dtype.str}{array.shape}".encode())
        digest.update(array)
    return digest.hexdigest()


def default_names(count: int) -> list[str]:
    """client-0 … client-9, or client-00 … client-99: padded so that sorting keeps their order."""
    width = len(str(count - 1))
    return [f"client-{number:0{width}d}" for number in range(count)]


def _pair(what: str, pair: object) -> tuple[np.ndarray, np.ndarray]:
    try:
        inputs, labels = pair
    except (TypeError, ValueError) as error:
        raise DataError(f"{what}: {type(pair).__name__}; expected a pair (inputs, labels)") from error
    if np.size(labels) == 0:
        raise DataError(f"{what} has no rows; expected at least one")
    inputs, labels = validation.floating(what, inputs), validation.label_array(what, labels)
    validation.same_length(what, inputs, labels)
    return inputs, labels


def stratified(labels: np.ndarray, fraction: float, rng: np.random.Generator) -> np.ndarray:
    """A mask of round(fraction · N) rows, at most N − 1, each class within one row of its share."""
    total = min(round(fraction * len(labels)), len(labels) - 1)
    counts = np.bincount(labels)
    takes, remainders = np.divmod(counts * total, len(labels))
    # Random ties: by class number, every client would hold out the same low classes.
    order = np.lexsort((rng.random(len(counts)), -remainders))
    takes[order[: total - takes.sum()]] += 1
    mask = np.zeros(len(labels), bool)
    for label, take in enumerate(takes):
        mask[rng.permutation(np.flatnonzero(labels == label))[:take]] = True
    return mask
