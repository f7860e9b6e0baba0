"""The rules for a member's node: whose messages, which parts, how many bytes."""

import asyncio
import sqlite3
import time
from base64 import b64encode
from types import SimpleNamespace

import pytest

pytest.importorskip("flwr")

from cryptography.hazmat.primitives.asymmetric import ec
from flwr.common.constant import TIMESTAMP_HEADER
from flwr.proto.fleet_pb2 import PullMessagesResponse, PushMessagesRequest
from flwr.proto.message_pb2 import Message, Metadata, ObjectTree, PushObjectRequest
from flwr.proto.node_pb2 import Node
from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER, FLEET_HTTP_SIGNATURE_HEADER
from flwr.supercore.date import now
from flwr.supercore.primitives.asymmetric import public_key_to_bytes, sign_message
from sqlalchemy.exc import OperationalError

from fedlap.flower import rules as module
from fedlap.flower.door import Door
from fedlap.flower.gate import SECRET, Gate
from fedlap.flower.link import assembled
from fedlap.flower.rules import NotAllowed, Rules
from sites import CLASSES, FEATURES, make_algorithm, make_terms

KEY, NODE, REQUEST = b"ash", 77, "r" * 64


def announcement(reply="a", parts=("b",), **changed):
    metadata = {"src_node_id": NODE, "dst_node_id": 1, "reply_to_message_id": REQUEST, "message_id": reply} | changed
    tree = ObjectTree(object_id=reply, children=[ObjectTree(object_id=part) for part in parts])
    message = Message(metadata=Metadata(**metadata))
    return PushMessagesRequest(node=Node(node_id=NODE), messages_list=[message], message_object_trees=[tree])


def piece(name, length):
    return PushObjectRequest(object_id=name, object_content=bytes(length)).SerializeToString()


@pytest.fixture
def rules():
    rules = Rules()
    rules.reply = 1000
    request = Message(metadata=Metadata(message_id=REQUEST))
    given = PullMessagesResponse(messages_list=[request], message_object_trees=[ObjectTree(object_id=REQUEST)])
    rules.sent(KEY, given.SerializeToString())
    return rules


def announce(rules, *words, **changed):
    rules.check(KEY, "push-messages", announcement(*words, **changed).SerializeToString())


def test_a_reply_is_taken_until_it_is_larger_than_one_may_be(rules):
    announce(rules)
    rules.check(KEY, "push-object", piece("a", 600))
    rules.check(KEY, "push-object", piece("b", 400))
    with pytest.raises(NotAllowed, match="a reply of more than 1000 bytes"):
        rules.check(KEY, "push-object", piece("b", 1))


def test_what_waits_to_be_fetched_is_bounded_and_what_was_fetched_is_not_counted(rules):
    for number in range(module.SEVERAL):
        announce(rules, f"reply {number}", (f"part {number}",))
        rules.check(KEY, "push-object", piece(f"part {number}", 1000))
    with pytest.raises(NotAllowed, match="wait to be fetched"):
        rules.limit(KEY, "push-object", 1)
    rules.limit(b"birch", "push-object", 1)
    rules.fetched("reply 0")
    rules.limit(KEY, "push-object", 1000)
    rules.emptied()
    rules.limit(KEY, "push-object", 8000)


def test_replies_that_are_never_completed_are_not_counted_for_ever(rules, monkeypatch):
    for number in range(module.REQUESTS):
        announce(rules, f"reply {number}")
    with pytest.raises(NotAllowed, match="replies wait to be fetched already"):
        announce(rules, "one more")
    later = time.monotonic() + module.UNFETCHED + 1
    monkeypatch.setattr(module.time, "monotonic", lambda: later)
    announce(rules, "one more")


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"src_node_id": 78}, "not another node's"),
        ({"reply_to_message_id": ""}, "replies only"),
        ({"reply_to_message_id": "s" * 64}, "what was sent to it only"),
        ({"dst_node_id": 78}, "what was sent to it only"),
        ({"message_id": "b"}, "parts are uploaded one by one"),
    ],
)
def test_a_message_that_is_no_answer_of_this_node_is_refused(rules, changed, reason):
    with pytest.raises(NotAllowed, match=reason) as refused:
        announce(rules, **changed)
    assert refused.value.status == 403


