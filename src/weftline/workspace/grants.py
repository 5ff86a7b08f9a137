"""Access of apps by a user's consent: codes are exchanged for grants, and grants and apps get access tokens."""

from __future__ import annotations

import base64
import re
import secrets
from hashlib import sha256
from typing import Literal, TypeAlias

from msgspec import Struct

from weftline.errors import NotFound
from weftline.store.database import Query
from weftline.store.records import apps, grants, users
from weftline.store.records.apps import StoredApp
from weftline.store.records.grants import Grant, NewToken, Token
from weftline.store.sealing import Minted, SecretHash
from weftline.workspace.context import Change, Workspaces
from weftline.workspace.scopes import beyond, parse_scope
from weftline.workspace.users import normalized

ACCESS = "mantyx_at_"
REFRESH = "mantyx_rt_"
CODE = "mantyx_ac_"
ACCESS_S = 3600
_VERIFIER = re.compile(r"[A-Za-z0-9._~-]{43,128}")

OAuthCode: TypeAlias = Literal[
    "invalid_request",
    "invalid_client",
    "invalid_grant",
    "invalid_scope",
    "invalid_target",
    "unsupported_grant_type",
    "invalid_redirect_uri",
    "invalid_client_metadata",
]


class OAuthError(Exception):
    """An error as defined by RFC 6749, RFC 7591 and RFC 8707."""

    def __init__(self, error: OAuthCode, description: str) -> None:
        super().__init__(description)
        self.error: OAuthCode = error
        self.description = description


class Issued(Struct, frozen=True):
    """A new access token, and the refresh token of its grant if it has one."""

    access: str
    scopes: tuple[str, ...]
    refresh: str | None = None


async def exchange_code(
    at: Workspaces, app: StoredApp, *, code: str, redirect_uri: str, verifier: str, resource: str = ""
) -> Issued:
    """Exchanges a code for a grant with its first access token.

    `resource` is the path that the token is restricted to, if it is not for everything that the code allows.

    A code that is used a second time has leaked: the grant that it was exchanged for ends too.
    """
    refused = OAuthError("invalid_grant", "The code is unknown, used or expired, or does not fit the request.")
    if not _VERIFIER.fullmatch(verifier):
        raise refused
    refresh, access = at.hasher.mint(REFRESH), at.hasher.mint(ACCESS)
    stored, now = at.hasher.stored(code, label=CODE), at.clock.now_us()

    def query() -> Query[tuple[str, ...] | OAuthError]:
        found = yield from grants.take_code(stored, app=app.key)
        if found is None or found.expires_at <= now:
            return refused
        if found.spent_on is not None:
            yield from grants.end_grant(found.spent_on)
            return refused
        if found.redirect_uri != redirect_uri.partition("#")[0] or found.challenge != challenge_of(verifier):
            return refused
        if not _fits(resource, found.resource):
            return _wrong_target()
        grant_id = f"grant_{secrets.token_hex(8)}"
        grant = yield from grants.insert_grant(found, id=grant_id, refresh=refresh.stored, now=now)
        yield from grants.mark_code_spent(found.key, grant=grant)
        yield from apps.use(app.key, now=now)
        token = _token(access, found.scopes, now, resource=resource or found.resource)
        yield from grants.add_grant_token(grant, token)
        return found.scopes

    # The error is not raised inside the query, because that would roll back the end of a leaked code's grant.
    outcome = await at.records.write(query())
    if isinstance(outcome, OAuthError):
        await at.changed(Change("credentials"))
        raise outcome
    return Issued(access.secret, outcome, refresh.secret)


async def refresh_grant(at: Workspaces, app: StoredApp, *, refresh: str, scope: str = "", resource: str = "") -> Issued:
    """Issues a further access token, for all scopes of the grant or for some.

    An app without a secret gets a new refresh token each time. If the old one is used again, it or its successor has
    leaked, and the grant ends.
    """
    refused = OAuthError("invalid_grant", "The refresh token is unknown or revoked, or belongs to another client.")
    grant = await _find_grant(at, refresh)
    if grant is None:
        await _end_if_spent(at, refresh)
    if grant is None or grant.client_id != app.client_id:
        raise refused
    if not _fits(resource, grant.resource):
        raise _wrong_target()
    access, scopes = at.hasher.mint(ACCESS), _narrowed(scope, grant.scopes)
    token = _token(access, scopes, at.clock.now_us(), resource=resource or grant.resource)
    old, new = at.hasher.stored(refresh, label=REFRESH), at.hasher.mint(REFRESH)

    def query() -> Query[bool]:
        if app.public and not (yield from grants.rotate(grant.key, old=old, new=new.stored)):
            return False
        return (yield from grants.add_grant_token(grant.key, token))

    if not await at.records.write(query()):
        raise refused
    return Issued(access.secret, scopes, new.secret if app.public else refresh)


