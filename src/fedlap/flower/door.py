"""Connections before they are anybody's: how many strangers may hold, and for how long; below TLS and HTTP.

A connection is a stranger's until the gate has known the sender of a request on it. Strangers have a bounded number of
places: who comes when all are taken gets the oldest place of the address that holds most. So a member always gets in.
"""

import asyncio
import math
import ssl
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import uvicorn

PLACES = 128  # connections of strangers at the same time
PATIENCE = 10.0  # seconds for a handshake and the whole head of a request
HEAD = 16 * 2**10  # bytes of a request's head
FAREWELL = 1.0  # seconds for open requests when the server stops, and for a peer to confirm the end of TLS

Address = tuple[str, int]


@dataclass(eq=False)
class Guest:
    """One connection: whether a request on it was a member's, and since when it owes the next one."""

    transport: asyncio.Transport
    since: float | None  # None while a request is answered
    known: bool = False


class Door:
    """All open connections, by their remote host and port."""

    def __init__(self, places: int = PLACES, patience: float = PATIENCE) -> None:
        self.places, self.patience = places, patience
        self.guests: dict[Address, Guest] = {}
        self.app: Any = None  # what is served

    def enter(self, transport: asyncio.Transport) -> None:
        """A new connection; the strangers make room for it."""
        self._forget_closed()
        strangers = [address for address, guest in self.guests.items() if not guest.known]
        if len(strangers) >= self.places:
            hosts = Counter(host for host, _ in strangers)
            crowded, _ = hosts.most_common(1)[0]
            self._close(next(address for address in strangers if address[0] == crowded))
        self.guests[_address(transport)] = Guest(transport, time.monotonic())

    def answer(self, address: Address) -> None:
        """A request has come whose sender is known."""
        if guest := self.guests.get(address):
            guest.known, guest.since = True, None

    def rest(self, address: Address) -> None:
        """The request has been answered; the next one is awaited."""
        if guest := self.guests.get(address):
            guest.since = time.monotonic()

    def sweep(self) -> None:
        """Close what has owed a request for too long."""
        self._forget_closed()
        late = time.monotonic() - self.patience
        for address, guest in list(self.guests.items()):
            if guest.since is not None and guest.since < late:
                self._close(address)

    def _close(self, address: Address) -> None:
        self.guests.pop(address).transport.abort()

    def _forget_closed(self) -> None:
        self.guests = {address: guest for address, guest in self.guests.items() if not guest.transport.is_closing()}

    def listen(self, app: Any, **options: Any) -> None:
        """Serve an application through this door until a signal stops it; the options are `uvicorn.run`'s."""
        config = uvicorn.Config(
            app,
            **options,
            http="h11",  # the one of the two parsers that ends a head that grows too long
            h11_max_incomplete_event_size=HEAD,
            ws="none",
            proxy_headers=False,  # an address is that of the connection, not what a header says
            timeout_graceful_shutdown=math.ceil(FAREWELL),
        )
        self.app = app
        with suppress(KeyboardInterrupt), asyncio.Runner(loop_factory=lambda: _Loop(self)) as runner:
            runner.run(self._serve(uvicorn.Server(config)))

    async def _serve(self, server: uvicorn.Server) -> None:
        sweeper = asyncio.create_task(self._sweep_always())
        try:
            await server.serve()
        finally:
            sweeper.cancel()

    async def _sweep_always(self) -> None:
        while True:
            await asyncio.sleep(1)
            self.sweep()


def _address(transport: asyncio.BaseTransport) -> Address:
    host, port, *_ = transport.get_extra_info("peername") or ("", 0)
    return str(host), int(port)


class _Loop(asyncio.SelectorEventLoop):
    """An event loop whose servers let connections in through a door, before TLS."""

    def __init__(self, door: Door) -> None:
        super().__init__()
        self.door = door

    async def create_server(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, protocol_factory: Callable[[], asyncio.Protocol], *words: Any, ssl: ssl.SSLContext, **options: Any
    ) -> asyncio.Server:
        return await super().create_server(lambda: _Threshold(self.door, ssl, protocol_factory), *words, **options)


class _Threshold(asyncio.Protocol):
    """A connection until its handshake is over; then it is the HTTP protocol's."""

    def __init__(self, door: Door, context: ssl.SSLContext, make: Callable[[], asyncio.Protocol]) -> None:
        self.door, self.context, self.make = door, context, make
        self.early: list[bytes] = []  # what comes between the end of the handshake and the HTTP protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.pause_reading()
        self.door.enter(transport)
        self.task = asyncio.get_running_loop().create_task(self._secure(transport))

    def data_received(self, data: bytes) -> None:
        self.early.append(data)

    async def _secure(self, transport: asyncio.Transport) -> None:
        try:
            secured = await asyncio.get_running_loop().start_tls(
                transport,
                self,
                self.context,
                server_side=True,
                ssl_handshake_timeout=self.door.patience,
                ssl_shutdown_timeout=FAREWELL,
            )
        except OSError:  # of TLS, of the connection, or its time is over
            return transport.abort()
        if secured is None or secured.is_closing():
            return transport.abort()
        protocol = self.make()
        secured.set_protocol(protocol)
        protocol.connection_made(secured)
        for data in self.early:
            protocol.data_received(data)
