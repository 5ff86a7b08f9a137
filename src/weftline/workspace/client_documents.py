"""Clients that need no registration: a client's id is the https address of a document that describes it.

(OAuth Client ID Metadata Documents, which MCP has used since 2025-11-25.) The document is read before a signed-in user
is asked, and stored like a client that registered itself, so that issuing tokens does not read it again. Whoever
controls the address is the client; everything else requires the user's consent.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias
from urllib.parse import urlsplit

from msgspec import UNSET, DecodeError, Struct, UnsetType
from msgspec.json import Decoder
from msgspec.structs import replace

from weftline.errors import Unavailable
from weftline.store.database import Query
from weftline.store.records import apps
from weftline.store.records.apps import NewApp, StoredApp
from weftline.store.sealing import SecretHash
from weftline.workspace.apps import find_app
from weftline.workspace.context import Workspaces
from weftline.workspace.grants import OAuthError
from weftline.workspace.registration import Registration, checked_client, make_room

MAX_DOCUMENT_BYTES = 16 * 1024
FRESH_S = 600
"""How long a document is not read again."""
_MAX_ADDRESS = 512
_MAX_KNOWN = 1000
_AT_ONCE = 8

ReadDocument: TypeAlias = Callable[[str], Awaitable[bytes]]
"""Reads the document at an address. Raises `DocumentUnusable`."""


class DocumentUnusable(Exception):
    """The message states what is wrong, after `client_id`."""


class _Document(Struct):
    client_id: str
    redirect_uris: list[str] | None = None
    token_endpoint_auth_method: str | None = None
    grant_types: list[str] | None = None
    response_types: list[str] | None = None
    client_name: str | None = None
    client_secret: Any | UnsetType = UNSET


_decode = Decoder(_Document).decode


def is_document(client_id: str) -> bool:
    """Returns True if an id is an address. Ids that this server issues never are."""
    return client_id.startswith("https://")


class ClientDocuments:
    """Reads documents, each once in a while and few at a time."""

    def __init__(self, at: Workspaces, read: ReadDocument) -> None:
        self._at = at
        self._read = read
        self._reading = asyncio.Semaphore(_AT_ONCE)
        self._read_at: OrderedDict[str, int] = OrderedDict()

    async def known(self, client_id: str) -> bool:
        """Returns True if the client is stored and its document was read recently."""
        read_at = self._read_at.get(client_id)
        fresh = read_at is not None and self._at.clock.now_us() < read_at + FRESH_S * 1_000_000
        return fresh and await find_app(self._at, client_id) is not None

    async def learn(self, client_id: str) -> None:
        """Reads the document and stores the client that it describes. Raises `DocumentUnusable`, or `Unavailable`."""
        _check_address(client_id)
        async with self._reading:
            body = await self._read(client_id)
        await _store(self._at, client_id, _client(self._at, client_id, body))
        self._read_at[client_id] = self._at.clock.now_us()
        self._read_at.move_to_end(client_id)
        if len(self._read_at) > _MAX_KNOWN:
            self._read_at.popitem(last=False)


def _check_address(client_id: str) -> None:
    try:
        parts = urlsplit(client_id)
        _ = parts.port
    except ValueError:
        raise DocumentUnusable("is not an address") from None
    if len(client_id) > _MAX_ADDRESS or not client_id.isascii() or not client_id.isprintable() or " " in client_id:
        raise DocumentUnusable(f"is not an address of at most {_MAX_ADDRESS} characters")
    if not parts.hostname or not parts.path or parts.username is not None or "#" in client_id:
        raise DocumentUnusable("must have a host and a path, and neither a user nor a fragment")
    if {".", ".."} & set(parts.path.split("/")):
        raise DocumentUnusable("must have no . or .. in its path")


def _client(at: Workspaces, client_id: str, body: bytes) -> NewApp:
    try:
        document = _decode(body)
    except (DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise DocumentUnusable(f"names a document that cannot be read: {error}") from None
    if document.client_id != client_id:
        raise DocumentUnusable("names a document of another client")
    if document.client_secret is not UNSET:
        raise DocumentUnusable("names a document that contains a secret, which is then no longer secret")
    if document.token_endpoint_auth_method not in (None, "none"):
        raise DocumentUnusable("names a document whose token_endpoint_auth_method is not none")
    registration = Registration(
        document.redirect_uris, "none", document.grant_types, document.response_types, document.client_name
    )
    try:
        client = checked_client(at, registration, public=True)
    except OAuthError as error:
        raise DocumentUnusable(f"names a document that cannot be used: {error.description}") from None
    return replace(client, description=f"Described at {client_id}")


async def _store(at: Workspaces, client_id: str, new: NewApp) -> None:
    now = at.clock.now_us()

    def query() -> Query[bool]:
        app: StoredApp | None = yield from apps.by_client_id(client_id)
        if app is not None:
            if (app.name, app.redirect_uris) != (new.name, new.redirect_uris):
                yield from apps.describe(app.key, name=new.name, redirect_uris=new.redirect_uris)
            return True
        if not (yield from make_room(now)):
            return False
        yield from apps.insert(new, client_id=client_id, workspace=None, secret=SecretHash("", b""), now=now)
        return True

    if not await at.records.write(query()):
        raise Unavailable("There are too many new clients at the moment.", retry_after_s=60)
