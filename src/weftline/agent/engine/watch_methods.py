"""The engine's methods for watching runs: lists, open questions, unclaimed runs and all entries."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from msgspec.structs import replace

from weftline.agent.definition import Definition
from weftline.agent.engine.listing import (
    ListedRun,
    ListedThread,
    RunQuery,
    RunStatus,
    open_awaits,
    page_of_runs,
    page_of_threads,
    threads_filter,
    unclaimed_runs,
)
from weftline.agent.planning.sources import AgentTools
from weftline.agent.run import Run
from weftline.agent.running.asking import Await
from weftline.agent.threads import Thread
from weftline.events import AnyEvent
from weftline.kernel.entries import AwaitKind
from weftline.runtime.deploys import can_run_here
from weftline.runtime.engine import Observer
from weftline.workspace.context import Workspaces

if TYPE_CHECKING:
    from weftline.runtime.engine import Engine as Runtime

T = TypeVar("T")


class WatchMethods:
    """The methods of `Engine` for watching runs."""

    workspaces: Workspaces
    _workspace: int
    _tools: AgentTools

    if TYPE_CHECKING:

        async def _on_engine_loop(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T: ...
        async def runtime(self) -> Runtime: ...
        async def _locate(self, run_id: str) -> int: ...
        def attach(self, run_id: str, agent: Definition[Any, Any] | None = None) -> Run[Any]: ...

    async def runs(
        self,
        *,
        status: RunStatus | None = None,
        thread: str | None = None,
        children: bool = False,
        agent: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        id_prefix: str | None = None,
    ) -> AsyncGenerator[ListedRun]:
        """Yields the runs of the engine's workspace, ended or not, newest first: `async for run in engine.runs(): …`.

        All filters must match. `thread` is a name or an id; with `children`, the runs of its subagents are listed too.
        Runs are read a page at a time; those created in the meantime are left out.
        """
        query = RunQuery(
            status=status, thread=thread, children=children, agent=agent, metadata=metadata or {}, id_prefix=id_prefix
        )
        read = partial(page_of_runs, await self.runtime(), self.workspaces, self._workspace, query)
        before: int | None = None
        while True:
            page, before = await self._on_engine_loop(partial(read, before=before))
            for run in page:
                yield run
            if before is None:
                return

    async def threads(
        self, *, ended: bool | None = None, agent: str | None = None, metadata: Mapping[str, str] | None = None
    ) -> AsyncGenerator[ListedThread]:
        """Yields the threads of the engine's workspace, its clients' sessions included, newest first.

        All filters must match; `ended=False` leaves out those that accept no further runs.
        """
        find = partial(threads_filter, ended=ended, agent=agent, metadata=metadata or {})
        await self.runtime()  # it must be open
        wanted = await self._on_engine_loop(lambda: find(self.workspaces, self._workspace))
        before: int | None = wanted.limit
        while before is not None:
            page, before = await self._on_engine_loop(partial(page_of_threads, self.workspaces, wanted))
            for thread in page:
                yield thread
            wanted = replace(wanted, before=before)

    async def awaits(
        self,
        *,
        run_id: str | None = None,
        agent: str | None = None,
        kinds: Sequence[AwaitKind] = (),
    ) -> list[Await]:
        """Returns the open questions to people, of all runs in the engine's workspace or of some.

        `run_id` selects a run and all runs below it.
        """
        host = await self.runtime()
        root = None if run_id is None else await self._locate(run_id)
        found = await open_awaits(host, self._workspace, root=root, kinds=kinds)
        return [one for one in found if agent is None or one.agent == agent]

    async def unclaimed(self) -> list[str]:
        """Returns the unfinished runs whose agents are not registered here, newest first. They wait."""
        return await unclaimed_runs(
            await self.runtime(), self._workspace, knows=partial(can_run_here, tools=self._tools)
        )

    def _events_of(self, run_id: str) -> AsyncIterator[AnyEvent]:
        """Yields the events of a run, from the log and then live."""
        return self.attach(run_id).events()

    async def observe(self, observer: Observer) -> Callable[[], None]:
        """Calls `observer` with every entry of every run from now on, run by run in the order of the log.

        It gets batches of entries right after their commit, on the engine's loop, and must return at once. What it
        raises is logged and has no other effect. Returns a function that stops it.
        """

        async def begin() -> Callable[[], None]:
            return (await self.runtime()).observe(observer)

        return await self._on_engine_loop(begin)

    def thread(self, name: str) -> Thread:
        """Returns a conversation by its name."""
        return Thread(self, name)
