"""Clients that register themselves (RFC 7591), so that an MCP host which only knows an address can ask a user.

Anybody may register, so a registration grants nothing: it only names where users are sent back to, and everything else
requires a user's consent. What is stored for strangers is bounded. Clients that no user has approved expire after a
day; when there are many of them, the oldest makes room.

    registered ──a user approves──▶ used ──no grant left and idle for long──▶ gone
         └──────a day passes, or room is needed──▶ gone
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Literal, TypeAlias
from urllib.parse import urlsplit

from msgspec import Struct

from weftline.errors import Unavailable
from weftline.store.database import Query
from weftline.store.records import apps
from weftline.store.records.apps import NewApp, StoredApp
from weftline.store.sealing import SecretHash
from weftline.workspace.apps import CLIENT, CLIENT_SECRET, redirect_uri
from weftline.workspace.context import Workspaces
from weftline.workspace.grants import OAuthError
from weftline.workspace.scopes import MCP_SCOPE

ClientAuth: TypeAlias = Literal["none", "client_secret_post", "client_secret_basic"]
CLIENT_AUTH: tuple[ClientAuth, ...] = ("client_secret_post", "client_secret_basic", "none")

UNUSED_S = 86400
IDLE_S = 90 * 86400
MAX_UNUSED = 1000
_SETTLING_S = 900
"""A client that has just registered is not removed, because its user is at the sign-in page."""
_MAX_URIS = 10
_MAX_NAME = 256


class Registration(Struct, frozen=True):
    """A client's report about itself. Fields without a meaning here are ignored, as RFC 7591 requires."""

    redirect_uris: Sequence[str] | None = None
    token_endpoint_auth_method: str | None = None
    grant_types: Sequence[str] | None = None
    response_types: Sequence[str] | None = None
    client_name: str | None = None


class Registered(Struct, frozen=True):
    app: StoredApp
    auth: ClientAuth
    secret: str | None
    """Not stored; None for a client that cannot keep one."""


async def register_client(at: Workspaces, asked: Registration) -> Registered:
    """Raises `OAuthError` for a client that cannot be accepted, and `Unavailable` if too many have just registered."""
    auth = _auth(asked)
    new = checked_client(at, asked, public=auth == "none")
    client_id = CLIENT + secrets.token_hex(10)
    minted = at.hasher.mint(CLIENT_SECRET)
    stored = SecretHash("", b"") if auth == "none" else minted.stored
    now = at.clock.now_us()

    def query() -> Query[StoredApp | None]:
        if not (yield from make_room(now)):
            return None
        yield from apps.insert(new, client_id=client_id, workspace=None, secret=stored, now=now)
        return (yield from apps.by_client_id(client_id))

    app = await at.records.write(query())
    if app is None:
        raise Unavailable("Too many clients have just registered.", retry_after_s=60)
    return Registered(app, auth, None if auth == "none" else minted.secret)


def make_room(now: int) -> Query[bool]:
    """Removes clients that are no longer used, or the oldest that nobody has approved; False if there is no room."""
    expired = yield from apps.expired(unused_before=now - UNUSED_S * 1_000_000, idle_before=now - IDLE_S * 1_000_000)
    for key in expired:
        yield from apps.delete(key)
    count, oldest, oldest_at = yield from apps.unused()
    if count >= MAX_UNUSED:
        if oldest_at > now - _SETTLING_S * 1_000_000:
            return False
        yield from apps.delete(oldest)
    return True


def _auth(asked: Registration) -> ClientAuth:
    # The defaults of RFC 7591.
    wanted = asked.token_endpoint_auth_method or "client_secret_basic"
    for auth in CLIENT_AUTH:
        if wanted == auth:
            return auth
    raise _refused(f"token_endpoint_auth_method: must be one of {', '.join(CLIENT_AUTH)}.")


def checked_client(at: Workspaces, asked: Registration, *, public: bool) -> NewApp:
    """The client as it may be stored. Raises `OAuthError`."""
    if asked.grant_types and "authorization_code" not in asked.grant_types:
        raise _refused("grant_types: must have authorization_code.")
    if asked.response_types and "code" not in asked.response_types:
        raise _refused("response_types: must have code.")
    uris = _redirect_uris(at, asked.redirect_uris or ())
    name = "".join(char for char in asked.client_name or "" if char.isprintable()).strip()
    if len(name) > _MAX_NAME:
        raise _refused(f"client_name: may have {_MAX_NAME} characters.")
    return NewApp(
        name=name or urlsplit(uris[0]).hostname or "An MCP client",
        description="",
        logo="",
        visibility="public",
        redirect_uris=uris,
        scopes=(MCP_SCOPE,),
        client_credentials=False,
        public=public,
        registered=True,
    )


def _redirect_uris(at: Workspaces, given: Sequence[str]) -> tuple[str, ...]:
    if not 1 <= len(given) <= _MAX_URIS:
        raise OAuthError("invalid_redirect_uri", f"redirect_uris: name 1 to {_MAX_URIS}.")
    uris: list[str] = []
    for text in given:
        uri = redirect_uri(text, schemes=at.redirect_schemes)
        scheme = text.partition(":")[0]
        if uri is None or (scheme not in ("https", "http") and scheme not in at.redirect_schemes):
            raise OAuthError(
                "invalid_redirect_uri",
                f"redirect_uris: {text[:200]!r} is not allowed; use https, or http on localhost, 127.0.0.1 or [::1].",
            )
        uris.append(uri)
    return tuple(dict.fromkeys(uris))


def _refused(problem: str) -> OAuthError:
    return OAuthError("invalid_client_metadata", problem)
