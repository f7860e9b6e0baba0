"""`fedlap node`: Flower's SuperNode loop around a `Site`, in one process that holds the data and the compiled program.

Flower would start a new Python for every message, from code that came over the network. Here its loop finds the
reply already made: the state object it keeps its messages in answers them itself. Nothing a server sends is ever run.
"""

import logging
import socket
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedlap.errors import ConfigError, DataError
from fedlap.flower.environment import Refused, prepare, shorten_node_waits
from fedlap.study.agreement.contract import CommonStudy
from fedlap.study.agreement.keys import check_private
from fedlap.study.protocol.messages import Reply, Request
from fedlap.study.protocol.refusals import Reason
from fedlap.study.protocol.respondent import Respondent

if TYPE_CHECKING:  # Flower and its packages are imported once `prepare` has set them up
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
    from flwr.supercore.object_store import ObjectStore, ObjectStoreFactory
    from flwr.supernode.nodestate import NodeState

AGAIN = 5.0  # seconds until a node that was not let in asks again


def serve(
    study: CommonStudy,
    site: Respondent,
    folder: Path,
    key: Path,
    tell: Callable[[str], None],
    patience: float = float("inf"),
) -> None:
    """Connect and answer until stopped. One that is not let in tries again for so many seconds."""
    prepare(folder / "flower", logging.WARNING)  # such as: the server has gone, retrying
    private, authority = _private_key(key), _authority(study.folder / "ca.crt")
    shorten_node_waits(len(study.members))
    from flwr.supercore.object_store import ObjectStoreFactory
    from flwr.supernode.start_client_internal import start_client_internal

    begun = time.monotonic()
    while True:
        try:
            _probe(study.address)
            start_client_internal(
                # Flower's loop asks its factory for these two alone: `objectstore_factory` and `state()`.
                state_factory=_StateFactory(ObjectStoreFactory(), site),  # pyright: ignore[reportArgumentType]
                server_address=study.address,
                node_config={},
                root_certificates=authority,
                insecure=False,
                authentication_keys=(private, private.public_key()),
                isolation="process",
            )
            reason = "the connection has ended"
        except Refused as error:
            reason = in_words(str(error), study.address)
        if time.monotonic() - begun > patience:
            raise ConfigError(reason)
        tell(f"{reason}; trying again in {AGAIN:.0f} s")
        time.sleep(AGAIN)


def _private_key(path: Path) -> "EllipticCurvePrivateKey":
    """The key by which the server knows this member."""
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
    from cryptography.hazmat.primitives.serialization import load_ssh_private_key

    path = check_private(path)
    try:
        key = load_ssh_private_key(path.read_bytes(), None)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror}); expected a file of your own") from error
    except TypeError as error:  # what cryptography raises where it misses a passphrase
        raise ConfigError(
            f"{path}: the key has a passphrase; expected a key without a passphrase: ssh-keygen -p -f {path} removes it"
        ) from error
    except (ValueError, UnsupportedAlgorithm) as error:
        raise ConfigError(f"{path}: not a private key; expected the file that the coordinator gave you") from error
    if not isinstance(key, EllipticCurvePrivateKey):
        raise ConfigError(f"{path}: not an ECDSA key; expected the file that the coordinator gave you")
    return key


def _authority(path: Path) -> bytes:
    """The certificate by which this member knows the server, as the bytes that Flower takes."""
    from cryptography.x509 import load_pem_x509_certificates

    try:
        content = path.read_bytes()
        load_pem_x509_certificates(content)
    except OSError as error:
        raise ConfigError(
            f"{path}: cannot be read ({error.strerror}); expected the ca.crt that the coordinator gave you, in the "
            "folder of study.toml"
        ) from error
    except ValueError as error:
        raise ConfigError(f"{path}: not a certificate; expected the ca.crt that the coordinator gave you") from error
    return content


def _probe(address: str) -> None:
    """Raise if nobody listens there: Flower would try for ever without a word."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()
    except OSError as error:
        raise Refused(f"{error.strerror or error}") from error


def in_words(message: str, address: str) -> str:
    """A refusal in words, with what a data manager can do about it."""
    if "2004" in message:
        return (
            "the server did not let this node in: its key is not registered there, or another node with the same key "
            "is, or was until a moment ago, connected"
        )
    if "certificate is not valid for" in message:  # Python's words, of a name as of a number: a mismatch of hosts
        return (
            f"the server's certificate is for another host than that of {address}; correct the address in [network] of "
            "study.toml, or ask the coordinator for a new certificate (fedlap study certificate)"
        )
    if "certificate" in message.lower():
        return f"the server at {address} has no certificate of this study's authority (ca.crt): it is not the server"
    return f"the server at {address} does not answer: {message.splitlines()[-1]}"


class _StateFactory:
    """What Flower's loop asks for its state: always the same one, which answers."""

    def __init__(self, objectstore_factory: "ObjectStoreFactory", site: Respondent) -> None:
        self.objectstore_factory, self.site = objectstore_factory, site
        self.made: NodeState | None = None

    def state(self) -> "NodeState":
        if self.made is None:
            self.made = _answering_state(self.objectstore_factory.store(), self.site)
        return self.made


def _answering_state(store: "ObjectStore", site: Respondent) -> "NodeState":
    """Flower's in-memory state of a node, except that a message put into it turns into its reply."""
    from flwr.app import Message
    from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree, iterate_object_tree
    from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
    from flwr.supernode.nodestate.in_memory_nodestate import InMemoryNodeState

    from fedlap.flower import wire

    class AnsweringState(InMemoryNodeState):
        def create_task(self, *_: Any, **__: Any) -> int:
            return 1  # there is no other process to hand a task to

        def get_messages_legacy(
            self, *, run_ids: Sequence[int] | None = None, is_reply: bool | None = None, limit: int | None = None
        ) -> Sequence[Message]:
            if is_reply:
                for message in super().get_messages_legacy(is_reply=False):
                    self._answer(message)
            return super().get_messages_legacy(run_ids=run_ids, is_reply=is_reply, limit=limit)

        def _answer(self, message: Message) -> None:
            identifier = message.metadata.message_id
            self.record_message_processing_start(identifier)
            objects = [tree.object_id for tree in iterate_object_tree(store.get_object_tree(identifier))]
            contents = {name: content for name in objects if (content := store.get(name)) is not None}
            whole = inflate_object_from_contents(identifier, contents)
            assert isinstance(whole, Message), "Flower's loop puts messages here, and nothing else"
            store.delete(identifier)
            reply = Message(wire.content(answer(site, whole.content)), reply_to=message)
            reply.metadata.__dict__["_message_id"] = reply.object_id
            store.preregister(reply.metadata.run_id, get_object_tree(reply))
            for name, content in get_all_nested_objects(reply).items():
                store.put(name, content.deflate())
            self.store_message(reply)
            self.record_message_processing_end(identifier)

    return AnsweringState(store)


def answer(site: Respondent, records: Any) -> Reply:
    """The site's reply to what has arrived, whatever it is."""
    from fedlap.flower import wire

    try:
        request = wire.read(records, Request)
    except DataError as error:
        site.log(f"refused: {error}")
        return Reply(site.member, "", Reason.UNREADABLE.value)
    try:
        return site.answer(request)
    except Exception:  # a site must stay; what went wrong is for its own log, not for the network
        site.log(traceback.format_exc())
        return Reply(site.member, request.digest, Reason.OTHER.value)
