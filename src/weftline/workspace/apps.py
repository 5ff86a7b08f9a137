"""OAuth apps: what an app may be, and registering, finding and deleting one."""

from __future__ import annotations

import re
import secrets
from collections.abc import Collection, Iterable, Sequence
from urllib.parse import SplitResult, urldefrag, urlsplit

from weftline.errors import Forbidden, InvalidRequest, NotFound, invalid_field
from weftline.store.database import Query
from weftline.store.records import apps
from weftline.store.records import workspaces as workspace_records
from weftline.store.records.apps import NewApp, StoredApp
from weftline.workspace.context import Change, Workspaces
from weftline.workspace.people import maker
from weftline.workspace.scopes import SCOPES, distinct, unknown_scopes
from weftline.workspace.workspaces import ensured

_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
_OWN_SCHEME = re.compile(r"[a-z][a-z0-9+-]*(?:\.[a-z0-9+-]+)+")
"""A reversed domain name, as apps should use: no browser or operating system has a scheme with a dot."""
_LISTED_SCHEME = re.compile(r"[a-z][a-z0-9+.-]{1,63}")
_PLAIN = re.compile(r"[\x21-\x7e]{1,2000}")
_NO_APPS = frozenset(
    {"about", "blob", "chrome", "data", "file", "filesystem", "ftp", "ftps", "http", "https", "intent", "jar"}
    | {"javascript", "mailto", "sms", "tel", "urn", "vbscript", "view-source", "ws", "wss"}
)
"""Schemes that a browser or operating system handles itself: they cannot be listed as an app's."""


def is_scheme_of_an_app(text: str) -> bool:
    """Returns True if an operator may list this as the scheme of an app."""
    return bool(_LISTED_SCHEME.fullmatch(text)) and text not in _NO_APPS


def redirect_uri(text: str, *, schemes: Collection[str] = ()) -> str | None:
    """The URI as it is stored and compared, without its fragment; None if an app may not use it.

    `schemes` are those without a dot that are known to belong to apps.
    """
    if not _PLAIN.fullmatch(text) or any(char in text for char in '"<>\\^`{|}'):
        return None
    uri = urldefrag(text).url
    parts = _parts(uri)
    if parts is None or parts.username is not None:
        return None
    scheme, host = uri.partition(":")[0], parts.hostname
    if scheme == "https":
        return uri if host else None
    if scheme == "http":
        return uri if host in _LOOPBACK else None
    if uri == f"{scheme}:" or not (_OWN_SCHEME.fullmatch(scheme) or scheme in schemes):
        return None
    if scheme.partition(".")[0] in _NO_APPS:
        return None  # looks like something that a browser handles itself, and is not a domain
    return uri


def is_registered(uri: str, registered: Iterable[str]) -> bool:
    """Returns True if a browser may be redirected to `uri`. On this machine any port is allowed, because apps use
    whichever is free.
    """
    listed = set(registered)
    if uri in listed:
        return True
    anywhere = _without_port(uri)
    return anywhere is not None and redirect_uri(uri) == uri and anywhere in map(_without_port, listed)


def _without_port(uri: str) -> str | None:
    """An http address of this machine without its port; None for any other."""
    parts = _parts(uri)
    if parts is None or parts.scheme != "http" or parts.hostname not in _LOOPBACK:
        return None
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return uri.replace(parts.netloc, host, 1)


def _parts(uri: str) -> SplitResult | None:
    try:
        parts = urlsplit(uri)
        _ = parts.port
    except ValueError:
        return None
    return parts


CLIENT = "mantyx_oa_"
CLIENT_SECRET = "mantyx_oas_"
_TEXT_LIMITS = {"name": 256, "description": 4096, "logo": 2048}
_MAX_URIS = 50
MAX_PER_WORKSPACE = 1_000


