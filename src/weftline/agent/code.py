"""An agent's own code in one run: its hooks, its deps, the type of its answer."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from typing import Any, Protocol

from msgspec.json import decode
from msgspec.structs import replace

from weftline import prompts
from weftline.agent import hooks as points
from weftline.agent.calling import HookFailed, Hooks
from weftline.agent.child_hooks import HEARD, ChildPoint, SpawnBefore, SpawnComplete, SpawnError, heard
from weftline.agent.context import RunContext, RunInfo
from weftline.agent.output import OutputType
from weftline.agent.pairs import repaired
from weftline.agent.subagents import Subagent
from weftline.canonical import NotCanonical, canonical_value
from weftline.kernel.entries import CallClosed, Fact, MessagesTaken, RunCreated, RunEnded, TurnCompleted
from weftline.messages import Assistant, Text, UserPart
from weftline.plan import RunPlan
from weftline.providers.base import ModelRequest, ProviderError
from weftline.runtime.children import as_result
from weftline.runtime.code import ChildEnd, ChildLimits, Gated, PendingCall
from weftline.tools.arguments import InvalidArguments
from weftline.tools.base import ReplacesContent, ToolContext, ToolOutput
from weftline.tools.results import output_bytes, output_of

logger = logging.getLogger(__name__)


class Planner(Protocol):
    """Makes the plan of a child of a run with the plan `parent`. Raises `WeftlineError` if there can be none."""

    async def __call__(
        self, parent: RunPlan, subagent: Subagent, task: str, /, *, system: str | None, limits: ChildLimits
    ) -> RunPlan: ...


class AgentCode:
    """Implements `weftline.runtime.code.RunCode`."""

    def __init__(
        self,
        info: RunInfo,
        *,
        hooks: Hooks,
        output: OutputType[Any] | None,
        instructions: Callable[[RunContext[Any]], str | Awaitable[str]] | None,
        deps: object,
        resources: AsyncExitStack,
        plan: RunPlan,
        problem: str = "",
        planner: Planner | None = None,
        above: tuple[AgentCode, ...] = (),
        on_left: Callable[[AgentCode], object] = lambda _: None,
    ) -> None:
        """`problem` is why the run cannot go on: what it needs could not be made."""
        self.info = info
        self.context = RunContext(info, deps)
        self.left = asyncio.Event()
        """Set when the run has left memory, or has ended and the last hook has returned."""
        self.above = above
        """The code of the runs above a child, the nearest first: they hear of what it does."""
        self._plan = plan
        self._planner = planner
        self._on_left = on_left
        self.quiet = asyncio.Event()
        """Set while no tool is at work; one that was cancelled may take a moment to end what it started."""
        self.quiet.set()
        self._under_way = 0
        self._hooks = hooks
        self._output = output
        self._instructions = instructions
        self._problem = problem
        self._resources = resources
        self._began = False
        self._open: dict[int, int] = {}
        """By turn: how many of its calls have no result yet."""
        self._ending = False

    @property
    def gates(self) -> bool:
        return any(self._wants(point) for point in (points.ToolGate, points.ToolUnknown, points.ArgumentsRejected))

    def _wants(self, point: type[points.Point]) -> bool:
        """Whether some hook is called at this point, also one of a run above."""
        if point in self._hooks:
            return True
        child = HEARD.get(point)
        return child is not None and any(child in code._hooks for code in self.above)

    async def render(self) -> str | None:
        if self._instructions is None or self._problem:
            return None
        try:
            rendered = self._instructions(self.context)
            return rendered if isinstance(rendered, str) else await rendered
        except Exception as error:
            logger.exception("run %s: its instructions could not be made", self.info.id)
            self._problem = f"The agent's instructions could not be made: {type(error).__name__}: {error}"
            return None

    def prepare_context(self, context: ToolContext) -> None:
        context.deps = self.context.deps

    # Requests

    async def shape(self, request: ModelRequest, *, turn: int, attempt: int) -> ModelRequest:
        if self._problem:
            raise ProviderError("invalid_request", self._problem, code="agent_error")
        try:
            return await self._shaped(request, turn, attempt)
        except HookFailed as failed:
            raise ProviderError("unknown", str(failed), retryable=False, code="hook_failed") from failed

    async def _shaped(self, request: ModelRequest, turn: int, attempt: int) -> ModelRequest:
        hooks, context = self._hooks, self.context
        if points.SystemRendered in hooks:
            rendered = points.SystemRendered(turn, request.system or "")
            await hooks.shape(rendered, context)
            request = replace(request, system=rendered.system or None)
        if points.RowsLoaded in hooks or points.ContextBuilt in hooks:
            loaded = points.RowsLoaded(turn, tuple(request.messages))
            await hooks.shape(loaded, context)
            built = points.ContextBuilt(turn, loaded.messages)
            await hooks.shape(built, context)
            # Not the run's own list any more, so what a provider keeps beside that one does not belong to it.
            request = replace(request, messages=repaired(built.messages), native=[])
        if points.BeforeModel in hooks:
            request = await self._with_settings(request, turn, attempt)
        return request

    async def _with_settings(self, request: ModelRequest, turn: int, attempt: int) -> ModelRequest:
        point = points.BeforeModel(
            turn,
            attempt,
            request.model,
            tuple(request.messages),
            request.system,
            request.reasoning,
            request.max_output_tokens,
            request.temperature,
            request.top_p,
            tuple(request.stop),
            tuple([tool.name for tool in request.tools]),
        )
        await self._hooks.shape(point, self.context)
        return replace(
            request,
            reasoning=point.reasoning,
            max_output_tokens=point.max_output_tokens,
            temperature=point.temperature,
            top_p=point.top_p,
            stop=tuple(point.stop),
            tools=[tool for tool in request.tools if tool.name in point.tools],
        )

    def streamed(self, kind: str, text: str, *, turn: int) -> None:
        kind_of_point = points.TextStreamed if kind == "text" else points.ThinkingStreamed
        if not self._wants(kind_of_point):
            return
        point = kind_of_point(turn, text)
        self._hooks.tell(point, self.context)
        if (told := self._heard(point)) is not None:
            for code in self.above:
                code._hooks.tell(told, code.context)

    def _heard(self, point: points.Point) -> ChildPoint | None:
        return heard(point, child_id=self.info.id, depth=self.info.depth) if self.above else None

    async def answered(self, turn: int, message: Assistant | None, error: ProviderError | None) -> None:
        if self._wants(points.AfterModel):
            await self._watched(points.AfterModel(turn, message, error))

    # Calls

    async def gate(self, call: PendingCall, context: ToolContext) -> Gated:
        try:
            return await self._gated(call)
        except HookFailed:
            return _blocked(call, prompts.gate_failed(call.name))

    async def _gated(self, call: PendingCall) -> Gated:
        asked = _object(call.args)
        gate = points.ToolGate(
            turn=call.turn,
            call_id=call.id,
            tool=call.name,
            args=asked,
            raw_args=call.raw_args,
            issues=call.problem,
            known=call.tool is not None,
            counts=dict(call.counts),
        )
        error = await self._hooks.gate(gate, self.context)
        if (child_gate := self._heard(gate)) is not None:
            for code in self.above:
                error = error or await code._hooks.gate(child_gate, code.context)
        if error is not None:
            return _blocked(call, prompts.gate_failed(call.name))
        if gate.blocked is not None:
            return _blocked(call, gate.blocked)
        if gate.answered is not None:
            output = output_of(gate.answered[0], tool_name=call.name)
            output = await self._finished(call, output)
            return Gated("answered", call.args, output.parts, output.is_error)
        if gate.args != asked:
            return await self._with_args(call, gate.args)
        if call.tool is None:
            unknown = points.ToolUnknown(call.turn, call.id, call.name, prompts.unknown_tool(call.name))
            await self._shaped_point(unknown)
            return Gated("unknown", call.args, (Text(str(unknown.result)),), is_error=True)
        if call.problem:
            await self._watched(points.ArgumentsRejected(call.turn, call.id, call.name, call.problem))
            return Gated("invalid", call.args, (Text(call.problem),), is_error=True)
        return Gated("ok", call.args)

    async def _with_args(self, call: PendingCall, args: object) -> Gated:
        """What a gate sets is checked like what a model writes."""
        if call.tool is None:
            return Gated("unknown", call.args, (Text(prompts.unknown_tool(call.name)),), is_error=True)
        try:
            final = await call.tool.prepare(canonical_value(args).decode())
        except (InvalidArguments, NotCanonical) as error:
            logger.error("run %s: a gate set arguments of %s that do not fit: %s", self.info.id, call.name, error)
            return _blocked(call, prompts.gate_failed(call.name))
        return Gated("ok", final)

    async def execute(
        self, call: PendingCall, context: ToolContext, invoke: Callable[[], Awaitable[ToolOutput]]
    ) -> ToolOutput:
        await self._before(call, context)
        raised: BaseException | None = None
        self._under_way += 1
        self.quiet.clear()
        try:
            output = await invoke()
        except Exception as error:
            logger.exception("run %s: the tool %s failed", self.info.id, call.name)
            raised, output = error, ToolOutput.of(prompts.tool_failed(call.name, str(error)), is_error=True)
        finally:
            self._under_way -= 1
            if not self._under_way:
                self.quiet.set()
        return await self._after(call, output, raised)

    async def _before(self, call: PendingCall, context: ToolContext) -> None:
        if self._wants(points.ToolBefore):
            prior = await call.tool.prior_content(call.args) if isinstance(call.tool, ReplacesContent) else None
            before = points.ToolBefore(call.turn, call.id, call.name, _object(call.args), context.attempt, prior)
            await self._watched(before)

    async def _after(self, call: PendingCall, output: ToolOutput, raised: BaseException | None) -> ToolOutput:
        if output.is_error and self._wants(points.ToolError):
            failed = points.ToolError(call.turn, call.id, call.name, output.parts, raised)
            await self._shaped_point(failed)
            await self._tell_above(failed)
            output = replace(output, parts=_parts(failed.result, call.name))
        kind = points.ToolAfterFailure if output.is_error else points.ToolAfterSuccess
        if kind in self._hooks:
            await self._watched(kind(call.turn, call.id, call.name, output.parts))
        return await self._finished(call, output)

    # Calls that are carried out by child runs

    async def plan_child(self, call: PendingCall, context: ToolContext, *, limits: ChildLimits) -> RunPlan:
        subagent = call.tool
        assert isinstance(subagent, Subagent) and self._planner is not None
        task, system = subagent.task(call.args)
        await self._before(call, context)
        if SpawnBefore in self._hooks:
            await self._watched(SpawnBefore(call.turn, call.id, call.name, task))
        return await self._planner(self._plan, subagent, task, system=system, limits=limits)

    async def finish_child(self, call: PendingCall, context: ToolContext, end: ChildEnd) -> ToolOutput:
        subagent = call.tool
        output = subagent.result(end) if isinstance(subagent, Subagent) else as_result(call.name, end)
        elapsed_ms = end.elapsed_us // 1000
        where = call.turn, call.id, call.name, end.run_id
        if end.status == "succeeded":
            if SpawnComplete in self._hooks:
                await self._watched(SpawnComplete(*where, end.text, end.turns, elapsed_ms, end.usage))
        elif SpawnError in self._hooks:
            code = end.code or end.status
            await self._watched(SpawnError(*where, end.error, code, end.turns, elapsed_ms, end.usage))
        return await self._after(call, output, None)

    async def _finished(self, call: PendingCall, output: ToolOutput) -> ToolOutput:
        """The last part of the way of every result, whoever gave it."""
        hooks = self._hooks
        if points.ToolTransform in hooks:
            size = output_bytes(output.parts)
            point = points.ToolTransform(call.turn, call.id, call.name, output.parts, output.is_error, size)
            await self._shaped_point(point)
            output = replace(output, parts=_parts(point.result, call.name), is_error=bool(point.is_error))
        if self._wants(points.ToolAfter):
            size = output_bytes(output.parts)
            await self._watched(
                points.ToolAfter(call.turn, call.id, call.name, output.parts, output.is_error, size, dict(call.counts))
            )
        return output

    # Answers and endings

    async def check_output(self, text: str) -> str:
        value: object = text
        if self._output is not None:
            try:
                value = self._output.parse(text)
            except ValueError as error:
                return prompts.answer_again(str(error))
        if points.OutputReady in self._hooks:
            ready: points.OutputReady[Any] = points.OutputReady(value, text)
            error = await self._hooks.gate(ready, self.context)
            if error is not None:
                return prompts.ANSWER_NOT_CHECKED
            return ready.rejected or ""
        return ""

    async def happened(self, facts: Sequence[Fact]) -> None:
        if not self._began:
            self._began = True
            resumed = not any(isinstance(fact, RunCreated) for fact in facts)
            if points.RunStarted in self._hooks:
                await self._watched(points.RunStarted(resumed))
        for fact in facts:
            match fact:
                case MessagesTaken() if points.MessagesTaken in self._hooks:
                    await self._watched(points.MessagesTaken(len(fact.ids)))
                case TurnCompleted():
                    self._open[fact.turn] = len(fact.calls)
                    if not fact.calls:
                        await self._turn_ended(fact.turn)
                case CallClosed() if fact.turn in self._open:
                    self._open[fact.turn] -= 1
                    if not self._open[fact.turn]:
                        if points.ResultsStored in self._hooks:
                            await self._watched(points.ResultsStored(fact.turn))
                        await self._turn_ended(fact.turn)
                case _:
                    pass

    async def _turn_ended(self, turn: int) -> None:
        self._open.pop(turn, None)
        if self._wants(points.TurnEnded):
            await self._watched(points.TurnEnded(turn))

    async def ended(self, fact: Fact) -> None:
        self._ending = True
        try:
            if isinstance(fact, RunEnded) and points.RunEnded in self._hooks:
                cost = None if fact.cost_nusd is None else fact.cost_nusd / 1_000_000_000
                await self._watched(points.RunEnded(fact.status, fact.code, fact.turns, fact.usage, cost))
        finally:
            await self._let_go()

    async def leave(self) -> None:
        if not self._ending:
            await self._let_go()

    async def _let_go(self) -> None:
        try:
            await self._resources.aclose()
        except Exception:
            logger.exception("run %s: the deps could not be closed", self.info.id)
        finally:
            self.left.set()
            self._on_left(self)

    async def _watched(self, point: points.Point) -> None:
        try:
            await self._hooks.watch(point, self.context)
        except HookFailed:
            logger.error("run %s: %s has no way to fail closed; the run goes on", self.info.id, point.name)
        await self._tell_above(point)

    async def _tell_above(self, point: points.Point) -> None:
        if (told := self._heard(point)) is None:
            return
        for code in self.above:
            try:
                await code._hooks.watch(told, code.context)
            except HookFailed:
                logger.error("run %s: %s has no way to fail closed; the run goes on", self.info.id, told.name)

    async def _shaped_point(self, point: points.Point) -> None:
        await self._hooks.shape(point, self.context)


def _blocked(call: PendingCall, reason: str) -> Gated:
    return Gated("blocked", call.args, (Text(prompts.blocked(reason)),), is_error=True)


def _object(args: bytes) -> dict[str, Any]:
    return decode(args, type=dict[str, Any]) if args else {}


def _parts(result: object, tool: str) -> tuple[UserPart, ...]:
    """What a hook left as a result: parts, or anything that a tool may return."""
    if isinstance(result, tuple):
        return result  # pyright: ignore[reportUnknownVariableType]
    return output_of(result, tool_name=tool).parts
