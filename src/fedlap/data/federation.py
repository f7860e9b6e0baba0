"""Data of several clients, and how to make it from arrays."""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from numbers import Integral
from typing import Any

import numpy as np

from fedlap.checks import is_number, whole_number
from fedlap.data import frames, labels, validation
from fedlap.data.coding import Coding, agree, entries
from fedlap.errors import ConfigError, DataError, unknown


@dataclass(frozen=True, eq=False, repr=False)
class Federation:
    """Several clients' data in one pool, each client a list of row numbers, and one test set or none.

    Making one checks everything in it, so every federation that exists is sound: finite inputs, labels that
    are classes, clients that own at least one row each and share none. Rows that nobody owns are allowed. The
    arrays are read-only.
    """

    name: str
    clients: tuple[str, ...]  # unique; their order is the order of summation
    inputs: np.ndarray  # the pool [N, ...], floating
    labels: np.ndarray  # [N], int32
    rows: tuple[np.ndarray, ...]  # the row numbers of each client, int32
    test_inputs: np.ndarray  # no rows where there is no test set
    test_labels: np.ndarray
    classes: int
    public: np.ndarray | None = None  # unlabelled inputs that no client owns
    class_names: tuple | None = None  # the users' labels of the classes; None if they are 0 … classes − 1
    features: tuple | None = None  # the names of the inputs' columns, if they have any
    coding: Coding | None = None  # how they were made of the columns of tables, if by `from_frames`

    def __post_init__(self) -> None:
        """Check all fields and store them in their one form."""
        _set = object.__setattr__
        _set(self, "clients", validation.client_names(tuple(self.clients), len(self.rows)))
        _set(self, "inputs", validation.floating("the pool", self.inputs))
        _set(self, "labels", validation.label_array("the pool", self.labels))
        validation.same_length("the pool", self.inputs, self.labels)
        _set(self, "rows", validation.row_numbers(self.clients, self.rows, len(self.inputs)))
        _set(self, "classes", whole_number("classes", self.classes, least=2))
        _set(self, "class_names", labels.checked_names(self.class_names, self.classes))
        _set(self, "features", validation.feature_names(self.features, self.inputs))
        validation.finite(self.inputs, self._owner, self.features)
        _set(self, "labels", validation.class_labels(self.labels, self.classes, self._owner))

        what = "the test set"
        _set(self, "test_inputs", self.as_inputs(what, self.test_inputs))
        _set(self, "test_labels", validation.label_array(what, self.test_labels))
        validation.same_length(what, self.test_inputs, self.test_labels)
        _set(self, "test_labels", labels.encode(what, self.test_labels, self.classes, None))

        if self.public is not None:
            _set(self, "public", self.as_inputs("the public inputs", self.public))
            validation.not_empty("the public inputs", self.public)

    @classmethod
    def from_arrays(
        cls,
        clients: Sequence[tuple[object, object]],
        test: tuple[object, object] | None = None,
        names: Sequence[str] | None = None,
        classes: int | Sequence | None = None,
        public: Any = None,
        name: str = "arrays",
    ) -> "Federation":
        """A federation from one (inputs, labels) pair per client and one for the test set, if there is one.

        Inputs are arrays, or tables with named columns: data frames, Arrow tables, dictionaries of columns. Tables are
        matched by name to the first client's columns, and the names are kept as `features`. Either all inputs have
        names or none.

        Labels are whole numbers, strings or booleans. If they are not 0 … C − 1 already, they are numbered in sorted
        order and kept as `class_names`. Two things need `classes`: labels 0, 1, 3, where a class may be missing, and
        labels of the test set that no client has.

        Args:
            clients: (inputs [N_k, ...], labels [N_k]) of each client.
            test: (inputs, labels) of the test set; without one a history has no curves of it, and whether a run is
                lost is judged by the clients' own rows.
            names: the clients' names; client-0, client-1, … if not given.
            classes: how many classes there are, where labels are 0 … classes − 1; or a list of all labels, in the
                order wished; if not given, the labels that clients have.
            public: inputs that no client owns, if there are any.
            name: a name for the whole.

        >>> pair = [[0.0, 1.0], [2.0, 3.0]], ["no", "yes"]
        >>> federation = Federation.from_arrays(clients=[pair, pair], test=pair)
        >>> federation
        Federation('arrays', 2 clients of 2 to 2 rows, inputs (2,), 2 classes, 2 test rows)
        >>> federation.class_names, federation.labels.tolist()
        (('no', 'yes'), [0, 1, 0, 1])
        """
        if isinstance(clients, str) or not isinstance(clients, Iterable) or frames.column_names(clients) is not None:
            raise DataError(
                f"clients is of type {type(clients).__name__}; expected a list of pairs (inputs, labels), one a "
                "client, whose names are given by names=[…]; tables by the names of their clients are for from_frames"
            )
        clients = list(clients)
        names = validation.client_names(default_names(len(clients)) if names is None else list(names), len(clients))
        owners = [f"client {client!r}" for client in names]
        pairs = [_two(owner, pair) for owner, pair in zip(owners, clients, strict=True)]
        features = frames.column_names(pairs[0][0])
        read = lambda owner, pair: _read(owner, pair, features, owners[0])
        pairs = [read(owner, pair) for owner, pair in zip(owners, pairs, strict=True)]
        tests = {} if test is None else {"the test set": read("the test set", _two("the test set", test))}
        for owner, (inputs, _) in zip([*owners, *tests], [*pairs, *tests.values()], strict=True):
            validation.same_shape(owner, inputs, owners[0], pairs[0][0].shape[1:])
        test_inputs, test_labels = tests.get("the test set", (pairs[0][0][:0], pairs[0][1][:0]))
        if public is not None:
            public = frames.matched("the public inputs", public, features, owners[0])

        labels_of = {owner: client_labels for owner, (_, client_labels) in zip(owners, pairs, strict=True)}
        count, class_names = labels.names_of(labels_of, classes)
        others = "; for other labels pass a list of them, classes=[…]" if isinstance(classes, Integral) else ""
        unseen = ", the labels that clients have; pass classes= if it is one more" if classes is None else others
        encode = lambda owner, values, hint=others: labels.encode(owner, values, count, class_names, hint)
        ends = np.cumsum([len(inputs) for inputs, _ in pairs])
        return cls(
            name=name,
            clients=names,
            inputs=np.concatenate([inputs for inputs, _ in pairs]),
            labels=np.concatenate([encode(owner, values) for owner, values in labels_of.items()]),
            rows=tuple(np.split(np.arange(ends[-1], dtype=np.int32), ends[:-1])),
            test_inputs=test_inputs,
            test_labels=encode("the test set", test_labels, unseen),
            classes=count,
            public=public,
            class_names=class_names,
            features=features,
        )

    @classmethod
    def from_frames(
        cls,
        frames: Mapping[str, Any],
        target: str,
        test: Any = None,
        *,
        categories: Mapping[str, Sequence] | None = None,
        classes: int | Sequence | None = None,
        seed: int = 0,
        name: str = "frames",
    ) -> "Federation":
        """A federation from one table per client: data frames of pandas or polars, Arrow tables, dictionaries.

        All columns but the target are inputs. Numbers are taken as they are, truth values as 0 and 1; a category, which
        is text, is a column of zeros and ones for each of its levels but the first, called "sex=male". New rows are
        coded alike: `history.predict(frame)`. A missing value, a column that one client lacks or has otherwise, a level
        that only some have: each is an error that names client, row and column.

        Args:
            frames: the table of each client, by the client's name.
            target: the column of labels, as in `from_arrays`; new rows need not have it.
            test: a table like those of the clients, a fraction of each client's rows to hold out, or nothing.
            categories: the levels of categories, in order, by column: where clients' rows have not all the same ones,
                or where numbers are codes.
            classes: as in `from_arrays`.
            seed: of the rows that are held out.
            name: a name for the whole.

        >>> north = {"age": [61, 48, 70], "sex": ["male", "female", "male"], "outcome": ["ill", "well", "ill"]}
        >>> south = {"sex": ["female", "male"], "age": [55, 39], "outcome": ["ill", "well"]}
        >>> federation = Federation.from_frames({"north": north, "south": south}, target="outcome", test=north)
        >>> federation.features, federation.of("south")[0].tolist()
        (('age', 'sex=male'), [[55.0, 0.0], [39.0, 1.0]])
        """
        if not isinstance(frames, Mapping):
            kind = type(frames).__name__
            raise ConfigError(f'frames is of type {kind}; expected one table a client, {{"north": frame, ...}}')
        names = validation.client_names(tuple(frames), len(frames))
        read = {f"client {client!r}": entries(f"client {client!r}", frames[client]) for client in names}
        coding = agree(read, target, categories or {})
        part = is_number(test)
        if test is not None and not part:
            read["the test set"] = entries("the test set", test)
            if target not in read["the test set"]:
                raise DataError(f"the test set has no column {target!r}, the target")
        first = next(iter(read))
        pairs = {what: (coding.code(what, table, first), table[target].values) for what, table in read.items()}
        made = cls.from_arrays(
            clients=[pairs[f"client {client!r}"] for client in names],
            test=pairs.get("the test set"),
            names=names,
            classes=classes,
            name=name,
        )
        made = replace(made, coding=coding)
        return made.hold_out(test, seed) if part else made

    @property
    def test(self) -> tuple[np.ndarray, np.ndarray]:
        """Inputs and labels of the test set, the labels as the user calls them: what `watch` takes."""
        names = self.class_names
        return self.test_inputs, self.test_labels if names is None else np.array(names)[self.test_labels]

    @property
    def has_test(self) -> bool:
        """Whether there is a test set."""
        return len(self.test_labels) > 0

    @property
    def sizes(self) -> np.ndarray:
        """N_k, how many rows each client owns."""
        return self._sizes

    @property
    def by_name(self) -> np.ndarray:
        """The places of the clients in the order of their names."""
        return self._by_name

    @cached_property
    def _sizes(self) -> np.ndarray:
        return validation.read_only(np.array([len(rows) for rows in self.rows]))

    @cached_property
    def _by_name(self) -> np.ndarray:
        return validation.read_only(np.argsort(self.clients))

    @property
    def class_counts(self) -> np.ndarray:
        """How many rows of each class each client owns, [K, C]."""
        return np.stack([np.bincount(self.labels[rows], minlength=self.classes) for rows in self.rows])

    def of(self, client: str | int) -> tuple[np.ndarray, np.ndarray]:
        """Inputs and labels of one client, by its name or by its place in `clients`."""
        if isinstance(client, str):
            client = self._place(client)
        if not 0 <= client < len(self.clients):
            raise ConfigError(f"client number {client}; expected 0 to {len(self.clients) - 1}")
        return self.inputs[self.rows[client]], self.labels[self.rows[client]]

    def without(self, client: str) -> "Federation":
        """The federation after a client has left, with all its rows."""
        place = self._place(client)
        if len(self.clients) == 1:
            raise ConfigError(f"client {client!r} is the last one; expected a federation of at least one")
        others = [k for k in range(len(self.clients)) if k != place]
        pool = _without_rows(self.rows[place], self.inputs, self.labels, [self.rows[k] for k in others])
        return replace(self, clients=tuple(self.clients[k] for k in others), **pool)

    def with_client(self, client: str, data: object) -> "Federation":
        """The federation after a client has come, with (inputs, labels) like those of the others."""
        if client in self.clients:
            raise ConfigError(f"client {client!r} is in the federation already; expected another name")
        inputs, values, rows = self._with_rows(client, data)
        return replace(self, clients=(*self.clients, client), inputs=inputs, labels=values, rows=(*self.rows, rows))

    def with_data(self, client: str, data: object) -> "Federation":
        """The federation with other (inputs, labels) of a client, whose rows so far are gone."""
        place = self._place(client)
        inputs, values, rows = self._with_rows(client, data)
        all_rows = [rows if k == place else own for k, own in enumerate(self.rows)]
        return replace(self, **_without_rows(self.rows[place], inputs, values, all_rows))

    def _place(self, client: str) -> int:
        if client not in self.clients:
            raise unknown("client", client, self.clients)
        return self.clients.index(client)

    def _with_rows(self, client: str, data: object) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The pool with the rows of a client at its end: inputs, labels, and the numbers of these rows."""
        inputs, values = self.checked(f"client {client!r}", data)
        rows = np.arange(len(inputs), dtype=np.int32) + len(self.inputs)
        return np.concatenate([self.inputs, inputs]), np.concatenate([self.labels, values]), rows

    def hold_out(self, fraction: float, seed: int) -> "Federation":
        """The federation to tune on: a part of each client's rows is the test set, the real one is gone.

        Each client gives the same fraction of its rows, of each class alike as far as whole rows allow, and
        keeps at least one row.
        """
        fraction, rng = validation.fraction_of_rows(fraction), validation.generator(seed)
        held_out = [stratified(self.labels[rows], fraction, rng) for rows in self.rows]
        test = np.concatenate([rows[out] for rows, out in zip(self.rows, held_out, strict=True)])
        if len(test) == 0:
            raise ConfigError(
                f"fraction {fraction} holds out no row: the largest client has {self.sizes.max()} rows; "
                "expected a larger fraction"
            )
        return replace(
            self,
            rows=tuple(rows[~out] for rows, out in zip(self.rows, held_out, strict=True)),
            test_inputs=self.inputs[test],
            test_labels=self.labels[test],
        )

    def checked(self, what: str, pair: object) -> tuple[np.ndarray, np.ndarray]:
        """A set to evaluate on, in its one form: inputs like those of the clients, labels as the user calls them."""
        inputs, values = _two(what, pair)
        inputs, values = self.as_inputs(what, inputs), labels.read(what, values)
        validation.not_empty(what, inputs)
        validation.same_length(what, inputs, values)
        return inputs, labels.encode(what, values, self.classes, self.class_names)

    def named(self, numbers: np.ndarray) -> np.ndarray:
        """Numbers of classes as the labels that the user calls them by, which `checked` and `watch` read."""
        if self.class_names is None:
            return numbers
        kind = object if isinstance(self.class_names[0], str) else None
        return np.array(self.class_names, kind)[numbers]

    def as_inputs(self, what: str, inputs: object) -> np.ndarray:
        """Inputs like those of the clients, in their one form; the columns of a table are matched by name."""
        shape, reference = self.inputs.shape[1:], "the clients' pool"
        return frames.read(what, inputs, shape, self.features, reference, self.coding)

    def fingerprint(self) -> str:
        """The sha256 of the contents, which two federations share if a run cannot tell them apart."""
        public = () if self.public is None else (self.public,)
        arrays = (self.inputs, self.labels, *self.rows, self.test_inputs, self.test_labels, *public)
        plain = self.class_names in (None, tuple(range(self.classes)))
        about = (self.clients, self.classes) if plain else (self.clients, self.classes, self.class_names)
        return fingerprint(*arrays, about=repr(about))

    def __repr__(self) -> str:
        """One line of sizes."""
        public = "" if self.public is None else f", {len(self.public)} public rows"
        sizes, test = self.sizes, f"{len(self.test_labels)} test rows" if self.has_test else "no test set"
        several = f"{len(sizes)} clients of {sizes.min()} to {sizes.max()} rows"
        clients = several if len(sizes) > 1 else f"one client of {sizes[0]} rows"
        return (
            f"Federation({self.name!r}, {clients}, "
            f"inputs {self.inputs.shape[1:]}, {self.classes} classes, "
            f"{test}{public})"
        )

    def _owner(self, row: int) -> str:
        for name, rows in zip(self.clients, self.rows, strict=True):
            if row in rows:
                return f"client {name!r}, row {int(np.argmax(rows == row))}"
        return f"the pool, row {row}, which no client owns"


def _without_rows(gone: np.ndarray, inputs: np.ndarray, values: np.ndarray, rows: Sequence[np.ndarray]) -> dict:
    """A pool without the rows that are gone, and where the others' rows are in it."""
    stay = np.ones(len(inputs), bool)
    stay[gone] = False
    now = np.cumsum(stay, dtype=np.int32) - 1
    return {"inputs": inputs[stay], "labels": values[stay], "rows": tuple(now[own] for own in rows)}


