"""Who may ask the SuperLink what: members its Fleet API, the coordinator everything else, strangers nothing.

One port serves Flower's three interfaces. Sites are authenticated by their keys, but Flower lets anyone who
reaches the port start runs and register keys unless there is an account server, and reads whatever anyone sends before
it asks who it is. Here a member is known by the head of its request, the coordinator by a secret that only its account
on the server can read, and of nobody else is a body read.
"""

import asyncio
import hmac
import json
from base64 import b64decode
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, MutableMapping
from datetime import datetime
from typing import Any

from flwr.common.constant import SYSTEM_TIME_TOLERANCE, TIMESTAMP_HEADER, TIMESTAMP_TOLERANCE
from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest
from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER, FLEET_HTTP_SIGNATURE_HEADER
from flwr.supercore.date import now
from flwr.supercore.primitives.asymmetric import bytes_to_public_key, verify_signature
from sqlalchemy.exc import DBAPIError

from fedlap.flower.door import Door
from fedlap.flower.keyring import Keyring
from fedlap.flower.rules import CALLS, NOT_ACTIVE, PATH, PULL_MESSAGES, NotAllowed, Rules

SECRET, REPLY = "x-fedlap-secret", "x-fedlap-reply"  # the coordinator's: who it is, how many bytes a reply may have
LARGEST = 16 * 2**20  # bytes of one request of the coordinator: Flower sends arrays in pieces of 5 MiB
AT_ONCE = 32  # requests of one key that are answered at the same time
READ_AT_ONCE = 4  # of these, how many bodies are in memory
SLOW = 300.0  # seconds for a whole body
ONCE = {name.encode() for name in (SECRET, REPLY, TIMESTAMP_HEADER, "content-length")} | {
    name.encode() for name in (FLEET_HTTP_PUBLIC_KEY_HEADER, FLEET_HTTP_SIGNATURE_HEADER)
}

Message = MutableMapping[str, Any]  # ASGI's: what is asked, and each part of an answer
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Message, Receive, Send], Awaitable[None]]
Headers = dict[bytes, bytes]


