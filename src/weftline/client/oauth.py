"""Sign-in: the authorization code flow with PKCE, client credentials, and token sources with automatic refresh.

oauth = OAuthClient(client_id="…", client_secret="…", redirect_uri="http://localhost:8765/callback")
request = oauth.authorization(scopes=["runs:write", "runs:read"])
...                                   # send the user to request.url, and take `code` from the redirect
tokens = oauth.exchange_code(code, request=request, state=state)
client = Client(token_source=oauth.refresh_source(tokens), workspace="acme")
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
from collections.abc import Awaitable, Callable, Sequence
from time import time
from typing import Any, TypeVar, cast
from urllib.parse import urlencode

import msgspec
from msgspec import Struct

from weftline.client.credentials import DEFAULT_BASE_URL, SingleFlight, setting
from weftline.client.errors import ClientError, OAuthError, api_error
from weftline.client.http import exchange

T = TypeVar("T")

SKEW_S = 60.0
"""A token is renewed this long before it expires, so that none expires in transit."""


class OAuthTokens(Struct, frozen=True):
    """Tokens. `expires_at` is in seconds since 1970, by this machine's clock."""

    access_token: str
    expires_at: float
    refresh_token: str | None = None
    scope: str = ""

    def __repr__(self) -> str:
        return f"OAuthTokens([redacted], expires_at={self.expires_at!r}, scope={self.scope!r})"

    @property
    def fresh(self) -> bool:
        return time() < self.expires_at - SKEW_S


class AuthorizationRequest(Struct, frozen=True):
    """Where to send the user, and what to keep until they come back."""

    url: str
    state: str
    code_verifier: str

    def __repr__(self) -> str:
        return "AuthorizationRequest([redacted])"


class Workspace(Struct, frozen=True):
    id: str = ""
    slug: str = ""
    name: str = ""


class UserInfo(Struct, frozen=True):
    """The user or app of an access token, and the workspace."""

    sub: str = ""
    email: str | None = None
    workspace: Workspace = Workspace()


class Introspection(Struct, frozen=True):
    active: bool = False
    scope: str = ""
    exp: int | None = None
    client_id: str | None = None


class _TokenResponse(Struct):
    access_token: str
    expires_in: float = 3600.0
    refresh_token: str | None = None
    scope: str = ""


class CachedTokens:
    """A token source around a function that gets tokens.

    It makes one request at a time, and none while the last token is valid.
    """

    def __init__(
        self,
        fetch: Callable[[OAuthTokens | None], Awaitable[OAuthTokens]],
        *,
        initial: OAuthTokens | None = None,
        on_tokens: Callable[[OAuthTokens], object] | None = None,
    ) -> None:
        self._fetch = fetch
        self._tokens = initial
        self._on_tokens = on_tokens
        self._flight: SingleFlight[OAuthTokens] = SingleFlight()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} [redacted]>"

    async def token(self, *, refresh: bool = False) -> str:
        """Returns an access token that is valid for at least a minute; `refresh` requests a new one."""
        tokens = self._tokens
        if refresh or tokens is None or not tokens.fresh:
            tokens = await self._flight(self._renew)
        return tokens.access_token

    async def _renew(self) -> OAuthTokens:
        tokens = self._tokens = await self._fetch(self._tokens)
        if self._on_tokens is not None:
            self._on_tokens(tokens)
        return tokens


