"""Requests and replies over Flower: who is there, to whom what was sent, and what came back, each member by itself."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import httpx
from flwr.app import Message, MessageType
from flwr.proto.message_pb2 import ObjectTree
from flwr.proto.node_pb2 import NodeInfo

from fedlap.errors import DataError
from fedlap.flower import rules, wire
from fedlap.flower.environment import SERVER_POLL
from fedlap.flower.keyring import Keyring, public_keys
from fedlap.flower.link import Link, assembled, identifiers
from fedlap.study.agreement.contract import CommonStudy
from fedlap.study.protocol.messages import Reply, Request

LOOK = 1.0  # seconds between two looks at who is online
TURN = 2**22  # bytes of one reply that are fetched before the next one has its turn
SLOWEST_POLL = 2.0  # seconds between two questions for a part that does not come


@dataclass(frozen=True)
class Pending:
    """A request on its way: to whom, and with which key its node has entered."""

    member: str
    key: bytes
    request: Request


@dataclass(eq=False)
class Arrival:
    """A reply on its way: its node has announced these parts, and uploads them one by one, or does not."""

    asked: Pending
    identifier: str
    missing: list[str]  # in reverse, so that the next one is the last
    parts: dict[str, bytes] = field(default_factory=dict)
    since: float = field(default_factory=time.time)
    pause: float = SERVER_POLL
    next_try: float = 0.0

    @classmethod
    def of(cls, asked: Pending, tree: ObjectTree) -> "Arrival":
        """A reply that was announced just now."""
        return cls(asked, tree.object_id, identifiers(tree)[::-1])

    def fetch(self, link: Link) -> bool:
        """Fetch the next parts, unless it is too early to ask for one again; whether one was there.

        Not too many bytes at a time, so that no member's reply waits for another's.
        """
        count = 0
        while self.missing and count < TURN and time.monotonic() >= self.next_try:
            part = link.part(self.missing[-1])
            if part is None:
                self.next_try = time.monotonic() + self.pause
                self.pause = min(2 * self.pause, SLOWEST_POLL)
                break
            self.parts[self.missing.pop()] = part
            self.pause, count = SERVER_POLL, count + len(part)
        return count > 0


class GridTransport:
    """A transport over Flower. A member is known by the key that its node has proved to have, not by what it says."""

    def __init__(
        self,
        study: CommonStudy,
        secret: str,
        tell: Callable[[str], None] = lambda line: None,
        contribution: int = 0,
    ) -> None:
        public_keys(study)  # an error at once where a file is wrong
        self.study, self.secret, self.tell = study, secret, tell
        self.reply = rules.REPLY + 4 * contribution  # the most that the gate takes: what is not arrays has room in it
        self.keyring = Keyring(study, tell)
        self.link: Link | None = None
        self.asked: dict[str, Pending] = {}  # what has no reply yet, by the message's identifier
        self.arrivals: list[Arrival] = []

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
            except httpx.HTTPError as error:
                if not lost:
                    self.tell(f"{_in_words(error, self.study.address)} trying again every second")
                lost = True
                self.close()
                time.sleep(1)
        for arrival in self.arrivals:
            if arrival.asked.request is waiting.get(arrival.asked.member):
                since = time.strftime("%H:%M:%S", time.localtime(arrival.since))
                self.tell(f"{arrival.asked.member} has announced a reply at {since} and not sent all of it")

    def close(self) -> None:
        """End the connection; the next exchange makes a new one."""
        if self.link is not None:
            self.link.close()
        self.link, self.asked, self.arrivals = None, {}, []

    def _exchange(
        self, requests: dict[str, Request], end: float, resend: float
    ) -> Iterator[tuple[str, Reply | DataError]]:
        if self.link is None:
            self.link = Link(self.study, self.secret, self.reply)
        link, waiting = self.link, dict(requests)
        nodes, looked, last = {}, 0.0, {}
        while waiting and (now := time.monotonic()) < end:
            if now - looked >= LOOK:
                nodes, looked = self._nodes(link), now
            due = [name for name in waiting if name in nodes and _is_due(nodes[name], last.get(name), now - resend)]
            if due:
                self._ask(link, {name: (nodes[name], requests[name]) for name in due})
                last |= {name: (now, nodes[name].last_activated_at) for name in due}
            self._look(link)
            progress = False
            for arrival in list(self.arrivals):
                if time.monotonic() >= end:
                    break
                progress |= self._fetch(link, arrival)
                if not arrival.missing and (reply := self._arrived(link, arrival, waiting)) is not None:
                    del waiting[arrival.asked.member]
                    yield arrival.asked.member, reply
            if not progress:
                time.sleep(SERVER_POLL)

    def _nodes(self, link: Link) -> dict[str, NodeInfo]:
        names = self.keyring.names()
        return {names[node.public_key]: node for node in link.nodes() if node.public_key in names}

    def _ask(self, link: Link, due: dict[str, tuple[NodeInfo, Request]]) -> None:
        messages = [Message(wire.content(request), node.node_id, MessageType.TRAIN) for node, request in due.values()]
        for identifier, (name, (node, request)) in zip(link.push(messages), due.items(), strict=True):
            if identifier:
                self.asked[identifier] = Pending(name, node.public_key, request)

    def _look(self, link: Link) -> None:
        """Take note of the replies that have been announced."""
        for identifier, tree in link.announced(list(self.asked)) if self.asked else ():
            if (asked := self.asked.pop(identifier, None)) is not None:
                self.arrivals.append(Arrival.of(asked, tree))

    def _fetch(self, link: Link, arrival: Arrival) -> bool:
        """Fetch some parts of a reply; whether there were any."""
        try:
            return arrival.fetch(link)
        except LookupError:
            self.arrivals.remove(arrival)  # the request is sent again in time
            return False

    def _arrived(self, link: Link, arrival: Arrival, waiting: dict[str, Request]) -> Reply | DataError | None:
        """The reply that is now whole, or why it is none; None for one that nobody waits for any more."""
        self.arrivals.remove(arrival)
        link.confirm(arrival.identifier)
        asked = arrival.asked
        if waiting.get(asked.member) is not asked.request or self.keyring.names().get(asked.key) != asked.member:
            return None
        try:
            message = assembled(arrival.identifier, arrival.parts)
            # An error is Flower's own: the node has gone. It gets the request again when it is back.
            return None if message.has_error() else wire.read(message.content, Reply)
        except (ValueError, DataError) as error:
            return DataError(f"{asked.member}: {error}")


def _in_words(error: httpx.HTTPError, address: str) -> str:
    """Why the server is not to be asked."""
    if isinstance(error, httpx.HTTPStatusError):
        status = error.response.status_code
        return f"the server at {address} cannot answer (status {status}); the window of `fedlap server` says why;"
    return f"no connection to the server at {address} ({type(error).__name__}); is `fedlap server` running here?"


def _is_due(node: NodeInfo, last: tuple[float, str] | None, before: float) -> bool:
    """Whether a request was never sent, or long ago, or to a node that was started again and has lost it."""
    return last is None or last[0] <= before or last[1] != node.last_activated_at
