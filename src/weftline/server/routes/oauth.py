"""OAuth 2.0: the browser pages, the apps' endpoints, the user's identity, and their grants."""

from __future__ import annotations

from collections.abc import Mapping
from functools import wraps
from secrets import token_urlsafe
from typing import Any

from msgspec import UNSET, DecodeError, Struct
from msgspec.json import Decoder, decode, encode
from msgspec.structs import asdict

from weftline.api.schemas.oauth import (
    GRANT_TYPES,
    AppForm,
    ClientDocument,
    CodeForm,
    CreatedOAuthApp,
    Introspection,
    NewClient,
    NewOAuthApp,
    Nothing,
    OAuthApp,
    OAuthApps,
    OAuthGrants,
    OAuthMetadata,
    OAuthRefusal,
    OneTokenForm,
    ProtectedResource,
    RefreshForm,
    RegisteredClient,
    SignInForm,
    TokenForm,
    TokenResponse,
    UserInfo,
    UserInfoWorkspace,
    app_json,
    created_app_json,
    grant_json,
    introspection_json,
    registered_json,
    token_json,
)
from weftline.errors import NotFound, RateLimited, TooLarge, Unavailable, WeftlineError
from weftline.server.app import App
from weftline.server.auth import Principal
from weftline.server.bodies import struct_body
from weftline.server.declared import Body, Form, parameters_of
from weftline.server.http import Request, Response, StreamedResponse
from weftline.server.oauth import consent
from weftline.server.oauth.app import (
    COOKIE,
    DEVICE_COOKIE,
    DEVICE_S,
    PROTECTED_RESOURCE,
    read_cookie,
    session_of,
)
from weftline.server.oauth.consent import sign_in_page
from weftline.server.oauth.forms import NO_STORE, client, fields_of, read_fields, read_form, refusal
from weftline.server.router import Handler, HtmlPage, Redirect, Route
from weftline.store.records.apps import StoredApp
from weftline.wire.errors import client_names
from weftline.wire.responses import Ok
from weftline.wire.validation import json_words
from weftline.workspace import apps, grants
from weftline.workspace.client_documents import is_document
from weftline.workspace.consent import AuthorizeQuery, Decision, InvalidConsent, UnknownApp
from weftline.workspace.consent import decide as decide_consent
from weftline.workspace.grants import Issued, OAuthError
from weftline.workspace.registration import Registration, register_client
from weftline.workspace.scopes import MCP_SCOPE, SCOPES, mcp_path, slug_of
from weftline.workspace.users import SESSION_S, workspace_name

_APPS = "/api/v1/workspaces/{slug}/oauth-apps"
_REGISTER = "/api/oauth/register"
_OWN_DOCUMENT = "/api/oauth/client.json"
_VISITOR = "weftline_visitor"
_SIGN_IN = "sign-in"
_SIGN_IN_S = 3600


class _SignIn(Struct):
    """The hidden field of the sign-in form, tied to the browser that displays it."""

    visitor: str
    query: str
    expires_at: int


_NEW_APP = struct_body(NewOAuthApp, limit_bytes=256 * 1024)
_NEW_CLIENT = Body(NewClient, Decoder(NewClient).decode, 32 * 1024)
_DECISION, _SIGN_IN_FORM = Form[Decision](Decision), Form[SignInForm](SignInForm)
_TOKEN, _ONE_TOKEN = Form[TokenForm](TokenForm), Form[OneTokenForm](OneTokenForm)


def _oauth(handler: Handler) -> Handler:
    """Handles the failures that OAuth defines its own codes for."""

    @wraps(handler)
    async def answered(app: App, request: Request, principal: Principal) -> Response | StreamedResponse | None:
        try:
            return await handler(app, request, principal)
        except OAuthError as error:
            return refusal(error)
        except InvalidConsent as error:
            return consent.invalid(error)
        except UnknownApp as error:
            return consent.unknown_app(error)

    return answered


@_oauth
async def authorize(app: App, request: Request, principal: Principal) -> Response:
    user = await app.oauth.user(request)
    client_id = request.query_value("client_id") or ""
    if is_document(client_id) and app.oauth.documents is not None:
        # Anyone may put an address here, so it is only fetched for a signed-in user.
        if user is None:
            return _sign_in_form(app, request, request.raw_query.decode("latin-1"))
        await app.oauth.learn_client(request, client_id)
    client_app, asked = await consent.read_request(app.oauth, request)
    if user is None:
        return _sign_in_form(app, request, request.raw_query.decode("latin-1"))
    return await consent.ask(app.oauth, request, client_app, asked, user)


@_oauth
async def decide(app: App, request: Request, principal: Principal) -> Response:
    app.oauth.require_own_page(request)
    user = await app.oauth.require_user(request)
    decision = await read_fields(request, _DECISION)
    decided = await decide_consent(app.workspaces, user, decision, session=session_of(request))
    return _redirect(consent.target(decided))


