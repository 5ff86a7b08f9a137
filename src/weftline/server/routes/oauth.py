"""OAuth 2.0: the browser's steps, the apps' endpoints, who one is, and what one has allowed."""

from __future__ import annotations

from functools import wraps
from secrets import token_urlsafe
from typing import Any

from msgspec import Struct
from msgspec.json import Decoder, decode, encode

from weftline.errors import RateLimited
from weftline.server.app import App
from weftline.server.auth import Principal, require_manager
from weftline.server.http import Answer, Later, Request
from weftline.server.oauth import apps, consent, tokens
from weftline.server.oauth.app import COOKIE, SESSION_S, read_cookie
from weftline.server.oauth.forms import NO_STORE, OAuthError, client, read_form
from weftline.server.oauth.pages import sign_in_page
from weftline.server.oauth.scopes import SCOPES
from weftline.server.router import Handler, Route
from weftline.server.routes.keys import read_body
from weftline.store.sqlite import oauth

_APPS = "/api/v1/workspaces/{slug}/oauth-apps"
_VISITOR = "weftline_visitor"
_SIGN_IN = "sign-in"
_SIGN_IN_S = 3600


class _SignIn(Struct):
    """The hidden field of the sign-in form: tied to the browser that was shown it."""

    visitor: str
    query: str


class _NewApp(Struct, rename="camel"):
    name: str
    redirect_uris: list[str] | None = None
    allowed_scopes: list[str] | None = None
    visibility: str | None = None
    allows_client_credentials: bool | None = None
    description: str | None = None
    logo: str | None = None


_new_app = Decoder(_NewApp)


def _oauth(handler: Handler) -> Handler:
    """Answers the failures that OAuth has words of its own for."""

    @wraps(handler)
    async def answered(app: App, request: Request, principal: Principal) -> Answer | Later | None:
        try:
            return await handler(app, request, principal)
        except (OAuthError, consent.BadAuthorize, consent.UnknownClient) as error:
            return error.answer()

    return answered


@_oauth
async def authorize(app: App, request: Request, principal: Principal) -> Answer:
    client_app, asked = consent.read_query(app.oauth, request)
    user = app.oauth.user(request)
    if user is None:
        return _sign_in_form(app, request, request.raw_query.decode("latin-1"))
    return consent.ask(app.oauth, request, client_app, asked, user)


@_oauth
async def decide(app: App, request: Request, principal: Principal) -> Answer:
    app.oauth.require_own_page(request)
    user = app.oauth.require_user(request)
    return _redirect(await consent.decide(app.oauth, request, user, await read_form(request)))


async def show_sign_in(app: App, request: Request, principal: Principal) -> Answer:
    return _sign_in_form(app, request, "")


@_oauth
async def sign_in(app: App, request: Request, principal: Principal) -> Answer:
    app.oauth.require_own_page(request)
    form = await read_form(request)
    payload = app.oauth.hasher().signed(_SIGN_IN, form.get("token", ""))
    shown = decode(payload, type=_SignIn) if payload is not None else None
    if shown is None or shown.visitor != read_cookie(request, _VISITOR):
        # A form of somebody else's making could sign the user in to somebody else's account.
        return _sign_in_form(app, request, "", problem="This page was too old. Please try again.", status=400)
    try:
        secret = await app.oauth.sign_in(form.get("email", ""), form.get("password", ""))
    except RateLimited as error:
        return _sign_in_form(app, request, shown.query, problem=error.message, status=429)
    if secret is None:
        problem = "The e-mail address or the password is wrong."
        return _sign_in_form(app, request, shown.query, problem=problem, status=401)
    target = f"/api/oauth/authorize?{shown.query}" if shown.query else "/api/oauth/grants"
    return _redirect(target, app.oauth.cookie(COOKIE, secret, max_age_s=SESSION_S), status=303)


async def sign_out(app: App, request: Request, principal: Principal) -> Answer:
    app.oauth.require_own_page(request)
    await app.oauth.sign_out(request)
    return Answer(b'{"ok":true}', headers=(app.oauth.cookie(COOKIE, "", max_age_s=0), *NO_STORE))


@_oauth
async def token(app: App, request: Request, principal: Principal) -> Answer:
    form = await read_form(request)
    try:
        return _json(await tokens.issue(app.oauth, client(app.oauth, request, form), form))
    except OAuthError as error:
        if error.error == "invalid_grant":
            # The second use of a code ends what the first one gave.
            app.auth.forget()
        raise


@_oauth
async def revoke(app: App, request: Request, principal: Principal) -> Answer:
    form = await read_form(request)
    if await tokens.revoke(app.oauth, client(app.oauth, request, form), form):
        app.auth.forget()
    return _json({})


@_oauth
async def introspect(app: App, request: Request, principal: Principal) -> Answer:
    form = await read_form(request)
    return _json(tokens.introspect(app.oauth, client(app.oauth, request, form), form))


async def userinfo(app: App, request: Request, principal: Principal) -> Answer:
    name = oauth.workspace_name(app.engine.read.db, principal.workspace)
    return _json(
        {
            "sub": principal.user or principal.id,
            "email": principal.email,
            "workspace": {"id": f"ws_{principal.workspace}", "slug": principal.slug, "name": name},
        }
    )


async def list_grants(app: App, request: Request, principal: Principal) -> Answer:
    user = app.oauth.require_user(request)
    grants = oauth.list_grants(app.engine.read.db, user=user.id)
    return _json({"grants": [apps.shown_grant(grant) for grant in grants]})


