"""A user's consent: what an app asks for, the question to the user, and the code that results from approval.

authorize query ──read_request──▶ Asked ──question──▶ signed token, shown to the user
                                                          │
                                      decide ◀── the token again, with the user's answer
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Sequence
from typing import Annotated

import msgspec
from msgspec import Meta, Struct
from msgspec.json import decode, encode

from weftline.errors import InvalidRequest
from weftline.store.database import Query
from weftline.store.records import grants, users
from weftline.store.records.apps import StoredApp
from weftline.store.records.grants import NewCode
from weftline.store.records.users import Membership, User
from weftline.store.sealing import Minted
from weftline.workspace.apps import find_app, is_registered
from weftline.workspace.context import Workspaces
from weftline.workspace.grants import CODE
from weftline.workspace.scopes import MCP_SCOPE, USING_AGENTS, beyond, checked_agents, mcp_path, parse_scope

CODE_S = 600
_CONSENT_S = 600
_PURPOSE = "consent"
_CHALLENGE = re.compile(r"[A-Za-z0-9_-]{43}")
_MAX_STATE = 2000


class InvalidConsent(Exception):
    """A query or form that is invalid, by field. It must not cause a redirect."""

    def __init__(self, **details: str) -> None:
        super().__init__("Invalid authorize request")
        self.details = details


class UnknownApp(Exception):
    """There is no app with this client id. `resource` is what it asked for, as it sent it."""

    def __init__(self, resource: str = "") -> None:
        super().__init__("There is no app with this client id.")
        self.resource = resource


class AuthorizeQuery(Struct, frozen=True):
    """The parameters of an authorize request, as an app sends them."""

    client_id: Annotated[str, Meta(description="The app.")] = ""
    redirect_uri: Annotated[str, Meta(description="Where the browser goes afterwards, as registered.")] = ""
    response_type: Annotated[str, Meta(description="Must be `code`.")] = ""
    scope: Annotated[str, Meta(description="What the app asks for, separated by spaces.")] = ""
    state: Annotated[str | None, Meta(description="Returned to the app as it is.")] = None
    code_challenge: Annotated[str, Meta(description="The S256 challenge of the verifier (RFC 7636).")] = ""
    code_challenge_method: Annotated[str, Meta(description="Must be `S256`.")] = ""
    resource: Annotated[str, Meta(description="The address of the MCP server that it is for (RFC 8707).")] = ""


class AuthorizeRequest(Struct, frozen=True):
    """A valid authorize request."""

    client_id: str
    redirect_uri: str
    scopes: tuple[str, ...]
    state: str | None
    challenge: str
    resource: str = ""
    """The path of the resource that it asks for; empty for the whole server."""
    issuer: str = ""
    """The server's address as the app knows it."""


class ConsentQuestion(Struct, frozen=True):
    """The question to the user: in which of `choices` to allow the app. `token` must come back with the answer."""

    choices: Sequence[Membership]
    token: str


class Decision(Struct, frozen=True):
    """The user's answer: `approve` or `deny`, and when approving, the workspace's slug and the agents, if not all."""

    token: str = ""
    decision: str = ""
    workspace: str | None = None
    agents: str = ""


class ConsentResult(Struct, frozen=True):
    """`code` is None if the user denied it."""

    asked: AuthorizeRequest
    code: str | None


class _Consent(Struct, frozen=True):
    """The token's content: valid for one request, one session and one use."""

    asked: AuthorizeRequest
    session: bytes
    nonce: str
    expires_at: int


async def read_request(
    at: Workspaces, query: AuthorizeQuery, *, resource: str | None = "", issuer: str = ""
) -> tuple[StoredApp, AuthorizeRequest]:
    """The app and what it asks for. Raises `InvalidConsent` or `UnknownApp`.

    `resource` is the path of the resource in the query, "" if there is none, None if it is not one of ours.
    """
    problems: dict[str, str] = {}
    client_id = query.client_id
    app: StoredApp | None = None
    if not client_id:
        problems["client_id"] = "is missing"
    else:
        app = await find_app(at, client_id)
        if app is None:
            raise UnknownApp(query.resource)
    uri = query.redirect_uri.partition("#")[0]
    if not uri:
        problems["redirect_uri"] = "is missing"
    elif app is not None and not is_registered(uri, app.redirect_uris):
        problems["redirect_uri"] = "is not registered for this app"
    if query.response_type != "code":
        problems["response_type"] = "must be code"
    if resource is None:
        problems["resource"] = "is not something that this server protects"
    scopes = parse_scope(query.scope)
    if not scopes and app is not None and (resource or app.registered):
        scopes = (MCP_SCOPE,)
    if not scopes:
        problems["scope"] = "is missing"
    elif app is not None and (refused := beyond(scopes, app.scopes)):
        problems["scope"] = f"this app may not ask for {' '.join(refused)[:200]}"
    if query.code_challenge_method != "S256":
        problems["code_challenge_method"] = "must be S256"
    challenge = query.code_challenge
    if not _CHALLENGE.fullmatch(challenge):
        problems["code_challenge"] = "must be the S256 challenge of a verifier, 43 characters"
    state = query.state
    if state is not None and len(state) > _MAX_STATE:
        problems["state"] = f"may have {_MAX_STATE} characters"
    if problems or app is None:
        raise InvalidConsent(**problems)
    return app, AuthorizeRequest(app.client_id, uri, scopes, state, challenge, resource or "", issuer)


