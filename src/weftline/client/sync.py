"""The parts of the blocking client that are written by hand; `make faces` writes `_sync.py`.

The asynchronous client runs on a loop in a background thread.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Generic, Protocol, TypeVar

from weftline.client.core import AsyncClient
from weftline.client.credentials import TokenCallable, TokenSource
from weftline.client.errors import from_here
from weftline.client.http import Retry
from weftline.client.oauth import AsyncOAuthClient
from weftline.client.results import Totals
from weftline.client.run import AsyncRun
from weftline.client.session import AsyncSession
from weftline.work.loop_thread import LoopThread

T = TypeVar("T")
CoreT = TypeVar("CoreT")


class Wait(Protocol):
    """Runs `work` on the loop of an async class and returns its result."""

    def __call__(self, work: Coroutine[Any, Any, T]) -> T: ...


class Face(Generic[CoreT]):
    # The docstring of a class with no base of its own by hand is that of its async class.

    def __init__(self, core: CoreT, wait: Wait) -> None:
        self._core = core
        self._wait = wait

    def __repr__(self) -> str:
        return repr(self._core).replace(type(self._core).__name__, type(self).__name__, 1)


class ClientFace:
    """A client of one workspace; see `AsyncClient` for the arguments.

    with Client(api_key="…", workspace="acme") as client:
        print(client.run("What is the weather in Oslo?", tools=[weather]).text)
    """

    def __init__(
        self,
        *,
        api_key: str | None = None,
        access_token: str | None = None,
        token_source: TokenSource | TokenCallable | None = None,
        workspace: str | None = None,
        base_url: str | None = None,
        timeout_s: float = 60.0,
        idle_timeout_s: float = 60.0,
        retry: Retry | None = None,
        max_tool_threads: int = 32,
        format_error: Callable[[Exception], str] | None = None,
        headers: Mapping[str, str] | None = None,
        trust_env: bool = False,
    ) -> None:
        self._core = AsyncClient(
            api_key=api_key,
            access_token=access_token,
            token_source=token_source,
            workspace=workspace,
            base_url=base_url,
            timeout_s=timeout_s,
            idle_timeout_s=idle_timeout_s,
            retry=retry,
            max_tool_threads=max_tool_threads,
            format_error=format_error,
            headers=headers,
            trust_env=trust_env,
        )
        self._thread = LoopThread("weftline-client")
        # A client that is never closed is closed when it is garbage-collected, or when the process ends.
        self._finalizer = weakref.finalize(self, _shut, self._core, self._thread)

    def __repr__(self) -> str:
        return repr(self._core).replace("AsyncClient", "Client", 1)

    @property
    def workspace(self) -> str:
        return self._core.workspace

    @property
    def usage(self) -> Totals:
        return self._core.usage

    def close(self) -> None:
        """Stops following all runs, without cancelling them, and closes the connections."""
        self._finalizer()

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        """Runs `work` on the client's loop."""
        with from_here():
            return self._thread.run(work)

    _wait = wait


class RunFace(Face[AsyncRun]):
    """A handle on one run; see `AsyncRun`."""

    @property
    def id(self) -> str:
        return self._core.id

    @property
    def session_id(self) -> str | None:
        return self._core.session_id

    @property
    def last_seq(self) -> int:
        return self._core.last_seq


class SessionFace(Face[AsyncSession]):
    """A session; see `AsyncSession`. It may be used from several threads: messages wait for each other."""

    @property
    def id(self) -> str:
        return self._core.id

    @property
    def usage(self) -> Totals:
        return self._core.usage


class OAuthFace(Face[AsyncOAuthClient]):
    """`AsyncOAuthClient` for synchronous code. Its token sources work with both `Client` and `AsyncClient`."""

    def __init__(
        self,
        *,
        client_id: str,
        client_secret: str,
        base_url: str | None = None,
        redirect_uri: str | None = None,
        timeout_s: float = 60.0,
    ) -> None:
        core = AsyncOAuthClient(
            client_id=client_id,
            client_secret=client_secret,
            base_url=base_url,
            redirect_uri=redirect_uri,
            timeout_s=timeout_s,
        )
        super().__init__(core, _now)


def _shut(core: AsyncClient, thread: LoopThread) -> None:
    if thread.started:
        thread.run(core.close())
    thread.stop()


def _now(work: Coroutine[Any, Any, T]) -> T:
    """Runs `work` on a loop of its own, as the caller's thread may already be running one."""
    thread = LoopThread("weftline-oauth")
    try:
        return thread.run(work)
    finally:
        thread.stop()
