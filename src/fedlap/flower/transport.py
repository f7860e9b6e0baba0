"""Requests and replies over Flower's Grid: who is there, to whom what was sent, and what came back."""

import time
from collections.abc import Callable, Iterator

import httpx
from flwr.app import Message, MessageType
from flwr.proto.node_pb2 import NodeInfo
from flwr.supercore.run import RunNotRunningException
from flwr.superlink.grid import HttpGrid

from fedlap.errors import DataError
from fedlap.flower import wire
from fedlap.flower.environment import SERVER_POLL
from fedlap.flower.link import Link
from fedlap.flower.server import public_keys
from fedlap.study.agreement.contract import CommonStudy
from fedlap.study.protocol.messages import Reply, Request

LOOK = 1.0  # seconds between two looks at who is online


class GridTransport:
    """A transport over Flower. A member is known by the key that its node has proved to have, not by what it says."""

    def __init__(self, study: CommonStudy, secret: str, tell: Callable[[str], None] = lambda line: None) -> None:
        self.study, self.secret, self.tell = study, secret, tell
        self.members = public_keys(study)
        self.link: Link | None = None

    def exchange(
        self, requests: dict[str, Request], seconds: float, resend: float
    ) -> Iterator[tuple[str, Reply | DataError]]:
        """Yield (member, reply) as replies come; see `inquiry.Transport`."""
        end, waiting, lost = time.monotonic() + seconds, dict(requests), False
        while waiting and time.monotonic() < end:
            try:
                for member, reply in self._exchange(waiting, end, resend):
                    del waiting[member]
                    yield member, reply
            except (httpx.HTTPError, RunNotRunningException) as error:
                if not lost:
                    hint = "is `fedlap server` running on this machine? trying again every second"
                    self.tell(f"no connection to the server at {self.study.address} ({type(error).__name__}); {hint}")
                lost = True
                self.close()
                time.sleep(1)

    def close(self) -> None:
        """End the connection; the next exchange makes a new one."""
        if self.link is not None:
            self.link.close()
        self.link = None

    def _exchange(
        self, requests: dict[str, Request], end: float, resend: float
    ) -> Iterator[tuple[str, Reply | DataError]]:
        if self.link is None:
            self.link = Link(self.study, self.secret)
        grid, waiting = self.link.grid, dict(requests)
        nodes, looked, sent, sender = {}, 0.0, {}, {}
        while waiting and (now := time.monotonic()) < end:
            if now - looked >= LOOK:
                nodes, looked = self._nodes(grid), now
            due = [name for name in waiting if name in nodes and _is_due(nodes[name], sent.get(name), now - resend)]
            if due:
                contents = {name: wire.content(requests[name]) for name in due}
                messages = [Message(contents[name], nodes[name].node_id, MessageType.TRAIN) for name in due]
                sender |= dict(zip(grid.push_messages(messages), due, strict=True))
                sent |= {name: (now, nodes[name].last_activated_at) for name in due}
            for message in grid.pull_messages(list(sender)) if sender else ():
                name = sender.pop(message.metadata.reply_to_message_id, None)
                if name not in waiting:
                    continue
                if message.has_error():
                    continue  # the node has gone; it gets the request again when it is back
                del waiting[name]
                yield name, _read(name, message)
            time.sleep(SERVER_POLL)

    def _nodes(self, grid: HttpGrid) -> dict[str, NodeInfo]:
        nodes = grid.get_nodes()
        return {self.members[node.public_key]: node for node in nodes if node.public_key in self.members}


def _is_due(node: NodeInfo, sent: tuple[float, str] | None, before: float) -> bool:
    """Whether a request was never sent, or long ago, or to a node that was started again and has lost it."""
    return sent is None or sent[0] <= before or sent[1] != node.last_activated_at


def _read(name: str, message: Message) -> Reply | DataError:
    try:
        return wire.read(message.content, Reply)
    except DataError as error:
        return DataError(f"{name}: {error}")
