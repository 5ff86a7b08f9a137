"""What a browser does on the way to a code: authorize, sign in, decide."""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping
from urllib.parse import urlsplit

import apsw
import msgspec
from msgspec import Struct
from msgspec.json import decode, encode

from weftline.errors import InvalidRequest
from weftline.server.http import Answer, Request
from weftline.server.oauth.app import OAuthServer, session_secret
from weftline.server.oauth.pages import Question, consent_page, page
from weftline.server.oauth.redirects import with_parameters
from weftline.server.oauth.scopes import SCOPES, USING_AGENTS, parse_scope
from weftline.store.sqlite import oauth, users
from weftline.store.sqlite.hashing import Minted
from weftline.workspace.keys import checked_agents, hash_secret

CODE_S = 600
_CONSENT_S = 600
_PURPOSE = "consent"
_CHALLENGE = re.compile(r"[A-Za-z0-9_-]{43}")
_STATE_LIMIT = 2000


class BadAuthorize(Exception):
    """A query or form that leads nowhere: nobody is redirected, the caller is told what is wrong with it."""

    def __init__(self, **details: str) -> None:
        super().__init__("Invalid authorize request")
        self.details = details

    def answer(self) -> Answer:
        message = "; ".join(f"{field}: {fault}" for field, fault in self.details.items())
        body = {
            "error": "Invalid authorize request",
            "code": "invalid_request",
            "message": message,
            "details": self.details,
        }
        return Answer(encode(body), status=400, headers=((b"cache-control", b"no-store"),))


class UnknownClient(Exception):
    def answer(self) -> Answer:
        body = {"error": "invalid_client", "error_description": "There is no app with this client_id."}
        return Answer(encode(body), status=401, headers=((b"cache-control", b"no-store"),))


class Asked(Struct, frozen=True):
    """A valid authorize request."""

    client_id: str
    redirect_uri: str
    scopes: tuple[str, ...]
    state: str | None
    challenge: str


class _Consent(Struct, frozen=True):
    """The hidden field of the page: made for one request, one session and one use."""

    asked: Asked
    session: bytes
    nonce: str
    expires_at: int


def read_query(server: OAuthServer, request: Request) -> tuple[oauth.App, Asked]:
    """The app and what it asks for; raises `BadAuthorize` or `UnknownClient`."""
    query = dict(request.query)
    problems: dict[str, str] = {}
    if len(query) != len(request.query):
        raise BadAuthorize(query="a parameter occurs more than once")
    client_id = query.get("client_id", "")
    if not client_id:
        problems["client_id"] = "is missing"
        app = None
    else:
        app = oauth.find_app(server.engine.read.db, client_id)
        if app is None:
            raise UnknownClient
    uri = query.get("redirect_uri", "").partition("#")[0]
    if not uri:
        problems["redirect_uri"] = "is missing"
    elif app is not None and uri not in app.redirect_uris:
        problems["redirect_uri"] = "is not registered for this app"
    if query.get("response_type") != "code":
        problems["response_type"] = "must be code"
    scopes = parse_scope(query.get("scope", ""))
    if not scopes:
        problems["scope"] = "is missing"
    elif app is not None and (refused := [scope for scope in scopes if scope not in app.scopes]):
        problems["scope"] = f"this app may not ask for {' '.join(refused)[:200]}"
    if query.get("code_challenge_method") != "S256":
        problems["code_challenge_method"] = "must be S256"
    challenge = query.get("code_challenge", "")
    if not _CHALLENGE.fullmatch(challenge):
        problems["code_challenge"] = "must be the S256 challenge of a verifier, 43 characters"
    state = query.get("state")
    if state is not None and len(state) > _STATE_LIMIT:
        problems["state"] = f"may have {_STATE_LIMIT} characters"
    if problems or app is None:
        raise BadAuthorize(**problems)
    return app, Asked(app.client_id, uri, scopes, state, challenge)