async def show_sign_in(app: App, request: Request, principal: Principal) -> Response:
    return _sign_in_form(app, request, "")


@_oauth
async def sign_in(app: App, request: Request, principal: Principal) -> Response:
    app.oauth.require_own_page(request)
    form = await read_fields(request, _SIGN_IN_FORM)
    page = _signed_page(app, form.token)
    if page is None or page.visitor != read_cookie(request, _VISITOR):
        # A forged form could sign the user in to someone else's account.
        return _sign_in_form(app, request, "", problem="This page has expired. Please try again.", status=400)
    try:
        signed_in = await app.oauth.sign_in(request, form.email, form.password)
    except (RateLimited, Unavailable) as error:
        return _sign_in_form(app, request, page.query, problem=error.message, error=error)
    if signed_in is None:
        problem = "The e-mail address or the password is wrong."
        return _sign_in_form(app, request, page.query, problem=problem, status=401)
    # Relative, as in the forms, since a proxy may have stripped the beginning of the path.
    target = f"authorize?{page.query}" if page.query else "grants"
    session = app.oauth.cookie(COOKIE, signed_in.session, max_age_s=SESSION_S)
    return _redirect(target, app.oauth.cookie(DEVICE_COOKIE, signed_in.device, max_age_s=DEVICE_S), session, status=303)


def _signed_page(app: App, token: str) -> _SignIn | None:
    """Returns the content of the hidden field, if this server created the page and it has not expired."""
    payload = app.workspaces.hasher.signed(_SIGN_IN, token)
    try:
        page = decode(payload, type=_SignIn) if payload is not None else None
    except DecodeError:
        return None
    return page if page is not None and page.expires_at > app.workspaces.clock.now_us() else None


async def sign_out(app: App, request: Request, principal: Principal) -> Response:
    app.oauth.require_own_page(request)
    await app.oauth.sign_out(request)
    return Response(encode(Ok()), headers=(app.oauth.cookie(COOKIE, "", max_age_s=0), *NO_STORE))


@_oauth
async def token(app: App, request: Request, principal: Principal) -> Response:
    form = await read_form(request, _TOKEN)
    client_app = await client(app.workspaces, request, form)
    return _json(token_json(await _issue(app, client_app, form)))


async def _issue(app: App, client_app: StoredApp, form: Mapping[str, str]) -> Issued:
    at, resource = app.workspaces, app.oauth.resource(form.get("resource", ""))
    if resource is None:
        raise OAuthError("invalid_target", "This server does not protect that resource.")
    kind = form.get("grant_type")
    if kind is None:
        raise OAuthError("invalid_request", "grant_type is missing.")
    if kind not in GRANT_TYPES:
        raise OAuthError("unsupported_grant_type", f"grant_type must be one of {', '.join(GRANT_TYPES)}.")
    match fields_of(form, GRANT_TYPES[kind]):
        case CodeForm(code=code, redirect_uri=uri, code_verifier=verifier):
            return await grants.exchange_code(
                at, client_app, code=code, redirect_uri=uri, verifier=verifier, resource=resource
            )
        case RefreshForm(refresh_token=refresh, scope=scope):
            return await grants.refresh_grant(at, client_app, refresh=refresh, scope=scope, resource=resource)
        case AppForm(scope=scope):
            return await grants.issue_to_app(at, client_app, scope=scope, resource=resource)


@_oauth
async def revoke(app: App, request: Request, principal: Principal) -> Response:
    form = await read_form(request, _ONE_TOKEN)
    client_app = await client(app.workspaces, request, form)
    await grants.revoke(app.workspaces, client_app, secret=fields_of(form, OneTokenForm).token)
    return _json(Nothing())


@_oauth
async def introspect(app: App, request: Request, principal: Principal) -> Response:
    form = await read_form(request, _ONE_TOKEN)
    client_app = await client(app.workspaces, request, form, public=False)
    found = await grants.find_credential(app.workspaces, client_app, secret=fields_of(form, OneTokenForm).token)
    base = app.names.base(request)
    return _json(introspection_json(found, now=app.workspaces.clock.now_us(), base=base))


async def userinfo(app: App, request: Request, principal: Principal) -> Response:
    name = await workspace_name(app.workspaces, principal.workspace)
    workspace = UserInfoWorkspace(f"ws_{principal.workspace}", principal.slug, name)
    return _json(UserInfo(principal.user or principal.id, principal.email, workspace))


async def list_grants(app: App, request: Request, principal: Principal) -> Response:
    user = await app.oauth.require_user(request)
    found = await grants.list_grants(app.workspaces, email=user.email)
    return _json(OAuthGrants([grant_json(grant) for grant in found]))


