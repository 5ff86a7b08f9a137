"""A login at an MCP server: the tokens that a person granted us, and their renewal.

How a person logs in is in `weftline.tools.mcp.signing_in`; a login is sealed where it is stored.
"""

from __future__ import annotations

import base64
import hashlib
from typing import Protocol
from urllib.parse import quote, urlencode

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from weftline.net.address import parse
from weftline.net.dial import Dialer
from weftline.net.errors import BodyTooLarge, RequestFailed
from weftline.text.redaction import Redactor

SKEW_US = 60_000_000
"""A token is renewed this long before it expires, so that none expires in transit."""
_RENEWAL_S = 20.0
_MAX_ANSWER_BYTES = 64 * 1024


class LoginLost(Exception):
    """The login is no longer valid: a person has to log in again. The message says why, without secrets."""


class Credential(Protocol):
    """The credential that a connection sends to its server."""

    async def token(self) -> str:
        """Returns a valid access token. Raises `LoginLost` or `RequestFailed`."""
        ...

    async def replace_token(self, refused: str) -> str:
        """Returns a new token to replace one that the server refused. Raises `LoginLost` or `RequestFailed`."""
        ...

    @property
    def redactor(self) -> Redactor:
        """Redacts every token that it has sent."""
        ...


class Login(Struct, frozen=True, omit_defaults=True):
    url: str
    """The URL of the MCP server."""
    issuer: str
    token_endpoint: str
    client_id: str
    access_token: str
    client_secret: str | None = None
    client_auth: str = "none"
    """How the client authenticates: none, client_secret_post or client_secret_basic."""
    resource: str | None = None
    """What the tokens are for (RFC 8707)."""
    scope: str | None = None
    refresh_token: str | None = None
    expires_at: int | None = None
    """In microseconds since the epoch; None if the server did not say."""

    def __repr__(self) -> str:
        return f"Login({self.issuer!r}, [redacted])"

    def fresh(self, *, now: int) -> bool:
        return self.expires_at is None or now < self.expires_at - SKEW_US

    @property
    def secrets(self) -> list[str]:
        return [secret for secret in (self.access_token, self.refresh_token, self.client_secret) if secret]


class _Tokens(Struct):
    access_token: str
    token_type: str = "Bearer"
    expires_in: float | None = None
    refresh_token: str | None = None
    scope: str | None = None


class _Refusal(Struct):
    error: str = ""


def digest_of(url: str) -> str:
    """Returns the key that a login at this address is stored under. Raises `InvalidAddress`."""
    return hashlib.sha256(parse(url).url.encode()).hexdigest()


def place_of(digest: str, *, workspace: int) -> str:
    """Returns the context that a login is sealed with: it cannot be opened under any other."""
    return f"mcp_login:{workspace}:{digest}"


async def renewed(login: Login, dialer: Dialer, *, now: int) -> Login:
    """Returns the login with a new access token.

    Raises `LoginLost`, or `RequestFailed` if the server is unreachable.
    """
    if login.refresh_token is None:
        raise LoginLost("The login has expired.")
    form = {"grant_type": "refresh_token", "refresh_token": login.refresh_token, "client_id": login.client_id}
    if login.resource:
        form["resource"] = login.resource
    headers = {"Content-Type": "application/x-www-form-urlencoded", "Accept": "application/json"}
    if login.client_secret and login.client_auth == "client_secret_basic":
        pair = f"{quote(login.client_id, safe='')}:{quote(login.client_secret, safe='')}"
        headers["Authorization"] = "Basic " + base64.b64encode(pair.encode()).decode()
    elif login.client_secret:
        form["client_secret"] = login.client_secret
    body = urlencode(form).encode()
    async with dialer.request(
        "POST", login.token_endpoint, headers=headers, body=body, timeout_s=_RENEWAL_S
    ) as response:
        try:
            answer = await response.read(limit=_MAX_ANSWER_BYTES)
        except BodyTooLarge:
            raise LoginLost("The response to the login renewal is too large.") from None
        if response.status >= 500 or response.status == 429:
            raise RequestFailed("broken", f"The login could not be renewed: HTTP {response.status}.", sent=True)
        if response.status != 200:
            raise LoginLost(f"The login was not renewed: {_code(answer) or f'HTTP {response.status}'}.")
    try:
        tokens = msgspec.json.decode(answer, type=_Tokens)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        raise LoginLost("The response to the login renewal is not valid.") from None
    return replace(
        login,
        access_token=tokens.access_token,
        refresh_token=tokens.refresh_token or login.refresh_token,
        scope=tokens.scope or login.scope,
        expires_at=None if tokens.expires_in is None else now + int(tokens.expires_in * 1_000_000),
    )


def _code(answer: bytes) -> str:
    """Returns the error code, if RFC 6749 defines it: any other text may repeat what the server was sent."""
    try:
        error = msgspec.json.decode(answer, type=_Refusal).error
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return ""
    return error if error.replace("_", "").isalpha() and error.isascii() and len(error) <= 40 else ""
