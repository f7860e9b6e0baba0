"""A site's state, handed back by the server to a site whose own is lost, and which asks for it.

A client's state is its factor, what its solver remembers, and its contribution. The server has the contribution. If
that is the factor itself, or the client has none, and if the solver begins anew in every round, there is nothing else:
the state is the one that was lost, bit for bit. Whether it is so, the algorithm and the solver say themselves.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import jax

from fedlap.engines.round import ClientState
from fedlap.errors import DataError
from fedlap.study.protocol.inquiry import Event, Transport, printable
from fedlap.study.protocol.messages import Reply, Request
from fedlap.study.protocol.refusals import Reason

NOT_HELD = (
    "asks for its state back, of which the server has a part only: put its state folder back from a backup, or go on "
    "with --without"
)


def rebuilt(algorithm: Any, first: ClientState, contribution: Any) -> ClientState | None:
    """A client's state from its contribution; None if there is more to it than the server has."""
    if jax.tree.leaves(first.solver) or (jax.tree.leaves(first.factor) and not algorithm.sends_factor):
        return None
    return ClientState(contribution if algorithm.sends_factor else first.factor, first.solver, contribution)


class Restoring:
    """A transport that hands their state back to sites who ask for it, and then asks them again.

    `hand_back` makes the request that does it, of a member; None where the server has not all of its state.
    """

    def __init__(self, transport: Transport, tell: Callable[[Event], None]) -> None:
        self.transport, self.tell = transport, tell
        self.hand_back: Callable[[str], Request | None] = lambda name: None

    def exchange(
        self, requests: dict[str, Request], seconds: float, resend: float
    ) -> Iterator[tuple[str, Reply | DataError]]:
        """What the transport under it brings, of sites that had lost their state what they say with it."""
        wishes: dict[str, Reply] = {}
        for name, reply in self.transport.exchange(requests, seconds, resend):
            if isinstance(reply, Reply) and reply.refusal == Reason.RESTORE:
                wishes[name] = reply
            else:
                yield name, reply
        restored = self._restored(wishes, seconds, resend)
        for name in wishes.keys() - restored.keys():
            yield name, wishes[name]
        if restored:
            again = {name: requests[name] for name in sorted(restored)}
            yield from self.transport.exchange(again, seconds, resend)

    def _restored(self, names: Iterable[str], seconds: float, resend: float) -> dict[str, Request]:
        """Who of these has its state again, by the request that has brought it."""
        requests = {}
        for name in sorted(names):
            request = self.hand_back(name)
            if request is None:
                self.tell(Event("noted", "restore", name, NOT_HELD))
            else:
                requests[name] = request
        restored = {}
        if not requests:
            return restored
        for name, reply in self.transport.exchange(requests, seconds, resend):
            if isinstance(reply, Reply) and (reply.member, reply.answers) == (name, requests[name].digest):
                if reply.refusal:
                    note = printable(f"does not take its state back: {reply.refusal}")
                else:
                    restored[name], note = requests[name], "had lost its state, has asked for it, and has it back"
                self.tell(Event("noted", "restore", name, note))
        return restored
