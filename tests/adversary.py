"""Whoever means harm to a study's server, for the tests: strangers with sockets, and a member that breaks the rules."""

import socket
import ssl
from contextlib import contextmanager
from pathlib import Path

import httpx
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from flwr.app import Message
from flwr.app.message import remove_content_from_message
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.proto.fleet_pb2 import ActivateNodeRequest, DeactivateNodeRequest, PullMessagesRequest, PushMessagesRequest
from flwr.proto.message_pb2 import PullObjectRequest, PushObjectRequest
from flwr.proto.node_pb2 import Node
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from flwr.supercore.primitives.asymmetric import public_key_to_bytes
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

from fedlap.flower import wire


def memory(process):
    """Bytes that a process holds, and that it held at most."""
    lines = dict(line.split(":", 1) for line in Path(f"/proc/{process.pid}/status").read_text().splitlines())
    return tuple(int(lines[name].split()[0]) * 1024 for name in ("VmRSS", "VmHWM"))


def connect(study, source="127.0.0.1"):
    """A stranger's connection, from an address of this machine."""
    plain = socket.create_connection((study.host, study.port), timeout=60, source_address=(source, 0))
    context = ssl.create_default_context(cafile=study.folder / "ca.crt")
    return context.wrap_socket(plain, server_hostname=study.host)


def head(path, length):
    return f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/protobuf\r\ncontent-length: {length}\r\n\r\n"


def flood(study, path, length):
    """Send a body without a key, as far as the server lets it."""
    with connect(study) as connection:
        try:
            connection.sendall(head(path, length).encode())
            for _ in range(length // 2**16):
                connection.sendall(bytes(2**16))
            return connection.recv(100)
        except OSError:
            return b""


class RudeNode:
    """A member's node, with the member's own key, that sends what it likes."""

    def __init__(self, client, key):
        self.client = client
        self.node = Node(
            node_id=client.ActivateNode(ActivateNodeRequest(public_key=key, heartbeat_interval=30)).node_id
        )

    def receive(self):
        """The next request for this node, if there is one."""
        response = self.client.PullMessages(PullMessagesRequest(node=self.node))
        return message_from_proto(response.messages_list[0]) if response.messages_list else None

    def read(self, run, identifier):
        return self.client.PullObject(PullObjectRequest(node=self.node, run_id=run, object_id=identifier))

    def announce(self, message, tree=None, **changed):
        """Say that a message has been sent; what is in its head can be changed."""
        message.metadata.__dict__["_message_id"] = message.object_id
        tree, proto = tree or get_object_tree(message), message_to_proto(remove_content_from_message(message))
        for name, value in changed.items():
            setattr(proto.metadata, name, value)
        request = PushMessagesRequest(node=self.node, messages_list=[proto], message_object_trees=[tree])
        return self.client.PushMessages(request).session_id

    def upload(self, message, session):
        for name, part in get_all_nested_objects(message).items():
            self.put(message.metadata.run_id, name, part.deflate(), session)

    def put(self, run, name, content, session=""):
        request = PushObjectRequest(
            node=self.node, run_id=run, object_id=name, object_content=content, session_id=session
        )
        return self.client.PushObject(request).stored


@contextmanager
def rude_node(study, name, key=None):
    """A connection with a member's key, or another one, as `fedlap node` would make."""
    private = load_ssh_private_key((key or study.member(name).private_key).read_bytes(), None)
    authority = (study.folder / "ca.crt").read_bytes()
    interceptors = [NodeAuthHttpInterceptor(private, private.public_key())]
    with FleetHttpClient.from_server_address(study.address, False, authority, interceptors) as client:
        node = RudeNode(client, public_key_to_bytes(private.public_key()))
        yield node
        try:
            client.DeactivateNode(DeactivateNodeRequest(node_id=node.node.node_id))
        except httpx.HTTPStatusError:
            pass  # it is let in no more


def answering(request, reply):
    """A reply of fedlap's as Flower's message that answers a request."""
    return Message(wire.content(reply), reply_to=request)


def refusal(call, *words, **options):
    """The status and the words with which the server refuses a call."""
    try:
        call(*words, **options)
    except httpx.HTTPStatusError as error:
        return error.response.status_code, error.response.json()["detail"]
    return None
