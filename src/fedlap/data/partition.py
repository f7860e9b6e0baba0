"""Ways to divide labelled points among clients.

A partition is a callable `partition(labels, clients, rng)` that returns the row numbers of each client. Those
below are frozen dataclasses, in lower case because they are written as calls, and their repr is that call.
"""

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Annotated, Any

import numpy as np

from fedlap.checks import is_number, whole_number
from fedlap.data.validation import known_options
from fedlap.domains import ANY, Domain
from fedlap.errors import ConfigError, unknown

Rows = tuple[np.ndarray, ...]


@dataclass(frozen=True)
class homogeneous:
    """Equal shares: clients differ by at most one point in size, and by at most one point in each class."""

    def __call__(self, labels: np.ndarray, clients: int, rng: np.random.Generator) -> Rows:
        """Deal the points like cards, sorted by class and shuffled within."""
        _enough(labels, clients)
        deck = np.concatenate(_shuffled_classes(labels, rng))
        return tuple(np.sort(deck[client::clients]) for client in range(clients))


@dataclass(frozen=True)
class dirichlet:
    """Uneven sizes and uneven classes, from two concentrations (App. E.1 of the paper).

        a ~ Dir(sizes · 1_K),  b_k ~ Dir(classes · 1_C),  client k's share of class c: a_k b_kc / Σ_j a_j b_jc

    Small concentrations make clients differ more; 1e15 makes them equal. Each point goes to exactly one
    client. If a client would get none, a random point of the then largest client moves to it.
    """

    sizes: float = 1.0
    classes: float = 0.5

    def __post_init__(self) -> None:
        """Check the concentrations."""
        for name in ("sizes", "classes"):
            value = getattr(self, name)
            # Beyond these, logarithms of Gamma variables leave the range of doubles.
            if not is_number(value) or not 1e-300 <= value <= 1e300:
                raise ConfigError(f"dirichlet: {name} is {value!r}; expected a number above 0")

    def __call__(self, labels: np.ndarray, clients: int, rng: np.random.Generator) -> Rows:
        """Cut each class, shuffled, at the clients' cumulative shares of it."""
        _enough(labels, clients)
        members = _shuffled_classes(labels, rng)
        log_a = _log_dirichlet(self.sizes, (clients,), rng)
        log_b = _log_dirichlet(self.classes, (clients, len(members)), rng)
        log_shares = log_a[:, None] + log_b
        shares = np.exp(log_shares - log_shares.max(axis=0))
        ends = np.cumsum(shares, axis=0) / shares.sum(axis=0)
        parts = [
            np.split(points, np.rint(len(points) * end[:-1]).astype(int))
            for points, end in zip(members, ends.T, strict=True)
        ]
        rows = [np.concatenate(pieces) for pieces in zip(*parts, strict=True)]
        for client in range(clients):
            if len(rows[client]) == 0:
                largest = max(range(clients), key=lambda other: len(rows[other]))
                moved = rng.integers(len(rows[largest]))
                rows[client] = rows[largest][[moved]]
                rows[largest] = np.delete(rows[largest], moved)
        return tuple(np.sort(part) for part in rows)


@dataclass(frozen=True)
class label_rate:
    """Exact counts: client k gets counts[k][c] random points of class c. Points left over belong to nobody.

    The paper's UCI Credit split is `label_rate(counts=((34, 2),) * 5 + ((22, 45),) * 5)`.
    """

    counts: tuple[tuple[int, ...], ...]

    def __post_init__(self) -> None:
        """Check the counts, and store them as tuples: they may come from a file as lists."""
        try:
            counts = tuple(tuple(row) for row in self.counts)
        except TypeError as error:
            raise ConfigError(f"label_rate: counts is {self.counts!r}; expected one row per client") from error
        if not counts or len({len(row) for row in counts}) != 1 or not counts[0]:
            raise ConfigError("label_rate: expected one row of counts per client, with one count per class in each")
        for client, row in enumerate(counts):
            for label, count in enumerate(row):
                whole_number(f"label_rate: the count of class {label} for client {client}", count, least=0)
            if sum(row) == 0:
                raise ConfigError(f"label_rate: client {client} gets no points; expected at least one")
        object.__setattr__(self, "counts", counts)

    def __call__(self, labels: np.ndarray, clients: int, rng: np.random.Generator) -> Rows:
        """Hand out each class, shuffled, in the order of the clients."""
        if clients != len(self.counts):
            raise ConfigError(f"label_rate has counts for {len(self.counts)} clients; there are {clients} clients")
        parts = []
        for label, takes in enumerate(zip(*self.counts, strict=True)):
            points = rng.permutation(np.flatnonzero(labels == label))
            if sum(takes) > len(points):
                raise ConfigError(f"label_rate asks for {sum(takes)} points of class {label}; there are {len(points)}")
            parts.append(np.split(points, np.cumsum(takes))[:-1])
        return tuple(np.sort(np.concatenate(pieces)) for pieces in zip(*parts, strict=True))


