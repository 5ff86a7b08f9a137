"""The threads of an agent of a folder: what creating one needs, and its state for runs and other code."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from msgspec import Struct

from weftline.agent.context import Entered, RunInfo
from weftline.errors import InvalidRequest, NotFound
from weftline.runtime import ids
from weftline.runtime.engine import Engine
from weftline.store.records.threads import ThreadRow
from weftline.threads.definitions.agents import AgentDefinition
from weftline.threads.definitions.handlers import ToolDefinition
from weftline.threads.definitions.prompts import PromptDefinition, PromptToolConfig, VariableDefinition
from weftline.threads.env import Defaults, Env
from weftline.threads.hooks import CREATED, call_created, created_hooks
from weftline.threads.registry import Registry
from weftline.threads.speakers import Speaker
from weftline.threads.state import LiveThread
from weftline.workspace import threads
from weftline.workspace.context import Workspaces

logger = logging.getLogger(__name__)

BEGIN_S = 10.0
"""How long the request that creates a thread waits for its hooks."""


class Needed(Struct, frozen=True):
    """A required variable, where it is declared, and what gives it a value there."""

    name: str
    declared_by: str
    defaults: tuple[Defaults, ...]


class AgentThreads:
    """The threads of one agent. Calling it opens that of a run, for as long as the run is in memory."""

    def __init__(
        self, agent: AgentDefinition, speakers: Mapping[str, Speaker], registry: Registry, *, host: Any = None
    ) -> None:
        """`speakers` are those of its runs."""
        self._agent = agent
        self._speakers = speakers
        self._registry = registry
        self._host = host
        self._needed = tuple(needed_by(registry, agent))
        self._created = [hook for one in [*speakers.values()][:1] for hook in created_hooks(registry, one)]
        self._beginning: dict[int, asyncio.Task[None]] = {}
        """By thread: its hooks that are being called."""

    @asynccontextmanager
    async def __call__(
        self, at: Workspaces, engine: Engine, run: RunInfo, entered: Entered
    ) -> AsyncGenerator[LiveThread]:
        known = None if run.thread_id is None else ids.parse(run.thread_id, prefix="ses_")
        row = None if known is None else await threads.by_key_and_salt(at, *known)
        if row is None:
            raise NotFound("The run has no thread.")
        if self._created:
            await asyncio.shield(self._begun(at, engine, row))
        state = self._opened(at, engine, row, entered, flow_id=run.id)
        try:
            yield state
        finally:
            state.end()

    async def state(self, at: Workspaces, engine: Engine, row: ThreadRow) -> LiveThread:
        return self._opened(at, engine, row, Entered())

    def _opened(
        self, at: Workspaces, engine: Engine, row: ThreadRow, entered: Entered, *, flow_id: str = ""
    ) -> LiveThread:
        return LiveThread(
            at,
            row,
            self._registry,
            speakers=self._speakers,
            entered=entered,
            engine=engine,
            flow_id=flow_id,
            host=self._host,
        )

    async def check(self, at: Workspaces, workspace: int, *, user: str | None, env: Mapping[str, str]) -> None:
        """Raises `InvalidRequest` (`missing_variable`) that lists every required variable without a value."""
        missing: dict[str, list[str]] = {}
        open_ = [
            one for one in self._needed if one.name not in env and not any(one.name in has for has in one.defaults)
        ]
        if not open_:
            return
        stored = await Env.stored_names(at, workspace, user=user)
        for one in open_:
            if one.name not in stored:
                missing.setdefault(one.name, []).append(one.declared_by)
        if missing:
            listed = ", ".join([f"{name} ({' and '.join(by)})" for name, by in sorted(missing.items())])
            raise InvalidRequest(
                f"The agent {self._agent.name!r} needs variables that have no value: {listed}.",
                code="missing_variable",
                variables=sorted(missing),
            )

    async def begin(self, at: Workspaces, engine: Engine, row: ThreadRow) -> None:
        """Calls the hooks for a new thread, and waits for them for at most `BEGIN_S` seconds."""
        if self._created:
            await asyncio.wait({self._begun(at, engine, row)}, timeout=BEGIN_S)

    def _begun(self, at: Workspaces, engine: Engine, row: ThreadRow) -> asyncio.Task[None]:
        """The hooks for a new thread. After a crash the first run of the thread calls them again."""
        if row.key not in self._beginning:
            task = asyncio.create_task(self._call_created(at, engine, row), name=f"hooks of thread {row.uuid}")
            self._beginning[row.key] = task
            task.add_done_callback(partial(self._forget, row.key))
        return self._beginning[row.key]

    def _forget(self, thread: int, task: asyncio.Task[None]) -> None:
        self._beginning.pop(thread, None)
        if not task.cancelled() and task.exception() is not None:
            logger.error("the hooks of a new thread could not be called", exc_info=task.exception())

    async def _call_created(self, at: Workspaces, engine: Engine, row: ThreadRow) -> None:
        if await threads.is_marked(at, row, CREATED):
            return
        state = self._opened(at, engine, row, Entered())
        await call_created(self._created, state)
        state.end()
        await threads.set_mark(at, row, CREATED)


def needed_by(registry: Registry, agent: AgentDefinition) -> Iterator[Needed]:
    """Yields the required variables of everything that an agent can reach: prompts, tools, and other agents."""
    waiting: list[AgentDefinition] = [agent]
    agents: set[str] = set()
    while waiting:
        one = waiting.pop()
        if one.name in agents:
            continue
        agents.add(one.name)
        yield from _required(f'agent "{one.name}"', one.variables, (one.env,))
        prompts = [registry.prompt(side.prompt) for side in one.sides.values()]
        seen: set[str] = set()
        while prompts:
            prompt = prompts.pop()
            if prompt.name in seen:
                continue
            seen.add(prompt.name)
            yield from _required(f'prompt "{prompt.name}"', prompt.variables, (one.env, prompt.env))
            for entry in prompt.entries:
                found = registry.callable(entry)
                if isinstance(found, ToolDefinition):
                    own = entry.env if isinstance(entry, PromptToolConfig) else {}
                    yield from _required(f'tool "{found.name}"', found.variables, (one.env, own, prompt.env))
                elif isinstance(found, PromptDefinition):
                    prompts.append(found)
                elif found is not None:
                    waiting.append(found)


def _required(
    declared_by: str, variables: tuple[VariableDefinition, ...], defaults: tuple[Defaults, ...]
) -> Iterator[Needed]:
    for one in variables:
        if one.required:
            yield Needed(one.name, declared_by, defaults)