async def delete_grant(app: App, request: Request, principal: Principal) -> Response:
    app.oauth.require_own_page(request)
    user = await app.oauth.require_user(request)
    await grants.delete_grant(app.workspaces, id=request.params["grantId"], user=user.id)
    return Response(encode(Ok()))


async def metadata(app: App, request: Request, principal: Principal) -> Response:
    url = app.names.base(request)
    with_secret = ["client_secret_post", "client_secret_basic"]
    return Response(
        encode(
            OAuthMetadata(
                issuer=url,
                authorization_endpoint=f"{url}/api/oauth/authorize",
                token_endpoint=f"{url}/api/oauth/token",
                revocation_endpoint=f"{url}/api/oauth/revoke",
                introspection_endpoint=f"{url}/api/oauth/introspect",
                userinfo_endpoint=f"{url}/api/oauth/userinfo",
                scopes_supported=list(SCOPES),
                response_types_supported=["code"],
                response_modes_supported=["query"],
                grant_types_supported=list(GRANT_TYPES),
                code_challenge_methods_supported=["S256"],
                token_endpoint_auth_methods_supported=[*with_secret, "none"],
                revocation_endpoint_auth_methods_supported=[*with_secret, "none"],
                introspection_endpoint_auth_methods_supported=with_secret,
                authorization_response_iss_parameter_supported=True,
                registration_endpoint=f"{url}{_REGISTER}" if app.oauth.registration else UNSET,
                client_id_metadata_document_supported=app.oauth.documents is not None,
            )
        )
    )


async def protected_resource(app: App, request: Request, principal: Principal) -> Response:
    base, path = app.names.base(request), ""
    if "workspaceSlug" in request.params:
        path = mcp_path(request.params["workspaceSlug"])
        if slug_of(path) is None:
            raise NotFound("There is no such resource.")
    described = ProtectedResource(f"{base}{path}", [base], [MCP_SCOPE], ["header"], "Weftline agents")
    return Response(encode(described))


async def own_document(app: App, request: Request, principal: Principal) -> Response:
    """Describes `weftline mcp login` to servers that read such documents instead of registering clients."""
    url = app.names.url
    if not url.startswith("https:"):
        raise NotFound("There is no such document: public_url is not set, or not https.")
    return Response(encode(ClientDocument(f"{url}{_OWN_DOCUMENT}", client_uri=url)))


@_oauth
async def register(app: App, request: Request, principal: Principal) -> Response:
    app.oauth.admit_registration(request)
    try:
        body = await request.read(_NEW_CLIENT)
    except (DecodeError, RecursionError, TooLarge) as error:
        raise OAuthError("invalid_client_metadata", f"The body is not client metadata: {json_words(error)}") from None
    made = await register_client(app.workspaces, Registration(**asdict(body)))
    return _json(registered_json(made), status=201)


async def create_app(app: App, request: Request, principal: Principal) -> Response:
    body = await request.read(_NEW_APP)
    with client_names():
        new = apps.checked_app(
            name=body.name,
            redirect_uris=body.redirect_uris or [],
            scopes=body.allowed_scopes or [],
            visibility=body.visibility or "private",
            client_credentials=body.allows_client_credentials or False,
            description=body.description or "",
            logo=body.logo or "",
            schemes=app.workspaces.redirect_schemes,
        )
    made, secret = await apps.register_app(
        app.workspaces, new, slug=principal.slug, made_by="" if principal.operator else principal.who
    )
    return _json(created_app_json(made, secret), status=201)


async def list_apps(app: App, request: Request, principal: Principal) -> Response:
    found = await apps.list_apps(app.workspaces, slug=principal.slug)
    return _json(OAuthApps([app_json(one) for one in found]))


async def read_app(app: App, request: Request, principal: Principal) -> Response:
    client_id = request.params["clientId"]
    return _json(app_json(await apps.show_app(app.workspaces, client_id=client_id, slug=principal.slug)))


async def delete_app(app: App, request: Request, principal: Principal) -> Response:
    await apps.delete_app(app.workspaces, client_id=request.params["clientId"], slug=principal.slug)
    return Response(encode(Ok()))


def _sign_in_form(
    app: App, request: Request, query: str, *, problem: str = "", status: int = 200, error: WeftlineError | None = None
) -> Response:
    """Returns the page, with the previous problem if any; `error` sets the status, and when to try again."""
    visitor = read_cookie(request, _VISITOR) or token_urlsafe(16)
    expires_at = app.workspaces.clock.now_us() + _SIGN_IN_S * 1_000_000
    hidden = app.workspaces.hasher.sign(_SIGN_IN, encode(_SignIn(visitor, query, expires_at)))
    headers = [app.oauth.cookie(_VISITOR, visitor, max_age_s=_SIGN_IN_S)]
    if error is not None:
        status = error.status
        headers.append((b"retry-after", str(error.details["retry_after_s"]).encode()))
    return sign_in_page(hidden, problem=problem, status=status, headers=tuple(headers))


