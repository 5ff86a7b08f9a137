"""A session: runs that share one conversation."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from types import TracebackType
from typing import Protocol, Self, Unpack
from urllib.parse import quote

from weftline.client._options import MessageOptions
from weftline.client.events import ClientEvent
from weftline.client.http import Http
from weftline.client.results import ChatMessage, RunResult, SessionInfo, Totals
from weftline.client.run import AsyncRun
from weftline.client.tools import Toolset


class SessionClient(Protocol):
    """The client, as a session needs it."""

    http: Http

    async def get_session(self, session_id: str, *, with_calls: bool = False) -> SessionInfo: ...

    async def start_message(
        self,
        session_id: str,
        prompt: str | None,
        options: MessageOptions,
        *,
        tools: Toolset,
        sends_tools: bool,
        totals: Totals,
    ) -> AsyncRun: ...


class AsyncSession:
    """A conversation. Concurrent messages wait for each other, in the order of the calls.

        async with await client.create_session(system_prompt="Be brief.", tools=[weather]) as session:
            print((await session.send("How is the weather in Oslo?")).text)

    Leaving the context ends the session on the server; `close` leaves it there for `client.session(id)`.
    """

    def __init__(self, client: SessionClient, session_id: str, *, tools: Toolset, sends_tools: bool = False) -> None:
        self.id = session_id
        self.usage = Totals()
        self._client = client
        self._tools = tools
        self._sends_tools = sends_tools
        self._turn = asyncio.Lock()
        self._last: AsyncRun | None = None

    def __repr__(self) -> str:
        return f"<AsyncSession {self.id}>"

    async def send(self, prompt: str | None = None, **options: Unpack[MessageOptions]) -> RunResult:
        """Sends a message and waits for the answer. Options given here apply only to this message."""
        async with await self.start(prompt, **options) as run:
            return await run.result()

    async def stream(self, prompt: str | None = None, **options: Unpack[MessageOptions]) -> AsyncGenerator[ClientEvent]:
        """Sends a message and yields the events of its run."""
        async with await self.start(prompt, **options) as run:
            async for event in run.events():
                yield event

    async def start(self, prompt: str | None = None, **options: Unpack[MessageOptions]) -> AsyncRun:
        """Sends a message and returns the handle of its run, once the previous message is done."""
        async with self._turn:
            if self._last is not None:
                await self._last.ended()
            given = options.get("tools")
            tools = Toolset(given) if given else self._tools.borrowed()
            self._last = await self._client.start_message(
                self.id,
                prompt,
                options,
                tools=tools,
                sends_tools=bool(given) or self._sends_tools,
                totals=self.usage,
            )
            return self._last

    async def info(self, *, with_calls: bool = False) -> SessionInfo:
        """The session as the server has it. `with_calls` adds the calls of each run to its last answer."""
        return await self._client.get_session(self.id, with_calls=with_calls)

    async def history(self, *, with_calls: bool = False) -> tuple[ChatMessage, ...]:
        """The messages of the runs that succeeded, oldest first; `with_calls` as for `info`."""
        return (await self.info(with_calls=with_calls)).messages

    async def end(self) -> None:
        """Ends the session on the server, which cancels its unfinished runs."""
        try:
            await self._client.http.call("DELETE", f"/agent-sessions/{quote(self.id, safe='')}")
        finally:
            await self.close()

    async def close(self) -> None:
        """Releases the session's tools; the session itself stays."""
        await self._tools.release()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.end()