async def delete_grant(app: App, request: Request, principal: Principal) -> Answer:
    app.oauth.require_own_page(request)
    user, grant = app.oauth.require_user(request).id, request.params["grantId"]
    await app.engine.store.job(lambda db: oauth.delete_grant(db, grant, user=user))
    app.auth.forget()
    return Answer(b'{"ok":true}')


async def metadata(app: App, request: Request, principal: Principal) -> Answer:
    url = app.oauth.url(request)
    client_auth = ["client_secret_post", "client_secret_basic"]
    return Answer(
        encode(
            {
                "issuer": url,
                "authorization_endpoint": f"{url}/api/oauth/authorize",
                "token_endpoint": f"{url}/api/oauth/token",
                "revocation_endpoint": f"{url}/api/oauth/revoke",
                "introspection_endpoint": f"{url}/api/oauth/introspect",
                "userinfo_endpoint": f"{url}/api/oauth/userinfo",
                "scopes_supported": list(SCOPES),
                "response_types_supported": ["code"],
                "response_modes_supported": ["query"],
                "grant_types_supported": tokens.GRANT_TYPES,
                "code_challenge_methods_supported": ["S256"],
                "token_endpoint_auth_methods_supported": client_auth,
                "revocation_endpoint_auth_methods_supported": client_auth,
                "introspection_endpoint_auth_methods_supported": client_auth,
            }
        )
    )


async def create_app(app: App, request: Request, principal: Principal) -> Answer:
    require_manager(principal)
    body = await read_body(request, _new_app)
    now = app.engine.clock.now_us()
    made = await app.engine.store.job(
        lambda db: apps.create(
            db,
            workspace=principal.slug,
            now=now,
            name=body.name,
            redirect_uris=body.redirect_uris or [],
            scopes=body.allowed_scopes or [],
            visibility=body.visibility or "private",
            client_credentials=body.allows_client_credentials or False,
            description=body.description or "",
            logo=body.logo or "",
        )
    )
    return _json(made, status=201)


async def list_apps(app: App, request: Request, principal: Principal) -> Answer:
    require_manager(principal)
    return _json({"apps": apps.listed(app.engine.read.db, workspace=principal.slug)})


async def read_app(app: App, request: Request, principal: Principal) -> Answer:
    require_manager(principal)
    return _json(apps.show(app.engine.read.db, client_id=request.params["clientId"], workspace=principal.slug))


async def delete_app(app: App, request: Request, principal: Principal) -> Answer:
    require_manager(principal)
    client_id = request.params["clientId"]
    await app.engine.store.job(lambda db: apps.delete(db, client_id=client_id, workspace=principal.slug))
    app.auth.forget()
    return Answer(b'{"ok":true}')


def _sign_in_form(app: App, request: Request, query: str, *, problem: str = "", status: int = 200) -> Answer:
    visitor = read_cookie(request, _VISITOR) or token_urlsafe(16)
    hidden = app.oauth.hasher().sign(_SIGN_IN, encode(_SignIn(visitor, query)))
    cookie = app.oauth.cookie(_VISITOR, visitor, max_age_s=_SIGN_IN_S)
    return sign_in_page(hidden, problem=problem, status=status, headers=(cookie,))


def _redirect(target: str, *headers: tuple[bytes, bytes], status: int = 302) -> Answer:
    return Answer(b"", status=status, headers=((b"location", target.encode()), *headers, *NO_STORE))


def _json(value: Any, *, status: int = 200) -> Answer:
    return Answer(encode(value), status=status, headers=NO_STORE)


def _open(method: str, path: str, handler: Handler, summary: str) -> Route:
    """A route that does its own asking who is there."""
    return Route(method, path, handler, access="public", limited=False, summary=summary)


ROUTES = (
    _open("GET", "/api/oauth/authorize", authorize, "Ask the user for access (browser)"),
    _open("POST", "/api/oauth/authorize/decide", decide, "The user's decision (browser)"),
    _open("GET", "/api/oauth/sign-in", show_sign_in, "The sign-in page (browser)"),
    _open("POST", "/api/oauth/sign-in", sign_in, "Sign in (browser)"),
    _open("POST", "/api/oauth/sign-out", sign_out, "Sign out (browser)"),
    _open("POST", "/api/oauth/token", token, "Exchange a code, refresh, or act as an app"),
    _open("POST", "/api/oauth/revoke", revoke, "Revoke a token"),
    _open("POST", "/api/oauth/introspect", introspect, "What a token is good for"),
    _open("GET", "/api/oauth/grants", list_grants, "What the signed-in user has allowed"),
    _open("DELETE", "/api/oauth/grants/{grantId}", delete_grant, "Take back what was allowed"),
    _open("GET", "/.well-known/oauth-authorization-server", metadata, "The OAuth endpoints (RFC 8414)"),
    Route("GET", "/api/oauth/userinfo", userinfo, scopes=("mantyx.identity:read",), summary="Who one is"),
    Route("POST", _APPS, create_app, summary="Register an OAuth app"),
    Route("GET", _APPS, list_apps, summary="The workspace's OAuth apps"),
    Route("GET", f"{_APPS}/{{clientId}}", read_app, summary="Read an OAuth app"),
    Route("DELETE", f"{_APPS}/{{clientId}}", delete_app, summary="Delete an OAuth app and all its tokens"),
)
