"""What a member's node may ask of the SuperLink: what was sent to it, and to answer that; nothing about another node.

Flower itself checks that a node is the one whose key has signed. It does not check what the node then sends: messages
that answer nothing or come from another node, parts of messages that are not its own, as many bytes as it likes.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from flwr.proto.fab_pb2 import GetFabRequest
from flwr.proto.fleet_pb2 import (
    ActivateNodeRequest,
    DeactivateNodeRequest,
    PullMessagesRequest,
    PullMessagesResponse,
    PushMessagesRequest,
)
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest
from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest, ObjectTree, PullObjectRequest, PushObjectRequest
from flwr.proto.run_pb2 import GetRunRequest
from google.protobuf.message import DecodeError, Message

PATH = "/v1/fleet/"
PUSH_OBJECT, PULL_MESSAGES = "push-object", "pull-messages"
CALLS: dict[str, type[Message]] = {
    "activate-node": ActivateNodeRequest,
    "deactivate-node": DeactivateNodeRequest,
    "send-node-heartbeat": SendNodeHeartbeatRequest,
    PULL_MESSAGES: PullMessagesRequest,
    "push-messages": PushMessagesRequest,
    "get-run": GetRunRequest,
    "get-fab": GetFabRequest,
    PUSH_OBJECT: PushObjectRequest,
    "pull-object": PullObjectRequest,
    "confirm-message-received": ConfirmMessageReceivedRequest,
}
NOT_ACTIVE, RUN_OVER = 2004, 2007  # Flower's: a node that is not let in; a run that has ended, or before a restart
SUPERLINK = 1  # the node that requests come from and replies go to
PIECE = 8 * 2**20  # bytes of one part of a message: Flower cuts arrays into pieces of 5 MiB
CALL = 2**20  # bytes of any other call
REPLY = 64 * 2**20  # bytes of a whole reply, if the coordinator has not asked for a larger one
SEVERAL = 8  # whole replies that may wait to be fetched
PARTS = 2**14  # of one message
REQUESTS = 64  # sent to a node and not yet confirmed; older ones are forgotten
UNFETCHED = 600.0  # seconds until a reply that nobody has fetched or completed is no longer counted


class NotAllowed(Exception):
    """A request that is refused, with a status of HTTP, the reason in words and, where it has one, Flower's number."""

    def __init__(self, status: int, reason: str, code: int | None = None) -> None:
        super().__init__(reason)
        self.status, self.reason, self.code = status, reason, code


@dataclass
class Upload:
    """A reply that a node has announced: the parts that it may upload, and how many bytes have come."""

    parts: frozenset[str]
    since: float = field(default_factory=time.monotonic)
    bytes: int = 0


@dataclass
class Node:
    """What has passed between the server and the node of one key."""

    given: dict[str, frozenset[str]] = field(default_factory=dict)  # the parts of each request sent to it
    uploads: dict[str, Upload] = field(default_factory=dict)  # its replies, by their message's identifier


