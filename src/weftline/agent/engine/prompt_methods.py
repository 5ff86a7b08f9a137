"""The engine's methods for the prompts of its agents."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from weftline.agent.planning.sources import AgentTools
from weftline.agent.prompting import PromptOverride, checked_override
from weftline.agent.threads import Thread
from weftline.runtime import ids
from weftline.workspace.context import Workspaces

if TYPE_CHECKING:
    from weftline.runtime.engine import Engine as Runtime

T = TypeVar("T")


class PromptMethods:
    """The prompt methods of `Engine`."""

    workspaces: Workspaces
    _workspace: int
    _tools: AgentTools

    if TYPE_CHECKING:

        async def _on_engine_loop(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T: ...
        async def runtime(self) -> Runtime: ...
        def thread(self, name: str) -> Thread: ...

    async def override_prompt(
        self,
        prompt_id: str,
        template: str,
        *,
        thread: str | None = None,
        labels: Mapping[str, str] | None = None,
        version: str = "",
        by: str = "",
    ) -> PromptOverride:
        """Overrides a prompt from its next rendering on, also in runs that have begun.

        The override applies to runs of a `thread`, given by name or id, and to runs with all of these `labels`; without
        either, to all runs. If several match a run, the one for its thread wins, then the one with the most labels,
        then the newest. Raises `InvalidRequest` for an invalid template.
        """

        async def work() -> PromptOverride:
            at = self.workspaces
            scope = None if thread is None else await self._thread_id(thread)
            one = checked_override(
                prompt_id, template, thread=scope, labels=labels, version=version, by=by, at=at.clock.now_us()
            )
            await self._tools.overrides.add(at, self._workspace, one)
            return one

        return await self._on_engine_loop(work)

    async def prompt_overrides(self, prompt_id: str | None = None) -> list[PromptOverride]:
        """Returns all overrides ever set, for one prompt or for all, newest first."""

        async def work() -> list[PromptOverride]:
            known = await self._tools.overrides.of(self.workspaces, self._workspace)
            return [one for one in known if prompt_id in (None, one.prompt_id)]

        return await self._on_engine_loop(work)

    async def _thread_id(self, thread: str) -> str:
        if ids.parse(thread, prefix="ses_") is not None:
            return thread
        host = await self.runtime()
        return await host.stored.session_id(await self.thread(thread).key()) or thread
