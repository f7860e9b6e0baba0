"""A site's node: what it does when its server, its line, its clock, its own disk or its own code fails."""

import itertools
import os
import re
import time
from email.utils import formatdate
from types import SimpleNamespace

import httpx
import pytest

import sites
from closeness import same_bits

pytest.importorskip("flwr")

from cryptography.hazmat.primitives.asymmetric import ec
from flwr.app import RecordDict

from fedlap.errors import ConfigError
from fedlap.flower import environment, fleet, node, wire
from fedlap.study.protocol.messages import Reply, Request
from fedlap.study.protocol.refusals import Reason
from superlink import CALLS, SuperLink
from tools import flower_canary

ADDRESS = "fl.example.org:9443"
KEY = ec.generate_private_key(ec.SECP384R1())
TERMS = sites.make_terms(sites.make_algorithm("fedlap_cov"))


def connect(monkeypatch, link, wait=lambda words: None):
    """A node's line to a SuperLink in this process."""
    monkeypatch.setattr(fleet.FleetHttpClient, "from_server_address", link.client)
    return fleet.Fleet(ADDRESS, b"", KEY, wait)


class Breaking(sites.Loopback):
    """Every exchange goes through a node that breaks once, each time at the next place of its calls."""

    def __init__(self, terms, folder, monkeypatch, once, error):
        super().__init__(terms, folder)
        self.monkeypatch, self.link, self.error, self.broken = monkeypatch, SuperLink(once), error, set()
        self.places = itertools.cycle(itertools.product(CALLS, ("before", "after")))

    def exchange(self, requests, seconds, resend):
        for name, request in requests.items():
            place = next(self.places)
            self.link.broken = (*place, self.error)
            self.link.send(wire.content(request))
            line, found = connect(self.monkeypatch, self.link), []
            while not found:
                try:
                    if not node.answer_next(line, self.site(name)) and not self.link.received():
                        self.link.send(wire.content(request))  # as the coordinator does with one that is silent
                except sites.Crash:
                    line._over.set()  # the dead send no heartbeats
                    line = connect(self.monkeypatch, self.link)
                    self.link.send(wire.content(request))  # as the coordinator does with one that has come back
                found = [wire.read(content, Reply) for content in self.link.received()]
            assert self.link.broken is None, f"{place} was never reached"
            self.broken.add(place)
            line.close()
            self.link.waiting.clear()
            assert len({reply.digest for reply in found}) == 1
            yield name, found[0]


@pytest.mark.parametrize("once", [True, False])
@pytest.mark.parametrize("error", [sites.Crash(), httpx.ReadError("reset by peer")], ids=["crash", "reset"])
def test_wherever_a_node_breaks_between_a_question_and_its_answer_nothing_is_lost(tmp_path, monkeypatch, error, once):
    """Each of its calls is cut before and after it was carried out, in turn: the study ends in the very same bits."""
    transport = Breaking(TERMS, tmp_path, monkeypatch, once, error)
    outcome = sites.make_coordinator(TERMS, tmp_path, transport).run()
    assert same_bits(outcome.server, sites.simulate(TERMS).server)
    assert transport.broken == set(itertools.product(CALLS, ("before", "after")))


def test_a_message_is_confirmed_once_it_is_answered_and_before_anyone_can_take_the_run_for_over(monkeypatch):
    """One that is not confirmed may be delivered again; one that is confirmed is erased at the server."""
    link = SuperLink(once=False)
    line = connect(monkeypatch, link)
    site = SimpleNamespace(member="ash", log=print, answer=lambda request: Reply("ash", request.digest))
    crashing = SimpleNamespace(**{**vars(site), "answer": failing(sites.Crash())})
    link.send(wire.content(Request("begin", "study", "run")))
    with pytest.raises(sites.Crash):
        node.answer_next(line, crashing)
    assert len(link.waiting) == 1
    link.broken = ("PushMessages", "before", sites.Crash())
    with pytest.raises(sites.Crash):
        node.answer_next(line, site)
    line.close()
    assert link.waiting == []