@dataclass(frozen=True)
class two_classes_per_client:
    """Each client gets `points` points of each of two classes: 100 clients of 2 × 300 use all Fashion-MNIST.

    A client's first class is the least used so far, its second a random other one; no class is used more
    often than 2 · clients / classes, rounded up. Where a class has too few points for its uses, they share it
    equally.
    """

    points: int = 300

    def __post_init__(self) -> None:
        """Check the count."""
        whole_number("two_classes_per_client: points", self.points, least=1)

    def __call__(self, labels: np.ndarray, clients: int, rng: np.random.Generator) -> Rows:
        """Choose the classes of all clients, then cut each class among those who use it."""
        _enough(labels, clients)
        members = _shuffled_classes(labels, rng)
        if len(members) < 2:
            raise ConfigError("two_classes_per_client: all points are of one class; expected at least two classes")
        cap = math.ceil(2 * clients / len(members))
        users = [[] for _ in members]
        for client in range(clients):
            # Taking the least used class first is what keeps a second one available to the last client.
            uses = np.array([len(class_users) for class_users in users])
            first = rng.choice(np.flatnonzero(uses == uses.min()))
            uses[first] = cap
            second = rng.choice(np.flatnonzero(uses < cap))
            users[first].append(client)
            users[second].append(client)
        rows = [[] for _ in range(clients)]
        for points, class_users in zip(members, users, strict=True):
            used = points[: self.points * len(class_users)]
            for place, client in enumerate(class_users):
                rows[client].extend(used[place :: len(class_users)].tolist())
        for client, part in enumerate(rows):
            if not part:
                raise ConfigError(f"two_classes_per_client: too few points, client {client} of {clients} gets none")
        return tuple(np.sort(np.array(part)) for part in rows)


@dataclass(frozen=True, repr=False)
class natural:
    """The grouping the data came with: row i is of groups[i]; clients in order of first appearance."""

    groups: tuple[Hashable, ...]

    def __post_init__(self) -> None:
        """Store the groups as a tuple: they usually come as an array."""
        groups = self.groups.tolist() if isinstance(self.groups, np.ndarray) else self.groups
        if not isinstance(groups, Sequence) or isinstance(groups, str) or not len(groups):
            raise ConfigError(f"natural: groups is {self.groups!r}; expected one group for each row")
        object.__setattr__(self, "groups", tuple(groups))

    def __call__(self, labels: np.ndarray, clients: int, rng: np.random.Generator) -> Rows:
        """Collect the rows of each group; nothing is random."""
        if len(self.groups) != len(labels):
            raise ConfigError(f"natural has groups for {len(self.groups)} rows; there are {len(labels)} rows")
        rows: dict[Hashable, list[int]] = {}
        for row, group in enumerate(self.groups):
            rows.setdefault(group, []).append(row)
        if len(rows) != clients:
            raise ConfigError(f"natural has {len(rows)} groups; there are {clients} clients")
        return tuple(np.array(part) for part in rows.values())

    def __repr__(self) -> str:
        """The sizes only: the groups are as long as the data."""
        return f"natural(groups=<{len(self.groups)} rows in {len(set(self.groups))} groups>)"


PARTITIONS: dict[str, Callable] = {
    kind.__name__: kind for kind in (homogeneous, dirichlet, label_rate, two_classes_per_client, natural)
}


def _parse(plain: object) -> object:
    """A partition by its name, or by a mapping of its name and arguments; anything else as it is."""
    if isinstance(plain, str):
        plain = {"name": plain}
    if not isinstance(plain, Mapping):
        return plain
    arguments = dict(plain)
    name = arguments.pop("name", None)
    if name not in PARTITIONS:
        raise unknown("partition", name, PARTITIONS)
    known_options(PARTITIONS[name], arguments)
    return PARTITIONS[name](**arguments)


def _format(partition: Any) -> object:
    """The mapping that `_parse` reads; of a partition that has no name there its repr, which is refused."""
    name = type(partition).__name__
    if PARTITIONS.get(name) is not type(partition):
        return repr(partition)
    return {"name": name, **{field.name: ANY.format(getattr(partition, field.name)) for field in fields(partition)}}


PARTITION = Domain("a partition such as homogeneous()", callable, _parse, _format)
Partition = Annotated[Callable[[np.ndarray, int, np.random.Generator], Rows], PARTITION]


def _enough(labels: np.ndarray, clients: int) -> None:
    whole_number("clients", clients, least=1)
    if len(labels) < clients:
        raise ConfigError(f"{len(labels)} points for {clients} clients; expected at least one point for each")


def _shuffled_classes(labels: np.ndarray, rng: np.random.Generator) -> list[np.ndarray]:
    return [rng.permutation(np.flatnonzero(labels == label)) for label in np.unique(labels)]


def _log_dirichlet(concentration: float, shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    """Logarithms of Dirichlet variables along the last axis.

    In logarithms because with small concentrations all shares of a class may be too small for a double, while
    their ratios still decide who gets the class. Gamma(α) = Gamma(α + 1) · U^(1/α) in distribution.
    """
    log_gamma = np.log(rng.standard_gamma(concentration + 1, shape)) - rng.standard_exponential(shape) / concentration
    top = log_gamma.max(axis=-1, keepdims=True)
    return log_gamma - top - np.log(np.exp(log_gamma - top).sum(axis=-1, keepdims=True))
