"""Registering OAuth apps: what an app may be, and the operations of the command line and the API."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import apsw

from weftline.errors import Forbidden, InvalidRequest
from weftline.server.oauth.redirects import redirect_uri
from weftline.server.oauth.scopes import SCOPES, unknown_scopes
from weftline.store.records import workspaces
from weftline.store.sqlite import oauth
from weftline.store.sqlite.accounts import workspace_key
from weftline.store.sqlite.database import run_query
from weftline.store.sqlite.hashing import hasher_beside
from weftline.wire.responses import iso

_TEXT_LIMITS = {"name": 256, "description": 4096, "logo": 2048}
_URIS_LIMIT = 50


def checked_app(
    *,
    name: str,
    redirect_uris: Sequence[str] = (),
    scopes: Sequence[str] = (),
    visibility: str = "private",
    client_credentials: bool = False,
    description: str = "",
    logo: str = "",
) -> oauth.NewApp:
    """Raises `InvalidRequest` that names the field at fault."""
    for field, value in (("name", name), ("description", description), ("logo", logo)):
        if len(value) > _TEXT_LIMITS[field]:
            raise InvalidRequest(f"{field}: may have {_TEXT_LIMITS[field]} characters.")
    if not name.strip():
        raise InvalidRequest("name: is missing.")
    if logo and not logo.startswith("https://"):
        raise InvalidRequest("logo: must be an https address.")
    if visibility not in ("private", "public"):
        raise InvalidRequest("visibility: must be private or public.")
    if client_credentials and visibility == "public":
        raise InvalidRequest("allowsClientCredentials: only private apps may act for themselves.")
    unknown = unknown_scopes(tuple(scopes))
    if unknown:
        raise InvalidRequest(f"allowedScopes: {unknown[0][:100]!r} is no scope; there are {', '.join(SCOPES)}.")
    if not scopes:
        raise InvalidRequest("allowedScopes: name at least one scope.")
    uris: list[str] = []
    for given in redirect_uris:
        uri = redirect_uri(given)
        if uri is None:
            raise InvalidRequest(
                f"redirectUris: {given[:200]!r} is refused; use https, http on localhost, 127.0.0.1 or [::1], or a"
                " scheme of the app's own."
            )
        uris.append(uri)
    if not uris and not client_credentials:
        raise InvalidRequest("redirectUris: name at least one, or allow client credentials.")
    if len(uris) > _URIS_LIMIT:
        raise InvalidRequest(f"redirectUris: at most {_URIS_LIMIT}.")
    return oauth.NewApp(
        name.strip(),
        description,
        logo,
        visibility,
        tuple(dict.fromkeys(uris)),
        tuple(dict.fromkeys(scopes)),
        client_credentials,
    )


def create(db: apsw.Connection, *, workspace: str, now: int, **fields: Any) -> dict[str, Any]:
    """Registers an app; the client secret is in the answer and nowhere else."""
    new = checked_app(**fields)
    key = workspace_key(db, workspace, now=now)
    if "oauthApps" in run_query(db, workspaces.features_off(key)):
        raise Forbidden("OAuth applications are not available on this plan.", code="oauth_apps_plan")
    secret = hasher_beside(db).mint(oauth.CLIENT_SECRET)
    app = oauth.create_app(db, new, workspace=key, secret=secret, now=now)
    return {**shown(app), "clientSecret": secret.secret}


def listed(db: apsw.Connection, *, workspace: str) -> list[dict[str, Any]]:
    return [shown(app) for app in oauth.list_apps(db, workspace=workspace)]


def show(db: apsw.Connection, *, client_id: str, workspace: str | None = None) -> dict[str, Any]:
    return shown(oauth.show_app(db, client_id, workspace=workspace))


def delete(db: apsw.Connection, *, client_id: str, workspace: str | None = None) -> dict[str, Any]:
    return shown(oauth.delete_app(db, client_id, workspace=workspace))


def shown(app: oauth.App) -> dict[str, Any]:
    return {
        "clientId": app.client_id,
        "workspace": app.slug,
        "name": app.name,
        "description": app.description,
        "logo": app.logo or None,
        "visibility": app.visibility,
        "redirectUris": app.redirect_uris,
        "allowedScopes": app.scopes,
        "allowsClientCredentials": app.client_credentials,
        "createdAt": iso(app.created_at),
    }


def shown_grant(grant: oauth.Grant) -> dict[str, Any]:
    return {
        "id": grant.id,
        "app": {"clientId": grant.client_id, "name": grant.app_name},
        "workspace": grant.slug,
        "scopes": grant.scopes,
        "agentIds": grant.agents,
        "createdAt": iso(grant.created_at),
    }
