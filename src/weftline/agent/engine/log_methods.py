"""The engine's methods for logs, mostly of runs that have ended. Imported on first use."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from weftline.agent.behavior import Behavior, resolved
from weftline.agent.definition import Definition
from weftline.agent.engine.logs import (
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
from weftline.agent.settings import Limits, Settings
from weftline.agent.threads import Thread
from weftline.events import AnyEvent
from weftline.kernel.entries import AwaitKind
from weftline.messages import Sampling
from weftline.plan import RunPlan
from weftline.providers.base import Provider
from weftline.runtime.deploys import can_run_here
from weftline.runtime.engine import Observer
from weftline.store.base import Store
from weftline.store.records.threads import ThreadRow
from weftline.store.rows import RunRow
from weftline.workspace.context import Workspaces

if TYPE_CHECKING:
    from weftline.agent.records import Grant
    from weftline.replay.comparing import Compared
    from weftline.replay.forking import ForkPoint
    from weftline.replay.importing import Imported
    from weftline.replay.replaying import Replayed
    from weftline.runtime.engine import Engine as Runtime
    from weftline.runtime.reads.calls import LoggedCall


class ForkChanges(Struct, frozen=True, kw_only=True):
    """Fields that are None stay as they were."""

    message: str | None = None
    """What the model reads before the turn."""
    model: str | Provider | None = None
    instructions: str | None = None
    settings: Settings | None = None
    limits: Limits | None = None

    def applied(self, plan: RunPlan, agent: Definition[Any, Any] | None) -> RunPlan:
        if self.instructions is not None:
            plan = replace(plan, system=self.instructions)
        if self.settings is not None:
            given = self.settings
            level = plan.reasoning if given.level is None else given.level
            plan = replace(plan, reasoning=level, sampling=_over(plan, given))
        if self.limits is not None:
            was = plan.limits
            behavior = resolved(
                Behavior.from_stored(plan.behavior), agent.behavior if agent is not None else Behavior()
            )
            limits = self.limits.stored(
                behavior, fallbacks=was.fallbacks, check_output=was.check_output, await_gate=was.await_gate
            )
            plan = replace(plan, limits=limits)
        return plan


def _over(plan: RunPlan, given: Settings) -> Sampling:
    was = plan.sampling
    below = Settings(
        temperature=was.temperature, top_p=was.top_p, stop=was.stop, max_output_tokens=was.max_output_tokens
    )
    return given.over(below).sampling


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

    if TYPE_CHECKING:

        async def _state_of(self, row: ThreadRow) -> Any: ...

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


_PAGE = 200


class LogMethods:
    """The methods of `Engine` for logs and ended runs."""

    store: Store
    workspaces: Workspaces
    _workspace: int

    if TYPE_CHECKING:

        @property
        def agents(self) -> dict[str, Definition[Any, Any]]: ...
        async def _on_engine_loop(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T: ...
        async def runtime(self) -> Runtime: ...
        def attach(self, run_id: str, agent: Definition[Any, Any] | None = None) -> Run[Any]: ...
        async def _begin_fork(
            self, point: ForkPoint, agent: Definition[Any, Any] | None, changes: ForkChanges
        ) -> tuple[str, Definition[Any, Any] | None]: ...

    async def _found(self, run_id: str) -> RunRow:
        from weftline.replay.refusing import find_run

        return await find_run(self.store.log, run_id, workspace=self._workspace)

    async def calls(self, run_id: str) -> list[LoggedCall]:
        """Returns the calls of a run, ended or not, with their idempotency keys, times and states."""

        async def work() -> list[LoggedCall]:
            return await (await self.runtime()).stored.calls(await self._found(run_id))

        return await self._on_engine_loop(work)

    async def grants(self, run_id: str) -> list[Grant]:
        """Returns the approvals of a run, ended or not.

        Each has the arguments, who approved them and when, and the calls that used it.
        """

        from weftline.agent.records import to_grant

        async def work() -> list[Grant]:
            return [to_grant(one) for one in await (await self.runtime()).stored.grants(await self._found(run_id))]

        return await self._on_engine_loop(work)

    async def calls_in_doubt(self) -> list[LoggedCall]:
        """Returns the calls of all runs that may or may not have happened, the newest run first."""

        async def work() -> list[LoggedCall]:
            host, found, before = await self.runtime(), list[LoggedCall](), None
            while True:
                page = await host.stored.calls_in_doubt(self._workspace, before=before, limit=_PAGE)
                found, before = [*found, *page.calls], page.before
                if before is None:
                    return found

        return await self._on_engine_loop(work)

    async def export(self, run_id: str, path: str | Path, *, force: bool = False) -> Path:
        """Writes a run that has ended, and the runs below it, to a file of JSON lines.

        Raises `Conflict` if the file exists, unless `force` is set.
        """
        from weftline.replay.exporting import export_lines, write_file

        async def work() -> Path:
            return await write_file(export_lines(self.store.log, await self._found(run_id)), Path(path), force=force)

        return await self._on_engine_loop(work)

    async def export_thread(self, name: str, path: str | Path, *, force: bool = False) -> Path:
        """Writes a thread to a file of JSON lines: its messages and all of its runs, which must have ended.

        Raises `NotFound` for an unknown thread, and `Conflict` if the file exists, unless `force` is set.
        """
        from weftline.replay.exporting import export_thread_lines, write_file
        from weftline.workspace import threads

        async def work() -> Path:
            thread = await threads.named(self.workspaces, self._workspace, name)
            lines = export_thread_lines(self.store.log, self.store.records, thread, by_name=True)
            return await write_file(lines, Path(path), force=force)

        return await self._on_engine_loop(work)

    async def import_runs(self, path: str | Path) -> Imported:
        """Imports the runs of an exported file. They can be read but not continued; an imported thread can be
        continued.

        Raises `InvalidRequest` (`bad_export`) for a damaged file, and `Conflict` (`import_conflict`) for ids that are
        taken.
        """
        from weftline.api.thread_imports import import_export
        from weftline.replay.reading import read_export

        async def work() -> Imported:
            found = await asyncio.to_thread(read_export, Path(path))
            host = await self.runtime()
            return await import_export(self.store.log, host, self.workspaces, found, workspace=self._workspace)

        return await self._on_engine_loop(work)

    async def replay(self, run_id: str, *, agents: Sequence[Definition[Any, Any]] | None = None) -> Replayed:
        """Replays a run that has ended: models, tools and people answer from its log.

        The outcome is compared with the log: `divergence` has the first difference. The agents are the engine's, unless
        others are given.
        """
        from weftline.agent.engine.replaying import replay_stored

        given = list(self.agents.values()) if agents is None else agents
        key = self._workspace
        return await self._on_engine_loop(lambda: replay_stored(self.store.log, run_id, workspace=key, agents=given))

    async def fork(
        self,
        run_id: str,
        agent: Definition[Any, Any] | None = None,
        *,
        turn: int,
        message: str | None = None,
        model: str | Provider | None = None,
        instructions: str | None = None,
        settings: Settings | None = None,
        limits: Limits | None = None,
    ) -> Run[Any]:
        """Continues from a turn of a run that has ended, counted from 0, as a new run.

        The new run begins with the turns before it, without repeating them. Options that are not given stay as they
        were. The agent is the engine's agent of that name, unless one is given. Raises `InvalidRequest` for a turn that
        the run did not have.
        """
        from weftline.replay.forking import fork_point

        changes = ForkChanges(message=message, model=model, instructions=instructions, settings=settings, limits=limits)

        async def work() -> Run[Any]:
            point = await fork_point(self.store.log, await self._found(run_id), turn=turn)
            return self.attach(*await self._begin_fork(point, agent, changes))

        return await self._on_engine_loop(work)

    async def compare(self, first: str, second: str) -> Compared:
        """Compares two runs that have ended, such as a run and its fork."""
        from weftline.replay.comparing import compare_runs

        async def work() -> Compared:
            return await compare_runs(self.store.log, await self._found(first), await self._found(second))

        return await self._on_engine_loop(work)
