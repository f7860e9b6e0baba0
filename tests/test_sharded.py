"""Clients spread over devices, and over processes: the answer of one device, to rounding."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import fedlap
import spread
from fedlap.engines import choose
from fedlap.engines.sharded import Sharded
from fedlap.errors import ConfigError

SCRIPT = Path(__file__).with_name("spread.py")


def free_port():
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return listening.getsockname()[1]


def start(*arguments, flags=""):
    flags = f"{os.environ.get('XLA_FLAGS', '')} {flags}"
    command = [sys.executable, str(SCRIPT), *arguments]
    return subprocess.Popen(command, env={**os.environ, "XLA_FLAGS": flags}, stdout=subprocess.PIPE, text=True)


def answer(process):
    output, _ = process.communicate(timeout=500)
    assert process.returncode == 0
    return json.loads(output.splitlines()[-1])


@pytest.fixture(scope="module")
def wanted():
    return {name: spread.run(*what, "vectorised") for name, what in spread.RUNS.items()}


def assert_same(found, wanted):
    for name, weights in wanted.items():
        np.testing.assert_allclose(found[name], weights, rtol=1e-11, atol=1e-13, err_msg=name)


def test_two_devices_are_one(wanted):
    found = answer(start(flags="--xla_force_host_platform_device_count=2"))
    assert (found["devices"], found["processes"]) == (2, 1)
    assert_same(found["weights"], wanted)


def test_two_processes_are_one(wanted):
    """Under `jax.distributed`, over loopback: each has the states of its own clients, and both have the answer."""
    address = f"127.0.0.1:{free_port()}"
    both = [start(address, "2", str(number)) for number in range(2)]
    first, second = map(answer, both)
    assert (first["devices"], first["processes"]) == (2, 2)
    assert first == second
    assert_same(first["weights"], wanted)


def test_several_devices_are_used_without_being_asked(monkeypatch):
    monkeypatch.setattr("jax.device_count", lambda: 2)
    assert isinstance(choose("auto", 100, 3), Sharded)


def test_a_checkpoint_of_several_processes_is_refused(monkeypatch, tmp_path):
    monkeypatch.setattr("jax.process_count", lambda: 2)
    with pytest.raises(ConfigError, match="a checkpoint is of one process"):
        fedlap.simulate(
            fedlap.FedAvg(), spread.federation(), fedlap.logistic(), rounds=1, checkpoint=tmp_path / "run.npz"
        )
