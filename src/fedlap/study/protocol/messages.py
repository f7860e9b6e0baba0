"""What travels: trees of arrays by name, a few words beside them, and what a receiver checks before it looks closer."""

import hashlib
import json
import math
from dataclasses import dataclass, field

import jax
import jax.numpy as jnp
import numpy as np

from fedlap.errors import DataError

# What may be in a message: numbers of fixed size, under these names and no others. NumPy would take any text for a type
# that it can make sense of, and fails on some in ways of its own.
NAMES = ("|b1", "|i1", "<i2", "<i4", "<i8", "|u1", "<u2", "<u4", "<u8", "<f2", "<f4", "<f8")
TYPES = {name: np.dtype(name) for name in NAMES}


@dataclass(frozen=True)
class Request:
    """From the server to a site: what to do, for which round, from which state, and the arrays to do it with."""

    kind: str  # "statistics", "points", "begin", "train" or "finish"
    study: str
    run: str
    round: int = -1
    accepted: int = -1  # the last round of which the server has this site's answer
    arrays: dict = field(default_factory=dict)

    @property
    def words(self):
        return {name: getattr(self, name) for name in ("kind", "study", "run", "round", "accepted")}

    @property
    def digest(self):
        return digest(self.arrays, self.words)

    @classmethod
    def read(cls, words, arrays):
        """A request from the wire."""
        expected = {"kind": str, "study": str, "run": str, "round": int, "accepted": int}
        return cls(**_typed("the server's request", words, expected), arrays=arrays)


@dataclass(frozen=True)
class Reply:
    """From a site to the server. `answers` is the digest of the request, so that a reply fits no other one."""

    member: str
    answers: str
    refusal: str = ""
    facts: dict = field(default_factory=dict)
    arrays: dict = field(default_factory=dict)

    @property
    def words(self):
        return {name: getattr(self, name) for name in ("member", "answers", "refusal", "facts")}

    @property
    def digest(self):
        return digest(self.arrays, self.words)

    @classmethod
    def read(cls, words, arrays):
        """A reply from the wire."""
        expected = {"member": str, "answers": str, "refusal": str, "facts": dict}
        return cls(**_typed("a reply", words, expected), arrays=arrays)


def _typed(what, words, expected):
    if not isinstance(words, dict) or words.keys() != expected.keys():
        raise DataError(f"{what} has not the fields {', '.join(expected)}")
    for name, kind in expected.items():
        if type(words[name]) is not kind:
            raise DataError(f"{what}: {name} is {words[name]!r}; expected a {kind.__name__}")
    return words


def pack(tree):
    """The arrays of a tree, each under the path that leads to it."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {jax.tree_util.keystr(path): np.asarray(leaf) for path, leaf in leaves}


def unpack(arrays, like, what):
    """The tree, shaped as `like`, that was packed into these arrays; DataError if they are anything else."""
    wanted = pack(like)
    check(arrays, {name: (leaf.dtype, leaf.shape) for name, leaf in wanted.items()}, what)
    leaves = [jnp.asarray(arrays[name]) for name in wanted]
    return jax.tree.unflatten(jax.tree.structure(like), leaves)


def check(arrays, wanted, what):
    """DataError unless there are exactly these names, with these types and shapes, and all numbers are finite."""
    missing, extra = wanted.keys() - arrays.keys(), arrays.keys() - wanted.keys()
    if missing or extra:
        named = [*(f"{name} is missing" for name in missing), *(f"{name} is not expected" for name in extra)]
        raise DataError(f"{what}: {sorted(named)[0]}")
    for name, (dtype, shape) in wanted.items():
        array = arrays[name]
        if not isinstance(array, np.ndarray) or (array.dtype, array.shape) != (np.dtype(dtype), tuple(shape)):
            found = f"{array.dtype} {array.shape}" if isinstance(array, np.ndarray) else type(array).__name__
            raise DataError(f"{what}: {name} is {found}; expected {np.dtype(dtype)} {tuple(shape)}")
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise DataError(f"{what}: {name} has {int((~np.isfinite(array)).sum())} values that are not finite numbers")


def encode(message):
    """A request or a reply as bytes: the length of a JSON text, the text, then the numbers of all arrays in order."""
    little = {name: np.asarray(array, array.dtype.newbyteorder("<")) for name, array in message.arrays.items()}
    table = [[name, array.dtype.str, array.shape] for name, array in little.items()]
    text = json.dumps({"words": message.words, "arrays": table}, allow_nan=False).encode()
    return b"".join([len(text).to_bytes(4, "little"), text, *(array.tobytes() for array in little.values())])


def decode(data, kind):
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
        words = text["words"]
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError) as error:
        raise DataError(f"a message that cannot be read ({error})") from error
    return kind.read(words, arrays)


def size(arrays):
    """Bytes of all arrays together."""
    return sum(array.nbytes for array in arrays.values())


def digest(arrays, words=None):
    """The sha256 of arrays and words, which changes with any bit, type, shape or name of them."""
    found = hashlib.sha256(json.dumps(words, sort_keys=True).encode())
    for name in sorted(arrays):
        array = np.asarray(arrays[name])
        found.update(f"\n{name} {array.dtype.str} {array.shape}\n".encode())
        found.update(np.ascontiguousarray(array).tobytes())
    return found.hexdigest()