def fingerprint(*arrays: Any, about: str = "") -> str:
    """The sha256 of some arrays and a text."""
    digest = hashlib.sha256(about.encode())
    array: Any  # NumPy does not tell a type checker that its arrays are buffers
    for array in map(np.asarray, arrays):
        # Shapes too, so that no two lists of arrays run together to the same bytes.
        digest.update(f"{array.dtype.str}{array.shape}".encode())
        digest.update(array)
    return digest.hexdigest()


def default_names(count: int) -> list[str]:
    """client-0 … client-9, or client-00 … client-99: padded so that sorting keeps their order."""
    width = len(str(count - 1))
    return [f"client-{number:0{width}d}" for number in range(count)]


def _two(what: str, pair: Any) -> tuple[Any, Any]:
    table = frames.column_names(pair) is not None
    try:
        if table:
            raise TypeError
        inputs, values = pair
    except (TypeError, ValueError) as error:
        parts = ": the table without its target, and the target" if table else ""
        raise DataError(f"{what}: {type(pair).__name__}; expected a pair (inputs, labels){parts}") from error
    if np.size(values) == 0:
        raise DataError(f"{what} has no rows; expected at least one")
    return inputs, values


def _read(what: str, pair: tuple, features: tuple | None, reference: str) -> tuple[np.ndarray, np.ndarray]:
    inputs, values = pair
    inputs = validation.floating(what, frames.matched(what, inputs, features, reference))
    values = labels.read(what, values)
    validation.same_length(what, inputs, values)
    return inputs, values


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
