"""Requests and replies: named arrays and a header, as bytes, and what a receiver checks before it looks closer."""

import hashlib
import json
import math
import re
from dataclasses import dataclass, field
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from fedlap.errors import DataError

# What may be in a message: numbers of fixed size, under these names and no others. NumPy would take any text for a type
# that it can make sense of, and fails on some in ways of its own.
NAMES = ("|b1", "|i1", "<i2", "<i4", "<i8", "|u1", "<u2", "<u4", "<u8", "<f2", "<f4", "<f8")
TYPES = {name: np.dtype(name) for name in NAMES}
HASH = re.compile("[0-9a-f]{64}")

Arrays = dict[str, np.ndarray]  # of a tree: each under the path that leads to it


@dataclass(frozen=True)
class Form:
    """The type and shape that an array must have; a side of None is of any length."""

    dtype: Any
    shape: tuple[int | None, ...]
    finite: bool = True  # whether all its numbers must be

    def fits(self, array: np.ndarray) -> bool:
        """Whether an array has this form."""
        if array.dtype != self.dtype or array.ndim != len(self.shape):
            return False
        return all(wanted in (None, side) for side, wanted in zip(array.shape, self.shape, strict=True))


@dataclass(frozen=True)
class Request:
    """From the server to a site: what to do, for which round, from which state, and the arrays to do it with."""

    kind: str  # such as "begin"; `contents` of each kind of study has all of them
    study: str
    run: str
    round: int = -1
    accepted: int = -1  # the last round of which the server has this site's answer
    arrays: Arrays = field(default_factory=dict)

    @property
    def header(self) -> dict[str, Any]:
        """All but the arrays."""
        return {name: getattr(self, name) for name in ("kind", "study", "run", "round", "accepted")}

    @property
    def digest(self) -> str:
        """What a reply names as the request that it answers."""
        return digest(self.arrays, self.header)

    @classmethod
    def read(cls, header: Any, arrays: Arrays) -> "Request":
        """A request from the wire."""
        expected = {"kind": str, "study": str, "run": str, "round": int, "accepted": int}
        return cls(**typed("the server's request", header, expected), arrays=arrays)


@dataclass(frozen=True)
class Recorded:
    """The line of a site's audit log that records a reply: what the server needs to have its hash, and keep it."""

    line: int  # the first is 1
    time: str
    previous: str  # the hash of the line before it
    head: str  # the hash of this one: with it all that stands before is fixed

    @classmethod
    def read(cls, table: dict[str, Any]) -> "Recorded":
        """The line that a reply names."""
        typed("a reply's record", table, {"line": int, "time": str, "previous": str, "head": str})
        hashes = table["previous"], table["head"]
        if not (1 <= table["line"] < 2**53 and len(table["time"]) <= 40 and all(map(HASH.fullmatch, hashes))):
            raise DataError("a reply's record is no line of an audit log; expected its number, its time and two hashes")
        return cls(**table)


@dataclass(frozen=True)
class Reply:
    """From a site to the server. `answers` is the digest of the request, so that a reply fits no other one.

    One that the site could not record has nothing in it but a refusal.
    """

    member: str
    answers: str
    refusal: str = ""
    facts: dict = field(default_factory=dict)
    arrays: Arrays = field(default_factory=dict)
    recorded: Recorded | None = None

    @property
    def header(self) -> dict[str, Any]:
        """All but the arrays."""
        known = {name: getattr(self, name) for name in ("member", "answers", "refusal", "facts")}
        return {**known, "recorded": vars(self.recorded) if self.recorded else {}}

    @property
    def digest(self) -> str:
        """The hash of all that is in the reply."""
        return digest(self.arrays, self.header)

    @classmethod
    def read(cls, header: Any, arrays: Arrays) -> "Reply":
        """A reply from the wire."""
        expected = {"member": str, "answers": str, "refusal": str, "facts": dict, "recorded": dict}
        known = dict(typed("a reply", header, expected))
        table = known.pop("recorded")
        return cls(**known, arrays=arrays, recorded=Recorded.read(table) if table else None)


def typed(source: str, table: Any, kinds: dict[str, type]) -> dict[str, Any]:
    """The table, if it has exactly these fields, each of its kind; DataError if not."""
    if not isinstance(table, dict) or table.keys() != kinds.keys():
        raise DataError(f"{source} has not the fields {', '.join(kinds)}")
    for name, kind in kinds.items():
        if type(table[name]) is not kind:
            raise DataError(f"{source}: {name} is {table[name]!r}; expected a {kind.__name__}")
    return table


