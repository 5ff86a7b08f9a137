"""Requests to the server: credentials, timeouts, retries, and every failure as one of our errors."""

from __future__ import annotations

import asyncio
import json
import logging
import random
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from importlib import import_module
from io import BytesIO
from typing import TYPE_CHECKING, NamedTuple, TypeVar
from urllib.parse import quote, urlencode

from msgspec import Struct

from weftline._version import __version__
from weftline.client.credentials import Credentials
from weftline.client.errors import ApiError, NetworkError, Unreachable, api_error
from weftline.trace_context import active_traceparent

if TYPE_CHECKING:
    from aiohttp import ClientResponse, ClientSession


class Retry(Struct, frozen=True):
    """Exponential backoff with jitter: `first_s`, doubled each time up to `most_s`.

    `attempts` limits consecutive failed tries. The server's `Retry-After` is the minimum wait; one longer than
    `patience_s` is not waited for.
    """

    attempts: int = 8
    first_s: float = 0.25
    most_s: float = 10.0
    patience_s: float = 120.0

    def wait_s(self, failures: int, *, at_least_s: float | None = None) -> float:
        """Returns the pause after the `failures`-th failure in a row, counted from 1."""
        whole = min(self.most_s, self.first_s * 2 ** min(failures - 1, 30))
        # Jitter spreads clients that were disconnected together.
        return max(at_least_s or 0.0, whole * random.uniform(0.5, 1.0))


T = TypeVar("T")

logger = logging.getLogger("weftline.client")

USER_AGENT = f"weftline-python/{__version__}"
RETRIED = frozenset({429, 502, 503, 504})
"""Statuses after which the same request may succeed later."""
_LONG = 512 * 1024
_FIRST_TRIES = 3
"""How often to try a server that has never answered, as its address is probably wrong."""


class Response(NamedTuple):
    status: int
    headers: Mapping[str, str]
    body: bytes


class EventStream:
    """The body of an open event stream, to be closed."""

    def __init__(self, response: ClientResponse, *, idle_timeout_s: float) -> None:
        self._response = response
        self._idle_timeout_s = idle_timeout_s

    def close(self) -> None:
        # Not `release`: a stream that is left early is not read to its end.
        self._response.close()

    async def read(self) -> bytes:
        """Returns the next bytes; b"" when the server has closed the stream."""
        import aiohttp

        try:
            async with asyncio.timeout(self._idle_timeout_s):
                return await self._response.content.readany()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise NetworkError(f"the stream broke off: {_reason(error)}") from error


class Created(NamedTuple):
    """The outcome of a request that creates a run: the server's response, or the run's events at once."""

    body: bytes
    run_id: str = ""
    stream: EventStream | None = None
    """The stream of `run_id`; None if the response is `body`."""
    warnings: object = None
    """The warnings that came with the stream; `body` has its own."""


