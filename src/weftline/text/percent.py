"""Percent-encoding, decoded in time and memory that do not depend on how many escapes a text has.

`urllib.parse` creates an object for every `%`, and an exception for every one that is not an escape: an untrusted text
of 16 MB would take gigabytes and many seconds.
"""

from __future__ import annotations

import re
from binascii import a2b_qp
from collections.abc import Iterator

_PIECE_BYTES = 32 * 1024
"""How much is decoded at once; other threads run in between."""
_STRAY = re.compile(rb"%(?![0-9A-Fa-f]{2})")
_MAX_STRAY = 1_000


def decoded(text: bytes) -> bytes:
    """Returns `text` with each escape replaced by its byte.

    A `%` that does not begin an escape stays as it is. Raises `ValueError` if there are a thousand of those, as each
    costs a hundred times as much as an escape.
    """
    if b"%" not in text:
        return text
    whole, stray = _STRAY.subn(b"%25", text, count=_MAX_STRAY)
    if stray == _MAX_STRAY:
        raise ValueError("too many percent signs do not begin an escape")
    # Quoted-printable only differs in its escape character, and is decoded in C.
    return a2b_qp(whole.replace(b"=", b"%3D").replace(b"%", b"="))


def decoded_up_to(text: bytes, limit: int) -> bytes | None:
    """Like `decoded`, for a text of any size; None as soon as the result has more than `limit` bytes."""
    if len(text) - 2 * text.count(b"%") > limit:
        return None
    found = bytearray()
    for piece in _pieces(text):
        found += decoded(piece)
        if len(found) > limit:
            return None
    return bytes(found)


def fields(text: bytes, *, max_fields: int, errors: str = "replace") -> list[tuple[str, str]]:
    """Returns the names and values of a query or a form. Raises `ValueError` if there are too many.

    `errors` says what to do with bytes that are not UTF-8, as for `bytes.decode`.
    """
    if text.count(b"&") >= max_fields:
        raise ValueError(f"there are more than {max_fields} fields")
    pairs = [part.partition(b"=") for part in text.split(b"&") if part]
    return [(field_text(name, errors=errors), field_text(value, errors=errors)) for name, _, value in pairs]


def field_text(text: bytes, *, errors: str = "replace") -> str:
    """Decodes a name or a value of a query or a form, in which `+` is a space."""
    return decoded(text.replace(b"+", b" ")).decode("utf-8", errors)


def _pieces(text: bytes) -> Iterator[bytes]:
    at = 0
    while at < len(text):
        end = at + _PIECE_BYTES
        if end < len(text):
            begun = text.rfind(b"%", end - 2, end)
            end = end if begun < 0 else begun
        yield text[at:end]
        at = end
