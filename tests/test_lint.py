"""The code as ruff wants it, so that `pytest` alone finds what a reader would stumble over."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
CODE = ("src", "tests", "benchmarks", "reproduction", "tools", "start.py")


@pytest.mark.parametrize("command", [("check",), ("format", "--check")], ids=" ".join)
def test_ruff_finds_nothing(command):
    ruff = [sys.executable, "-m", "ruff", *command, "--no-cache", *CODE]
    result = subprocess.run(ruff, cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
