"""`fedlap WORDS…` in this process, for to import what a command needs takes longer than most commands.

That it is the same in a process of its own, each file of tests that uses this shows with some of its commands.
"""

import contextlib
import io
import os
import sys
import warnings
from dataclasses import dataclass
from unittest import mock

from fedlap.cli.main import main


@dataclass(frozen=True)
class Ended:
    """What is left of a command, as of a process."""

    returncode: int
    stdout: str
    stderr: str


def command(*words, cwd, columns=120):
    """Run a command line in a folder. What it raises is a traceback, and comes out of here."""
    arguments = mock.patch.object(sys, "argv", ["fedlap", *map(str, words)])
    environment = mock.patch.dict(os.environ, {"COLUMNS": str(columns)})
    formats = mock.patch.object(warnings, "formatwarning", warnings.formatwarning)
    out, err = io.StringIO(), io.StringIO()
    streams = contextlib.redirect_stdout(out), contextlib.redirect_stderr(err)
    with contextlib.chdir(cwd), arguments, environment, formats, warnings.catch_warnings(), streams[0], streams[1]:
        warnings.simplefilter("ignore")  # as Python does with what is for developers
        warnings.simplefilter("default", UserWarning)
        code = 0
        try:
            main()
        except SystemExit as ended:
            code = ended.code or 0
    return Ended(code, out.getvalue(), err.getvalue())
