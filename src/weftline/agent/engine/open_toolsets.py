"""The toolsets that an engine has opened: each once, those of an agent concurrently."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from time import monotonic
from typing import TypeAlias, TypeGuard

from msgspec.structs import replace

from weftline.agent.hooks import Point
from weftline.agent.hooks_outside import McpBootstrapEnd, McpBootstrapStart, McpConnect, McpError
from weftline.agent.subagents import Subagent
from weftline.runtime.agent_code.code import ChildEnd
from weftline.runtime.tool_calls.children import as_result
from weftline.tools.base import ServerToolset, Tool, ToolOutput, Toolset
from weftline.tools.function import FunctionTool
from weftline.work.outcomes import as_errors, attempt


class Sampler(Subagent):
    """Answers one request of a server, without tools and without the agent's instructions."""

    def __init__(self, server: str, *, taken: Collection[str] = ()) -> None:
        name = f"{server}__model"
        while name in taken:
            name += "_"

        def sample(task: str, system: str | None = None) -> str:
            raise NotImplementedError

        form = FunctionTool(sample, name=name, description=f"What {server} asks a model.", effect="idempotent")
        super().__init__(form, agent=None, only=frozenset())
        self.traits = replace(self.traits, hidden=True, bookkeeping=True)

    def result(self, end: ChildEnd) -> ToolOutput:
        return ToolOutput.of(end.text) if end.status == "succeeded" else as_result(self.name, end)


def with_model(server: ServerToolset, tools: Sequence[Tool]) -> Sequence[Tool]:
    """Returns the tools of a server, and a sampler if the server may use the model."""
    if not getattr(server, "samples", False):
        return tools
    sampler = Sampler(server.name, taken=[one.spec.name for one in tools])
    for one in tools:
        if hasattr(one, "model"):
            one.model = sampler.name  # type: ignore[attr-defined]
    return [*tools, sampler]


logger = logging.getLogger(__name__)

Notify: TypeAlias = Callable[[Point], Awaitable[None]]
"""Must not raise: the points it reports concern other runs too."""


async def _discard(point: Point) -> None:
    """For a toolset that is opened without a run."""


class _Opening:
    def __init__(self, toolset: Toolset, notify: Notify) -> None:
        self.toolset = toolset
        self.failed = False
        """Whether the server was unreachable, so that `tools` only stand in for its own."""
        self.tools = asyncio.create_task(self._open(notify), name="open a set of tools")

    @property
    def has_failed(self) -> bool:
        tools = self.tools
        return tools.done() and (self.failed or tools.cancelled() or tools.exception() is not None)

    async def _open(self, notify: Notify) -> Sequence[Tool]:
        toolset = self.toolset
        if is_server(toolset):
            return await self._server(toolset, notify)
        with as_errors():
            return await toolset.open()

    async def _server(self, server: ServerToolset, notify: Notify) -> Sequence[Tool]:
        started = monotonic()

        def elapsed_ms() -> int:
            return round((monotonic() - started) * 1000)

        await notify(McpBootstrapStart(server.name))
        try:
            with as_errors():
                tools = await server.open()
        except Exception as error:
            self.failed = True
            logger.warning("the MCP server %s is unavailable: %s", server.name, error)
            await notify(McpError(server.name, error))
            await notify(McpBootstrapEnd(server.name, elapsed_ms(), error=error))
            return server.stand_in(error)
        await notify(McpConnect(server.name))
        await notify(McpBootstrapEnd(server.name, elapsed_ms(), len([one for one in tools if not one.traits.hidden])))
        return with_model(server, tools)


class OpenToolsets:
    """Opens toolsets.

    Runs that need the same one wait for the same opening; after a failure, the next run tries again.
    """

    def __init__(self) -> None:
        self._openings: dict[int, _Opening] = {}

    def begin(self, toolsets: Iterable[Toolset], notify: Notify) -> list[asyncio.Task[Sequence[Tool]]]:
        """Starts to open all of them at once. Failures are raised when the tools are requested."""
        return [self._opening(one, notify, again=True).tools for one in toolsets]

    async def warm(self, toolsets: Iterable[Toolset], notify: Notify) -> None:
        """Opens all of them, and waits until they are open."""
        openings = self.begin(toolsets, notify)
        if openings:
            await asyncio.wait(openings)

    async def tools(self, toolset: Toolset) -> Sequence[Tool]:
        opening = self._opening(toolset, _discard)
        try:
            # Shielded: if one waiting run is cancelled, the others still get the tools.
            return await asyncio.shield(opening.tools)
        except Exception:
            if self._openings.get(id(toolset)) is opening:
                del self._openings[id(toolset)]
            raise

    async def close(self) -> None:
        openings, self._openings = list(self._openings.values()), {}
        await self._end(openings)

    async def drop(self, toolsets: Iterable[Toolset]) -> None:
        """Closes those that are open."""
        await self._end([one for toolset in toolsets if (one := self._openings.pop(id(toolset), None)) is not None])

    async def _end(self, openings: Sequence[_Opening]) -> None:
        for one in openings:
            one.tools.cancel()
        if openings:
            await asyncio.wait([one.tools for one in openings])
        await asyncio.gather(*[_close_opening(one) for one in openings])

    def _opening(self, toolset: Toolset, notify: Notify, *, again: bool = False) -> _Opening:
        opening = self._openings.get(id(toolset))
        if opening is None or (again and opening.has_failed):
            opening = self._openings[id(toolset)] = _Opening(toolset, notify)
        return opening


def is_server(toolset: Toolset) -> TypeGuard[ServerToolset]:
    return hasattr(toolset, "stand_in")


async def _close_opening(one: _Opening) -> None:
    if one.failed or one.tools.cancelled() or one.tools.exception() is not None:
        return  # nothing was opened
    with attempt(logger, "a set of tools could not be closed"):
        await one.toolset.close()
