"""What an agent needs from outside while it runs: its toolsets, each opened once, and the deps of each run."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from time import monotonic
from typing import Any, TypeAlias, TypeGuard

from msgspec.structs import replace

from weftline.agent import argument_checks
from weftline.agent.hooks import Point
from weftline.agent.hooks_outside import McpBootstrapEnd, McpBootstrapStart, McpConnect, McpError
from weftline.agent.results import RunCancelled, RunError, RunResult, failure
from weftline.agent.subagents import Subagent
from weftline.kernel.bodies import decode_ended
from weftline.kernel.entries import RunEnded
from weftline.runtime.agent_code.code import ChildEnd
from weftline.runtime.tool_calls.children import as_result
from weftline.tools.base import ServerToolset, Tool, ToolOutput, Toolset
from weftline.tools.function import FunctionTool
from weftline.work.outcomes import as_errors, attempt

logger = logging.getLogger(__name__)

LEAVE_S = 5.0
"""How long a result, or the closing of an engine, waits for deps and for the last hooks of a run."""


class OwnedDeps:
    """The deps that an agent's factory created for one run, for as long as the run is in memory."""

    def __init__(self, run_id: str) -> None:
        loop = asyncio.get_running_loop()
        self._run_id = run_id
        self._entered: asyncio.Future[object] = loop.create_future()
        self._over = asyncio.Event()
        self._error: BaseException | None = None
        self._task: asyncio.Task[None] | None = None
        self.lost: BaseException | None = None
        """Why the deps ended while the run still needed them."""

    async def enter(self, make: Callable[[], AbstractAsyncContextManager[Any]]) -> object:
        """Enters the factory's context manager and returns its value. Raises what the factory raises."""
        task = self._task = asyncio.create_task(self._own(make), name=f"deps of {self._run_id}")
        try:
            return await asyncio.shield(self._entered)
        except asyncio.CancelledError:
            # The caller is gone: the task that began to enter them also undoes it.
            self.leave()
            if not self._entered.done():
                task.cancel()
            await asyncio.wait({task}, timeout=LEAVE_S)
            raise

    @property
    def is_leaving(self) -> bool:
        return self._over.is_set()

    def leave(self, error: BaseException | None = None) -> None:
        """Starts to exit the deps, with the error that the run ended with. Returns at once; see `left`."""
        if not self._over.is_set():
            self._error = error
            self._over.set()

    async def left(self) -> None:
        if self._task is not None:
            await asyncio.wait({self._task})

    def abandon(self) -> None:
        """Cancels deps that do not exit in time."""
        if self._task is not None and not self._task.done():
            logger.warning("run %s: its deps did not close in time and are interrupted", self._run_id)
            self._task.cancel()

    async def _own(self, make: Callable[[], AbstractAsyncContextManager[Any]]) -> None:
        try:
            made = make()
            argument_checks.check_deps(made)
            async with made as deps:
                self._entered.set_result(deps)
                await self._over.wait()
                if self._error is not None:
                    raise self._error
        except BaseException as error:
            if not self._entered.done():
                self._failed(error)
            elif error is not self._error and not isinstance(error, asyncio.CancelledError):
                self._exit_failed(error)
        if not self._over.is_set() and self.lost is None and self._entered.done():
            self.lost = RuntimeError("they were closed before the run had ended")

    def _failed(self, error: BaseException) -> None:
        if isinstance(error, asyncio.CancelledError) and self._over.is_set():
            self._entered.cancel()
            return
        self._entered.set_exception(error if isinstance(error, Exception) else RuntimeError(f"it raised {error!r}"))
        self._entered.exception()  # retrieved, as the caller may be gone

    def _exit_failed(self, error: BaseException) -> None:
        if self._over.is_set():
            logger.error("run %s: the deps could not be closed", self._run_id, exc_info=error)
        else:
            self.lost = error
            logger.error("run %s: the deps failed while they were in use", self._run_id, exc_info=error)


class Teardown:
    """The end of one run's stay. It has a task of its own, which continues when the runtime stops."""

    def __init__(self, run_id: str, deps: OwnedDeps | None, on_left: Callable[[], object]) -> None:
        self.left = asyncio.Event()
        """Set when the last hook has returned and the deps are exited."""
        self._run_id = run_id
        self._deps = deps
        self._on_left = on_left
        self._settled_by: float | None = None
        self._late = False
        self._task: asyncio.Task[None] | None = None
        self.begun = False

    def begin(self, last: Coroutine[Any, Any, None] | None = None, error: BaseException | None = None) -> None:
        """Starts to run `last` and then exits the deps with `error`. Returns at once."""
        self.begun = True
        if last is None and self._deps is None:
            self.left.set()
            self._on_left()
            return
        self._settled_by = asyncio.get_running_loop().time() + LEAVE_S
        self._task = asyncio.create_task(self._run(last, error), name=f"end of {self._run_id}")

    async def settled(self) -> None:
        """Waits until the run has left memory, or until that takes too long."""
        if self.left.is_set():
            return
        by = self._settled_by or asyncio.get_running_loop().time() + LEAVE_S
        try:
            async with asyncio.timeout_at(by):
                await self.left.wait()
        except TimeoutError:
            if not self._late:
                self._late = True
                logger.warning("run %s: its last hooks or its deps hang and are abandoned", self._run_id)

    def abandon(self) -> None:
        """Cancels what does not finish: the last hooks, or else the deps."""
        if self._deps is not None and self._deps.is_leaving:
            self._deps.abandon()
        elif self._task is not None:
            self._task.cancel()

    async def _run(self, last: Coroutine[Any, Any, None] | None, error: BaseException | None) -> None:
        try:
            if last is not None:
                with attempt(logger, "run %s: its observers could not be notified of its end", self._run_id):
                    await last
        finally:
            try:
                if self._deps is not None:
                    self._deps.leave(error)
                    await self._deps.left()
            finally:
                self.left.set()
                self._on_left()


def error_of(run_id: str, fact: RunEnded, body: bytes) -> RunError | None:
    """Returns the error of a run that did not succeed, from its last entry."""
    if fact.status == "succeeded":
        return None
    ended = decode_ended(body)
    result: RunResult[Any] = RunResult(
        run_id=run_id,
        status=fact.status,
        text=ended.text or ended.partial_text or "",
        usage=fact.usage,
        turns=fact.turns,
        attempts=fact.attempts,
        error=ended.error,
        code=fact.code,
        reason=fact.reason,
    )
    return RunCancelled(result) if fact.status == "cancelled" else failure(result)


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
        if hasattr(one, "ask_through"):
            one.ask_through(model=sampler.name)  # type: ignore[attr-defined]
    return [*tools, sampler]


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