class Http:
    """One server, one workspace, one credential.

    `idle_timeout_s` is how long a stream may be silent: the server sends a heartbeat every 15 seconds, so a longer
    silence means a dead connection.
    """

    def __init__(
        self,
        *,
        base_url: str,
        workspace: str,
        credentials: Credentials,
        timeout_s: float = 60.0,
        idle_timeout_s: float = 60.0,
        retry: Retry | None = None,
        headers: Mapping[str, str] | None = None,
        trust_env: bool = False,
    ) -> None:
        self.base_url = base_url.rstrip("/")
        self.root = f"{self.base_url}/api/v1/workspaces/{quote(workspace, safe='')}"
        self.retry = retry or Retry()
        self._patient = retry is not None
        self._reached = False
        """Whether the server has ever answered."""
        self._credentials = credentials
        self._timeout_s = timeout_s
        self._idle_timeout_s = idle_timeout_s
        self._headers = {"User-Agent": USER_AGENT, **(headers or {})}
        self._trust_env = trust_env
        self._session: ClientSession | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closed = False

    async def call(
        self,
        method: str,
        path: str,
        *,
        body: bytes | None = None,
        query: Iterable[tuple[str, str]] = (),
        idempotency_key: str | None = None,
        retry: Retry | None = None,
        retried: frozenset[int] = RETRIED,
    ) -> bytes:
        """Sends a request and returns the body of a 2xx response.

        Raises:
            ApiError: for any other response, once the retries are used up.
            NetworkError: if there is none.
        """
        headers = _headers(body, idempotency_key)
        url = self._url(path, query)
        return await self._with_retries(
            lambda: self._once(method, url, headers, body),
            f"{method} {path}",
            policy=retry or self.retry,
            retried=retried,
        )

    async def create(self, path: str, body: bytes, *, idempotency_key: str) -> Created:
        """Creates a run and gets its events in the same response, if the server supports that.

        An older server responds with the run's id. Raises the same errors as `call`.
        """
        headers = {**_headers(body, idempotency_key), "Accept": "text/event-stream, application/json;q=0.9"}
        url = self._url(path, ())
        try:
            made = await self._with_retries(
                lambda: self._post_create(url, headers, body), f"POST {path}", policy=self.retry, retried=RETRIED
            )
        except ApiError as error:
            if error.status != 406:
                raise
            made = None
        # The idempotency key makes it safe to repeat a request whose response could not be read.
        return made or Created(await self.call("POST", path, body=body, idempotency_key=idempotency_key))

    async def _with_retries(
        self, attempt: Callable[[], Awaitable[T]], what: str, *, policy: Retry, retried: frozenset[int]
    ) -> T:
        failures = 0
        while True:
            try:
                return await attempt()
            except ApiError as error:
                if error.status not in retried or (error.retry_after_s or 0.0) > policy.patience_s:
                    raise
                failure: ApiError | NetworkError = error
            except NetworkError as error:
                failure = error
            failures += 1
            if failures > policy.attempts or self.is_lost(failure, failures):
                raise failure
            wait_s = policy.wait_s(failures, at_least_s=getattr(failure, "retry_after_s", None))
            logger.info("%s failed (%s); retrying in %.2f s", what, failure, wait_s)
            await asyncio.sleep(wait_s)

    def is_lost(self, failure: Exception, failures: int) -> bool:
        """Returns True if the client should give up on a server that never answered, unless the caller asked for more
        patience.
        """
        return isinstance(failure, Unreachable) and not (self._reached or self._patient) and failures >= _FIRST_TRIES

    @asynccontextmanager
    async def stream(self, path: str, *, last_seq: int) -> AsyncGenerator[EventStream]:
        """Opens an event stream that begins after `last_seq`."""
        await _loaded()
        import aiohttp

        headers = {"Accept": "text/event-stream", "Cache-Control": "no-cache", "Last-Event-ID": str(last_seq)}
        url = self._url(path, [("lastSeq", str(last_seq))])
        timeout = aiohttp.ClientTimeout(
            total=None, sock_connect=self._timeout_s, sock_read=self._idle_timeout_s, connect=self._timeout_s
        )
        response = await self._authorized("GET", url, headers, None, timeout)
        stream = EventStream(response, idle_timeout_s=self._idle_timeout_s)
        try:
            if response.status != 200:
                raise api_error(response.status, response.headers, await _body(response))
            yield stream
        finally:
            stream.close()

    async def close(self) -> None:
        self._closed = True
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def _once(self, method: str, url: str, headers: Mapping[str, str], body: bytes | None) -> bytes:
        await _loaded()
        import aiohttp

        timeout = aiohttp.ClientTimeout(total=self._timeout_s)
        response = await self._authorized(method, url, headers, body, timeout)
        async with response:
            content = await _body(response)
            if not 200 <= response.status < 300:
                raise api_error(response.status, response.headers, content)
            return content

    async def _post_create(self, url: str, headers: Mapping[str, str], body: bytes) -> Created | None:
        """Sends the request; returns None for a stream that does not name its run."""
        await _loaded()
        import aiohttp

        try:
            async with asyncio.timeout(self._timeout_s):
                # The time limit of a response is not that of its stream.
                response = await self._authorized("POST", url, headers, body, aiohttp.ClientTimeout(total=None))
                if response.status == 200 and response.content_type == "text/event-stream":
                    stream = EventStream(response, idle_timeout_s=self._idle_timeout_s)
                    run_id = response.headers.get("X-Run-Id", "")
                    if run_id:
                        return Created(b"", run_id, stream, _notices(response.headers.get("X-Warnings")))
                    stream.close()
                    return None
                async with response:
                    content = await _body(response)
                    if not 200 <= response.status < 300:
                        raise api_error(response.status, response.headers, content)
                    return Created(content)
        except TimeoutError as error:
            raise NetworkError(f"POST {url}: no response within {self._timeout_s:g} s") from error

    async def _authorized(
        self, method: str, url: str, headers: Mapping[str, str], body: bytes | None, timeout: object
    ) -> ClientResponse:
        """Returns the response's head. With a token source, a 401 leads to one refresh and one retry."""
        if self._closed:
            raise RuntimeError("this client is closed")
        secret = await self._credentials.secret()
        response = await self._send(method, url, headers, body, timeout, secret)
        if response.status != 401 or not self._credentials.renewable:
            return response
        response.close()
        secret = await self._credentials.replace_secret(secret)
        return await self._send(method, url, headers, body, timeout, secret)

    async def _send(
        self, method: str, url: str, headers: Mapping[str, str], body: bytes | None, timeout: object, secret: str
    ) -> ClientResponse:
        import aiohttp
        from yarl import URL

        assert isinstance(timeout, aiohttp.ClientTimeout)
        try:
            response = await self._opened().request(
                method,
                URL(url, encoded=True),
                data=_payload(body),
                headers={**self._headers, **headers, "Authorization": f"Bearer {secret}"},
                timeout=timeout,
                allow_redirects=False,
            )
        except aiohttp.ClientConnectorError as error:
            text = f"{method} {url.partition('?')[0]}: {_reason(error)}"
            hint = "" if self._reached else f"; is a server running at {self.base_url}?"
            raise Unreachable(text + hint) from error
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise NetworkError(f"{method} {url.partition('?')[0]}: {_reason(error)}") from error
        self._reached = True
        return response

    def _opened(self) -> ClientSession:
        import aiohttp

        loop = asyncio.get_running_loop()
        if self._session is None:
            # No limit on connections, as every followed run holds one, and the answers to its calls need another.
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, ttl_dns_cache=60),
                cookie_jar=aiohttp.DummyCookieJar(),
                trust_env=self._trust_env,
            )
            self._loop = loop
        elif self._loop is not loop:
            raise RuntimeError("an AsyncClient belongs to the event loop that it was first used on")
        return self._session

    def _url(self, path: str, query: Iterable[tuple[str, str]]) -> str:
        encoded = urlencode(list(query))
        return f"{self.root}{path}?{encoded}" if encoded else f"{self.root}{path}"