def checked_app(
    *,
    name: str,
    redirect_uris: Sequence[str] = (),
    scopes: Sequence[str] = (),
    visibility: str = "private",
    client_credentials: bool = False,
    description: str = "",
    logo: str = "",
    schemes: Collection[str] = (),
) -> NewApp:
    """Raises `InvalidRequest` that names the wrong field. `schemes` are additional schemes for redirect URIs."""
    for field, value in (("name", name), ("description", description), ("logo", logo)):
        if len(value) > _TEXT_LIMITS[field]:
            raise invalid_field(field, f"must have at most {_TEXT_LIMITS[field]} characters.")
    if not name.strip():
        raise invalid_field("name", "is missing.")
    if logo and not logo.startswith("https://"):
        raise invalid_field("logo", "must be an https address.")
    if visibility not in ("private", "public"):
        raise invalid_field("visibility", "must be private or public.")
    if client_credentials and visibility == "public":
        raise invalid_field("client_credentials", "only private apps may act for themselves.")
    unknown = unknown_scopes(tuple(scopes))
    if unknown:
        raise invalid_field("scopes", f"{unknown[0][:100]!r} is not a scope; use one of {', '.join(SCOPES)}.")
    if not scopes:
        raise invalid_field("scopes", "name at least one scope.")
    uris: list[str] = []
    for given in redirect_uris:
        uri = redirect_uri(given, schemes=schemes)
        if uri is None:
            raise invalid_field(
                "redirect_uris",
                f"{given[:200]!r} is not allowed; use https, http on localhost, 127.0.0.1 or [::1], or a"
                " scheme of the app's own like com.example.app. An operator can allow others with"
                " `oauth_redirect_schemes` in the [server] table of the configuration.",
            )
        uris.append(uri)
    if not uris and not client_credentials:
        raise invalid_field("redirect_uris", "name at least one, or allow client credentials.")
    if len(uris) > _MAX_URIS:
        raise invalid_field("redirect_uris", f"at most {_MAX_URIS}.")
    return NewApp(
        name.strip(),
        description,
        logo,
        visibility,
        tuple(dict.fromkeys(uris)),
        distinct(scopes),
        client_credentials,
    )


async def register_app(at: Workspaces, new: NewApp, *, slug: str, made_by: str = "") -> tuple[StoredApp, str]:
    """Registers an app, and returns it with its client secret, which is not stored.

    `made_by` is who requested it over the API, by the name used in logs.
    """
    person = await maker(at, made_by)
    client_id, secret = CLIENT + secrets.token_hex(10), at.hasher.mint(CLIENT_SECRET)
    now = at.clock.now_us()

    def query() -> Query[StoredApp]:
        workspace = yield from ensured(slug, now=now)
        if "oauth_apps" in (yield from workspace_records.features_off(workspace)):
            raise Forbidden("OAuth applications are not available on this plan.", code="oauth_apps_plan")
        if (yield from apps.count(workspace)) >= MAX_PER_WORKSPACE:
            raise InvalidRequest(f"A workspace can have at most {MAX_PER_WORKSPACE:,} OAuth apps.")
        yield from apps.insert(
            new, client_id=client_id, workspace=workspace, secret=secret.stored, now=now, made_by=person
        )
        return (yield from _known(client_id, slug))

    return await at.records.write(query()), secret.secret


async def list_apps(at: Workspaces, *, slug: str) -> list[StoredApp]:
    return await at.records.read(apps.of_workspace(slug), heavy=True)


async def show_app(at: Workspaces, *, client_id: str, slug: str | None = None) -> StoredApp:
    """The app, in one workspace or in any. Raises `NotFound`."""
    return await at.records.read(_known(client_id, slug))


async def delete_app(at: Workspaces, *, client_id: str, slug: str | None = None) -> StoredApp:
    """Deletes an app; all its codes, grants and tokens end."""

    def query() -> Query[StoredApp]:
        app = yield from _known(client_id, slug)
        yield from apps.delete(app.key)
        return app

    deleted = await at.records.write(query())
    await at.changed(Change("credentials"))
    return deleted


async def find_app(at: Workspaces, client_id: str) -> StoredApp | None:
    return await at.records.read(apps.by_client_id(client_id))


async def authenticate_app(at: Workspaces, *, client_id: str, secret: str) -> StoredApp | None:
    """The app with this id and client secret."""
    app = await find_app(at, client_id)
    if app is None or app.public or not at.hasher.stored(secret, label=CLIENT_SECRET).matches(app.hash):
        return None
    return app


async def find_public_app(at: Workspaces, client_id: str) -> StoredApp | None:
    """The app with this id, if it is one that has no secret."""
    app = await find_app(at, client_id)
    return app if app is not None and app.public else None


async def list_registered(at: Workspaces) -> list[StoredApp]:
    """The clients that registered themselves."""
    return await at.records.read(apps.registered(), heavy=True)


def _known(client_id: str, slug: str | None) -> Query[StoredApp]:
    app = yield from apps.by_client_id(client_id)
    if app is None or slug not in (None, app.slug):
        raise NotFound("There is no such OAuth app.")
    return app