def ask(server: OAuthServer, request: Request, app: oauth.App, asked: Asked, user: users.User) -> Answer:
    """The page that asks a signed-in user."""
    choices = _choices(server, app, user)
    if not choices:
        return page(
            "No workspace to choose",
            "<p>You are not a member of a workspace in which this app can be used.</p>",
            status=403,
        )
    consent = _Consent(asked, _session(request), secrets.token_urlsafe(16), server.now() + _CONSENT_S * 1_000_000)
    target = urlsplit(asked.redirect_uri)
    return consent_page(
        Question(
            app.name,
            app.description,
            target.netloc if target.scheme in ("http", "https") else f"{target.scheme}:",
            user.email,
            [SCOPES[scope] for scope in asked.scopes],
            [(one.slug, one.name) for one in choices],
            not USING_AGENTS.isdisjoint(asked.scopes),
            server.hasher().sign(_PURPOSE, encode(consent)),
        )
    )


async def decide(server: OAuthServer, request: Request, user: users.User, form: Mapping[str, str]) -> str:
    """Carries out what the user chose; returns where the browser goes next."""
    consent = _read(server, request, form.get("token", ""))
    asked = consent.asked
    app = oauth.find_app(server.engine.read.db, asked.client_id)
    if app is None:
        raise UnknownClient
    decision = form.get("decision")
    if decision not in ("approve", "deny"):
        raise BadAuthorize(decision="must be approve or deny")
    code: Minted | None = None
    new: oauth.NewCode | None = None
    now = server.now()
    if decision == "approve":
        code = server.hasher().mint(oauth.CODE)
        new = oauth.NewCode(
            app.key,
            user.key,
            _workspace(_choices(server, app, user), form.get("workspace")),
            asked.scopes,
            _agents(asked, form.get("agents", "")),
            asked.redirect_uri,
            asked.challenge,
            now + CODE_S * 1_000_000,
        )
    if not await server.engine.store.job(lambda db: _settle(db, consent, new, code, now)):
        raise BadAuthorize(token="was used already")
    if code is None:
        return with_parameters(asked.redirect_uri, error="access_denied", state=asked.state)
    return with_parameters(asked.redirect_uri, code=code.secret, state=asked.state)


def _settle(db: apsw.Connection, consent: _Consent, new: oauth.NewCode | None, code: Minted | None, now: int) -> bool:
    if not oauth.spend(db, consent.nonce, expires_at=consent.expires_at, now=now):
        return False
    if new is not None and code is not None:
        oauth.create_code(db, new, code=code, now=now)
    return True


def _read(server: OAuthServer, request: Request, token: str) -> _Consent:
    payload = server.hasher().signed(_PURPOSE, token)
    if payload is None:
        raise BadAuthorize(token="is not from a page of this server")
    try:
        consent = decode(payload, type=_Consent)
    except msgspec.DecodeError:
        raise BadAuthorize(token="is from an earlier version of this server") from None
    if consent.session != _session(request):
        raise BadAuthorize(token="belongs to another session")
    if consent.expires_at <= server.now():
        raise BadAuthorize(token="has expired; begin again in the app")
    return consent


def _session(request: Request) -> bytes:
    """Ties a page to the session it was shown in, without telling the session's secret."""
    return hash_secret(session_secret(request) or "")


def _choices(server: OAuthServer, app: oauth.App, user: users.User) -> list[users.Membership]:
    """The workspaces that the user may open to the app: of a private one only its own."""
    mine = users.memberships(server.engine.read.db, user.key)
    return [one for one in mine if one.oauth and (app.visibility == "public" or one.workspace == app.workspace)]


def _workspace(choices: list[users.Membership], slug: str | None) -> int:
    if slug is None and len(choices) == 1:
        return choices[0].workspace
    for one in choices:
        if one.slug == slug:
            return one.workspace
    raise BadAuthorize(workspace="is not one that you can choose")


def _agents(asked: Asked, text: str) -> tuple[str, ...]:
    listed = text.replace(",", " ").split()
    if listed and USING_AGENTS.isdisjoint(asked.scopes):
        raise BadAuthorize(agents="can be chosen only for an app that uses agents")
    try:
        return tuple(checked_agents(listed))
    except InvalidRequest as error:
        raise BadAuthorize(agents=error.message) from None
