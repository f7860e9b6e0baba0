"""Who may ask the SuperLink what: members its Fleet API, the coordinator everything else, nobody more than a limit.

One port serves Flower's three interfaces. Sites are authenticated by their keys, but Flower lets anyone who
reaches the port start runs and register keys unless there is an account server. Here these calls need a secret that
only the coordinator's account on the server can read.
"""

import hmac
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

HEADER = "x-fedlap-secret"
OPEN = ("/v1/fleet/", "/v1/runtime/", "/health")  # Fleet asks for a registered key, Runtime for a task's token
LARGEST = 16 * 2**20  # bytes of one request: Flower sends arrays in pieces of 5 MiB


Message = MutableMapping[str, Any]  # ASGI's: what is asked, and each part of an answer
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Message, Receive, Send], Awaitable[None]]


class Gate:
    """ASGI middleware that answers for the SuperLink where it must not be asked."""

    def __init__(self, app: Application, secret: str) -> None:
        self.app, self.secret = app, secret

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            headers = dict(scope["headers"])
            path = scope["path"]
            given = headers.get(HEADER.encode(), b"")
            if not path.startswith(OPEN) and not hmac.compare_digest(given, self.secret.encode()):
                return await _refuse(send, 403, b"only the coordinator of the study may ask this")
            if path == "/v1/fleet/register-node":
                return await _refuse(send, 403, b"members are registered by the coordinator of the study")
            length = headers.get(b"content-length", b"")
            if scope["method"] == "POST" and not (length.isdigit() and int(length) <= LARGEST):
                return await _refuse(send, 413, f"expected at most {LARGEST} bytes".encode())
        return await self.app(scope, receive, send)


async def _refuse(send: Send, status: int, reason: bytes) -> None:
    await send({"type": "http.response.start", "status": status, "headers": [(b"content-type", b"text/plain")]})
    await send({"type": "http.response.body", "body": reason})
