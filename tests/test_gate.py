"""One real server under attack: strangers with sockets, a member that breaks rules, keys that change while it runs."""

import resource
import signal
import threading
import time
from contextlib import ExitStack

import pytest

pytest.importorskip("flwr")

import adversary
from fedlap.cli import demo
from fedlap.cli.processes import Processes
from fedlap.flower import door, keyring, rules, server
from fedlap.flower.transport import GridTransport
from fedlap.study.agreement import keys
from fedlap.study.protocol.messages import Reply, Request

# Flower's own, of a package that it uses, where the coordinator is in this process.
pytestmark = pytest.mark.filterwarnings("ignore:GitWildMatchPattern:DeprecationWarning")
REQUEST = Request("statistics", "d" * 64, "run")
MIB = 2**20


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """A study and its server, which may open no more files than a desktop lets a program by default."""
    folder = tmp_path_factory.mktemp("gate")
    study, _ = demo.make(folder / "heart", 1, "fedlap_cov")
    with Processes(folder / "logs") as processes:
        demo.start_server(processes, study)
        resource.prlimit(processes.running["server"].pid, resource.RLIMIT_NOFILE, (256, 256))
        yield study, processes


@pytest.fixture
def transport(served):
    """The coordinator's side, as `fedlap study run` has it."""
    study, _ = served
    told = []
    made = GridTransport(study, server.secret(study), told.append)
    made.told = told
    yield made
    made.close()


def reply(name):
    return Reply(name, REQUEST.digest, facts={"of": name})


class Asking(threading.Thread):
    """An exchange in a thread of its own: what came, and after how many seconds it was over."""

    def __init__(self, transport, names, seconds):
        super().__init__(daemon=True)
        self.transport, self.requests, self.seconds = transport, dict.fromkeys(names, REQUEST), seconds
        self.came, self.took = {}, None
        self.start()

    def run(self):
        begun = time.monotonic()
        self.came = dict(self.transport.exchange(self.requests, self.seconds, self.seconds))
        self.took = time.monotonic() - begun


def until(look, what="it comes"):
    """What `look` finds, once it finds something."""
    end = time.monotonic() + 120
    while not (found := look()):
        assert time.monotonic() < end, what
        time.sleep(0.05)
    return found


def test_bodies_of_strangers_are_not_read(served):
    study, processes = served
    process = processes.running["server"]
    adversary.flood(study, "/v1/fleet/push-object", MIB)  # what the first refusal needs for itself
    before, _ = adversary.memory(process)
    paths = ["/v1/fleet/push-object", "/v1/runtime/push-object", "/v1/control/start-run"] * 8
    senders = [threading.Thread(target=adversary.flood, args=(study, path, 16 * MIB)) for path in paths]
    for sender in senders:
        sender.start()
    for sender in senders:
        sender.join()
    _, most = adversary.memory(process)
    assert most - before < 32 * MIB  # of 384; 715 were taken and kept when bodies were read first