def pack(tree: Any) -> Arrays:
    """The arrays of a tree, each under the path that leads to it."""
    return {name: np.asarray(leaf) for name, leaf in _leaves(tree)}


def unpack(arrays: Arrays, like: Any, source: str) -> Any:
    """The tree that was packed into these arrays, if it is as `like`: a tree of arrays, or of the forms of arrays."""
    forms = {name: leaf if isinstance(leaf, Form) else Form(leaf.dtype, leaf.shape) for name, leaf in _leaves(like)}
    check(arrays, forms, source)
    return jax.tree.unflatten(jax.tree.structure(like), [arrays[name] for name in forms])


def on_device(tree: Any) -> Any:
    """The tree with its arrays on the device, as programs take them."""
    return jax.tree.map(jnp.asarray, tree)


def part(arrays: Arrays, field: str) -> Arrays:
    """The arrays of one field of a packed record, as if it had been packed by itself."""
    return {name.removeprefix(f".{field}"): array for name, array in arrays.items() if name.startswith(f".{field}.")}


def check(arrays: Arrays, forms: dict[str, Form], source: str) -> None:
    """DataError unless there are exactly these names, with these types and shapes, and all numbers are finite.

    A form may say that its numbers need not be.
    """
    missing, extra = forms.keys() - arrays.keys(), arrays.keys() - forms.keys()
    if missing or extra:
        named = [*(f"{name} is missing" for name in missing), *(f"{name} is not expected" for name in extra)]
        raise DataError(f"{source}: {sorted(named)[0]}")
    for name, form in forms.items():
        array = arrays[name]
        if not isinstance(array, np.ndarray) or not form.fits(array):
            found = f"{array.dtype} {array.shape}" if isinstance(array, np.ndarray) else type(array).__name__
            raise DataError(f"{source}: {name} is {found}; expected {np.dtype(form.dtype)} {form.shape}")
        if form.finite and array.dtype.kind == "f" and not np.isfinite(array).all():
            count = int((~np.isfinite(array)).sum())
            raise DataError(f"{source}: {name} has {count} values that are not finite numbers")


def _leaves(tree: Any) -> list[tuple[str, Any]]:
    return [(jax.tree_util.keystr(path), leaf) for path, leaf in jax.tree_util.tree_leaves_with_path(tree)]


Kind = TypeVar("Kind", Request, Reply)


def encode(message: Request | Reply) -> bytes:
    """A request or a reply as bytes: the length of a JSON text, the text, then the numbers of all arrays in order."""
    little = {name: np.asarray(array, array.dtype.newbyteorder("<")) for name, array in message.arrays.items()}
    table = [[name, array.dtype.str, array.shape] for name, array in little.items()]
    text = json.dumps({"header": message.header, "arrays": table}, allow_nan=False).encode()
    return b"".join([len(text).to_bytes(4, "little"), text, *(array.tobytes() for array in little.values())])


def decode(data: bytes, kind: type[Kind]) -> Kind:
    """A Request or a Reply from bytes that anyone may have sent: nothing is run, nothing larger than them allocated."""
    try:
        end = 4 + int.from_bytes(data[:4], "little")
        text = json.loads(data[4:end])
        arrays = {}
        for name, dtype, shape in text["arrays"]:
            if dtype not in TYPES or not isinstance(name, str) or any(type(side) is not int for side in shape):
                raise ValueError(f"an array of type {str(dtype)[:40]!r}")
            dtype = TYPES[dtype]
            begin, end = end, end + dtype.itemsize * math.prod(shape)
            if min(shape, default=0) < 0 or end > len(data) or name in arrays:
                raise ValueError(f"an array of shape {shape} in a message of {len(data)} bytes")
            array = np.frombuffer(data[begin:end], dtype).reshape(shape)
            arrays[name] = array.astype(dtype.newbyteorder("="))
        if end != len(data):
            raise ValueError(f"{len(data)} bytes where {end} are announced")
        header = text["header"]
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError) as error:
        raise DataError(f"a message that cannot be read ({error})") from error
    return kind.read(header, arrays)


def size(arrays: Arrays) -> int:
    """Bytes of all arrays together."""
    return sum(array.nbytes for array in arrays.values())


def digest(arrays: Arrays, header: dict[str, Any] | None = None) -> str:
    """The sha256 of arrays and a header, which changes with any bit, type, shape or name of them."""
    total = hashlib.sha256(json.dumps(header, sort_keys=True).encode())
    for name in sorted(arrays):
        array = np.asarray(arrays[name])
        total.update(f"\n{name} {array.dtype.str} {array.shape}\n".encode(errors="surrogatepass"))
        total.update(np.ascontiguousarray(array).tobytes())
    return total.hexdigest()
