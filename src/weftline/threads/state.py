"""The `ThreadState` of tools and hooks: one thread, for as long as a call, hook or run lasts."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from copy import copy
from typing import Any

from weftline.errors import Conflict
from weftline.store.records.threads import ThreadRow
from weftline.threads.definitions.agents import AgentDefinition
from weftline.threads.definitions.models import ModelDefinition
from weftline.threads.definitions.prompts import PromptDefinition
from weftline.threads.env import Defaults, Env
from weftline.threads.registry import Registry
from weftline.threads.thread import EnvType, ExecutionState, SubagentRegistryEntry
from weftline.workspace.context import Workspaces
from weftline.workspace.thread_state import set_thread_env, set_value, value_of


class LiveThread:
    """A thread. Once its scope is over, every method raises `Conflict` (`scope_ended`)."""

    def __init__(
        self,
        at: Workspaces,
        row: ThreadRow,
        registry: Registry,
        *,
        agent: AgentDefinition,
        env: Env,
        host: Any = None,
    ) -> None:
        self._at = at
        self._row = row
        self._registry = registry
        self._agent = agent
        self._env = env
        self._host = host
        self.loop = asyncio.get_running_loop()
        self._context: dict[str, Any] = {}
        self._key = ""
        self._over = False
        self.options: Mapping[str, Any] = {}
        """The static options of a tool's entry in its prompt."""

    # Scopes

    @contextmanager
    def during(
        self, key: str, *, env: Defaults | None = None, options: Mapping[str, Any] | None = None
    ) -> Generator[LiveThread]:
        """The thread for one call or handler. `key` is the same for each attempt at it."""
        state = copy(self)
        state._key, state.options = key, options or {}
        state._env = self._env.with_entry(env or {})
        try:
            yield state
        finally:
            state._over = True

    def end(self) -> None:
        self._over = True

    def _open(self) -> None:
        if self._over:
            raise Conflict("The call that this state was for is over.", code="scope_ended")

    # Identity

    @property
    def thread_id(self) -> str:
        return self._row.uuid

    @property
    def agent_id(self) -> str:
        return self._row.seat_agent or self._agent.name

    @property
    def user_id(self) -> str | None:
        return self._row.user

    @property
    def created_at(self) -> int:
        return self._row.created_at

    @property
    def terminated(self) -> int | None:
        return self._row.ended_at

    @property
    def children(self) -> tuple[SubagentRegistryEntry, ...]:
        return ()

    @property
    def context(self) -> dict[str, Any]:
        return self._context

    @property
    def execution(self) -> ExecutionState | None:
        return None

    @property
    def idempotency_key(self) -> str:
        return self._key

    @property
    def host(self) -> Any:
        return self._host

    # Definitions

    def get_model_names(self) -> list[str]:
        return list(self._registry.models)

    def get_prompt_names(self) -> list[str]:
        return list(self._registry.prompts)

    def get_agent_names(self) -> list[str]:
        return list(self._registry.agents)

    async def load_model(self, name: str, /) -> ModelDefinition:
        return self._registry.model(name)

    async def load_prompt(self, name: str, /) -> PromptDefinition:
        return self._registry.prompt(name)

    async def load_agent(self, name: str, /) -> AgentDefinition:
        return self._registry.agent(name)

    # Variables and values

    @property
    def variables(self) -> Env:
        return self._env

    async def env(self, name: str, /) -> str:
        self._open()
        return await self._env.get(name)

    async def env_type(self, name: str, /) -> EnvType:
        self._open()
        return await self._env.type_of(name)

    async def set_env(self, name: str, value: str, /, *, type: EnvType | None = None) -> None:
        self._open()
        await set_thread_env(self._at, self._row, name, value, type=type)

    async def get_value(self, key: str, /) -> Any:
        self._open()
        return await value_of(self._at, self._row.key, key)

    async def set_value(self, key: str, value: Any, /) -> None:
        self._open()
        await set_value(self._at, self._row.key, key, value)


class BlockingThread:
    """The same thread for a plain function: each method blocks the function's own thread until it is done."""

    def __init__(self, state: LiveThread) -> None:
        self._state = state

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._state, name)
        if not inspect.iscoroutinefunction(value):
            return value

        def blocking(*args: Any, **options: Any) -> Any:
            return asyncio.run_coroutine_threadsafe(value(*args, **options), self._state.loop).result()

        return blocking
