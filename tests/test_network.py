"""Real processes on loopback with TLS and keys: killed, restarted, refused, and in the end the simulation's bits."""

import json
import os
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("flwr")

from flwr.app import ArrayRecord, ConfigRecord, RecordDict

from fedlap.errors import DataError
from fedlap.flower import demo, server, wire
from fedlap.flower.gate import LARGEST
from fedlap.flower.processes import Processes
from fedlap.study import fitted, keys
from fedlap.study.audit import verify
from fedlap.study.messages import Reply, digest, pack
from fedlap.study.store import read

ROUNDS = 5


@pytest.fixture(scope="module")
def network(tmp_path_factory):
    """A study, its server and its four nodes; stopped whatever happens. Its arrays are float64, as in these tests."""
    folder = tmp_path_factory.mktemp("network")
    study, files = demo.make(folder / "heart", ROUNDS, "fedlap_cov", deadline=60)
    with Processes(folder / "logs", {"JAX_ENABLE_X64": "1"}) as processes:
        demo.start_server(processes, study)
        for name, path in files.items():
            demo.start_node(processes, study, name, path)
        yield study, files, processes


@pytest.mark.parametrize("numbers", [3, 400_000])
def test_a_message_passes_through_flower_bit_for_bit(numbers):
    sent = Reply("va", "x", facts={"a": 1}, arrays={".w": np.linspace(0, 1, numbers), "n": np.array(2.0)})
    content = wire.content(sent)
    received = wire.read(content, Reply)
    assert received.digest == sent.digest
    assert isinstance(content["fedlap"], ConfigRecord if numbers == 3 else ArrayRecord)


@pytest.mark.parametrize(
    "records",
    [
        {},
        {"fedlap": ConfigRecord({})},
        {"fedlap": ConfigRecord({"bytes": "words"})},
        {"fedlap": ConfigRecord({"bytes": b"short"})},
        {"fedlap": ArrayRecord([np.zeros(3)])},
    ],
)
def test_what_flower_carries_but_fedlap_did_not_send_is_refused(records):
    with pytest.raises(DataError):
        wire.read(RecordDict(records), Reply)


def post(study, path, length=0):
    """The status of a stranger's request."""
    context = ssl.create_default_context(cafile=study.folder / "ca.crt")
    request = urllib.request.Request(f"https://{study.address}{path}", data=b"\0" * length, method="POST")
    try:
        with urllib.request.urlopen(request, context=context, timeout=20) as response:
            return response.status
    except urllib.error.HTTPError as error:
        with error:
            return error.code


@pytest.mark.parametrize(
    "path, length, status",
    [
        ("/v1/control/start-run", 0, 403),
        ("/v1/control/register-node", 0, 403),
        ("/v1/fleet/register-node", 0, 403),
        ("/docs", 0, 403),
        ("/v1/fleet/pull-messages", LARGEST + 1, 413),
    ],
)
def test_a_stranger_can_neither_start_nor_register_nor_flood(network, path, length, status):
    assert post(network[0], path, length) == status


def refused_node(processes, study, *words):
    """What a node says that is not let in."""
    processes.start("stranger", "node", study.path, "--name", "va", *words, "--patience", "0")
    process = processes.running["stranger"]
    assert process.wait(90) == 2, processes.read("stranger")
    said = processes.read("stranger")
    processes.log("stranger").unlink()
    return said


def test_a_key_that_was_replaced_is_let_in_no_more():
    node = lambda number, key, gone="": SimpleNamespace(node_id=number, public_key=key, unregistered_at=gone)
    known = [node(1, b"ash"), node(2, b"birch, lost"), node(3, b"oak, gone long ago", "2026-01-01")]
    done = []
    client = SimpleNamespace(
        ListNodes=lambda _: SimpleNamespace(nodes_info=known),
        UnregisterNode=lambda request: done.append(("out", request.node_id)),
        RegisterNode=lambda request: done.append(("in", request.public_key, request.name)),
    )
    server.let_in(client, {b"ash": "ash", b"birch, new": "birch"})
    assert done == [("out", 2), ("in", b"birch, new", "birch")]


def test_an_unregistered_key_is_refused(network, tmp_path):
    study, files, processes = network
    keys.make_member(tmp_path, "stranger")
    key = tmp_path / "members" / "stranger.key"
    said = refused_node(processes, study, "--data", files["va"], "--state", tmp_path, "--key", key)
    assert "its key is not registered" in said
    assert "PRIVATE KEY" not in said


def test_a_server_with_another_authority_is_refused(network, tmp_path):
    study, files, processes = network
    other = tmp_path / "other"
    keys.make_authority(other)
    text = study.path.read_text()
    (other / "study.toml").write_text(text)
    elsewhere = type(study).read(other)
    key = study.member("va").private_key
    said = refused_node(processes, elsewhere, "--data", files["va"], "--state", tmp_path, "--key", key)
    assert "it is not the server" in said


def rounds_done(study):
    path = study.folder / "state" / "run" / "checkpoint.npz"
    return read(path)[0]["round"] if path.exists() else 0


def wait_for_round(study, processes, round):
    end = time.monotonic() + 120
    while rounds_done(study) < round:
        assert time.monotonic() < end, processes.read("run")
        time.sleep(0.05)


def test_kill_a_node_then_the_server_and_end_in_the_very_same_bits(network):
    study, files, processes = network
    demo.start_run(processes, study)
    wait_for_round(study, processes, 1)
    processes.kill("hungarian")
    demo.start_node(processes, study, "hungarian", files["hungarian"])
    wait_for_round(study, processes, 3)
    processes.kill("run")
    processes.kill("server")
    assert rounds_done(study) < ROUNDS, "nothing was left to resume"
    demo.start_server(processes, study)
    demo.start_run(processes, study)
    processes.wait_until_over("run", 150)
    assert "rounds are done" in processes.read("run")

    model = fitted.load(study.folder / "model")
    state = demo.simulated(study, files)
    assert model.card["weights_sha256"] == digest(pack(state.server.w))
    history = json.loads((study.folder / "model" / "history.json").read_text())
    assert [entry["absent"] for entry in history] == [[]] * ROUNDS
    for name in files:
        entries = verify(study.folder / "state" / name / f"audit-{name}.jsonl")
        assert {entry["round"] for entry in entries if entry["kind"] == "train"} == set(range(ROUNDS))
        assert "PRIVATE KEY" not in processes.read(name)
    assert (study.folder / "state" / "server" / "secret").read_text() not in "".join(
        map(processes.read, ("server", "run"))
    )
    assert not (os.path.exists(os.path.expanduser("~/.flwr")) and _newer("~/.flwr", study.path))


def _newer(path, other):
    return os.path.getmtime(os.path.expanduser(path)) > os.path.getmtime(other)


@pytest.mark.parametrize("algorithm", ["fedavg", "fedlap", "fedlap_func"])
def test_the_demo_agrees_with_the_simulation(algorithm, tmp_path):
    words = ["study", "demo", "--rounds", "2", "--algorithm", algorithm, "--keep", tmp_path / "demo"]
    command = [sys.executable, "-m", "fedlap", *map(str, words)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "identical, bit for bit" in result.stdout
