"""Where a page of a list begins, as clients hand it back: opaque to them.

A cursor of runs, sessions or deliveries says no more than the id of its last item, which begins with the same key.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import re
from hashlib import blake2b

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
        raise _unusable()
    return int(match[1])


class SealedCursors:
    """For lists whose items have random ids: a key counts the rows of all workspaces, so it is not shown.

    The mark of a key hides it and shows that the cursor is ours; `secret` is the store's own id, which no client sees.
    """

    def __init__(self, secret: str) -> None:
        self._secret = blake2b(secret.encode(), digest_size=32, person=b"weftline cursors").digest()

    def seal(self, key: int, *, workspace: int) -> str:
        mark = self._hash(b"mark:%d:%d" % (workspace, key))
        return base64.urlsafe_b64encode(mark + self._hidden(mark, key)).rstrip(b"=").decode()

    def open(self, cursor: str, *, workspace: int) -> int:
        """Raises `InvalidRequest` for anything that was not made by `seal` for this workspace."""
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


def _unusable() -> InvalidRequest:
    fault = "is not a cursor of this list"
    return InvalidRequest(f"cursor: {fault}.", issues=[{"path": "cursor", "message": fault}])