def test_a_message_that_cannot_be_unpacked_is_refused_and_the_node_stays(monkeypatch):
    link, said = SuperLink(), []
    line = connect(monkeypatch, link)
    link.send(RecordDict())
    (head, _), *_ = link.waiting
    link.objects[head.metadata.message_id] = b"no object of Flower's"
    assert node.answer_next(line, SimpleNamespace(member="ash", log=said.append))
    line.close()
    (content,) = link.received()
    assert wire.read(content, Reply) == Reply("ash", "", Reason.UNREADABLE.value)
    assert said[0].startswith("refused: ")


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), MemoryError(), ValueError("two\nlines")])
def test_an_error_of_the_sites_own_is_one_line_there_and_a_fixed_word_at_the_server(error):
    def fail(request):
        raise error

    said, request = [], Request("begin", "study", "run")
    reply = node.answer(SimpleNamespace(member="ash", log=said.append, answer=fail), wire.content(request))
    assert reply == Reply("ash", request.digest, Reason.OTHER.value)
    (line,) = said
    assert "\n" not in line
    assert line.startswith(f"could not answer: {type(error).__name__}: ")
    assert "test_node.py, line " in line


class Stopped(BaseException):
    """The user has stopped the node."""


@pytest.fixture
def serve(tmp_path, monkeypatch):
    """Serve with lines that fail as given, one after the other; returns what was told, and how long was waited."""

    def begin(lines, patience=float("inf")):
        told, slept, left = [], [], iter(lines)

        def connector(*_):
            return lambda wait: next(left)(wait)

        monkeypatch.setattr(node, "prepare", lambda *_: None)
        monkeypatch.setattr(node, "_private_key", lambda _: KEY)
        monkeypatch.setattr(node, "_authority", lambda _: b"")
        monkeypatch.setattr(node, "_connector", connector)
        monkeypatch.setattr(node.time, "sleep", slept.append)
        study = SimpleNamespace(folder=tmp_path, members=("ash", "birch"), address=ADDRESS)
        try:
            node.serve(study, None, tmp_path, tmp_path, told.append, patience)
        except Stopped:
            return told, slept

    return begin


def raising(*errors):
    """A line on which everything that is asked raises the next of these, and None is no message."""

    def receive():
        error = next(left)
        if error is not None:
            raise error

    left = iter(errors)
    return lambda wait: SimpleNamespace(receive=receive, close=lambda: None)


def failing(error):
    """No line at all."""

    def fail(wait):
        raise error

    return fail


def test_a_node_survives_whatever_its_line_raises_says_it_once_and_does_not_spin(serve):
    told, slept = serve(
        [
            failing(RuntimeError("boom 1")),
            failing(RuntimeError("boom 2")),
            raising(None, KeyError("x")),
            raising(None, None, Stopped()),
        ]
    )
    assert [line.partition(" (")[0] for line in told] == [
        "RuntimeError: boom 1",
        f"connected to {ADDRESS}",
        "KeyError: 'x'",
        f"connected to {ADDRESS}",
    ]
    assert slept == [node.AGAIN, node.AGAIN, 0.2, node.AGAIN, 0.2, 0.2]


def test_a_node_is_patient_from_the_moment_it_is_not_heard(serve, monkeypatch):
    """Not from its start: one that has worked for a year has its patience still."""
    now = itertools.count(step=100.0)
    monkeypatch.setattr(node.time, "monotonic", lambda: next(now))
    refused = fleet.Refused("not today")
    told, _ = serve([*(raising(None, refused) for _ in range(9)), raising(Stopped())], patience=150)
    assert sum(line.startswith("not today; trying again") for line in told) == 9
    with pytest.raises(node.OutOfPatience, match="not today"):
        serve([failing(refused)] * 9, patience=150)


def response(status, text, ahead):
    """A server's answer, by whose clock this machine's is so many seconds ahead."""
    headers = {} if ahead is None else {"date": formatdate(time.time() - ahead, usegmt=True)}
    return httpx.Response(status, text=text, headers=headers)


@pytest.mark.parametrize(
    "status, text, ahead, words",
    [
        (401, "", 60, r"this machine's clock is (59|60|61) s ahead of the server's"),
        (401, "", 5.5, r"this machine's clock is [567] s ahead of the server's"),
        (401, "", -400, r"this machine's clock is (399|400|401) s behind the server's"),
        (403, "the gate", 60, "ahead of the server's"),
        (400, '{"code": 2004, "message": "no"}', 0, "its key is not registered there"),
        (503, "", 0, f"the server at {ADDRESS} does not answer: status 503"),
    ],
)
def test_what_may_pass_by_itself_is_waited_for(status, text, ahead, words):
    assert re.search(words, fleet._passing(response(status, text, ahead), ADDRESS))


