"""An agent's own code in one run: its hooks, its deps, the type of its answer."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping, MutableMapping, Sequence
from contextlib import AsyncExitStack
from typing import Any, Protocol

from msgspec.json import decode
from msgspec.structs import replace

from weftline import prompts, prompts_behavior
from weftline.agent import hooks as points
from weftline.agent.above import Above, Listener
from weftline.agent.calling import HookFailed, Hooks
from weftline.agent.context import RunContext, RunInfo
from weftline.agent.frame import Frame
from weftline.agent.gates import Verdict
from weftline.agent.hooks_outside import SpawnBefore, SpawnComplete, SpawnError
from weftline.agent.mcp_calls import around, server_of
from weftline.agent.output import OutputType
from weftline.agent.persisting import LargeResults
from weftline.agent.shaping import RequestShaper
from weftline.agent.skills.activation import USE
from weftline.agent.subagents import Subagent
from weftline.canonical import NotCanonical, canonical_value
from weftline.kernel.entries import (
    AttemptFailed,
    AttemptStarted,
    BudgetExceeded,
    CallClosed,
    Fact,
    MessagesTaken,
    ResultsOverBudget,
    RunEnded,
    TurnCompleted,
)
from weftline.messages import Assistant, Message, Text, UserPart, joined_text
from weftline.plan import RunPlan
from weftline.providers.base import ModelRequest, ProviderError
from weftline.runtime.children import as_result
from weftline.runtime.code import ChildEnd, ChildLimits, Gated, PendingCall
from weftline.tools.arguments import InvalidArguments, object_args
from weftline.tools.base import ReplacesContent, Tool, ToolContext, ToolOutput
from weftline.tools.coercion import coerced, coercions
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
        owner: object = None,
        frame: Frame | None = None,
        output: OutputType[Any] | None,
        instructions: Callable[[RunContext[Any]], str | Awaitable[str]] | None,
        deps: object,
        resources: AsyncExitStack,
        plan: RunPlan | None = None,
        problem: str = "",
        planner: Planner | None = None,
        above: Above | None = None,
        on_left: Callable[[AgentCode], object] = lambda _: None,
    ) -> None:
        """`problem` is why the run cannot go on: what it needs could not be made."""
        self.info = info
        self.context = RunContext(info, deps)
        self.left = asyncio.Event()
        """Set when the run has left memory, or has ended and the last hook has returned."""
        self.above = above or Above()
        """The runs above a child, which hear of what it does."""
        self._plan = plan
        self._planner = planner
        self._on_left = on_left
        self.owner = owner
        """The agent."""
        self.quiet = asyncio.Event()
        """Set while no tool is at work; one that was cancelled may take a moment to end what it started."""
        self.quiet.set()
        self._under_way = 0
        self._hooks = hooks
        self._frame = frame or Frame()
        self._shaper = RequestShaper(self._frame, hooks, self.context)
        self._large = LargeResults(self._frame.behavior, run_id=info.id, keep=frozenset({USE}))
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
        asked = (points.ToolGate, points.ToolUnknown, points.ToolError, points.ArgumentsRejected)
        return bool(self._frame.gates) or any(self._wants(point) for point in asked)

    def _wants(self, point: type[points.Point]) -> bool:
        """Whether some hook is called at this point, also one of a run above."""
        return point in self._hooks or self.above.wants(point)

    @property
    def listeners(self) -> tuple[Listener, ...]:
        """Who hears of what the children of this run do."""
        return ((self._hooks, self.context), *self.above.listeners)

    @property
    def sequential(self) -> bool:
        return self._frame.behavior.tool_execution == "sequential"

    async def render(
        self, system: str | None, *, memory: MutableMapping[str, Any], messages: Sequence[Message]
    ) -> str | None:
        if self._problem:
            return None
        try:
            parts = [system or "" if self._instructions is None else await self._instructed(self._instructions)]
            for one in self._frame.skills:
                activated = await one.begin_run(memory, run_id=self.info.id, resume_from=messages)
                parts += [one.instructions, activated]
            parts.append(self._frame.disclosure.catalog)
        except Exception as error:
            logger.exception("run %s: its instructions could not be made", self.info.id)
            self._problem = f"The agent's instructions could not be made: {type(error).__name__}: {error}"
            return None
        if self._instructions is None and not any(parts[1:]):
            return None
        return "\n\n".join([part for part in parts if part])

    async def _instructed(self, make: Callable[[RunContext[Any]], str | Awaitable[str]]) -> str:
        rendered = make(self.context)
        return rendered if isinstance(rendered, str) else await rendered

    def prepare_context(self, context: ToolContext) -> None:
        context.deps = self.context.deps

    # Requests

    async def shape(self, request: ModelRequest, *, turn: int, attempt: int, memory: Mapping[str, Any]) -> ModelRequest:
        if self._problem:
            raise ProviderError("invalid_request", self._problem, code="agent_error")
        try:
            return await self._shaper.shaped(request, turn=turn, attempt=attempt, memory=memory)
        except HookFailed as failed:
            raise ProviderError("unknown", str(failed), retryable=False, code="hook_failed") from failed

    def keeps(self, messages: Sequence[Message], *, memory: Mapping[str, Any]) -> Collection[str]:
        return self._shaper.active_contents(messages, memory)

    def received(self, message: Assistant) -> Assistant:
        return self._frame.aliases.received(message)

    def streamed(self, kind: str, text: str, *, turn: int) -> None:
        kind_of_point = points.TextStreamed if kind == "text" else points.ThinkingStreamed
        if not self._wants(kind_of_point):
            return
        point = kind_of_point(turn, text)
        self._hooks.tell(point, self.context)
        self.above.tell(point)

    async def answered(self, turn: int, message: Assistant | None, error: ProviderError | None) -> None:
        if self._wants(points.StreamEnded) and message is not None and message.text:
            await self.tell(points.StreamEnded(turn, message.text))
        if self._wants(points.AfterModel):
            await self.tell(points.AfterModel(turn, message, error))

    # Calls

    async def prepare(self, tool: Tool, args: str) -> bytes:
        try:
            return await tool.prepare(args)
        except InvalidArguments:
            changed = _coerced(args, tool)
            if changed is None:
                raise
            return await tool.prepare(changed)

    def misfit(self, tool: Tool, error: InvalidArguments) -> str:
        return prompts_behavior.invalid_arguments(error.message)

    async def gate(self, call: PendingCall, context: ToolContext) -> Gated:
        try:
            return await self._gated(call, context)
        except HookFailed:
            return _blocked(call, prompts.gate_failed(self._shown(call)))

    async def _gated(self, call: PendingCall, context: ToolContext) -> Gated:
        shown, asked = self._shown(call), _object(call.args)
        gate = points.ToolGate(
            turn=call.turn,
            call_id=call.id,
            tool=call.name,
            args=_object(call.args),  # its own, so that an edit in place is noticed
            raw_args=call.raw_args,
            issues=call.problem,
            known=call.tool is not None,
            counts=dict(call.counts),
            display_name=shown,
        )
        error = await self._hooks.gate(gate, self.context) or await self.above.gate(gate)
        if error is not None:
            return _blocked(call, prompts.gate_failed(shown))
        if gate.blocked is not None:
            return _blocked(call, gate.blocked)
        if gate.answered is not None:
            return await self._substituted(call, output_of(gate.answered[0], tool_name=call.name))
        final = call.args
        if gate.args != asked and call.tool is not None:
            try:
                final = await call.tool.prepare(canonical_value(gate.args).decode())
            except Exception as misfit:  # the tool's own code, and the gate's values
                logger.error("run %s: a gate set arguments of %s that do not fit: %s", self.info.id, call.name, misfit)
                return _blocked(call, prompts.gate_failed(shown))
        # What a gate sets is checked like what a model writes, and then it counts in place of that.
        fits = not call.problem or final != call.args
        try:
            verdict = self._framed(call, _object(final), context)
        except Exception:
            logger.exception("run %s: the call of %s could not be judged", self.info.id, call.name)
            return _blocked(call, prompts.gate_failed(shown))
        if verdict.answer is not None:
            answered = await self._substituted(call, verdict.answer, stored=True)
            return replace(answered, yields=verdict.yields, over=verdict.over, steer=verdict.steer)
        if verdict.blocked is not None:
            return replace(_blocked(call, verdict.blocked), yields=verdict.yields, over=verdict.over)
        gated = Gated("ok", final) if call.tool is not None and fits else await self._unfit(call)
        return replace(gated, over=verdict.over, steer=verdict.steer)

    def _framed(self, call: PendingCall, args: dict[str, Any], context: ToolContext) -> Verdict:
        """What the framework's own gates say. Nothing waits in here; see `gates`."""
        over, steer = None, ""
        for one in self._frame.gates:
            verdict = one.ask(call, args, context.state)
            over, steer = verdict.over or over, verdict.steer or steer
            if verdict.decides:
                if verdict.answer is not None:
                    self._frame.budgets.admit(call)
                return replace(verdict, over=over, steer=steer)
        self._frame.budgets.admit(call)
        return Verdict(over=over, steer=steer)

    async def _substituted(self, call: PendingCall, output: ToolOutput, *, stored: bool = False) -> Gated:
        output = await self._finished(call, output, stored=stored)
        return Gated("answered", call.args, output.parts, output.is_error)

    async def _unfit(self, call: PendingCall) -> Gated:
        """A call of a tool that is not there, or with arguments that do not fit it."""
        shown = self._shown(call)
        if call.tool is not None:
            await self.tell(points.ArgumentsRejected(call.turn, call.id, call.name, call.problem, shown))
            return Gated("invalid", call.args, (Text(call.problem),), is_error=True)
        unknown = points.ToolUnknown(call.turn, call.id, call.name, prompts.unknown_tool(call.name), display_name=shown)
        await self._shaped_point(unknown)
        parts: tuple[UserPart, ...] = (Text(str(unknown.result)),)
        if not unknown.suppress_error and points.ToolError in self._hooks:
            failed = points.ToolError(call.turn, call.id, call.name, parts, display_name=shown)
            await self._shaped_point(failed)
            parts = _parts(failed.result, call.name)
        return Gated("unknown", call.args, parts, is_error=True)

    async def execute(
        self, call: PendingCall, context: ToolContext, invoke: Callable[[], Awaitable[ToolOutput]]
    ) -> ToolOutput:
        hooks, shown = self._hooks, self._shown(call)
        await self._before(call, context)
        raised: BaseException | None = None
        self._under_way += 1
        self.quiet.clear()
        try:
            if server_of(call):
                output = await around(call, invoke, shown=shown, hooks=hooks, context=self.context, above=self.above)
            else:
                output = await invoke()
        except Exception as error:
            logger.exception("run %s: the tool %s failed", self.info.id, call.name)
            raised, output = error, ToolOutput.of(prompts.tool_failed(call.name, str(error)), is_error=True)
        finally:
            self._under_way -= 1
            if not self._under_way:
                self.quiet.set()
        output = await self._after(call, output, raised)
        if not output.is_error:
            self._frame.dedup.remember(call, _object(call.args), context.state)
        return output

    async def _after(self, call: PendingCall, output: ToolOutput, raised: BaseException | None) -> ToolOutput:
        shown = self._shown(call)
        if output.is_error and self._wants(points.ToolError):
            failed = points.ToolError(call.turn, call.id, call.name, output.parts, raised, display_name=shown)
            await self._shaped_point(failed)
            await self.above.shape(failed)
            output = replace(output, parts=_parts(failed.result, call.name))
        kind = points.ToolAfterFailure if output.is_error else points.ToolAfterSuccess
        if kind in self._hooks:
            await self.tell(kind(call.turn, call.id, call.name, output.parts, shown))
        return await self._finished(call, output)

    # Calls that are carried out by child runs

    async def plan_child(self, call: PendingCall, context: ToolContext, *, limits: ChildLimits) -> RunPlan:
        subagent = call.tool
        assert isinstance(subagent, Subagent) and self._planner is not None and self._plan is not None
        task, system = subagent.task(call.args)
        await self._before(call, context)
        if SpawnBefore in self._hooks:
            await self.tell(SpawnBefore(call.id, call.name, task, self.info.depth + 1))
        return await self._planner(self._plan, subagent, task, system=system, limits=limits)

    async def finish_child(self, call: PendingCall, context: ToolContext, end: ChildEnd) -> ToolOutput:
        subagent = call.tool
        output = subagent.result(end) if isinstance(subagent, Subagent) else as_result(call.name, end)
        where = end.run_id, call.id, call.name
        counts = end.turns, end.elapsed_us // 1000, end.usage, self.info.depth + 1
        if end.status == "succeeded":
            if SpawnComplete in self._hooks:
                await self.tell(SpawnComplete(*where, end.text, *counts))
        elif SpawnError in self._hooks:
            await self.tell(SpawnError(*where, end.error, end.code or end.status, *counts))
        return await self._after(call, output, None)

    async def _before(self, call: PendingCall, context: ToolContext) -> None:
        hooks = self._hooks
        if not self._wants(points.ToolBefore) and points.ArgumentsCoerced not in hooks:
            return
        shown = self._shown(call)
        changed = coercions(_lenient_object(call.raw_args), _object(call.prepared))
        if changed:
            await self.tell(points.ArgumentsCoerced(call.turn, call.id, call.name, changed, shown))
        if self._wants(points.ToolBefore):
            prior = await call.tool.prior_content(call.args) if isinstance(call.tool, ReplacesContent) else None
            args, counts = _object(call.args), dict(call.counts)
            await self.tell(
                points.ToolBefore(call.turn, call.id, call.name, args, context.attempt, prior, counts, changed, shown)
            )

    async def _finished(self, call: PendingCall, output: ToolOutput, *, stored: bool = False) -> ToolOutput:
        """The last part of the way of every result, whoever gave it. One that was `stored` before is small enough."""
        hooks, shown = self._hooks, self._shown(call)
        if points.ToolTransform in hooks:
            size = output_bytes(output.parts)
            point = points.ToolTransform(call.turn, call.id, call.name, output.parts, output.is_error, size, shown)
            await self._shaped_point(point)
            output = replace(output, parts=_parts(point.result, call.name), is_error=bool(point.is_error))
        whole = output
        output = output if stored else await self._large.stored(call, output)
        if output is not whole and points.ToolResultStored in hooks:
            size, stub = output_bytes(whole.parts), joined_text(output.parts)
            await self.tell(points.ToolResultStored(call.turn, call.id, call.name, size, stub, shown))
        if self._wants(points.ToolAfter):
            size, counts = output_bytes(output.parts), dict(call.counts)
            await self.tell(
                points.ToolAfter(call.turn, call.id, call.name, output.parts, output.is_error, size, counts, shown)
            )
        return output

    def _shown(self, call: PendingCall) -> str:
        return self._frame.aliases.wire(call.name)

    # Answers and endings

    async def check_output(self, text: str) -> str:
        value: object = text
        if self._output is not None:
            try:
                value = self._output.parse(text)
            except ValueError as error:
                return prompts.answer_again(str(error))
            except Exception:
                logger.exception("run %s: the answer could not be checked", self.info.id)
                return prompts.ANSWER_NOT_CHECKED
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
            # What created it was appended before its code was there.
            first = [fact for fact in facts if isinstance(fact, AttemptStarted) and (fact.turn, fact.attempt) == (0, 1)]
            resumed = not first
            if points.RunStarted in self._hooks:
                await self.tell(points.RunStarted(resumed))
        for fact in facts:
            match fact:
                case BudgetExceeded() if points.ToolBudgetExceeded in self._hooks:
                    shown = self._frame.aliases.wire(fact.tool)
                    await self.tell(points.ToolBudgetExceeded(fact.tool, fact.max_calls, fact.call_index, shown))
                case ResultsOverBudget() if points.OutputBudgetExceeded in self._hooks:
                    await self.tell(points.OutputBudgetExceeded(fact.turn, fact.bytes, fact.budget))
                case AttemptFailed():
                    await self._count(fact)
                case MessagesTaken() if points.MessagesTaken in self._hooks:
                    await self.tell(points.MessagesTaken(len(fact.ids)))
                case TurnCompleted():
                    await self._count(fact)
                    self._open[fact.turn] = len(fact.calls)
                    if not fact.calls:
                        await self._turn_ended(fact.turn)
                case CallClosed() if fact.turn in self._open:
                    self._open[fact.turn] -= 1
                    if not self._open[fact.turn]:
                        if points.ResultsStored in self._hooks:
                            await self.tell(points.ResultsStored(fact.turn))
                        await self._turn_ended(fact.turn)
                case _:
                    pass

    async def _count(self, fact: AttemptFailed | TurnCompleted) -> None:
        if points.UsageCounted in self._hooks:
            await self.tell(points.UsageCounted(fact.turn, fact.attempt, fact.usage, _usd(fact.cost_nusd)))

    async def _turn_ended(self, turn: int) -> None:
        self._open.pop(turn, None)
        if points.TurnEnded in self._hooks:
            await self.tell(points.TurnEnded(turn))

    async def ended(self, fact: Fact, memory: Mapping[str, Any]) -> None:
        self._ending = True
        try:
            for one in self._frame.skills:
                await one.end_run(dict(memory), run_id=self.info.id)
            if isinstance(fact, RunEnded):
                if fact.status == "cancelled" and points.RunCancelled in self._hooks:
                    await self.tell(points.RunCancelled(fact.reason))
                if points.RunEnded in self._hooks:
                    cost = _usd(fact.cost_nusd)
                    await self.tell(points.RunEnded(fact.status, fact.code, fact.turns, fact.usage, cost))
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

    async def tell(self, point: points.Point) -> None:
        try:
            await self._hooks.watch(point, self.context)
        except HookFailed:
            logger.error("run %s: %s has no way to fail closed; the run goes on", self.info.id, point.name)
        await self.above.watch(point)

    async def _shaped_point(self, point: points.Point) -> None:
        await self._hooks.shape(point, self.context)


def _blocked(call: PendingCall, reason: str) -> Gated:
    return Gated("blocked", call.args, (Text(prompts.blocked(reason)),), is_error=True)


def _usd(cost_nusd: int | None) -> float | None:
    return None if cost_nusd is None else cost_nusd / 1_000_000_000


def _coerced(args: str, tool: Tool) -> str | None:
    """Other arguments to try, if those that the model wrote are of the wrong types; None if there are none."""
    try:
        value, _ = object_args(args)
        changed = coerced(value, tool.spec.parameters)
        return None if changed is None else canonical_value(changed).decode()
    except (InvalidArguments, NotCanonical):
        return None


def _lenient_object(args: str) -> dict[str, Any]:
    try:
        return dict(object_args(args)[0])
    except InvalidArguments:
        return {}


def _object(args: bytes) -> dict[str, Any]:
    return decode(args, type=dict[str, Any]) if args else {}


def _parts(result: object, tool: str) -> tuple[UserPart, ...]:
    """What a hook left as a result: parts, or anything that a tool may return."""
    if isinstance(result, tuple):
        return result  # pyright: ignore[reportUnknownVariableType]
    return output_of(result, tool_name=tool).parts
