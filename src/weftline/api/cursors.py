"""Cursors: where a page of a list begins, opaque to clients.

A cursor of runs, sessions or deliveries reveals no more than the id of its last item, which has the same key.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import re
from hashlib import blake2b

from weftline.errors import InvalidRequest


def cursor_of(key: int) -> str:
    return _cursor(b"1:%d" % key)


def key_of(cursor: str) -> int:
    """Returns the key of a cursor. Raises `InvalidRequest` for anything that is not one of ours."""
    match = re.fullmatch(rb"1:([0-9]{1,18})", _text(cursor))
    if match is None or cursor_of(int(match[1])) != cursor:
        raise _unusable()
    return int(match[1])


def await_cursor(run: int, id: str) -> str:
    """Returns the cursor of a list of awaits, which is ordered by run and id."""
    return _cursor(b"2:%d:%s" % (run, id.encode()))


def await_of(cursor: str) -> tuple[int, str]:
    """Returns the run and the await of a cursor. Raises `InvalidRequest` as `key_of` does."""
    match = re.fullmatch(rb"2:([0-9]{1,18}):([\x21-\x7e]{1,200})", _text(cursor))
    if match is None or await_cursor(int(match[1]), match[2].decode()) != cursor:
        raise _unusable()
    return int(match[1]), match[2].decode()


class SealedCursors:
    """Cursors for lists whose items have random ids, as a plain key would reveal the number of rows of all workspaces.

    The mark hides the key and shows that the cursor is ours; `secret` is the store's own id, which no client sees.
    """

    def __init__(self, secret: str) -> None:
        self._secret = blake2b(secret.encode(), digest_size=32, person=b"weftline cursors").digest()

    def seal(self, key: int, *, workspace: int) -> str:
        mark = self._hash(b"mark:%d:%d" % (workspace, key))
        return base64.urlsafe_b64encode(mark + self._hidden(mark, key)).rstrip(b"=").decode()

    def open(self, cursor: str, *, workspace: int) -> int:
        """Returns the key. Raises `InvalidRequest` for anything that `seal` did not make for this workspace."""
        try:
            data = base64.b64decode(cursor.encode("ascii") + b"==", altchars=b"-_") if len(cursor) == 22 else b""
        except (binascii.Error, ValueError):
            data = b""
        key = int.from_bytes(self._hidden(data[:8], int.from_bytes(data[8:], "big")), "big") if len(data) == 16 else -1
        if key < 0 or not hmac.compare_digest(self.seal(key, workspace=workspace).encode(), cursor.encode()):
            raise _unusable()
        return key

    def _hidden(self, mark: bytes, key: int) -> bytes:
        return (key ^ int.from_bytes(self._hash(b"mask:" + mark), "big")).to_bytes(8, "big")

    def _hash(self, data: bytes) -> bytes:
        return blake2b(data, digest_size=8, key=self._secret).digest()


def _cursor(text: bytes) -> str:
    return base64.urlsafe_b64encode(text).rstrip(b"=").decode()


def _text(cursor: str) -> bytes:
    try:
        return base64.b64decode(cursor.encode("ascii") + b"=" * (-len(cursor) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        return b""


def _unusable() -> InvalidRequest:
    problem = "is not a cursor of this list"
    return InvalidRequest(f"cursor: {problem}.", issues=[{"path": "cursor", "message": problem}])
