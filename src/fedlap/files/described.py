"""A folder of two files: a JSON file that says what it is, and a file of arrays beside it that it knows by its hash."""

import hashlib
import json
from collections.abc import Collection
from pathlib import Path
from typing import Any

from fedlap.errors import DataError


def read_description(path: Path, formats: Collection[int], thing: str, state: str) -> dict[str, Any]:
    """The JSON file of a thing in a state, such as a history that is saved, if it is of one of these formats."""
    try:
        description = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        expected = f"expected the folder of a {state} {thing}"
        raise DataError(f"{path}: cannot be read ({error.strerror}); {expected}") from error
    except ValueError as error:
        raise DataError(f"{path}: not JSON ({error})") from error
    number = description.get("format") if isinstance(description, dict) else None
    if number not in list(formats):  # a list compares: what stands in a file need not have a hash
        readable = f"format{'s' if len(formats) > 1 else ''} {' and '.join(map(str, formats))}"
        raise DataError(f"{path}: a {thing} of format {number!r}; this fedlap reads {readable}")
    return description


def read_described(path: Path, sha256: str, description: str) -> bytes:
    """The bytes of the other file, if they are those that the file named `description` was written for."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror})") from error
    if hashlib.sha256(content).hexdigest() != sha256:
        raise DataError(f"{path}: not the file that {description} was written for; it is damaged, or of another run")
    return content
