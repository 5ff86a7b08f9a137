"""Secrets at rest: keyed hashes, under a key that lies in a file of its own beside the database.

Whoever gets the database alone can neither use what is in it nor try guesses on it. The file is part of the store: a
backup without it has no valid OAuth credential and no signed-in user any more.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import os
import secrets
from pathlib import Path

import apsw
from msgspec import Struct

from weftline.errors import StoreError

KEY_FILE = "hash.key"
_KEY_BYTES = 32
_PREFIX_CHARS = 12


class Minted(Struct, frozen=True):
    """A new secret, told once, and what is stored of it."""

    secret: str
    prefix: str
    hash: bytes


class Hasher:
    """Hashes and signs under one store's key."""

    def __init__(self, key: bytes) -> None:
        self._key = key

    def hash(self, secret: str) -> bytes:
        return hmac.digest(self._key, b"secret\0" + secret.encode("utf-8", "surrogatepass"), "sha256")

    def matches(self, secret: str, stored: bytes) -> bool:
        return hmac.compare_digest(self.hash(secret), stored)

    def mint(self, label: str) -> Minted:
        """A secret of 32 random bytes behind `label`, which tells what kind of secret it is."""
        secret = label + secrets.token_urlsafe(32)
        return Minted(secret, prefix_of(secret, label), self.hash(secret))

    def sign(self, purpose: str, payload: bytes) -> str:
        """`payload`, readable, in a text that nobody else can make and that is good for `purpose` only."""
        return f"{_text(payload)}.{_text(self._mark(purpose, payload))}"

    def signed(self, purpose: str, token: str) -> bytes | None:
        """The payload of a text that `sign` made for this purpose; None for any other."""
        payload, _, mark = token.partition(".")
        data, given = _bytes(payload), _bytes(mark)
        if data is None or given is None or not hmac.compare_digest(self._mark(purpose, data), given):
            return None
        return data

    def _mark(self, purpose: str, payload: bytes) -> bytes:
        return hmac.digest(self._key, b"sign\0" + purpose.encode() + b"\0" + payload, "sha256")


def prefix_of(secret: str, label: str) -> str:
    return secret[len(label) : len(label) + _PREFIX_CHARS]


def load_hasher(folder: Path) -> Hasher:
    """The hasher of the store in `folder`; makes the key when there is none. For the store's owner."""
    path = folder / KEY_FILE
    try:
        try:
            key = path.read_bytes()
        except FileNotFoundError:
            key = _create(path)
    except OSError as error:
        raise StoreError(f"The key file {path} cannot be used: {error.strerror}.") from None
    if len(key) != _KEY_BYTES:
        raise StoreError(f"The key file {path} is damaged: restore it from a backup.")
    return Hasher(key)


def hasher_beside(db: apsw.Connection) -> Hasher:
    """The hasher of the store that `db` is open on."""
    return load_hasher(Path(db.filename).parent)


def _create(path: Path) -> bytes:
    key = secrets.token_bytes(_KEY_BYTES)
    draft = path.with_suffix(".new")
    draft.unlink(missing_ok=True)
    file = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.write(file, key)
        os.fsync(file)
    finally:
        os.close(file)
    os.rename(draft, path)
    # Durable before the first hash that rests on it can be.
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
    return key


def _text(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _bytes(text: str) -> bytes | None:
    try:
        return base64.b64decode(text.encode("ascii") + b"=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        return None