async def issue_to_app(at: Workspaces, app: StoredApp, *, scope: str = "", resource: str = "") -> Issued:
    """Issues an access token to an app that acts for itself, in its owner's workspace."""
    if not app.client_credentials:
        raise OAuthError("unsupported_grant_type", "This app may not use client_credentials.")
    access, scopes = at.hasher.mint(ACCESS), _narrowed(scope, app.scopes)
    token = _token(access, scopes, at.clock.now_us(), resource=resource)
    if not await at.records.write(grants.add_app_token(app.key, token)):
        raise OAuthError("invalid_client", "The client has been deleted.")
    return Issued(access.secret, scopes)


async def revoke(at: Workspaces, app: StoredApp, *, secret: str) -> bool:
    """Ends an access token, or the whole grant of a refresh token; False if the app has no such token."""
    match await find_credential(at, app, secret=secret):
        case Token(key=key):
            await at.records.write(grants.delete_token(key))
        case Grant(key=key):
            await at.records.write(grants.end_grant(key))
        case None:
            return False
    await at.changed(Change("credentials"))
    return True


async def find_credential(at: Workspaces, app: StoredApp, *, secret: str) -> Token | Grant | None:
    """Returns the grant or token behind an access token or a refresh token, if it was issued to this app."""
    found: Token | Grant | None = None
    if secret.startswith(ACCESS):
        found = await find_token(at, stored_token(at, secret))
    elif secret.startswith(REFRESH):
        found = await _find_grant(at, secret)
    return found if found is not None and found.client_id == app.client_id else None


def stored_token(at: Workspaces, secret: str) -> SecretHash:
    """The hash under which an access token is stored."""
    return at.hasher.stored(secret, label=ACCESS)


async def find_token(at: Workspaces, stored: SecretHash) -> Token | None:
    """The access token, even if it has expired."""
    return await at.records.read(grants.find_token(stored))


async def list_grants(at: Workspaces, *, email: str) -> list[Grant]:
    """Returns the apps that a user has allowed, and for what."""

    def query() -> Query[list[Grant]]:
        user = yield from users.by_email(normalized(email))
        if user is None:
            raise NotFound(f"There is no user {email!r}.")
        return (yield from grants.grants_of(user.key))

    return await at.records.read(query(), heavy=True)


async def delete_grant(at: Workspaces, *, id: str, user: str | None = None) -> None:
    """Ends a grant with all its tokens. `user` is the id of the user who may do so; None for an administrator."""

    def query() -> Query[None]:
        grant = yield from grants.grant_by_id(id)
        if grant is None or user not in (None, grant.user):
            raise NotFound("There is no such grant.")
        yield from grants.end_grant(grant.key)

    await at.records.write(query())
    await at.changed(Change("credentials"))


def challenge_of(verifier: str) -> str:
    """The S256 challenge of a PKCE verifier."""
    return base64.urlsafe_b64encode(sha256(verifier.encode()).digest()).rstrip(b"=").decode()


async def _find_grant(at: Workspaces, refresh: str) -> Grant | None:
    return await at.records.read(grants.find_grant(at.hasher.stored(refresh, label=REFRESH)))


async def _end_if_spent(at: Workspaces, refresh: str) -> None:
    def query() -> Query[bool]:
        key = yield from grants.find_spent(at.hasher.stored(refresh, label=REFRESH))
        if key is None:
            return False
        yield from grants.end_grant(key)
        return True

    if await at.records.write(query()):
        await at.changed(Change("credentials"))


def _fits(asked: str, granted: str) -> bool:
    """Returns True if a token may be issued for the resource `asked` if the user has allowed `granted`; "" is
    everything.
    """
    return not asked or not granted or asked == granted


def _wrong_target() -> OAuthError:
    return OAuthError("invalid_target", "The resource is not the one that the user has allowed.")


def _token(access: Minted, scopes: tuple[str, ...], now: int, *, resource: str) -> NewToken:
    return NewToken(access.stored, scopes, resource, now, now + ACCESS_S * 1_000_000)


def _narrowed(scope: str, allowed: tuple[str, ...]) -> tuple[str, ...]:
    scopes = parse_scope(scope)
    if beyond(scopes, allowed):
        raise OAuthError("invalid_scope", f"At most these scopes: {' '.join(allowed)}.")
    return scopes or allowed
