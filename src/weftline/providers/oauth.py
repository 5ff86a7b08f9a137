"""Model APIs behind OAuth: an access token that is fetched with a refresh token before it is needed.

[providers.claude]
family = "anthropic"
oauth = {token_url = "https://…/token", client_id = "…", refresh_token = "env:CLAUDE_REFRESH_TOKEN"}
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Final
from urllib.parse import urlencode

import msgspec
from msgspec import Struct

from weftline.net.errors import TimeLimits
from weftline.net.transport import Response, Transport
from weftline.providers.base import ProviderError
from weftline.providers.calls import Call
from weftline.providers.renewals import renewed
from weftline.text.redaction import REDACTED

MARGIN_S: Final = 60.0
"""A token is renewed this long before it expires, so that none expires in transit."""
_USUAL_LIFE_S: Final = 3600.0
_LIMITS: Final = TimeLimits(total_s=30.0)


class OAuthSettings(Struct, frozen=True, kw_only=True):
    """Settings for getting an access token. Secrets may be `env:NAME` in a configuration file."""

    token_url: str
    refresh_token: str
    client_id: str = ""
    client_secret: str = ""

    def __repr__(self) -> str:
        return f"OAuthSettings(token_url={self.token_url!r})"


class _Granted(Struct):
    access_token: str
    expires_in: float | None = None
    refresh_token: str | None = None


_decode = msgspec.json.Decoder(_Granted, strict=False).decode


class OAuthTransport:
    """A transport whose requests carry a fresh access token. Concurrent calls share one refresh.

    `transport` is also used to request tokens; its owner closes it.
    """

    def __init__(self, transport: Transport, settings: OAuthSettings) -> None:
        self._transport = transport
        self._settings = settings
        self._refresh_token = settings.refresh_token
        self._token = ""
        self._fresh_until = 0.0
        self._refreshing: asyncio.Task[str] | None = None

    @asynccontextmanager
    async def post(
        self, url: str, *, headers: Mapping[str, str], body: bytes, limits: TimeLimits
    ) -> AsyncGenerator[Response]:
        token = await self._bearer()
        sent = {**headers, "Authorization": f"Bearer {token}"}
        async with self._transport.post(url, headers=sent, body=body, limits=limits) as response:
            yield _Redacted(response, token.encode())

    @asynccontextmanager
    async def get(self, url: str, *, headers: Mapping[str, str], limits: TimeLimits) -> AsyncGenerator[Response]:
        token = await self._bearer()
        sent = {**headers, "Authorization": f"Bearer {token}"}
        async with self._transport.get(url, headers=sent, limits=limits) as response:
            yield _Redacted(response, token.encode())

    async def aclose(self) -> None:
        if self._refreshing is not None:
            self._refreshing.cancel()

    async def _bearer(self) -> str:
        if self._token and asyncio.get_running_loop().time() < self._fresh_until:
            return self._token
        task = self._refreshing
        if task is None:
            task = self._refreshing = asyncio.create_task(self._refresh())
            task.add_done_callback(self._forget_refresh)
        # Shielded: a token may be issued only once, so a cancelled caller must not lose it for itself and others.
        token = await asyncio.shield(task)
        renewed()
        return token

    def _forget_refresh(self, task: asyncio.Task[str]) -> None:
        self._refreshing = None
        if not task.cancelled():
            task.exception()  # retrieved here, as there may be no waiting callers

    async def _refresh(self) -> str:
        settings = self._settings
        form = {"grant_type": "refresh_token", "refresh_token": self._refresh_token}
        form |= {"client_id": settings.client_id} if settings.client_id else {}
        form |= {"client_secret": settings.client_secret} if settings.client_secret else {}
        headers = {"Content-Type": "application/x-www-form-urlencoded", "Accept": "application/json"}
        try:
            body = urlencode(form).encode()
            request = self._transport.post(settings.token_url, headers=headers, body=body, limits=_LIMITS)
            async with Call(request, settings.token_url) as response:
                status, answer = response.status, await response.read()
        except ProviderError as error:
            # A connection failure is worth a retry; a refusal by the authorization server is not.
            raise ProviderError("auth", f"No access token: {error.message}", retryable=error.retryable) from None
        if not 200 <= status < 300:
            raise ProviderError("auth", f"No access token: the refresh failed with status {status}.")
        try:
            granted = _decode(answer)
        except (msgspec.DecodeError, RecursionError):
            raise ProviderError("auth", "No access token: the response to the refresh has none.") from None
        life_s = _USUAL_LIFE_S if granted.expires_in is None else granted.expires_in
        self._token = granted.access_token
        self._fresh_until = asyncio.get_running_loop().time() + life_s - MARGIN_S
        self._refresh_token = granted.refresh_token or self._refresh_token
        return self._token


class _Redacted:
    """The response with the refresh token redacted, since people may see the text of a failure."""

    def __init__(self, response: Response, secret: bytes) -> None:
        self._response = response
        self._secret = secret

    @property
    def status(self) -> int:
        return self._response.status

    @property
    def headers(self) -> Mapping[str, str]:
        return self._response.headers

    async def read(self) -> bytes:
        return (await self._response.read()).replace(self._secret, REDACTED.encode())

    def chunks(self) -> AsyncIterator[bytes]:
        return self._response.chunks()
