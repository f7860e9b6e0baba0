"""A node's line to the SuperLink: Flower's client of its Fleet API, asked call by call.

Flower's own SuperNode puts a loop around these calls that starts code which came over the network, ends the process
where it is refused and interrupts it where the clock is wrong. The calls alone do none of this. They are what servers
and nodes of different versions have to agree on, and nothing of Flower is replaced.
"""

import json
import re
import threading
import time
from collections.abc import Callable
from email.utils import parsedate_to_datetime
from typing import Any, NamedTuple

import httpx
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from flwr.app import Message, RecordDict
from flwr.app.message import remove_content_from_message
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.proto.fleet_pb2 import ActivateNodeRequest, DeactivateNodeRequest, PullMessagesRequest, PushMessagesRequest
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest
from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest, ObjectTree, PullObjectRequest, PushObjectRequest
from flwr.proto.node_pb2 import Node
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree, iterate_object_tree
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.interceptors.http.runtime_version import RuntimeVersionHttpInterceptor
from flwr.supercore.primitives.asymmetric import public_key_to_bytes
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

HEARTBEAT = 10  # seconds, Flower's minimum: after two of them without a sign a killed node may come back; 30 otherwise
BEAT = 4.0  # seconds between two signs: two of them may be lost
AHEAD, BEHIND = 5, 305  # seconds that the SuperLink lets the clock of a signature be wrong by
COARSE = 1.5  # seconds: how far the server's clock is known, from an answer that tells it in whole seconds
UNAVAILABLE = (502, 503, 504)  # what a proxy says for a server that is away
NOT_ACTIVE, RUN_OVER = 2004, 2007  # Flower's codes for a node that it does not let in and a run that is not running
UPLOAD = 60.0  # seconds that the parts of a request may take to follow it
LONGEST = 200  # characters of a stranger's words


class Refused(Exception):
    """The server does not take what this node sends; the message says why, and connecting anew may help."""


class RunOver(Exception):
    """The run of a message has ended: nobody waits for the reply."""


class Arrived(NamedTuple):
    """A message that was received: what a reply refers to, and the content, empty if it cannot be read."""

    message: Message
    content: RecordDict


class Fleet:
    """A node that was let in. What may pass by itself is told to `wait`, which returns when it is time to try again."""

    def __init__(
        self, address: str, authority: bytes, key: EllipticCurvePrivateKey, wait: Callable[[str], None]
    ) -> None:
        self.address, self.wait = address, wait
        public = key.public_key()
        self.client = FleetHttpClient.from_server_address(
            address,
            insecure=False,
            root_certificates=authority,
            interceptors=[
                RuntimeVersionHttpInterceptor(component_name="SuperNode"),
                NodeAuthHttpInterceptor(key, public),
            ],
        )
        request = ActivateNodeRequest(public_key=public_key_to_bytes(public), heartbeat_interval=HEARTBEAT)
        self.node = Node(node_id=self._ask(self.client.ActivateNode, request).node_id)
        self._over = threading.Event()
        threading.Thread(target=self._heartbeat, daemon=True).start()

    def receive(self) -> Arrived | None:
        """The next message with its content, if there is one."""
        response = self._ask(self.client.PullMessages, PullMessagesRequest(node=self.node))
        if not response.messages_list:
            return None
        message = message_from_proto(response.messages_list[0])
        run, identifier = message.metadata.run_id, message.metadata.message_id
        parts = {part: self._pull(run, part) for part in _parts(response.message_object_trees[0])}
        try:
            whole = inflate_object_from_contents(identifier, parts)
            content = whole.content if isinstance(whole, Message) else RecordDict()
        except Exception:  # whatever Flower raises on what it cannot unpack
            content = RecordDict()
        return Arrived(message, content)

    def reply(self, message: Message, content: RecordDict, seconds: float) -> None:
        """Send a reply that took so long to make. Should this process end in between, it is asked for again.

        The message is confirmed first, which erases it at the server: later the run may be over, and it would stay.
        """
        run = message.metadata.run_id
        confirm = ConfirmMessageReceivedRequest(
            node=self.node, run_id=run, message_object_id=message.metadata.message_id
        )
        self._ask(self.client.ConfirmMessageReceived, confirm)
        reply = Message(content, reply_to=message)
        parts = get_all_nested_objects(reply)
        head = message_to_proto(remove_content_from_message(reply))
        head.metadata.message_id = reply.object_id
        request = PushMessagesRequest(
            node=self.node,
            messages_list=[head],
            message_object_trees=[get_object_tree(reply)],
            clientapp_runtime_list=[seconds],
        )
        pushed = self._ask(self.client.PushMessages, request)
        for part in pushed.objects_to_push:
            request = PushObjectRequest(
                node=self.node,
                run_id=run,
                session_id=pushed.session_id,
                object_id=part,
                object_content=parts[part].deflate(),
            )
            if not self._ask(self.client.PushObject, request).stored:
                raise Refused("the server did not keep a part of the reply")

    def close(self) -> None:
        """Say good-bye, so that the same node may come back at once; a server that does not hear it waits a while."""
        self._over.set()
        try:
            self.client.DeactivateNode(DeactivateNodeRequest(node_id=self.node.node_id))
        except httpx.HTTPError:
            pass
        self.client.close()

    def _pull(self, run: int, part: str) -> bytes:
        """One part of a message. The message may be there before its parts are."""
        request, end = PullObjectRequest(node=self.node, run_id=run, object_id=part), time.monotonic() + UPLOAD
        while True:
            response = self._ask(self.client.PullObject, request)
            if response.object_available:
                return response.object_content
            if not response.object_found or time.monotonic() > end:
                raise RunOver("a part of a message never came")  # the coordinator asks again
            time.sleep(0.1)

    def _heartbeat(self) -> None:
        request = SendNodeHeartbeatRequest(node=self.node, heartbeat_interval=HEARTBEAT)
        while not self._over.wait(BEAT):
            try:
                self.client.SendNodeHeartbeat(request)
            except (httpx.HTTPError, RuntimeError):
                continue  # whoever asks for messages will notice; RuntimeError: the client has just been closed

    def _ask(self, call: Callable[[Any], Any], request: Any) -> Any:
        """One call, again and again until the server answers it."""
        while True:
            try:
                return call(request)
            except httpx.HTTPStatusError as error:
                self.wait(_passing(error.response, self.address))
            except httpx.TransportError as error:
                self.wait(in_words(str(error) or type(error).__name__, self.address))


