"""A conversation that runs of an engine share, by a name of the caller's."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, Protocol, TypeVar

from weftline.kernel.bodies import decode_message
from weftline.messages import Message
from weftline.runtime.engine import Engine
from weftline.store.base import IdempotencyKey
from weftline.workspace import threads
from weftline.workspace.context import Workspaces
from weftline.workspace.threads import ThreadDraft

T = TypeVar("T")


class Host(Protocol):
    """The engine of a thread, as far as the thread needs it."""

    async def runtime(self) -> Engine: ...

    async def at_home(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Carries out `work` on the loop that the engine lives on."""
        ...

    @property
    def workspaces(self) -> Workspaces: ...

    @property
    def workspace_key(self) -> int: ...


_DIGEST = b"library"


class Thread:
    """Made at first use. Runs of a thread are carried out one at a time, in order."""

    def __init__(self, engine: Host, name: str) -> None:
        self.name = name
        self._engine = engine

    def __repr__(self) -> str:
        return f"<Thread {self.name}>"

    async def messages(self) -> list[Message]:
        """What the runs that have succeeded left, oldest first."""
        return await self._engine.at_home(self._read)

    async def _read(self) -> list[Message]:
        host = await self._engine.runtime()
        return [decode_message(message) for message in await host.thread_messages(await self.key())]

    async def key(self) -> int:
        once = IdempotencyKey("library", f"library:{self.name}", _DIGEST)
        draft = ThreadDraft(name=self.name, agent=None, spec=b"{}")
        row = await threads.create(self._engine.workspaces, self._engine.workspace_key, draft, idempotency=once)
        return row.key
