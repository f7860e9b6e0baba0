"""Named arrays and a few words about them in one file, replaced at once or not at all, and never a pickle."""

import json
import os
from pathlib import Path

import numpy as np

HEADER = "header"


def write(path, header, arrays):
    """Write to a neighbour, force it to disk, rename: a reader finds the old file or the new one, never half."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    words = np.frombuffer(json.dumps(header).encode(), np.uint8)
    unfinished = path.with_name(path.name + ".part")
    with open(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        np.savez(file, **{HEADER: words}, **arrays)
        file.flush()
        os.fsync(file.fileno())
    os.replace(unfinished, path)
    if os.name == "posix":  # the new name, too, must survive a power cut
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def read(path):
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
