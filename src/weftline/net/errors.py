"""Why a request failed, independent of the HTTP library."""

from __future__ import annotations

from typing import Literal, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

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


class TimeLimits(Struct, frozen=True, kw_only=True):
    """Seconds; None means no limit. The defaults are those of the vendors' own clients: 5 to connect, 600 in total."""

    connect_s: float | None = 5.0
    """Until the connection is established: name lookup, every address, TLS."""
    first_byte_s: float | None = 300.0
    """From the start until the head of the response has arrived."""
    idle_s: float | None = 300.0
    """Between two pieces of the body, while a reader waits. A live response never reaches it."""
    total_s: float | None = 600.0
    """From the start to the end of the body."""

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            seconds = getattr(self, name)
            if seconds is not None and not seconds > 0:
                raise ValueError(f"{name} must be a number of seconds above 0, not {seconds!r}")

    def within(self, total_s: float) -> TimeLimits:
        """Returns these limits, with at most `total_s` in total."""
        if self.total_s is not None and self.total_s <= total_s:
            return self
        return replace(self, total_s=total_s)

    @property
    def head_s(self) -> float | None:
        """When the head of the response must have arrived, by whichever limit comes first."""
        if self.first_byte_s is None or self.total_s is None:
            return self.total_s if self.first_byte_s is None else self.first_byte_s
        return min(self.first_byte_s, self.total_s)


DEFAULT_LIMITS = TimeLimits()
