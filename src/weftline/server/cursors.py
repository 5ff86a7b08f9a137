"""Where a page of a list begins, as clients hand it back: opaque to them."""

from __future__ import annotations

import base64
import binascii
import re

from weftline.errors import InvalidRequest


def cursor_of(key: int) -> str:
    return _cursor(b"1:%d" % key)


def key_of(cursor: str) -> int:
    """The key that a cursor stands for. Raises `InvalidRequest` for anything that is not one of ours."""
    match = re.fullmatch(rb"1:([0-9]{1,18})", _text(cursor))
    if match is None or cursor_of(int(match[1])) != cursor:
        raise _not_ours()
    return int(match[1])


def await_cursor(run: int, id: str) -> str:
    """Of a list of awaits, which is ordered by run and id."""
    return _cursor(b"2:%d:%s" % (run, id.encode()))


def await_of(cursor: str) -> tuple[int, str]:
    """The run and the await that a cursor stands for. Raises `InvalidRequest` as `key_of` does."""
    match = re.fullmatch(rb"2:([0-9]{1,18}):([\x21-\x7e]{1,200})", _text(cursor))
    if match is None or await_cursor(int(match[1]), match[2].decode()) != cursor:
        raise _not_ours()
    return int(match[1]), match[2].decode()


def _cursor(text: bytes) -> str:
    return base64.urlsafe_b64encode(text).rstrip(b"=").decode()


def _text(cursor: str) -> bytes:
    try:
        return base64.b64decode(cursor.encode("ascii") + b"=" * (-len(cursor) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        return b""


def _not_ours() -> InvalidRequest:
    fault = "is not a cursor of this list"
    return InvalidRequest(f"cursor: {fault}.", issues=[{"path": "cursor", "message": fault}])
