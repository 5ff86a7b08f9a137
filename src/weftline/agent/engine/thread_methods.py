"""The engine's methods for threads of the agents of a folder."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from weftline.agent.planning.sources import AgentTools
from weftline.agent.threads import Thread
from weftline.errors import InvalidRequest, NotFound
from weftline.runtime import ids
from weftline.store.records.threads import ThreadRow
from weftline.store.rows import IdempotencyKey
from weftline.text.suggestions import did_you_mean
from weftline.workspace.context import Workspaces
from weftline.workspace.thread_starting import ThreadStart, start_thread
from weftline.workspace.threads import BY_NAME

if TYPE_CHECKING:
    from weftline.agent.definition import Definition
    from weftline.providers.catalog import Catalog

T = TypeVar("T")


class AgentFolder(Protocol):
    """A folder of agents, as `weftline.threads.load_project` returns it."""

    def agents(self, models: Catalog, /) -> Mapping[str, Definition[Any, Any]]: ...


class ThreadMethods:
    """The thread methods of `Engine`."""

    workspaces: Workspaces
    _workspace: int
    _tools: AgentTools

    if TYPE_CHECKING:

        async def _on_engine_loop(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T: ...
        def thread(self, name: str) -> Thread: ...

    async def create_thread(
        self,
        agent: str,
        *,
        user: str | None = None,
        env: Mapping[str, str] | None = None,
        values: Mapping[str, Any] | None = None,
        name: str = "",
        tags: Sequence[str] = (),
        key: str | None = None,
    ) -> Thread:
        """Creates a thread of an agent: `engine.start(engine.agents["triage"], "Hi.", thread=thread.name)`.

        Args:
            agent: The name of an agent that the engine knows.
            user: Whose account's variables it has.
            env: Variables, which are secrets.
            values: Values that its tools find.
            key: A thread that was created earlier under the same key is returned.

        Raises:
            InvalidRequest: (`missing_variable`) if the agent needs variables that nothing provides.
        """

        async def work() -> ThreadRow:
            found = self._tools.find(agent)
            if found is None:
                raise NotFound(f"There is no agent {agent!r} in this engine.{did_you_mean(agent, self._tools.agents)}")
            given = ThreadStart(
                agent=agent, name=name or agent, user=user, env=env or {}, values=values or {}, tags=tuple(tags)
            )
            once = None if key is None else IdempotencyKey("library", f"thread:{key}", BY_NAME)
            return await start_thread(
                self.workspaces,
                self._workspace,
                given,
                engine=self._tools.engine,
                rules=found.on_thread,
                once=once,
            )

        row = await self._on_engine_loop(work)
        return self.thread(ids.session_id(row.key, row.salt))

    async def _state_of(self, row: ThreadRow) -> Any:
        found = None if row.agent is None else self._tools.find(row.agent)
        if found is None or found.on_thread is None or self._tools.engine is None:
            raise InvalidRequest("Only threads of the agents of a folder have a state.")
        return await found.on_thread.state(self.workspaces, self._tools.engine, row)