def test_connections_that_say_nothing_keep_nobody_out(served):
    """More than the server has files for: each gets a place, and loses it to the next, not to a member."""
    study, _ = served
    with ExitStack() as slow:
        connections = []
        for number in range(300):
            connections.append(slow.enter_context(adversary.connect(study)))
            if number % 2:
                connections[-1].sendall(b"POST /v1/fleet/pull-messages HTTP/1.1\r\nhost: x\r\n")
        with adversary.rude_node(study, "va") as node:
            assert node.receive() is None
        for connection in connections[-door.PLACES // 2 :]:  # those that still had a place have it for ten seconds
            assert connection.recv(1) == b""


def test_a_member_is_held_to_its_own_messages(served, transport):
    study, processes = served
    with adversary.rude_node(study, "va") as node, adversary.rude_node(study, "cleveland") as other:
        asking = Asking(transport, ["va", "cleveland"], 60)
        request, others = until(node.receive), until(other.receive)
        run, mine = request.metadata.run_id, adversary.answering(request, reply("va"))
        refused = lambda call, *words, **changed: adversary.refusal(call, *words, **changed)
        assert refused(node.announce, mine, reply_to_message_id="") == (403, "a node may send replies only")
        as_other = (403, "a node may send messages of its own only, not another node's")
        assert refused(node.announce, mine, src_node_id=other.node.node_id) == as_other
        elsewhere = (403, "a node may answer what was sent to it only")
        assert refused(node.announce, mine, dst_node_id=other.node.node_id) == elsewhere
        assert refused(node.announce, mine, reply_to_message_id=others.metadata.message_id) == elsewhere
        assert refused(node.read, run, others.metadata.message_id) == (403, "a node may read what was sent to it only")
        foreign = (403, "a node may upload the parts of its own replies only")
        assert refused(node.put, run, others.metadata.message_id, b"") == foreign
        too_long = refused(node.put, run, others.metadata.message_id, bytes(rules.PIECE))
        assert too_long is None or too_long[0] == 413
        for each, message, name in ((node, request, "va"), (other, others, "cleveland")):
            whole = adversary.answering(message, reply(name))
            each.upload(whole, each.announce(whole))
        asking.join(120)
    assert {name: came.facts for name, came in asking.came.items()} == {name: {"of": name} for name in asking.requests}
    assert "va was refused: a node may send replies only" in processes.read("server")


def test_a_reply_that_is_announced_and_never_uploaded_holds_up_nobody(served, transport):
    study, _ = served
    with adversary.rude_node(study, "va") as liar, adversary.rude_node(study, "cleveland") as honest:
        asking = Asking(transport, ["va", "cleveland"], 15)
        request = until(liar.receive)
        liar.announce(adversary.answering(request, reply("va")))
        request = until(honest.receive)
        whole = adversary.answering(request, reply("cleveland"))
        session = honest.announce(whole)
        until(lambda: transport.arrivals)
        honest.upload(whole, session)
        asking.join(120)
        assert list(asking.came) == ["cleveland"]
        assert 15 <= asking.took < 45  # within the deadline; 180 s before, whatever it was
        assert any(line.startswith("va has announced a reply at ") for line in transport.told)
        again = Asking(transport, ["cleveland"], 60)  # nor does it hold up what comes after
        whole = adversary.answering(until(honest.receive), reply("cleveland"))
        honest.upload(whole, honest.announce(whole))
        again.join(120)
        assert list(again.came) == ["cleveland"] and again.took < 60


def test_a_key_is_revoked_and_replaced_while_the_server_runs(served, tmp_path):
    study, processes = served
    with adversary.rude_node(study, "hungarian") as node:
        assert node.receive() is None
        assert keyring.revoke(study, "hungarian").exists()
        status, reason = adversary.refusal(node.receive)
        assert status == 412 and "no longer" in reason
    assert "hungarian is not let in: its key was revoked" in processes.read("server")
    keys.make_member(tmp_path, "hungarian")
    public = study.member("hungarian").public_key
    public.write_bytes((tmp_path / "members" / "hungarian.pub").read_bytes())
    new = tmp_path / "members" / "hungarian.key"

    def let_in():
        try:
            with adversary.rude_node(study, "hungarian", new) as node:
                return node.receive() is None
        except adversary.httpx.HTTPStatusError:
            return False

    until(let_in)
    with pytest.raises(adversary.httpx.HTTPStatusError):
        with adversary.rude_node(study, "hungarian"):
            pass


def test_a_stop_erases_what_was_never_fetched(served, transport):
    """Also while a stranger keeps a request open, as it might for as long as it likes."""
    study, processes = served
    secret_words = "a reply that nobody has fetched"
    with adversary.rude_node(study, "va") as node:
        asking = Asking(transport, ["va"], 1)
        request = until(node.receive)
        asking.join(120)
        whole = adversary.answering(request, Reply("va", REQUEST.digest, facts={"of": secret_words}))
        node.upload(whole, node.announce(whole))
    files = lambda: list(server.state_folder(study).glob(f"{server.DATABASE}*"))
    assert any(secret_words.encode() in path.read_bytes() for path in files()), "a reply was not recognised"
    running = processes.running["server"]
    with adversary.connect(study) as open_request:
        open_request.sendall(adversary.head("/v1/fleet/push-object", 1000).encode())
        running.send_signal(signal.SIGTERM)
        running.wait(300)
    assert files() and not any(secret_words.encode() in path.read_bytes() for path in files())
