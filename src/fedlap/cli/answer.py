"""`--json`: one JSON object on the standard output, for whoever reads it with a program."""

import json
import math
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Annotated, Any

import typer

AsJson = Annotated[
    bool, typer.Option("--json", help="Write one JSON object to the standard output, and all else to the error output.")
]


@contextmanager
def answering(as_json: bool) -> Iterator[Callable[[Mapping[str, Any]], None]]:
    """A function to be given the answer; with `as_json` what is shown meanwhile goes to the error output."""
    if not as_json:
        yield lambda answer: None
        return
    output, answers = sys.stdout, []
    with _children_aside(), redirect_stdout(sys.stderr):
        yield answers.append
    for answer in answers:
        json.dump(plain(answer), output, indent=2, ensure_ascii=False, allow_nan=False)
        output.write("\n")


@contextmanager
def _children_aside() -> Iterator[None]:
    """A block in which processes that are started write to the error output, too: they have it from the system."""
    sys.stdout.flush()
    try:
        kept = os.dup(1)
    except OSError:  # there is none that they could write to
        yield
        return
    try:
        os.dup2(2, 1)
        yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)


def plain(value: Any) -> Any:
    """A value as JSON holds it: null for a number that is none, text for a path."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, Path):
        return str(value)
    if hasattr(value, "tolist"):  # of NumPy
        return plain(value.tolist())
    return None if isinstance(value, float) and not math.isfinite(value) else value
