"""Where a message ends is our decision, never a tenant's: the headers that determine it for a request, and the line
breaks that determine it in protocols with one JSON value per line.
"""

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


_SPACES = bytes.maketrans(b"\r\n", b"  ")
_CR, _LF = b"\r\n"
"""As numbers, which are found much faster than bytes."""


def frames_request(name: str) -> bool:
    """Returns True if a header of that name could make the receiver, or a proxy, read another request than ours."""
    return name.lower() in _FRAMING


def without_framing(headers: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in headers.items() if not frames_request(name)}


def one_line(json: bytes) -> bytes:
    """Returns valid JSON without line breaks.

    What others sent is stored and passed on as they wrote it, perhaps over many lines. Outside strings, a line break
    is only white space, and in strings it is escaped, so a space in its place changes nothing.
    """
    return json.translate(_SPACES) if _LF in json or _CR in json else json
