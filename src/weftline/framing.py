"""Headers that determine where a request ends and where it goes. Only we may send them, never a tenant."""

from __future__ import annotations

from collections.abc import Mapping

REFUSAL = "is a header that the server sets itself"
_FRAMING = frozenset(
    {
        "connection",
        "content-length",
        "expect",
        "host",
        "keep-alive",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)


def frames_request(name: str) -> bool:
    """Whether a header of that name could make the receiver, or a proxy, read another request than ours."""
    return name.lower() in _FRAMING


def without_framing(headers: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in headers.items() if not frames_request(name)}
