"""Why a request failed, independent of the HTTP library."""

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
"""The reasons.

`invalid`: the request cannot be sent as it is. `refused`: this server does not connect there. `redirected`: the
response redirects to another origin, which must not get the request. `proxy`: the proxy refused. `broken`: the
connection, or what came over it. `closed`: the client is shut down. `busy`: the workspace has too many concurrent
requests.
"""


class RequestFailed(Exception):
    """There was no response, or it broke off. `sent` is False if the request certainly did not reach a server.

    `message` may be shown to a model and to users: it names the host, never path, query, headers or body.
    """

    def __init__(self, reason: Reason, message: str, *, sent: bool) -> None:
        super().__init__(message)
        self.reason: Reason = reason
        self.message = message
        self.sent = sent


class BodyTooLarge(RequestFailed):
    """The body of a response exceeds the limit, after decompression."""

    def __init__(self, host: str, limit_bytes: int) -> None:
        super().__init__("too_large", f"The response from {host} is over {limit_bytes} bytes.", sent=True)
