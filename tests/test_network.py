"""Real processes on loopback with TLS and keys: killed, restarted, refused, and in the end the simulation's bits."""

import json
import os
import signal
import ssl
import stat
import subprocess
import sys
import time
import urllib.error
import urllib.request

import numpy as np
import pytest

pytest.importorskip("flwr")

from flwr.app import ArrayRecord, ConfigRecord, RecordDict

from fedlap.cli import demo
from fedlap.cli.processes import Processes, free_port
from fedlap.errors import ConfigError, DataError
from fedlap.flower import link, server, wire
from fedlap.study import model as fitted
from fedlap.study.agreement import example, keys, scaffold
from fedlap.study.protocol.audit import verify
from fedlap.study.protocol.checkpoint import read_progress
from fedlap.study.protocol.messages import Reply, digest, pack

ROUNDS = 4


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


def post(study, path):
    """The status of a stranger's request."""
    context = ssl.create_default_context(cafile=study.folder / "ca.crt")
    request = urllib.request.Request(f"https://{study.address}{path}", data=b"", method="POST")
    try:
        with urllib.request.urlopen(request, context=context, timeout=20) as response:
            return response.status
    except urllib.error.HTTPError as error:
        with error:
            return error.code


@pytest.mark.parametrize(
    "path, status",
    [
        ("/v1/control/start-run", 403),
        ("/v1/control/register-node", 403),
        ("/v1/runtime/push-messages", 403),
        ("/v1/fleet/register-node", 403),
        ("/v1/fleet/pull-messages", 401),
        ("/docs", 403),
    ],
)
def test_a_stranger_can_neither_start_nor_register_nor_ask(network, path, status):
    assert post(network[0], path) == status


def refused_node(processes, study, *words):
    """What a node says that is not let in."""
    processes.start("stranger", "node", study.path, "--name", "va", *words, "--patience", "0")
    process = processes.running["stranger"]
    assert process.wait(90) == 2, processes.read("stranger")
    said = processes.read("stranger")
    processes.log("stranger").unlink()
    return said


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


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def elsewhere(tmp_path):
    """A study whose server is on another host; nothing of it runs."""
    return scaffold.new_study(tmp_path / "heart", example.example_study(address="fl.example.org:9443"))


def test_the_servers_folder_is_closed_even_if_it_was_open(elsewhere):
    folder = server.state_folder(elsewhere)
    folder.mkdir(parents=True)
    folder.chmod(0o755)
    assert server.private_folder(elsewhere) == folder
    assert mode(folder) == 0o700


@pytest.mark.parametrize(
    ("host", "bind"),
    [
        ("127.0.0.1", "127.0.0.1"),
        ("localhost", "127.0.0.1"),
        ("::1", "::1"),
        ("fl.example.org", "0.0.0.0"),
        ("10.1.2.3", "0.0.0.0"),
        ("2001:db8::1", "::"),
    ],
)
def test_a_server_listens_where_its_members_reach_it_and_at_loopback_if_it_can(host, bind):
    assert server.where_to_listen(host) == bind


@pytest.mark.parametrize(
    ("host", "address"),
    [(None, "127.0.0.1:9443"), ("10.1.2.3", "10.1.2.3:9443"), ("::1", "[::1]:9443")],
)
def test_the_coordinator_asks_where_the_server_listens(elsewhere, monkeypatch, host, address):
    if host:
        (server.private_folder(elsewhere) / server.HOST).write_text(host)
    asked = []
    monkeypatch.setattr(link.ControlHttpClient, "from_server_address", lambda where, **_: asked.append(where))
    link.control_client(elsewhere, "secret")
    assert asked == [address]


def test_a_server_that_never_answers_is_an_error_in_the_end(tmp_path):
    study = scaffold.new_study(tmp_path / "heart", example.example_study(address=f"127.0.0.1:{free_port()}"))
    with pytest.raises(ConfigError, match=f"the server does not answer at {study.address} after 0 s"):
        server.check_gate(study, 0.3)


