"""Credentials of a client: an API key, an access token, or a source of access tokens."""

from __future__ import annotations

import inspect
import os
from collections.abc import Awaitable, Callable
from typing import Protocol, TypeAlias, runtime_checkable

from weftline.client.errors import InvalidSpec
from weftline.client.single_flight import SingleFlight

PREFIXES = ("WEFTLINE_", "MANTYX_")
DEFAULT_BASE_URL = "http://127.0.0.1:8080"


@runtime_checkable
class TokenSource(Protocol):
    """Provides access tokens. `refresh` requests a new one, because the server has refused the last."""

    async def token(self, *, refresh: bool = False) -> str: ...


TokenCallable: TypeAlias = Callable[[], str] | Callable[[], Awaitable[str]]


class Credentials:
    """Exactly one of the three; by default, the API key in the environment."""

    def __init__(
        self,
        *,
        api_key: str | None = None,
        access_token: str | None = None,
        token_source: TokenSource | TokenCallable | None = None,
    ) -> None:
        given = [
            name
            for name, value in (
                ("api_key", api_key),
                ("access_token", access_token),
                ("token_source", token_source),
            )
            if value is not None
        ]
        if len(given) > 1:
            raise InvalidSpec(f"give one credential, not {' and '.join(given)}")
        if not given:
            api_key = setting("API_KEY")
            if not api_key:
                raise InvalidSpec("give api_key, access_token or token_source, or set WEFTLINE_API_KEY")
            given = ["api_key (from the environment)"]
        self._kind = given[0]
        secret = api_key if api_key is not None else access_token
        if secret is not None and not secret.strip():
            raise InvalidSpec(f"{given[0]} is empty")
        self._secret = secret.strip() if secret else None
        self._source = token_source
        self._flight: SingleFlight[str] = SingleFlight()

    @property
    def renewable(self) -> bool:
        return self._source is not None

    async def secret(self) -> str:
        """Returns the bearer to send."""
        if self._secret is None:
            return await self._flight(lambda: self._fetch(refresh=False))
        return self._secret

    async def replace_secret(self, refused: str) -> str:
        """Returns a credential other than `refused`. Concurrent callers share one refresh."""
        if self._secret is not None and self._secret != refused:
            return self._secret
        return await self._flight(lambda: self._fetch(refresh=True))

    async def _fetch(self, *, refresh: bool) -> str:
        source = self._source
        assert source is not None
        if isinstance(source, TokenSource):
            token = await source.token(refresh=refresh)
        else:
            given = source()
            token = await given if inspect.isawaitable(given) else given
        self._secret = token
        return token

    def __repr__(self) -> str:
        return f"<{self._kind} [redacted]>"


def setting(name: str) -> str | None:
    """Returns an environment variable, with our prefix or that of the SDKs for the same protocol."""
    for prefix in PREFIXES:
        value = os.environ.get(prefix + name)
        if value:
            return value
    return None