@pytest.mark.parametrize(
    "status, text, ahead, error, words",
    [
        (401, "", 0, fleet.Refused, "does not know this node any more"),
        (401, "", 2, fleet.Refused, "does not know this node any more"),
        (401, "", -200, fleet.Refused, "does not know this node any more"),
        (401, "", None, fleet.Refused, "does not know this node any more"),
        (403, '{"code": 2007, "message": "over"}', 0, fleet.RunOver, None),
        (403, "only\x1b[2J replies", 0, fleet.Refused, r"\(status 403\): only \[2J replies$"),
        (500, "x" * 9999, 0, fleet.Refused, r"\(status 500\): x{200}$"),
        (413, "[]", 0, fleet.Refused, "status 413"),
    ],
)
def test_what_does_not_pass_is_an_error(status, text, ahead, error, words):
    with pytest.raises(error, match=words):
        fleet._passing(response(status, text, ahead), ADDRESS)


@pytest.mark.parametrize("reason", ["certificate is not yet valid", "certificate has expired"])
def test_a_clock_that_is_wrong_by_years_is_not_taken_for_a_wrong_server(reason):
    said = fleet.in_words(f"[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: {reason}", ADDRESS)
    assert "by this machine's clock (20" in said
    assert "set the clock" in said
    assert "not the server" not in said


def test_variables_of_flowers_are_taken_out_of_the_environment(tmp_path, monkeypatch):
    set_by_others = {"FLWR_INTERNAL_GRPC_FLEET_API": "1", "FLWR_TELEMETRY_ENABLED": "1", "FLWR_HOME": "/nowhere"}
    monkeypatch.setattr(os, "environ", {**os.environ, **set_by_others})
    with pytest.warns(UserWarning, match="^FLWR_INTERNAL_GRPC_FLEET_API: set in the environment, and of no effect"):
        environment.prepare(tmp_path)
    left = {name: value for name, value in os.environ.items() if name.startswith("FLWR_")}
    ours = {name: value for name, value in environment.SETTINGS.items() if name.startswith("FLWR_")}
    assert left == {**ours, "FLWR_HOME": str(tmp_path)}


@pytest.mark.parametrize(("installed", "allowed"), [("1.41.0", True), ("1.42.1", True), ("1.43.0.dev1", False)])
def test_a_flower_that_was_never_tested_is_refused(tmp_path, monkeypatch, installed, allowed):
    monkeypatch.setattr(os, "environ", {**os.environ, environment.ANY_VERSION: ""})
    monkeypatch.setattr(environment.metadata, "version", lambda name: installed)
    if allowed:
        return environment.prepare(tmp_path)
    with pytest.raises(ConfigError, match=f"flwr {installed} is installed; expected 1.41 or 1.42"):
        environment.prepare(tmp_path)
    os.environ[environment.ANY_VERSION] = "1"
    environment.prepare(tmp_path)


def install_nothing(folder, flower):
    raise flower_canary.NotInstalled("many lines\nno such version\n")


@pytest.mark.parametrize(
    "environment, tried, code, words",
    [
        (install_nothing, None, 2, "could not be installed: no such version"),
        (lambda *_: "python", (0, "identical, bit for bit; 1 s a round"), 0, "the network works"),
        (lambda *_: "python", (1, "DIFFERENT; 1 s a round"), 1, "does NOT work: DIFFERENT"),
        (lambda *_: "python", (0, "nothing of note\n"), 1, "does NOT work: nothing of note"),
    ],
)
def test_the_canary_says_in_words_and_by_its_exit_code_what_happened(
    monkeypatch, capsys, tmp_path, environment, tried, code, words
):
    monkeypatch.setattr(flower_canary, "environment", environment)
    monkeypatch.setattr(flower_canary, "output", lambda *_: "flwr 9.9")
    monkeypatch.setattr(flower_canary, "tried", lambda _: tried)
    assert flower_canary.canary(tmp_path, "flwr==9.9") == code
    assert words in capsys.readouterr().out.splitlines()[-1]
