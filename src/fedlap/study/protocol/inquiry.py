"""The server's questions: sent by a transport, replies held against requests, those missing asked for again.

Nothing here knows how messages travel, nor what they are about.
"""

import time
from collections.abc import Callable, Iterator
from typing import NamedTuple, Protocol, TypeVar

from fedlap.errors import DataError
from fedlap.study.protocol.heads import Heads
from fedlap.study.protocol.messages import Reply, Request

Answered = TypeVar("Answered")


class Event(NamedTuple):
    """Something worth telling whoever watches."""

    kind: str  # "asked", "answered", "refused", "audit", "waiting", "round", "noted", "resumed" or "finished"
    step: str
    member: str = ""
    note: str = ""


class Transport(Protocol):
    """How requests reach the members and replies come back."""

    def exchange(
        self, requests: dict[str, Request], seconds: float, resend: float
    ) -> Iterator[tuple[str, Reply | DataError]]:
        """Send each member its request, again after `resend` seconds without reply; yield (member, Reply or DataError).

        At most one reply of each member; ends when all have replied or the seconds are over.
        """
        ...


class Patience(NamedTuple):
    """How long to wait, and for whom."""

    quorum: int
    deadline: float
    retries: int

    @property
    def resend(self) -> float:
        """Seconds until one that has not answered is asked again."""
        return self.deadline / (self.retries + 1)

    @property
    def pause(self) -> float:
        """Seconds until all those are asked again who have refused, or sent what could not be used."""
        return min(self.resend, 10.0)


class Inquiry:
    """Questions to members, over one transport; where their audit logs stand is kept with each reply."""

    def __init__(self, patience: Patience, transport: Transport, tell: Callable[[Event], None], heads: Heads) -> None:
        self.patience, self.transport, self.tell, self.heads = patience, transport, tell, heads

    def everyone(
        self, step: str, requests: dict[str, Request], read: Callable[[str, Reply], Answered], without: str
    ) -> dict[str, Answered]:
        """What everyone answers; it waits for whoever does not, and says what is not possible `without` them."""
        replies = {}
        while len(replies) < len(requests):
            missing = {name: request for name, request in requests.items() if name not in replies}
            replies |= self.once(step, missing, read)[0]
            if len(replies) < len(requests):
                names = ", ".join(name for name in requests if name not in replies)
                self.tell(Event("waiting", step, note=f"{without} {names}"))
                time.sleep(self.patience.pause)
        return replies

    def once(
        self, step: str, requests: dict[str, Request], read: Callable[[str, Reply], Answered]
    ) -> tuple[dict[str, Answered], dict[str, str]]:
        """What the good replies hold, and in a word what was wrong with the others, after one deadline."""
        good, bad = {}, {}
        for name in requests:
            self.tell(Event("asked", step, name))
        for name, reply in self.transport.exchange(requests, self.patience.deadline, self.patience.resend):
            try:
                if isinstance(reply, Exception):
                    raise reply
                expected = {requests[name].digest, ""} if reply.refusal else {requests[name].digest}
                if reply.member != name or reply.answers not in expected:  # what cannot be read has no digest to name
                    raise DataError(f"{name} has answered another request, or under another name")
                if doubt := self.heads.take(name, requests[name], reply):
                    self.tell(Event("audit", step, name, doubt.value))
                if reply.refusal:
                    raise DataError(f"{name} refuses: {reply.refusal}")
                good[name] = read(name, reply)
            except DataError as error:
                # A word only: it is kept in the history, which all members get. What a member said is for this screen.
                bad[name] = "refused" if isinstance(reply, Reply) and reply.refusal else "sent what could not be used"
                self.tell(Event("refused", step, name, printable(str(error))))
            else:
                self.tell(Event("answered", step, name))
        return good, bad


def printable(text: str) -> str:
    """What a member says, for a terminal: no control characters, and not too many."""
    return "".join(letter if letter.isprintable() else " " for letter in text[:500])
