"""The fuzzer of files: damaged ones of every kind are read or refused in words, and it notices if one is not."""

import os
import re
import subprocess
import sys
from pathlib import Path

TOOLS = Path(__file__).parent.parent / "tools"

READERS_WITH_FAULTS = """
import signal
from pathlib import Path
import fuzz_readers
from fedlap.errors import DataError

def for_ever(*_):
    while True:
        pass

def too_much(*_):
    return bytearray(2**60)

def words(*_):
    raise DataError("the file is empty")

fuzz_readers.SECONDS = 0.2
signal.signal(signal.SIGPROF, fuzz_readers._too_long)
for fault in (words, for_ever, too_much, lambda *_: {}["age"], lambda *_: None):
    fuzz_readers.READERS["csv"] = fault
    print(fuzz_readers.outcome(Path("."), "csv", Path("x.csv"), 0)["outcome"])
"""


def python(folder, *words):
    path = os.pathsep.join((str(TOOLS), os.environ.get("PYTHONPATH", "")))
    env = {**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": path}
    return subprocess.run(
        [sys.executable, *words], cwd=folder, capture_output=True, text=True, env=env, timeout=900, check=False
    )


def test_damaged_files_are_read_or_refused_in_words(tmp_path):
    found = python(tmp_path, str(TOOLS / "fuzz.py"), "--files", "300", "--seed", "22")
    assert found.returncode == 0, found.stdout + found.stderr
    assert re.search(r"^300 files, 0 bad", found.stdout, re.M)
    kinds = {line.split()[0] for line in found.stdout.splitlines()[1:-1]}
    assert len(kinds) == 15 and not (tmp_path / "fuzz-bad").exists()


def test_the_fuzzer_tells_words_from_a_traceback_and_from_what_does_not_end(tmp_path):
    found = python(tmp_path, "-c", READERS_WITH_FAULTS)
    assert found.stdout.splitlines() == ["words", "too long", "too large", "traceback", "fine"], found.stderr
