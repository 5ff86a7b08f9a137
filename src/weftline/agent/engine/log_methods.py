"""The engine's methods for logs, mostly of runs that have ended. Imported on first use."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from weftline.agent.definition import Definition
from weftline.agent.run import Run
from weftline.agent.settings import Limits, Settings
from weftline.providers.base import Provider
from weftline.store.base import Store
from weftline.store.rows import RunRow
from weftline.workspace.context import Workspaces

if TYPE_CHECKING:
    from weftline.agent.engine.forking import ForkChanges
    from weftline.agent.grants import Grant
    from weftline.replay.comparing import Compared
    from weftline.replay.forking import ForkPoint
    from weftline.replay.importing import Imported
    from weftline.replay.replaying import Replayed
    from weftline.runtime.engine import Engine as Runtime
    from weftline.runtime.reads.calls import LoggedCall

T = TypeVar("T")
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

        from weftline.agent.grants import to_grant

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
        from weftline.agent.engine.forking import ForkChanges
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
