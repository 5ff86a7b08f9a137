"""Credentials of a client: an API key, an access token, or a source of access tokens."""

from __future__ import annotations

import asyncio
import inspect
import os
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from typing import Generic, Protocol, TypeAlias, TypeVar, runtime_checkable

from weftline.client.errors import InvalidSpec

T = TypeVar("T")


class SingleFlight(Generic[T]):
    """While one call is in progress, every caller gets its outcome instead of making another."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._flight: Future[T] | None = None
        self._task: asyncio.Task[None] | None = None

    async def __call__(self, call: Callable[[], Awaitable[T]]) -> T:
        with self._lock:
            flight = self._flight
            mine = flight is None
            if flight is None:
                flight = self._flight = Future()
        if mine:
            # A separate task: the first caller may be cancelled while the others still wait.
            self._task = asyncio.get_running_loop().create_task(self._fly(flight, call))
        return await asyncio.shield(asyncio.wrap_future(flight))

    async def _fly(self, flight: Future[T], call: Callable[[], Awaitable[T]]) -> None:
        try:
            value = await call()
        except asyncio.CancelledError:
            self._land(flight)
            flight.cancel()
            raise
        except Exception as error:
            self._land(flight)
            flight.set_exception(error)
        else:
            self._land(flight)
            flight.set_result(value)

    def _land(self, flight: Future[T]) -> None:
        with self._lock:
            if self._flight is flight:
                self._flight = None


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