class Gate:
    """ASGI middleware that answers for the SuperLink where it must not be asked."""

    def __init__(
        self, app: Application, secret: str, keyring: Keyring, door: Door, tell: Callable[[str], None]
    ) -> None:
        self.app, self.secret, self.keyring, self.door, self.tell = app, secret.encode(), keyring, door, tell
        self.told: set[str] = set()
        self.rules = Rules()
        self.requests: Counter[bytes] = Counter()  # of each key, being answered now
        self.reading: dict[bytes, asyncio.Semaphore] = defaultdict(lambda: asyncio.Semaphore(READ_AT_ONCE))

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Let a request through, or say why not."""
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        try:
            headers, path = _headers(scope), scope["path"]
            if hmac.compare_digest(headers.get(SECRET.encode(), b""), self.secret):
                await self._coordinator(headers, scope, receive, send)
            elif scope["method"] == "POST" and path.startswith(PATH):
                await self._member(path.removeprefix(PATH), headers, scope, receive, send)
            elif scope["method"] == "GET" and path == "/health":
                await self.app(scope, _nothing, send)
            else:
                raise NotAllowed(403, "only the coordinator of the study may ask this")
        except NotAllowed as error:
            await _refuse(send, error)
        except DBAPIError as error:
            self._tell_once(
                f"the server's database cannot be used ({error.orig}); if its disk is full, make room for it: "
                "the study then goes on by itself"
            )
            await _refuse(send, NotAllowed(503, "the server cannot use its database; its own window says why"))

    def _tell_once(self, line: str) -> None:
        if line not in self.told:
            self.tell(line)
        self.told.add(line)

    async def _coordinator(self, headers: Headers, scope: Message, receive: Receive, send: Send) -> None:
        if scope["method"] == "POST" and _length(headers) > LARGEST:
            raise NotAllowed(413, f"expected at most {LARGEST} bytes")
        if (largest := headers.get(REPLY.encode(), b"")).isdigit():
            self.rules.reply = int(largest)
        self.door.answer(scope["client"])
        try:
            if scope["path"] == "/v1/runtime/confirm-message-received":
                body = await _body(receive)
                self.rules.fetched(ConfirmMessageReceivedRequest.FromString(body).message_object_id)
                receive = _again(body, receive)
            await self.app(scope, receive, send)
            if scope["path"] == "/v1/control/stop-run":
                self.rules.emptied()
        finally:
            self.door.rest(scope["client"])

    async def _member(self, call: str, headers: Headers, scope: Message, receive: Receive, send: Send) -> None:
        if call not in CALLS:
            raise NotAllowed(403, "members are registered by the coordinator of the study")
        key = self._key(headers)
        try:
            await self._known(key, call, _length(headers), scope, receive, send)
        except NotAllowed as error:
            self._tell_once(f"{self.keyring.names().get(key, 'a former member')} was refused: {error.reason}")
            raise

    async def _known(self, key: bytes, call: str, length: int, scope: Message, receive: Receive, send: Send) -> None:
        self.rules.limit(key, call, length)
        if self.requests[key] >= AT_ONCE:
            raise NotAllowed(503, f"{AT_ONCE} requests of this key are being answered; try again")
        self.requests[key] += 1
        self.door.answer(scope["client"])
        try:
            async with self.reading[key]:
                body = await _body(receive)
                self._registered(key)  # it may have been revoked while the body came
                self.rules.check(key, call, body)
                receive = _again(body, receive)
                if call != PULL_MESSAGES:
                    return await self.app(scope, receive, send)
                answer = _Answer()
                await self.app(scope, receive, answer)
                if answer.status == 200:
                    self.rules.sent(key, bytes(answer.body))
                for part in answer.parts:
                    await send(part)
        finally:
            self.requests[key] -= 1
            self.door.rest(scope["client"])

    def _key(self, headers: Headers) -> bytes:
        """The key of a member, which has signed the time."""
        try:
            names = (FLEET_HTTP_PUBLIC_KEY_HEADER, FLEET_HTTP_SIGNATURE_HEADER, TIMESTAMP_HEADER)
            public_key, signature, time = (headers[name.encode()] for name in names)
            key, moment = b64decode(public_key, validate=True), datetime.fromisoformat(time.decode("ascii"))
            age = (now() - moment).total_seconds()
        except (KeyError, ValueError, TypeError):
            raise NotAllowed(401, "expected a time, signed with the key of a member") from None
        self._registered(key)
        if not verify_signature(bytes_to_public_key(key), time, b64decode(signature)):
            raise NotAllowed(401, "the signature is not that of the key")
        if not -SYSTEM_TIME_TOLERANCE < age < TIMESTAMP_TOLERANCE + SYSTEM_TIME_TOLERANCE:
            difference = f"{abs(age):.0f} s {'behind' if age > 0 else 'ahead of'} the server's"
            raise NotAllowed(401, f"this node's clock, or its request, is {difference}")
        return key

    def _registered(self, key: bytes) -> None:
        if key not in self.keyring.names():
            # As Flower refuses to activate a node that it does not know, so that a node of any age understands it.
            raise NotAllowed(412, "the key is not, or no longer, that of a member of the study", NOT_ACTIVE)


class _Answer:
    """An answer that is held back until it has been looked at."""

    def __init__(self) -> None:
        self.status, self.body = 0, bytearray()
        self.parts: list[Message] = []

    async def __call__(self, part: Message) -> None:
        """Take a part of it."""
        self.parts.append(part)
        self.status = part.get("status", self.status)
        self.body += part.get("body", b"")


def _headers(scope: Message) -> Headers:
    """The headers by name; of those that decide here, no second one that another reader might take instead."""
    names = Counter(name for name, _ in scope["headers"])
    if twice := [name for name in ONCE if names[name] > 1]:
        raise NotAllowed(400, f"expected one header {twice[0].decode()}")
    return dict(scope["headers"])


def _length(headers: Headers) -> int:
    length = headers.get(b"content-length", b"")
    if not length.isdigit() or b"transfer-encoding" in headers:  # by which a body may be longer than it says
        raise NotAllowed(411, "expected a body whose length is said before")
    return int(length)


async def _body(receive: Receive) -> bytes:
    """A whole body, as long as its header has said: the HTTP protocol sees to that."""
    body = bytearray()
    try:
        async with asyncio.timeout(SLOW):
            while True:
                part = await receive()
                if part["type"] != "http.request":
                    raise NotAllowed(400, "the connection has ended")
                body += part.get("body", b"")
                if not part.get("more_body"):
                    return bytes(body)
    except TimeoutError:
        raise NotAllowed(408, f"no whole request in {SLOW:.0f} s") from None


def _again(body: bytes, receive: Receive) -> Receive:
    """What has been read once, to be read by the application."""
    waiting: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def next_part() -> Message:
        return waiting.pop() if waiting else await receive()

    return next_part


async def _nothing() -> Message:
    return {"type": "http.request", "body": b"", "more_body": False}


async def _refuse(send: Send, error: NotAllowed) -> None:
    """Answer and close: the rest of a body is not read."""
    content = {"detail": error.reason} | ({} if error.code is None else {"code": error.code})
    body = json.dumps(content).encode()
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", b"%d" % len(body)),
        (b"connection", b"close"),
    ]
    await send({"type": "http.response.start", "status": error.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
