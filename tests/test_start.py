"""What sets fedlap up on a fresh machine, without making an environment: that is what runs these tests."""

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest


@pytest.fixture
def start(tmp_path, monkeypatch):
    """start.py with a folder of its own; `made` and `installed` say what it did."""
    spec = importlib.util.spec_from_file_location("start", Path(__file__).parents[1] / "start.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.made, module.installed, module.code = [], [], 0

    def create(environment, with_pip):
        module.made.append(environment)
        module.BIN.mkdir(parents=True, exist_ok=True)
        (module.BIN / "pip").touch()

    def run(command, **options):
        module.installed.append(command[-1])
        return SimpleNamespace(returncode=module.code)

    monkeypatch.setattr(module, "ENVIRONMENT", tmp_path / ".venv")
    monkeypatch.setattr(module, "BIN", tmp_path / ".venv/bin")
    monkeypatch.setattr(module.venv, "create", create)
    monkeypatch.setattr(module.subprocess, "run", run)
    return module


def test_what_is_installed_is_not_installed_again(start):
    start.install("[dev]")
    start.install("[dev]")
    assert start.made == [start.ENVIRONMENT] and len(start.installed) == 1
    start.install("")
    assert len(start.made) == 1 and len(start.installed) == 2


def test_an_environment_that_was_cut_short_is_made_again(start):
    """Its configuration is the first thing in it, and pip the last."""
    start.ENVIRONMENT.mkdir()
    (start.ENVIRONMENT / "pyvenv.cfg").touch()
    start.install("")
    assert start.made == [start.ENVIRONMENT]


def test_a_python_without_venv_is_explained(start, monkeypatch):
    def fail(*_, **__):
        raise subprocess.CalledProcessError(1, "ensurepip")

    monkeypatch.setattr(start.venv, "create", fail)
    with pytest.raises(SystemExit, match=r"\.venv: cannot be made .* apt install python3-venv"):
        start.install("")


def test_what_could_not_be_installed_is_tried_again(start):
    start.code = 1
    with pytest.raises(SystemExit, match="the same command tries again"):
        start.install("")
    start.code = 0
    start.install("")
    assert len(start.made) == 1 and len(start.installed) == 2


def test_the_reproduction_runs_in_the_clone(start, monkeypatch):
    """Wherever the command is given: it is no part of what is installed."""
    became = []
    monkeypatch.setattr(start, "become", lambda *command, cwd=None: became.append((command, cwd)) or sys.exit(0))
    monkeypatch.setattr(sys, "argv", ["start.py", "reproduction", "table", "1"])
    with pytest.raises(SystemExit):
        start.main()
    command = (str(start.BIN / "python"), "-m", "reproduction", "table", "1")
    assert became == [(command, start.HERE)] and len(start.installed) == 1