def _parts(tree: ObjectTree) -> list[str]:
    """The names of a message's parts, each once."""
    return list(dict.fromkeys(part.object_id for part in iterate_object_tree(tree)))


def _passing(response: httpx.Response, address: str) -> str:
    """What is wrong, in words, if it may pass by itself; else an error is raised."""
    status, text = response.status_code, response.text
    if status in (401, 403) and (words := _about_clocks(response)):
        return words
    if (code := _code(text)) == RUN_OVER:
        raise RunOver
    if code == NOT_ACTIVE:
        return in_words(f"code {code}", address)
    if status in UNAVAILABLE:
        return in_words(f"status {status}", address)
    if status == 401:
        raise Refused("the server does not know this node any more: its key was taken back there, or the server is new")
    words = " ".join(re.findall(r"[ -~]+", text))[:LONGEST]
    raise Refused(f"the server at {address} refuses this node (status {status}): {words}")


def _code(text: str) -> int | None:
    """Flower's number for an error, if it is one of Flower's."""
    try:
        return json.loads(text)["code"]
    except (ValueError, KeyError, TypeError):
        return None


def _about_clocks(response: httpx.Response) -> str | None:
    """The difference to the server's clock in words, if it is a reason to refuse a signature."""
    try:
        server = parsedate_to_datetime(response.headers["date"]).timestamp() + 0.5
    except (KeyError, ValueError):
        return None
    ahead = time.time() - server
    if AHEAD - COARSE > ahead > COARSE - BEHIND:
        return None
    return (
        f"this machine's clock is {abs(ahead):.0f} s {'ahead of' if ahead > 0 else 'behind'} the server's, which takes "
        f"signatures of at most {AHEAD} s ahead and {BEHIND} s behind; set the clock that is wrong, as by "
        "timedatectl set-ntp true"
    )


def in_words(message: str, address: str) -> str:
    """A refusal in words, with what a data manager can do about it."""
    if str(NOT_ACTIVE) in message:
        return (
            "the server did not let this node in: its key is not registered there, or another node with the same key "
            "is, or was until a moment ago, connected"
        )
    if "certificate is not valid for" in message:  # Python's words, of a name as of a number: a mismatch of hosts
        return (
            f"the server's certificate is for another host than that of {address}; correct the address in [network] of "
            "study.toml, or ask the coordinator for a new certificate (fedlap study certificate)"
        )
    if "certificate is not yet valid" in message or "certificate has expired" in message:
        return (
            f"by this machine's clock ({time.strftime('%Y-%m-%d %H:%M')}) the certificate of the server at {address} "
            "is not yet or no longer valid; set the clock if it is wrong, else ask the coordinator for a new "
            "certificate (fedlap study certificate)"
        )
    if "certificate" in message.lower():
        return f"the server at {address} has no certificate of this study's authority (ca.crt): it is not the server"
    return f"the server at {address} does not answer: {message.splitlines()[-1]}"
