"""Who may ask the SuperLink what: members its Fleet API, the coordinator everything else, nobody more than a limit.

One port serves Flower's three interfaces. Sites are authenticated by their keys, but Flower lets anyone who
reaches the port start runs and register keys unless there is an account server. Here these calls need a secret that
only the coordinator's account on the server can read.
"""

import hmac

HEADER = "x-fedlap-secret"
OPEN = ("/v1/fleet/", "/v1/runtime/", "/health")  # Fleet asks for a registered key, Runtime for a task's token
LARGEST = 16 * 2**20  # bytes of one request: Flower sends arrays in pieces of 5 MiB


class Gate:
    """ASGI middleware that answers for the SuperLink where it must not be asked."""

    def __init__(self, app, secret):
        self.app, self.secret = app, secret

    async def __call__(self, scope, receive, send):
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


async def _refuse(send, status, reason):
    await send({"type": "http.response.start", "status": status, "headers": [(b"content-type", b"text/plain")]})
    await send({"type": "http.response.body", "body": reason})
