"""The endpoints that apps call themselves: token, revoke and introspect."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from hashlib import sha256
from typing import Any

from weftline.server.oauth.app import OAuthServer
from weftline.server.oauth.forms import OAuthError
from weftline.server.oauth.scopes import parse_scope
from weftline.store.sqlite import oauth
from weftline.store.sqlite.hashing import Minted

ACCESS_S = 3600
_VERIFIER = re.compile(r"[A-Za-z0-9._~-]{43,128}")

GRANT_TYPES = ("authorization_code", "refresh_token", "client_credentials")


async def issue(server: OAuthServer, app: oauth.App, form: Mapping[str, str]) -> dict[str, Any]:
    """The answer of the token endpoint."""
    match _needed(form, "grant_type"):
        case "authorization_code":
            return await _exchange(server, app, form)
        case "refresh_token":
            return await _refresh(server, app, form)
        case "client_credentials":
            return await _for_itself(server, app, form)
        case _:
            raise OAuthError("unsupported_grant_type", f"grant_type is one of {', '.join(GRANT_TYPES)}.")


async def _exchange(server: OAuthServer, app: oauth.App, form: Mapping[str, str]) -> dict[str, Any]:
    code, uri, verifier = (_needed(form, name) for name in ("code", "redirect_uri", "code_verifier"))
    refused = OAuthError("invalid_grant", "The code is unknown, used or expired, or does not fit the request.")
    if not _VERIFIER.fullmatch(verifier):
        raise refused
    hasher, now = server.hasher(), server.now()
    refresh, access = hasher.mint(oauth.REFRESH), hasher.mint(oauth.ACCESS)
    scopes = await server.engine.store.job(
        lambda db: oauth.redeem_code(
            db,
            hasher,
            code,
            app=app.key,
            redirect_uri=uri.partition("#")[0],
            challenge=challenge_of(verifier),
            refresh=refresh,
            access=access,
            now=now,
            expires_at=now + ACCESS_S * 1_000_000,
        )
    )
    if scopes is None:
        raise refused
    return _answer(access, scopes, refresh=refresh.secret)


async def _refresh(server: OAuthServer, app: oauth.App, form: Mapping[str, str]) -> dict[str, Any]:
    secret = _needed(form, "refresh_token")
    refused = OAuthError("invalid_grant", "The refresh token is unknown or revoked, or another client's.")
    hasher, now = server.hasher(), server.now()
    grant = oauth.find_grant(server.engine.read.db, hasher, secret)
    if grant is None or grant.client_id != app.client_id:
        raise refused
    scopes, key = _narrowed(form, grant.scopes), grant.key
    access = hasher.mint(oauth.ACCESS)
    expires_at = now + ACCESS_S * 1_000_000
    added = await server.engine.store.job(
        lambda db: oauth.add_grant_token(db, key, access=access, scopes=scopes, now=now, expires_at=expires_at)
    )
    if not added:
        raise refused
    return _answer(access, scopes, refresh=secret)


async def _for_itself(server: OAuthServer, app: oauth.App, form: Mapping[str, str]) -> dict[str, Any]:
    if not app.client_credentials:
        raise OAuthError("unsupported_grant_type", "This app may not use client_credentials.")
    scopes, now = _narrowed(form, app.scopes), server.now()
    access = server.hasher().mint(oauth.ACCESS)
    expires_at = now + ACCESS_S * 1_000_000
    added = await server.engine.store.job(
        lambda db: oauth.add_app_token(db, app.key, access=access, scopes=scopes, now=now, expires_at=expires_at)
    )
    if not added:
        raise OAuthError("invalid_client", "The client has been deleted.", status=401)
    return _answer(access, scopes)


async def revoke(server: OAuthServer, app: oauth.App, form: Mapping[str, str]) -> bool:
    """Ends a token of this app; False when there was none, which is nobody else's business."""
    secret = _needed(form, "token")
    db, hasher = server.engine.read.db, server.hasher()
    token = oauth.find_token(db, hasher, secret) if secret.startswith(oauth.ACCESS) else None
    if token is not None and token.client_id == app.client_id:
        key = token.key
        await server.engine.store.job(lambda db: oauth.delete_token(db, key))
        return True
    grant = oauth.find_grant(db, hasher, secret) if secret.startswith(oauth.REFRESH) else None
    if grant is not None and grant.client_id == app.client_id:
        grant_key = grant.key
        await server.engine.store.job(lambda db: oauth.end_grant(db, grant_key))
        return True
    return False


def introspect(server: OAuthServer, app: oauth.App, form: Mapping[str, str]) -> dict[str, Any]:
    """What RFC 7662 says of a token: everything to the app it was given to, nothing to others."""
    secret = _needed(form, "token")
    db, hasher = server.engine.read.db, server.hasher()
    if secret.startswith(oauth.ACCESS):
        token = oauth.find_token(db, hasher, secret)
        if token is not None and token.client_id == app.client_id and token.expires_at > server.now():
            return {
                "active": True,
                "scope": " ".join(token.scopes),
                "client_id": token.client_id,
                "token_type": "Bearer",
                "exp": token.expires_at // 1_000_000,
                "iat": token.created_at // 1_000_000,
                "sub": token.user or token.client_id,
                **({"username": token.email} if token.email else {}),
            }
    elif secret.startswith(oauth.REFRESH):
        grant = oauth.find_grant(db, hasher, secret)
        if grant is not None and grant.client_id == app.client_id:
            return {
                "active": True,
                "scope": " ".join(grant.scopes),
                "client_id": grant.client_id,
                "iat": grant.created_at // 1_000_000,
                "sub": grant.user,
                "username": grant.email,
            }
    return {"active": False}


def challenge_of(verifier: str) -> str:
    """The S256 challenge of a PKCE verifier."""
    return base64.urlsafe_b64encode(sha256(verifier.encode()).digest()).rstrip(b"=").decode()


def _needed(form: Mapping[str, str], name: str) -> str:
    value = form.get(name)
    if value is None:
        raise OAuthError("invalid_request", f"{name} is missing.")
    return value


def _narrowed(form: Mapping[str, str], allowed: tuple[str, ...]) -> tuple[str, ...]:
    scopes = parse_scope(form.get("scope", ""))
    if not set(scopes) <= set(allowed):
        raise OAuthError("invalid_scope", f"At most these scopes: {' '.join(allowed)}.")
    return scopes or allowed


def _answer(access: Minted, scopes: tuple[str, ...], *, refresh: str | None = None) -> dict[str, Any]:
    answer: dict[str, Any] = {"access_token": access.secret, "token_type": "Bearer", "expires_in": ACCESS_S}
    if refresh is not None:
        answer["refresh_token"] = refresh
    return {**answer, "scope": " ".join(scopes)}
