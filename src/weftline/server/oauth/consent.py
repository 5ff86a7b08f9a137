"""Asking a signed-in user: the page, and where the browser goes next."""

from __future__ import annotations

from urllib.parse import urlencode, urlsplit

from msgspec.json import encode

from weftline.api.schemas.oauth import OAuthRefusal
from weftline.server.http import Request, Response
from weftline.server.oauth.app import OAuthServer, session_of
from weftline.server.oauth.forms import NO_STORE
from weftline.server.oauth.pages import ConsentForm, consent_page, page, unknown_app_page
from weftline.store.records.apps import StoredApp
from weftline.store.records.users import User
from weftline.workspace import consent
from weftline.workspace.consent import AuthorizeQuery, AuthorizeRequest, ConsentResult, InvalidConsent, UnknownApp
from weftline.workspace.scopes import SCOPES, USING_AGENTS, meaning


async def read_request(server: OAuthServer, request: Request) -> tuple[StoredApp, AuthorizeRequest]:
    if request.repeats_a_parameter:
        raise InvalidConsent(query="a parameter occurs more than once")
    sent = {name: request.query_value(name) for name in AuthorizeQuery.__struct_fields__}
    query = AuthorizeQuery(**{name: value for name, value in sent.items() if value is not None})
    resource = server.resource(query.resource)
    return await consent.read_request(server.workspaces, query, resource=resource, issuer=server.names.base(request))


async def ask(server: OAuthServer, request: Request, app: StoredApp, asked: AuthorizeRequest, user: User) -> Response:
    """Returns the page that asks a signed-in user."""
    question = await consent.question(server.workspaces, app, asked, user, session=session_of(request))
    if question is None:
        return page(
            "No workspace to choose",
            "<p>You are not a member of a workspace in which this app can be used.</p>",
            status=403,
        )
    target = urlsplit(asked.redirect_uri)
    return consent_page(
        ConsentForm(
            app.name,
            app.description,
            target.netloc if target.scheme in ("http", "https") else f"{target.scheme}:",
            user.email,
            [SCOPES[meaning(scope)] for scope in asked.scopes],
            [(one.slug, one.name) for one in question.choices],
            not USING_AGENTS.isdisjoint(asked.scopes),
            app.registered,
            question.token,
        )
    )


def target(decided: ConsentResult) -> str:
    """Returns where the browser goes with the user's decision."""
    asked = decided.asked
    outcome = {"error": "access_denied"} if decided.code is None else {"code": decided.code}
    if asked.state is not None:
        outcome["state"] = asked.state
    if asked.issuer:
        outcome["iss"] = asked.issuer  # RFC 9207: an app that uses several servers must know which one answered
    query = urlencode(outcome)
    return f"{asked.redirect_uri}{'&' if '?' in asked.redirect_uri else '?'}{query}"


def invalid(error: InvalidConsent) -> Response:
    """Returns an error page for an invalid request, without a redirect."""
    body = {
        "error": "Invalid authorize request",
        "code": "invalid_request",
        "message": "; ".join(f"{field}: {problem}" for field, problem in error.details.items()),
        "details": error.details,
    }
    return Response(encode(body), status=400, headers=NO_STORE[:1])


def unknown_app(error: UnknownApp) -> Response:
    if error.resource:
        # An MCP host that has registered itself: the page is for its user, and the status makes it register again.
        return unknown_app_page()
    body = OAuthRefusal("invalid_client", "There is no app with this client_id.")
    return Response(encode(body), status=401, headers=NO_STORE[:1])
