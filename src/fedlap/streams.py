"""Random streams by name: a stream depends on the seed and on what it is for, never on what ran before it.

A client's stream is named after the client, so it is the same in a simulation, on another engine, after a
restart, and whatever the order of the clients.
"""

import hashlib
import zlib

import numpy as np


def stream(seed, *purpose):
    """An independent generator for each seed and purpose, for example (62, "batches", 3, "cleveland")."""
    name = "/".join(map(str, (seed, *purpose))).encode()
    return np.random.Generator(np.random.Philox(key=int.from_bytes(hashlib.blake2b(name, digest_size=16).digest())))


def number(name):
    """A 32-bit number for a client's name, to fold into JAX keys."""
    return zlib.crc32(name.encode())
