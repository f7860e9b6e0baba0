"""A request or a reply as the content of a Flower message: our own bytes, so that nothing of Flower's unpacks arrays.

Flower transfers every record of a message, and every piece of every array, by an HTTP request of its own with a
signature of its own. A small message is therefore one value of one record; a large one is cut into pieces by Flower.
"""

import secrets

from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from fedlap.errors import DataError
from fedlap.study.protocol.messages import Kind, Reply, Request, decode, encode

SMALL = 2**21  # bytes
NONCE = 16


def content(message: Request | Reply) -> RecordDict:
    """The content of a Flower message."""
    # Flower knows every part of a message by its hash. Two equal requests must not share one: when the first fails to
    # arrive, Flower 1.41 takes the part for known and the second arrives empty.
    data = secrets.token_bytes(NONCE) + encode(message)
    if len(data) <= SMALL:
        return RecordDict({"fedlap": ConfigRecord({"bytes": data})})
    return RecordDict({"fedlap": ArrayRecord({"bytes": Array("uint8", (len(data),), "fedlap", data)})})


def read(records: RecordDict, kind: type[Kind]) -> Kind:
    """The Request or Reply in the content of a Flower message."""
    try:
        data = records["fedlap"]["bytes"]
        data = data.data if isinstance(data, Array) else data
    except Exception as error:  # whatever Flower's containers raise on what is not there
        raise DataError(f"a message of Flower that is none of fedlap ({type(error).__name__})") from error
    if not isinstance(data, bytes):
        raise DataError(f"a message of type {type(data).__name__}; expected bytes")
    return decode(data[NONCE:], kind)