def test_a_server_does_not_listen_where_the_coordinator_would_not_believe_it(elsewhere):
    server.check_certificate(elsewhere, "0.0.0.0")
    server.check_certificate(elsewhere, "::")
    with pytest.raises(
        ConfigError, match=r"expected one for 10\.1\.2\.3, where .* certificate \S+ --host 10\.1\.2\.3$"
    ):
        server.check_certificate(elsewhere, "10.1.2.3")
    keys.renew_certificate(elsewhere.folder, [elsewhere.host, "10.1.2.3"])
    server.check_certificate(elsewhere, "10.1.2.3")


def test_a_server_that_has_moved_does_not_start_without_a_new_certificate(elsewhere, monkeypatch):
    def listen(*_):
        raise AssertionError("the certificate was to be looked at first")

    masks = []
    monkeypatch.setattr(os, "umask", masks.append)
    monkeypatch.setattr(server, "prepare", lambda *_: None)
    monkeypatch.setattr(server, "_check_port", listen)
    elsewhere.path.write_text(elsewhere.path.read_text().replace("fl.example.org", "new.example.org"))
    moved = type(elsewhere).read(elsewhere.folder)
    with pytest.raises(ConfigError, match=r"expected one for new\.example\.org.*run  fedlap study certificate \S+$"):
        server.serve(moved, "0.0.0.0", print, print)
    assert masks == [0o077]
    assert mode(server.state_folder(moved)) == 0o700
    keys.renew_certificate(moved.folder, [moved.host])
    with pytest.raises(AssertionError):
        server.serve(moved, "0.0.0.0", print, print)


def rounds_done(study):
    path = study.folder / "state" / "run" / "checkpoint.npz"
    return read_progress(path).round if path.exists() else 0


def wait_until(done, what, seconds=300):
    end = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < end, what
        time.sleep(0.05)


def wait_for_round(study, processes, round):
    wait_until(lambda: rounds_done(study) >= round, processes.read("run"))


def test_kill_a_node_then_the_server_and_end_in_the_very_same_bits(network):
    study, files, processes = network
    demo.start_run(processes, study)
    wait_for_round(study, processes, 1)
    processes.kill("hungarian")
    demo.start_node(processes, study, "hungarian", files["hungarian"])
    wait_for_round(study, processes, 2)
    processes.kill("run")
    processes.kill("server")
    assert rounds_done(study) < ROUNDS, "nothing was left to resume"
    demo.start_server(processes, study)
    demo.start_run(processes, study)
    processes.wait_until_over("run", 150)
    assert "rounds are done" in processes.read("run")

    model = fitted.load(study.folder / "model")
    assert model.card["weights_sha256"] == digest(pack(demo.simulated(study, files)))
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

    state = server.state_folder(study)
    assert mode(state) == 0o700
    database = lambda: list(state.glob(f"{server.DATABASE}*"))
    assert {mode(path) for path in database()} == {0o600}
    erased = lambda: not any(b'"answers"' in path.read_bytes() for path in database())
    wait_until(erased, "what was delivered is erased while the server runs")
    running = processes.running["server"]
    running.send_signal(signal.SIGTERM)
    running.wait(300)
    assert database() and erased()


def _newer(path, other):
    return os.path.getmtime(os.path.expanduser(path)) > os.path.getmtime(other)


def test_the_demo_agrees_with_the_simulation(tmp_path):
    """Of the algorithm that sends all there is: weights, soft labels, and at the beginning points.

    test_study_parity.py has all others without a network, which knows of none and carries bytes; FedLap-Cov is above.
    """
    words = ["study", "demo", "--rounds", "2", "--algorithm", "fedlap_func", "--keep", tmp_path / "demo"]
    command = [sys.executable, "-m", "fedlap", *map(str, words)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "identical, bit for bit" in result.stdout
