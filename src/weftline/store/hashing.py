"""Secrets at rest: keyed hashes. The key is in a file of its own next to the database.

Someone who gets hold of the database alone can neither use what is in it nor test guesses against it. The file is part
of the store: a backup without it has no valid OAuth credentials and no signed-in users.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import os
import secrets
from pathlib import Path

from msgspec import Struct

from weftline.errors import StoreError

KEY_FILE = "hash.key"
_KEY_BYTES = 32
_PREFIX_CHARS = 12


class SecretHash(Struct, frozen=True):
    """A stored secret: the first characters of its random part, to find the row, and a keyed hash."""

    prefix: str
    hash: bytes

    def matches(self, stored: bytes) -> bool:
        return hmac.compare_digest(self.hash, stored)


class Minted(Struct, frozen=True):
    """A new secret, returned once, and the part that is stored."""

    secret: str
    stored: SecretHash


class Hasher:
    """Hashes and signs under one store's key."""

    def __init__(self, key: bytes) -> None:
        self._key = key

    def hash(self, secret: str) -> bytes:
        return hmac.digest(self._key, b"secret\0" + secret.encode("utf-8", "surrogatepass"), "sha256")

    def stored(self, secret: str, *, label: str) -> SecretHash:
        """Returns the stored form of `secret`, or None if it is not a valid secret of the kind that `label` marks."""
        return SecretHash(secret[len(label) : len(label) + _PREFIX_CHARS], self.hash(secret))

    def mint(self, label: str) -> Minted:
        """A secret of 32 random bytes after `label`, which shows what kind of secret it is."""
        secret = label + secrets.token_urlsafe(32)
        return Minted(secret, self.stored(secret, label=label))

    def sign(self, purpose: str, payload: bytes) -> str:
        """Makes a token that contains `payload` in readable form, cannot be forged, and is valid only for `purpose`."""
        return f"{_text(payload)}.{_text(self._mark(purpose, payload))}"

    def signed(self, purpose: str, token: str) -> bytes | None:
        """The payload of a token that `sign` made for this purpose, or None."""
        payload, _, mark = token.partition(".")
        data, given = _bytes(payload), _bytes(mark)
        if data is None or given is None or not hmac.compare_digest(self._mark(purpose, data), given):
            return None
        return data

    def _mark(self, purpose: str, payload: bytes) -> bytes:
        return hmac.digest(self._key, b"sign\0" + purpose.encode() + b"\0" + payload, "sha256")


def load_hasher(folder: Path) -> Hasher:
    """The hasher of the store in `folder`; creates the key if there is none. Only for the store's owner."""
    path = folder / KEY_FILE
    try:
        try:
            key = path.read_bytes()
        except FileNotFoundError:
            key = _create(path)
    except OSError as error:
        # Strangers may read this message, so it does not name the store's path.
        raise StoreError(f"The key file {KEY_FILE} cannot be used: {error.strerror}.", code="unavailable") from None
    if len(key) != _KEY_BYTES:
        raise StoreError(
            f"The key file {KEY_FILE} is damaged: restore it from a backup. Without it a new one is made, and everybody"
            " has to sign in again."
        )
    return Hasher(key)


def check_key_file(folder: Path) -> None:
    """Raises `StoreError` if there is a key file and it is not valid, before the key is needed."""
    if (folder / KEY_FILE).exists():
        load_hasher(folder)


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
    # Must be durable before the first hash is made with it.
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
