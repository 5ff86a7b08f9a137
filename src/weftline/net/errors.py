"""Why a request failed, whatever the HTTP library calls it."""

from __future__ import annotations

from typing import Literal, TypeAlias

Reason: TypeAlias = Literal[
    "invalid",
    "refused",
    "redirected",
    "certificate",
    "connect",
    "proxy",
    "timeout",
    "broken",
    "too_large",
    "closed",
    "busy",
    "unknown",
]
"""`invalid`: the request cannot be sent as it is. `refused`: this server does not connect there. `redirected`: the
answer leads to another origin, which must not get the request. `proxy`: the proxy refused. `broken`: the connection, or
what came over it. `closed`: the client is shut down. `busy`: too many requests of the same workspace are under way.
"""


class RequestFailed(Exception):
    """No response came, or it broke off. `sent` is False if the request certainly did not reach a server.

    `message` may be shown to a model and to users: it names the host, never path, query, headers or body.
    """

    def __init__(self, reason: Reason, message: str, *, sent: bool) -> None:
        super().__init__(message)
        self.reason: Reason = reason
        self.message = message
        self.sent = sent


class BodyTooLarge(RequestFailed):
    """The body of a response is over the limit, measured after decompression."""

    def __init__(self, host: str, limit_bytes: int) -> None:
        super().__init__("too_large", f"The response from {host} is over {limit_bytes} bytes.", sent=True)