class AsyncOAuthClient:
    """An application that is registered with the server. `base_url` as for `AsyncClient`."""

    def __init__(
        self,
        *,
        client_id: str,
        client_secret: str,
        base_url: str | None = None,
        redirect_uri: str | None = None,
        timeout_s: float = 60.0,
    ) -> None:
        self.base_url = (base_url or setting("BASE_URL") or DEFAULT_BASE_URL).rstrip("/")
        self.client_id = client_id
        self.redirect_uri = redirect_uri
        self._client_secret = client_secret
        self._timeout_s = timeout_s

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.base_url!r}, client_id={self.client_id!r}, [redacted])"

    def authorization(self, *, scopes: Sequence[str], redirect_uri: str | None = None) -> AuthorizationRequest:
        """Returns the URL that asks a user for consent, with a fresh state and PKCE verifier."""
        verifier = secrets.token_urlsafe(48)
        state = secrets.token_urlsafe(24)
        challenge = base64.urlsafe_b64encode(hashlib.sha256(verifier.encode()).digest()).rstrip(b"=").decode()
        query = urlencode(
            {
                "client_id": self.client_id,
                "redirect_uri": self._redirect(redirect_uri),
                "response_type": "code",
                "scope": " ".join(scopes),
                "state": state,
                "code_challenge": challenge,
                "code_challenge_method": "S256",
            }
        )
        return AuthorizationRequest(f"{self.base_url}/api/oauth/authorize?{query}", state, verifier)

    async def exchange_code(
        self, code: str, *, request: AuthorizationRequest, state: str, redirect_uri: str | None = None
    ) -> OAuthTokens:
        """Exchanges the code that the user came back with for tokens.

        `state` came with it and must match the request's.
        """
        if not hmac.compare_digest(state.encode(), request.state.encode()):
            raise OAuthError("state_mismatch", "this answer belongs to another authorization request")
        return await self._token(
            grant_type="authorization_code",
            code=code,
            redirect_uri=self._redirect(redirect_uri),
            code_verifier=request.code_verifier,
        )

    async def client_credentials(self, *, scopes: Sequence[str] = ()) -> OAuthTokens:
        """Returns tokens for the application itself."""
        return await self._token(grant_type="client_credentials", **_scope(scopes))

    async def refresh(self, refresh_token: str, *, scopes: Sequence[str] = ()) -> OAuthTokens:
        """Returns a new access token. If the server sends no new refresh token, the old one is kept."""
        tokens = await self._token(grant_type="refresh_token", refresh_token=refresh_token, **_scope(scopes))
        return tokens if tokens.refresh_token else msgspec.structs.replace(tokens, refresh_token=refresh_token)

    async def revoke(self, token: str) -> None:
        await self._post("revoke", {"token": token})

    async def introspect(self, token: str) -> Introspection:
        return _decoded(await self._post("introspect", {"token": token}), Introspection)

    async def userinfo(self, access_token: str) -> UserInfo:
        """Returns the owner of a token; pass `workspace.slug` as `Client(workspace=…)`."""
        headers = {"Authorization": f"Bearer {access_token}"}
        response = await exchange(
            "GET", f"{self.base_url}/api/oauth/userinfo", headers=headers, timeout_s=self._timeout_s
        )
        if response.status != 200:
            raise api_error(response.status, response.headers, response.body)
        return _decoded(response.body, UserInfo)

    def refresh_source(
        self, tokens: OAuthTokens | str, *, on_tokens: Callable[[OAuthTokens], object] | None = None
    ) -> CachedTokens:
        """Returns a token source that starts with `tokens`, or with just a refresh token.

        `on_tokens` may store new ones.
        """
        initial = None if isinstance(tokens, str) else tokens
        first = tokens if isinstance(tokens, str) else tokens.refresh_token
        if not first:
            raise ClientError("these tokens have no refresh token")

        async def fetch(last: OAuthTokens | None) -> OAuthTokens:
            return await self.refresh((last.refresh_token if last else None) or first)

        return CachedTokens(fetch, initial=initial, on_tokens=on_tokens)

    def client_credentials_source(
        self, *, scopes: Sequence[str] = (), on_tokens: Callable[[OAuthTokens], object] | None = None
    ) -> CachedTokens:
        """Returns a token source for the application itself."""

        async def fetch(last: OAuthTokens | None) -> OAuthTokens:
            return await self.client_credentials(scopes=scopes)

        return CachedTokens(fetch, on_tokens=on_tokens)

    def _redirect(self, given: str | None) -> str:
        redirect = given or self.redirect_uri
        if not redirect:
            raise ClientError("the authorization code flow needs a redirect_uri")
        return redirect

    async def _token(self, **form: str) -> OAuthTokens:
        asked_at = time()
        response = _decoded(await self._post("token", form), _TokenResponse)
        return OAuthTokens(
            response.access_token, asked_at + response.expires_in, response.refresh_token, response.scope
        )

    async def _post(self, endpoint: str, form: dict[str, str]) -> bytes:
        whole = {**form, "client_id": self.client_id, "client_secret": self._client_secret}
        response = await exchange(
            "POST",
            f"{self.base_url}/api/oauth/{endpoint}",
            headers={"Content-Type": "application/x-www-form-urlencoded", "Accept": "application/json"},
            body=urlencode(whole).encode(),
            timeout_s=self._timeout_s,
        )
        if response.status == 200:
            return response.body
        try:
            fields = msgspec.json.decode(response.body, type=dict[str, Any])
        except (msgspec.DecodeError, UnicodeDecodeError):
            fields = cast("dict[str, Any]", {})
        error = str(fields.get("error") or f"status_{response.status}")
        raise OAuthError(error, str(fields.get("error_description") or ""), status=response.status)


def _scope(scopes: Sequence[str]) -> dict[str, str]:
    return {"scope": " ".join(scopes)} if scopes else {}


def _decoded(body: bytes, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(body, type=kind, strict=False)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise OAuthError("invalid_response", str(error)) from error