def _redirect(target: str, *headers: tuple[bytes, bytes], status: int = 302) -> Response:
    return Response(b"", status=status, headers=((b"location", target.encode()), *headers, *NO_STORE))


def _json(value: Any, *, status: int = 200) -> Response:
    return Response(encode(value), status=status, headers=NO_STORE)


def _open(method: str, path: str, handler: Handler, summary: str, **more: Any) -> Route:
    """A route that authenticates the request itself."""
    return Route(method, path, handler, access="public", limited=False, summary=summary, **more)


def _for_apps(path: str, handler: Handler, summary: str, *, body: Form[Any], returns: Any) -> Route:
    """An endpoint that apps call with their id and secret."""
    return _open("POST", path, handler, summary, body=body, returns=returns, errors=(401,), refuses=OAuthRefusal)


ROUTES = (
    _open(
        "GET",
        "/api/oauth/authorize",
        authorize,
        "Ask the user for access (browser)",
        query=parameters_of(AuthorizeQuery),
        returns=HtmlPage,
    ),
    _open(
        "POST",
        "/api/oauth/authorize/decide",
        decide,
        "The user's decision (browser)",
        body=_DECISION,
        returns=Redirect,
        status=302,
    ),
    _open("GET", "/api/oauth/sign-in", show_sign_in, "The sign-in page (browser)", returns=HtmlPage),
    _open(
        "POST",
        "/api/oauth/sign-in",
        sign_in,
        "Sign in (browser)",
        body=_SIGN_IN_FORM,
        returns=Redirect,
        status=303,
    ),
    _open("POST", "/api/oauth/sign-out", sign_out, "Sign out (browser)", returns=Ok, errors=(403,), by_cookie=True),
    _for_apps(
        "/api/oauth/token",
        token,
        "Exchange a code, refresh, or act as an app",
        body=_TOKEN,
        returns=TokenResponse,
    ),
    _for_apps("/api/oauth/revoke", revoke, "Revoke a token", body=_ONE_TOKEN, returns=Nothing),
    _for_apps(
        "/api/oauth/introspect", introspect, "Introspect a token (RFC 7662)", body=_ONE_TOKEN, returns=Introspection
    ),
    _open(
        "GET",
        "/api/oauth/grants",
        list_grants,
        "What the signed-in user has allowed",
        returns=OAuthGrants,
        errors=(401,),
        by_cookie=True,
    ),
    _open(
        "DELETE",
        "/api/oauth/grants/{grantId}",
        delete_grant,
        "Revoke what was allowed",
        returns=Ok,
        errors=(401, 403, 404),
        by_cookie=True,
    ),
    *(
        # If we cannot serve the root of our address, clients can find only the second (RFC 8414, section 5).
        _open("GET", f"/.well-known/{name}", metadata, "The OAuth endpoints (RFC 8414)", returns=OAuthMetadata)
        for name in ("oauth-authorization-server", "openid-configuration")
    ),
    *(
        _open(
            "GET",
            path,
            protected_resource,
            "What protects the MCP server (RFC 9728)",
            returns=ProtectedResource,
            errors=(404,),
        )
        for path in (PROTECTED_RESOURCE, f"{PROTECTED_RESOURCE}{mcp_path('{workspaceSlug}')}")
    ),
    _open(
        "GET",
        _OWN_DOCUMENT,
        own_document,
        "What Weftline is as an OAuth client of other servers",
        returns=ClientDocument,
        errors=(404,),
    ),
    _open(
        "POST",
        _REGISTER,
        register,
        "Register a client (RFC 7591)",
        body=_NEW_CLIENT,
        returns=RegisteredClient,
        status=201,
        errors=(403, 429, 503),
        refuses=OAuthRefusal,
    ),
    Route(
        "GET",
        "/api/oauth/userinfo",
        userinfo,
        scopes=("mantyx.identity:read",),
        narrowed="yes",
        summary="The user of an access token",
        returns=UserInfo,
    ),
    Route(
        "POST",
        _APPS,
        create_app,
        summary="Register an OAuth app",
        body=_NEW_APP,
        returns=CreatedOAuthApp,
        status=201,
    ),
    Route("GET", _APPS, list_apps, summary="The workspace's OAuth apps", returns=OAuthApps),
    Route("GET", f"{_APPS}/{{clientId}}", read_app, summary="Read an OAuth app", returns=OAuthApp),
    Route("DELETE", f"{_APPS}/{{clientId}}", delete_app, summary="Delete an OAuth app and all its tokens", returns=Ok),
)