def _headers(body: bytes | None, idempotency_key: str | None) -> dict[str, str]:
    headers = {"Content-Type": "application/json"} if body is not None else {}
    if body is not None and (span := active_traceparent()) is not None:
        headers["traceparent"] = span  # so that a run created here belongs to it
    if idempotency_key is not None:
        headers["Idempotency-Key"] = idempotency_key
    return headers


async def exchange(
    method: str,
    url: str,
    *,
    headers: Mapping[str, str] | None = None,
    body: bytes | None = None,
    timeout_s: float = 60.0,
) -> Response:
    """Sends one request to another server, on its own connection, so that it works from any loop.

    Raises:
        NetworkError: if there is no response; every status is a response.
    """
    import aiohttp

    try:
        async with (
            aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar()) as session,
            session.request(
                method,
                url,
                data=body,
                headers={"User-Agent": USER_AGENT, **(headers or {})},
                timeout=aiohttp.ClientTimeout(total=timeout_s),
            ) as response,
        ):
            return Response(response.status, response.headers, await response.read())
    except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
        raise NetworkError(f"{method} {url.partition('?')[0]}: {_reason(error)}") from error


async def _loaded() -> None:
    """Imports the HTTP library in a thread the first time, as it takes a while and the loop is the caller's."""
    if "aiohttp" not in sys.modules:
        await asyncio.to_thread(import_module, "aiohttp")


def _payload(body: bytes | None) -> bytes | BytesIO | None:
    # aiohttp warns about long bytes, which it would write at once; a file is written in pieces.
    return BytesIO(body) if body is not None and len(body) > _LONG else body


async def _body(response: ClientResponse) -> bytes:
    import aiohttp

    try:
        return await response.read()
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        raise NetworkError(f"the response broke off: {_reason(error)}") from error


def _reason(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def _notices(header: str | None) -> object:
    try:
        return json.loads(header) if header else None
    except ValueError:
        return None  # from another server