async def question(
    at: Workspaces, app: StoredApp, asked: AuthorizeRequest, user: User, *, session: str
) -> ConsentQuestion | None:
    """Returns the question to a signed-in user; None if the user has no workspace in which the app can be used."""
    choices = await _choices(at, app, user, asked)
    if not choices:
        return None
    expires_at = at.clock.now_us() + _CONSENT_S * 1_000_000
    consent = _Consent(asked, at.hasher.hash(session), secrets.token_urlsafe(16), expires_at)
    return ConsentQuestion(choices, at.hasher.sign(_PURPOSE, encode(consent)))


async def decide(at: Workspaces, user: User, decision: Decision, *, session: str) -> ConsentResult:
    """Acts on the user's decision. Raises `InvalidConsent` or `UnknownApp`."""
    consent = _read(at, session, decision.token)
    asked = consent.asked
    app = await find_app(at, asked.client_id)
    if app is None:
        raise UnknownApp
    if decision.decision not in ("approve", "deny"):
        raise InvalidConsent(decision="must be approve or deny")
    code: Minted | None = None
    new: NewCode | None = None
    now = at.clock.now_us()
    if decision.decision == "approve":
        code = at.hasher.mint(CODE)
        new = NewCode(
            app.key,
            user.key,
            _chosen(await _choices(at, app, user, asked), decision.workspace),
            asked.scopes,
            _agents(asked, decision.agents),
            asked.redirect_uri,
            asked.challenge,
            asked.resource,
            now + CODE_S * 1_000_000,
        )

    def query() -> Query[None]:
        if not (yield from grants.spend(consent.nonce, expires_at=consent.expires_at, now=now)):
            raise InvalidConsent(token="was already used")
        if new is not None and code is not None:
            yield from grants.insert_code(new, secret=code.stored, now=now)

    await at.records.write(query())
    return ConsentResult(asked, None if code is None else code.secret)


def _read(at: Workspaces, session: str, token: str) -> _Consent:
    payload = at.hasher.signed(_PURPOSE, token)
    if payload is None:
        raise InvalidConsent(token="is not from a page of this server")
    try:
        consent = decode(payload, type=_Consent)
    except msgspec.DecodeError:
        raise InvalidConsent(token="is from an earlier version of this server") from None
    if consent.session != at.hasher.hash(session):
        raise InvalidConsent(token="belongs to another session")
    if consent.expires_at <= at.clock.now_us():
        raise InvalidConsent(token="has expired; start again in the app")
    return consent


async def _choices(at: Workspaces, app: StoredApp, user: User, asked: AuthorizeRequest) -> list[Membership]:
    """The workspaces to which the user may give the app access: for a private app only its own, and for a resource only
    the one that it belongs to.
    """
    mine = await at.records.read(users.memberships(user.key))
    return [
        one
        for one in mine
        if one.oauth
        and (app.visibility == "public" or one.workspace == app.workspace)
        and asked.resource in ("", mcp_path(one.slug))
    ]


def _chosen(choices: Sequence[Membership], slug: str | None) -> int:
    if slug is None and len(choices) == 1:
        return choices[0].workspace
    for one in choices:
        if one.slug == slug:
            return one.workspace
    raise InvalidConsent(workspace="is not one that you can choose")


def _agents(asked: AuthorizeRequest, text: str) -> tuple[str, ...]:
    listed = text.replace(",", " ").split()
    if listed and USING_AGENTS.isdisjoint(asked.scopes):
        raise InvalidConsent(agents="can be chosen only for an app that uses agents")
    try:
        return tuple(checked_agents(listed))
    except InvalidRequest as error:
        raise InvalidConsent(agents=error.message) from None
