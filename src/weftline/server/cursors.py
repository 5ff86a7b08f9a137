"""Where a page of a list begins, as clients hand it back: opaque to them."""

from __future__ import annotations

import base64
import binascii
import re

from weftline.errors import InvalidRequest


def cursor_of(key: int) -> str:
    return base64.urlsafe_b64encode(b"1:%d" % key).rstrip(b"=").decode()


def key_of(cursor: str) -> int:
    """The key that a cursor stands for. Raises `InvalidRequest` for anything that is not one of ours."""
    try:
        text = base64.b64decode(cursor.encode("ascii") + b"=" * (-len(cursor) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        text = b""
    match = re.fullmatch(rb"1:([0-9]{1,18})", text)
    if match is None or cursor_of(int(match[1])) != cursor:
        fault = "is not a cursor of this list"
        raise InvalidRequest(f"cursor: {fault}.", issues=[{"path": "cursor", "message": fault}])
    return int(match[1])