def test_several_messages_at_once_or_content_beside_the_parts_are_refused(rules):
    twice = announcement()
    twice.messages_list.extend(announcement().messages_list)
    inline = announcement()
    inline.messages_list[0].content.items.add(key="beside")
    for request, reason in ((twice, "expected one reply"), (inline, "parts are uploaded one by one")):
        with pytest.raises(NotAllowed, match=reason):
            rules.check(KEY, "push-messages", request.SerializeToString())


def test_a_tree_of_too_many_parts_is_refused(rules):
    with pytest.raises(NotAllowed, match="parts"):
        announce(rules, "a", [str(number) for number in range(module.PARTS)])


def test_a_body_is_refused_by_its_length(rules):
    with pytest.raises(NotAllowed, match=f"at most {module.CALL} bytes"):
        rules.limit(KEY, "push-messages", module.CALL + 1)
    with pytest.raises(NotAllowed, match=f"at most {module.PIECE} bytes"):
        rules.limit(KEY, "push-object", module.PIECE + 1)
    with pytest.raises(NotAllowed, match="expected a message of Flower's"):
        rules.check(KEY, "push-object", b"\xff")


@pytest.mark.parametrize(
    "parts", [{}, {"a": b""}, {"a": b"Message b 0\x00"}, {"a": b"Nothing  0\x00"}, {"a": b"RecordDict  2\x00{}"}]
)
def test_parts_that_make_no_message_are_an_error_of_their_sender(parts):
    with pytest.raises(ValueError):
        assembled("a", dict(parts))


def test_the_coordinator_says_how_large_a_reply_may_be():
    terms = make_terms(make_algorithm("fedlap_cov"))
    weights = (FEATURES + 1) * CLASSES
    assert 2 * weights * 4 <= terms.contribution_bytes() <= 4 * weights * 8


def test_a_body_that_comes_in_chunks_may_be_longer_than_it_says_and_is_not_read():
    """A length and chunks at once: the parser then goes by the chunks, of a member's too."""
    private, answers = ec.generate_private_key(ec.SECP384R1()), []
    public = public_key_to_bytes(private.public_key())

    async def send(part):
        answers.append(part)

    async def never(*_):
        raise AssertionError("it is read")

    moment = now().isoformat().encode()
    signed = {
        FLEET_HTTP_PUBLIC_KEY_HEADER: b64encode(public),
        FLEET_HTTP_SIGNATURE_HEADER: b64encode(sign_message(private, moment)),
        TIMESTAMP_HEADER: moment,
    }
    gate = Gate(never, "secret", SimpleNamespace(names=lambda: {public: "ash"}), Door(), [].append)
    for known in (signed, {SECRET: b"secret"}):
        lengths = {"content-length": b"4", "transfer-encoding": b"chunked"}
        headers = [(name.encode(), value) for name, value in (known | lengths).items()]
        scope = {"type": "http", "method": "POST", "path": "/v1/fleet/push-object", "headers": headers, "client": None}
        asyncio.run(gate(scope, never, send))
    assert [part["status"] for part in answers if "status" in part] == [411, 411]


def test_a_full_disk_of_the_servers_is_said_once_there_and_is_no_end():
    said, answers = [], []

    async def full(*_):
        raise OperationalError("INSERT", {}, sqlite3.OperationalError("database or disk is full"))

    async def send(part):
        answers.append(part)

    door = SimpleNamespace(answer=lambda client: None, rest=lambda client: None)
    gate = Gate(full, "secret", SimpleNamespace(), door, said.append)
    headers = [(SECRET.encode(), b"secret"), (b"content-length", b"0")]
    scope = {"type": "http", "method": "POST", "path": "/v1/control/list-runs", "headers": headers, "client": None}
    for _ in range(2):
        asyncio.run(gate(scope, None, send))
    assert [part["status"] for part in answers if "status" in part] == [503, 503]
    (line,) = said
    assert "database or disk is full" in line and "make room" in line
