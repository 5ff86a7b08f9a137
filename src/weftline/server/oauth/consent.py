"""Asking a signed-in user: the page, and where the browser goes next."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from hashlib import sha256
from html import escape
from typing import NamedTuple
from urllib.parse import urlencode, urlsplit

from msgspec.json import encode

from weftline.api.schemas.oauth import OAuthRefusal
from weftline.server.http import Request, Response
from weftline.server.oauth.app import OAuthServer, session_of
from weftline.server.oauth.forms import NO_STORE
from weftline.store.records.apps import StoredApp
from weftline.store.records.users import User
from weftline.workspace import consent
from weftline.workspace.consent import AuthorizeQuery, AuthorizeRequest, ConsentResult, InvalidConsent, UnknownApp
from weftline.workspace.scopes import SCOPES, USING_AGENTS, meaning

_STYLE = (
    "body{font:1rem/1.5 system-ui,sans-serif;max-width:34rem;margin:3rem auto;padding:0 1rem;color:#1a1a1a;"
    "background:#fff}"
    "h1{font-size:1.4rem}label{display:block;margin:.8rem 0 .2rem}"
    "input[type=email],input[type=password],input[type=text],select{font:inherit;width:100%;padding:.4rem;"
    "box-sizing:border-box;border:1px solid #666;border-radius:.2rem}"
    "button{font:inherit;padding:.5rem 1.2rem;margin:1.2rem .6rem 0 0;border:1px solid #1a1a1a;border-radius:.2rem;"
    "background:#fff;color:#1a1a1a;cursor:pointer}"
    "button.yes{background:#14532d;border-color:#14532d;color:#fff}"
    ":focus-visible{outline:3px solid #2563eb;outline-offset:2px}"
    ".error{color:#991b1b;font-weight:600}.note{color:#444}"
    "@media (prefers-color-scheme:dark){body{background:#111;color:#eee}.note{color:#bbb}.error{color:#fca5a5}"
    "button{background:#222;color:#eee;border-color:#888}input,select{background:#222;color:#eee}}"
)
_STYLE_HASH = base64.b64encode(sha256(_STYLE.encode()).digest()).decode()
_HEADERS = (
    (b"content-type", b"text/html; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-frame-options", b"DENY"),
    # Not no-referrer, as browsers would then send `Origin: null` with the page's own forms.
    (b"referrer-policy", b"same-origin"),
    (
        b"content-security-policy",
        f"default-src 'none'; style-src 'sha256-{_STYLE_HASH}'; base-uri 'none'; frame-ancestors 'none'".encode(),
    ),
)


class ConsentForm(NamedTuple):
    """The question to a user."""

    app: str
    description: str
    redirect_host: str
    email: str
    scopes: Sequence[str]
    """As sentences."""
    workspaces: Sequence[tuple[str, str]]
    """Slug and name of those to choose from; a single one is only displayed."""
    agents: bool
    """Whether the app can be restricted to some agents."""
    registered: bool
    """Whether the app registered itself, so that its name is not trustworthy."""
    token: str


def page(title: str, content: str, *, status: int = 200, headers: tuple[tuple[bytes, bytes], ...] = ()) -> Response:
    text = (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{_STYLE}</style>\n</head>\n"
        f"<body>\n<main>\n<h1>{escape(title)}</h1>\n{content}\n</main>\n</body>\n</html>\n"
    )
    return Response(text.encode(), status=status, headers=(*_HEADERS, *headers))


def sign_in_page(
    token: str, *, problem: str = "", status: int = 200, headers: tuple[tuple[bytes, bytes], ...] = ()
) -> Response:
    alert = f'<p class="error" role="alert">{escape(problem)}</p>\n' if problem else ""
    form = (
        f'{alert}<form method="post" action="sign-in">\n'
        f'<input type="hidden" name="token" value="{escape(token)}">\n'
        '<label for="email">E-mail address</label>\n'
        '<input id="email" type="email" name="email" autocomplete="username" required autofocus>\n'
        '<label for="password">Password</label>\n'
        '<input id="password" type="password" name="password" autocomplete="current-password" required>\n'
        '<button class="yes" type="submit">Sign in</button>\n</form>'
    )
    return page("Sign in to Weftline", form, status=status, headers=headers)


def consent_page(question: ConsentForm) -> Response:
    name = escape(question.app)
    items = "\n".join(f"<li>{escape(scope)}</li>" for scope in question.scopes)
    about = f'<p class="note">{escape(question.description)}</p>\n' if question.description else ""
    form = (
        f"<p>Signed in as <strong>{escape(question.email)}</strong>.</p>\n{about}"
        f'<form method="post" action="authorize/decide">\n'
        f'<input type="hidden" name="token" value="{escape(question.token)}">\n'
        f"{_workspaces(question)}"
        f"<p><strong>{name}</strong> asks for permission to:</p>\n<ul>\n{items}\n</ul>\n"
        f"{_agents(question)}{_registration_note(question)}"
        f'<p class="note">Either way you will continue to {escape(question.redirect_host)}.</p>\n'
        '<button class="yes" type="submit" name="decision" value="approve">Allow</button>\n'
        '<button type="submit" name="decision" value="deny">Do not allow</button>\n</form>'
    )
    return page(f"Allow {question.app} to use your workspace?", form)


def unknown_app_page() -> Response:
    text = (
        '<p class="error" role="alert">The app that sent you here is not registered.</p>\n'
        '<p class="note">Connect it again, and it will register itself. An app that was given a client id needs a'
        " new one.</p>"
    )
    return page("This app is not known here", text, status=400)


def _workspaces(question: ConsentForm) -> str:
    if len(question.workspaces) == 1:
        slug, name = question.workspaces[0]
        return (
            f'<input type="hidden" name="workspace" value="{escape(slug)}">\n'
            f"<p>Workspace: <strong>{escape(name)}</strong></p>\n"
        )
    options = "\n".join(f'<option value="{escape(slug)}">{escape(name)}</option>' for slug, name in question.workspaces)
    return (
        '<label for="workspace">Workspace</label>\n'
        f'<select id="workspace" name="workspace" required>\n{options}\n</select>\n'
    )


def _agents(question: ConsentForm) -> str:
    if not question.agents:
        return ""
    return (
        '<label for="agents">Only these agents</label>\n'
        '<input id="agents" type="text" name="agents" aria-describedby="agents-note">\n'
        '<p class="note" id="agents-note">Ids separated by spaces. Leave this empty to allow every agent.</p>\n'
    )


def _registration_note(question: ConsentForm) -> str:
    if not question.registered:
        return ""
    return (
        '<p class="note">This app registered itself and chose its own name. Allow it only if you have just'
        " connected it yourself.</p>\n"
    )


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