class Rules:
    """The nodes by their keys, and the rules for what each may ask."""

    def __init__(self) -> None:
        self.nodes: dict[bytes, Node] = {}
        self.reply = REPLY

    def limit(self, key: bytes, call: str, length: int) -> None:
        """Refuse a body by its length, before a byte of it is read."""
        most = PIECE if call == PUSH_OBJECT else CALL
        if length > most:
            raise NotAllowed(413, f"expected at most {most} bytes")
        if call == PUSH_OBJECT:
            waiting = sum(upload.bytes for upload in self._uploads(key).values())
            if waiting + length > SEVERAL * self.reply:
                raise NotAllowed(413, f"more than {SEVERAL * self.reply} bytes of replies wait to be fetched")

    def check(self, key: bytes, call: str, body: bytes) -> None:
        """Refuse a call that is not this node's to make; take note of what it announces and sends."""
        request = CALLS[call]()
        try:
            request.ParseFromString(body)
        except DecodeError:
            raise NotAllowed(400, "expected a message of Flower's") from None
        node = self.nodes.setdefault(key, Node())
        if isinstance(request, ActivateNodeRequest) and request.public_key != key:
            raise NotAllowed(403, "a node may enter with its own key only")
        if isinstance(request, PushMessagesRequest):
            self._announce(key, node, request)
        if isinstance(request, PushObjectRequest):
            self._receive(key, node, request)
        if isinstance(request, PullObjectRequest) and not any(
            request.object_id in each for each in node.given.values()
        ):
            raise NotAllowed(403, "a node may read what was sent to it only", RUN_OVER)
        if isinstance(request, ConfirmMessageReceivedRequest) and request.message_object_id not in node.given:
            raise NotAllowed(403, "a node may confirm what was sent to it only", RUN_OVER)

    def sent(self, key: bytes, body: bytes) -> None:
        """Take note of the requests that a node gets: these it may read, confirm and answer."""
        response, given = PullMessagesResponse.FromString(body), self.nodes.setdefault(key, Node()).given
        for message, tree in zip(response.messages_list, response.message_object_trees, strict=True):
            given[message.metadata.message_id] = frozenset(_identifiers(tree))
        while len(given) > REQUESTS:
            del given[next(iter(given))]

    def fetched(self, message: str) -> None:
        """The coordinator has a reply; its bytes are counted no longer."""
        for node in self.nodes.values():
            node.uploads.pop(message, None)

    def emptied(self) -> None:
        """A run has ended, and with it all that waited in it."""
        for node in self.nodes.values():
            node.uploads.clear()

    def _announce(self, key: bytes, node: Node, request: PushMessagesRequest) -> None:
        if len(request.messages_list) != 1 or len(request.message_object_trees) != 1:
            raise NotAllowed(403, "expected one reply")
        (message,), (tree,) = request.messages_list, request.message_object_trees
        if message.metadata.src_node_id != request.node.node_id:
            raise NotAllowed(403, "a node may send messages of its own only, not another node's")
        if not message.metadata.reply_to_message_id:
            raise NotAllowed(403, "a node may send replies only")
        if message.metadata.dst_node_id != SUPERLINK or message.metadata.reply_to_message_id not in node.given:
            raise NotAllowed(403, "a node may answer what was sent to it only", RUN_OVER)
        if message.content.ByteSize() or tree.object_id != message.metadata.message_id:
            raise NotAllowed(403, "expected a reply whose parts are uploaded one by one")
        parts = frozenset(_identifiers(tree))
        if len(self._uploads(key)) >= REQUESTS:
            raise NotAllowed(403, f"{REQUESTS} replies wait to be fetched already")
        node.uploads.setdefault(tree.object_id, Upload(parts))

    def _receive(self, key: bytes, node: Node, request: PushObjectRequest) -> None:
        upload = next((each for each in self._uploads(key).values() if request.object_id in each.parts), None)
        if upload is None:
            raise NotAllowed(403, "a node may upload the parts of its own replies only")
        if upload.bytes + len(request.object_content) > self.reply:
            raise NotAllowed(413, f"a reply of more than {self.reply} bytes")
        upload.bytes += len(request.object_content)

    def _uploads(self, key: bytes) -> dict[str, Upload]:
        """The replies of a node that wait; those that are never completed or fetched are not counted for ever."""
        uploads, late = self.nodes.setdefault(key, Node()).uploads, time.monotonic() - UNFETCHED
        for message in [name for name, each in uploads.items() if each.since < late]:
            del uploads[message]
        return uploads


def _identifiers(tree: ObjectTree) -> Iterator[str]:
    """All parts of a message, itself among them."""
    waiting, count = [tree], 0
    while waiting:
        tree = waiting.pop()
        count += 1
        if count > PARTS:
            raise NotAllowed(413, f"a message of more than {PARTS} parts")
        waiting.extend(tree.children)
        yield tree.object_id
