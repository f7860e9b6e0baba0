"""Named arrays and a header about them in one file, replaced at once or not at all, and never a pickle."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fedlap.files.atomic import replacing
from fedlap.files.folders import PathLike

HEADER = "header"


def write(path: PathLike, header: Mapping[str, Any], arrays: Mapping[str, Any]) -> None:
    """Write the header, which is JSON, and the arrays; missing folders are made, for the user alone."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    encoded = np.frombuffer(json.dumps(header).encode(), np.uint8)
    with replacing(path, mode=0o600) as file:
        np.savez(file, **{HEADER: encoded}, **arrays)


def read(path: PathLike) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """The header and the arrays; ValueError whatever is wrong with the file."""
    try:
        with open(path, "rb") as opened, np.load(opened, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        header = json.loads(arrays.pop(HEADER).tobytes())
    except Exception as error:  # a damaged archive fails in a dozen ways, each an exception of its own
        raise ValueError(str(error)) from error
    if not isinstance(header, dict):
        raise ValueError("it does not say what it is of")
    return header, arrays
