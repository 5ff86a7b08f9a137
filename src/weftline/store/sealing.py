"""Secrets at rest. Those that are only compared are kept as keyed hashes, the others are encrypted with AES-256-GCM.

The keys are in files of their own next to the database.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import TypeAlias

from msgspec import Struct, json

from weftline.errors import StoreError

HASH_KEY_FILE = "hash.key"
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
    path = folder / HASH_KEY_FILE
    try:
        try:
            key = path.read_bytes()
        except FileNotFoundError:
            key = _create(path)
    except OSError as error:
        # Strangers may read this message, so it does not name the store's path.
        raise StoreError(
            f"The key file {HASH_KEY_FILE} cannot be used: {error.strerror}.", code="unavailable"
        ) from None
    if len(key) != _KEY_BYTES:
        raise StoreError(
            f"The key file {HASH_KEY_FILE} is damaged: restore it from a backup. Without it a new one is made, and"
            " everybody has to sign in again."
        )
    return Hasher(key)


def check_key_file(folder: Path) -> None:
    """Raises `StoreError` if there is a key file and it is not valid, before the key is needed."""
    if (folder / HASH_KEY_FILE).exists():
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


KEY_VARIABLE = "WEFTLINE_SECRET_KEY"
KEY_FILE = "secret.key"

Headers: TypeAlias = dict[str, dict[str, str]]
"""Header values by tool name and header name."""

_NONCE_BYTES = 12
_VERSION = b"\x01"

_decode_headers = json.Decoder(Headers).decode
_decode_values = json.Decoder(dict[str, str]).decode


class Vault:
    """Encrypts one store's secrets. `place` names where a value belongs: it cannot be decrypted anywhere else.

    Args:
        folder: The store's directory, for the key file.
        environ: Where the key is looked for first; the process's own environment by default.
        key: The key itself, for a store that has no directory.
    """

    def __init__(self, folder: Path, *, environ: Mapping[str, str] | None = None, key: bytes | None = None) -> None:
        self._folder = folder
        self._environ = os.environ if environ is None else environ
        self._key = key

    def check(self) -> None:
        """Raises `StoreError` if an existing key cannot be used, before it is needed."""
        check_key_file(self._folder)
        if self._environ.get(KEY_VARIABLE) or (self._folder / KEY_FILE).exists():
            self._secret_key(create=False)

    def hasher(self) -> Hasher:
        """Reads the key used to hash the store's credentials; creates it if there is none."""
        return load_hasher(self._folder)

    def seal(self, data: bytes, *, place: str) -> bytes:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        nonce = secrets.token_bytes(_NONCE_BYTES)
        return _VERSION + nonce + AESGCM(self._secret_key(create=True)).encrypt(nonce, data, place.encode())

    def open(self, sealed: bytes, *, place: str) -> bytes:
        """The plain value. Raises `StoreError` if the key is a different one or the value was tampered with."""
        from cryptography.exceptions import InvalidTag
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        start = len(_VERSION) + _NONCE_BYTES
        if sealed[: len(_VERSION)] != _VERSION or len(sealed) <= start:
            raise _unreadable("They were written by a different version of Weftline.")
        try:
            key = self._secret_key(create=False)
            return AESGCM(key).decrypt(sealed[len(_VERSION) : start], sealed[start:], place.encode())
        except InvalidTag:
            raise _unreadable(f"{KEY_VARIABLE} or {KEY_FILE} is not the key that they were encrypted with.") from None

    def seal_headers(self, headers: Headers, *, workspace: int) -> bytes | None:
        """Encrypts the secret headers of a run's or session's tools, to be stored with it; None if there are none."""
        return self.seal(json.encode(headers), place=_headers_of(workspace)) if headers else None

    def open_headers(self, sealed: bytes | None, *, workspace: int) -> Headers:
        return _decode_headers(self.open(sealed, place=_headers_of(workspace))) if sealed is not None else {}

    def seal_values(self, values: dict[str, str], *, tool: str) -> bytes | None:
        """Encrypts the secrets of the stored tool with the id `tool`; None if it has none."""
        return self.seal(json.encode(values), place=_values_of(tool)) if values else None

    def open_values(self, sealed: bytes | None, *, tool: str) -> dict[str, str]:
        return _decode_values(self.open(sealed, place=_values_of(tool))) if sealed is not None else {}

    def _secret_key(self, *, create: bool) -> bytes:
        if self._key is None:
            given = self._environ.get(KEY_VARIABLE)
            self._key = _decoded(given, KEY_VARIABLE) if given else self._from_file(create=create)
        return self._key

    def _from_file(self, *, create: bool) -> bytes:
        path = self._folder / KEY_FILE
        try:
            return _decoded(path.read_text(encoding="ascii"), KEY_FILE)
        except FileNotFoundError:
            if not create:
                raise _unreadable(f"There is no {KEY_FILE} in the store and no {KEY_VARIABLE}.") from None
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not text"
            raise StoreError(f"The key file {KEY_FILE} cannot be read: {reason}.", code="unavailable") from None
        key = secrets.token_bytes(_KEY_BYTES)
        # Written completely before it gets its name, so that a crash leaves no partial key; an existing file wins.
        draft = self._folder / f"{KEY_FILE}.{secrets.token_hex(4)}"
        try:
            handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            try:
                os.write(handle, base64.b64encode(key) + b"\n")
                os.fsync(handle)
            finally:
                os.close(handle)
            try:
                os.link(draft, path)
            except FileExistsError:
                return _decoded(path.read_text(encoding="ascii"), KEY_FILE)
            finally:
                draft.unlink()
            _sync(self._folder)
        except OSError as error:
            raise StoreError(
                f"The key file {KEY_FILE} cannot be written: {error.strerror}.", code="unavailable"
            ) from None
        return key


def _sync(folder: Path) -> None:
    """Syncs a directory. The name of a new file is durable only once its directory is."""
    handle = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _decoded(text: str, origin: str) -> bytes:
    try:
        key = base64.b64decode(text.strip(), validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if len(key) != _KEY_BYTES:
        raise StoreError(f"{origin} must be the base64 of {_KEY_BYTES} bytes.", code="bad_config")
    return key


def _headers_of(workspace: int) -> str:
    return f"headers:{workspace}"


def _values_of(tool: str) -> str:
    return f"tool:{tool}"


def _unreadable(reason: str) -> StoreError:
    return StoreError(f"The stored secrets cannot be read. {reason}")
