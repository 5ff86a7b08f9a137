"""An agent's own code in one run: its hooks, its deps and its output type."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping, MutableMapping, Sequence
from contextlib import suppress
from typing import Any, Protocol

from msgspec import Raw
from msgspec.structs import replace

from weftline import prompts
from weftline.agent import hooks as points
from weftline.agent.context import Entered, RunContext, RunInfo
from weftline.agent.hooking.around_calls import (
    Ancestors,
    AroundCalls,
    Listener,
    around,
    coerced_args,
    object_of,
    server_of,
)
from weftline.agent.hooking.calling import HookFailed, Hooks
from weftline.agent.hooking.fact_points import FactPoints, usd
from weftline.agent.hooks_outside import SpawnBefore, SpawnComplete, SpawnError
from weftline.agent.output import OutputType
from weftline.agent.prompting import RunPrompts
from weftline.agent.requests.shaping import RequestShaper
from weftline.agent.running.asking import answer_by_code
from weftline.agent.running.deps import LEAVE_S, OwnedDeps, Teardown, error_of
from weftline.agent.running.frame import Frame, Notes, Verdict
from weftline.agent.running.policy_calls import ask_policy
from weftline.agent.skills.allowed import Call
from weftline.agent.subagents import Subagent
from weftline.errors import WeftlineError
from weftline.kernel.entries import Fact, RunEnded
from weftline.messages import Assistant, Message, Text
from weftline.plan import ParentCall, RunPlan
from weftline.providers.base import ModelRequest, ProviderError
from weftline.runtime.agent_code.code import (
    ChildEnd,
    ChildLimits,
    CodeAnswer,
    CodeFailed,
    Gated,
    Inside,
    Judged,
    PendingAwait,
    PendingCall,
    PendingTurn,
)
from weftline.runtime.agent_code.seats import Seat, Seats
from weftline.runtime.tool_calls.children import as_result
from weftline.text.canonical import canonical_value
from weftline.tools.arguments import InvalidArguments
from weftline.tools.asking import one_line
from weftline.tools.base import Tool, ToolContext, ToolFailed, ToolOutput
from weftline.tools.results import output_of, raised_by, with_bounds
from weftline.trace_context import below
from weftline.work.outcomes import attempt
from weftline.work.threads import left_behind

logger = logging.getLogger(__name__)


class Planner(Protocol):
    """Makes the plan of a child of the run with the plan `parent`. Raises `WeftlineError` if it cannot."""

    async def __call__(
        self, parent: RunPlan, subagent: Subagent, task: str, /, *, system: str | None, limits: ChildLimits
    ) -> RunPlan: ...


class AgentCode:
    """Implements `weftline.runtime.agent_code.code.RunCode`."""

    def __init__(
        self,
        info: RunInfo,
        *,
        hooks: Hooks,
        owner: object = None,
        frame: Frame | None = None,
        output: OutputType[Any] | None,
        instructions: Callable[[RunContext[Any]], str | Awaitable[str]] | None,
        newest: str | Callable[[RunContext[Any]], str | Awaitable[str]] | None = None,
        deps: object,
        owned: OwnedDeps | None = None,
        plan: RunPlan | None = None,
        for_client: bool = False,
        problem: tuple[str, BaseException | None] | None = None,
        planner: Planner | None = None,
        observed: Callable[[], Awaitable[None]] | None = None,
        above: Ancestors | None = None,
        on_left: Callable[[AgentCode], object] = lambda _: None,
        prompts: RunPrompts | None = None,
        seats: Sequence[Seat] = (),
        entered: Entered | None = None,
    ) -> None:
        """Creates the code of one run.

        `problem` is why the run cannot continue, as text and as the exception. `observed` notifies the readers of the
        agent's logs that the run has ended.
        """
        self.info = info
        self.seats = Seats(seats)
        self._notes = Notes(prompts)
        self.context = RunContext(info, deps, self._notes.note, self._notes.render, entered or Entered())
        self.teardown = Teardown(info.id, owned, lambda: on_left(self))
        self.above = above or Ancestors()
        """The runs above a child, which are notified of what it does."""
        self._plan = plan
        self.for_client = for_client
        """Whether a client asked for this run, or for the one above it."""
        self.registered = "" if plan is None or plan.code is None else plan.code
        """The name that the run's code is registered under."""
        self._planner = planner
        self._observed = observed
        self.owner = owner
        """The agent."""
        self.quiet = asyncio.Event()
        """Set while no tool is working. A cancelled tool may take a moment to stop what it started."""
        self.quiet.set()
        self._under_way = 0
        self.threads: set[asyncio.Future[None]] = set()
        """Synchronous functions that still run in their threads although they were cancelled."""
        self._hooks = hooks
        self._frame = frame or Frame()
        self._shaper = RequestShaper(self._frame, hooks, self.context)
        self._around = AroundCalls(hooks, self._frame, self.context, above=self.above)
        self._output = output
        self._instructions = instructions
        self._newest = newest
        """The agent's instructions in this process, whatever the run began with."""
        asked = 0 if plan is None else len(plan.messages) - plan.given
        self._facts = FactPoints(hooks, self._frame.aliases, self._around.notify, asked=asked)
        self._deps = owned
        self._problem: tuple[str, str] | None = None
        """Why the model cannot be called any more: a code, and the reason as text."""
        self.over = False
        """Whether the run has ended."""
        self._raised: BaseException | None = None
        """The exception behind `_problem`, if there is one."""
        self._unchecked: BaseException | None = None
        """The exception raised while the latest answer was checked."""
        self._refusal: ProviderError | None = None
        """The error of the latest model call, if it failed."""
        if problem is not None:
            self._fail(*problem)

    @property
    def error(self) -> BaseException | None:
        """The exception that stops the run, if there is one."""
        return self._raised or self._refusal or self._unchecked

    @property
    def has_gates(self) -> bool:
        asked = (points.ToolGate, points.ToolUnknown, points.ToolError, points.ArgumentsRejected)
        return bool(self._frame.gates) or any(self._around.wants(point) for point in asked)

    @property
    def listeners(self) -> tuple[Listener, ...]:
        """The hooks that are notified of what this run's children do."""
        return ((self._hooks, self.context), *self.above.listeners)

    @property
    def sequential(self) -> bool:
        return self._frame.behavior.tool_execution == "sequential"

    async def render(
        self,
        system: str | None,
        *,
        memory: MutableMapping[str, Any],
        messages: Sequence[Message],
        rebuild: bool = False,
    ) -> str | None:
        if self._problem is not None:
            return None
        make = self._instructions
        if rebuild:
            system, make = (self._newest, None) if not callable(self._newest) else (None, self._newest)
        parts: list[str] = []
        with attempt(logger, "run %s: its instructions failed", self.info.id) as making:
            parts = [system or "" if make is None else await self._instructed(make)]
            for one in self._frame.skills:
                activated = await one.begin_run(memory, run_id=self.info.id, resume_from=messages)
                parts += [one.instructions, activated]
            parts.append(self._frame.disclosure.catalog)
        if (error := making.error) is not None:
            self._fail(f"The agent's instructions failed: {type(error).__name__}: {error}", error)
            return None
        if make is None and not any(parts[1:]) and not rebuild:
            return None
        return "\n\n".join([part for part in parts if part])

    async def _instructed(self, make: Callable[[RunContext[Any]], str | Awaitable[str]]) -> str:
        rendered = make(self.context)
        return rendered if isinstance(rendered, str) else await rendered

    def enter(self, inside: Inside) -> None:
        self.context.entered.inside = inside

    def prepare_context(self, context: ToolContext) -> None:
        context.deps = self.context.deps

    # Requests

    async def shape(self, request: ModelRequest, *, turn: int, attempt: int, memory: Mapping[str, Any]) -> ModelRequest:
        self._require_whole()
        self._notes.begin_turn(turn)
        try:
            return await self._shaper.shaped(request, turn=turn, attempt=attempt, memory=memory)
        except HookFailed as failed:
            self._raised = failed.__cause__
            raise CodeFailed(self._public_message(str(failed), failed.__cause__), code="hook_failed") from failed

    def pop_notes(self) -> tuple[tuple[str, list[bytes]], ...]:
        return self._notes.pop()

    def keeps(self, messages: Sequence[Message], *, memory: Mapping[str, Any]) -> Collection[str]:
        return self._shaper.active_contents(messages, memory)

    def received(self, message: Assistant) -> Assistant:
        return self._frame.aliases.received(message)

    async def renewed(self, turn: int, provider: str) -> None:
        if not self._around.wants(points.OAuthRefreshed):
            return
        try:
            await self._around.notify(points.OAuthRefreshed(turn, provider))
        except HookFailed as failed:
            self._fail(str(failed), failed.__cause__, code="hook_failed")

    def streamed(self, kind: str, text: str, *, turn: int) -> None:
        kind_of_point = points.TextStreamed if kind == "text" else points.ThinkingStreamed
        if not self._around.wants(kind_of_point):
            return
        point = kind_of_point(turn, text)
        try:
            self._hooks.notify(point, self.context)
            self.above.notify(point)
        except HookFailed as failed:
            self._fail(str(failed), failed.__cause__, code="hook_failed")

    async def answered(self, turn: int, message: Assistant | None, error: ProviderError | None) -> None:
        self._refusal, self._unchecked = error, None
        try:
            if self._around.wants(points.StreamEnded) and message is not None and message.text:
                await self._around.notify(points.StreamEnded(turn, message.text))
            if self._around.wants(points.AfterModel):
                await self._around.notify(points.AfterModel(turn, message, error))
        except HookFailed as failed:
            self._fail(str(failed), failed.__cause__, code="hook_failed")
        self._require_whole()

    # Calls

    async def prepare(self, tool: Tool, args: str) -> bytes:
        try:
            return await tool.prepare(args)
        except InvalidArguments:
            changed = coerced_args(args, tool)
            if changed is None:
                raise
            return await tool.prepare(changed)

    def describe_invalid(self, tool: Tool, error: InvalidArguments) -> str:
        return prompts.behavior.invalid_arguments(error.message)

    async def ask_gates(self, call: PendingCall, context: ToolContext) -> Gated:
        try:
            return await self._decision_on(call, context)
        except HookFailed:
            return _blocked(call, prompts.calls.gate_failed(self._around.display_name(call)))

    async def _decision_on(self, call: PendingCall, context: ToolContext) -> Gated:
        display_name, asked = self._around.display_name(call), object_of(call.args)
        gate = points.ToolGate(
            turn=call.turn,
            call_id=call.id,
            tool=call.name,
            args=object_of(call.args),  # a copy, so that edits in place are noticed
            raw_args=call.raw_args,
            issues=call.problem,
            known=call.tool is not None,
            counts=dict(call.counts),
            display_name=display_name,
        )
        error = await self._hooks.gate(gate, self.context) or await self.above.gate(gate)
        if error is not None:
            return _blocked(call, prompts.calls.gate_failed(display_name))
        if gate.blocked is not None:
            return _blocked(call, gate.blocked)
        if gate.answered is not None:
            return await self._substituted(call, output_of(gate.answered[0], tool_name=call.name))
        final = call.args
        if gate.args != asked and call.tool is not None:
            with attempt() as preparing:  # the tool's own code raises, or what the gate set
                final = await self.prepare(call.tool, canonical_value(gate.args).decode())
            if (wrong := preparing.error) is not None:
                logger.error("run %s: a gate set arguments of %s that do not fit: %s", self.info.id, call.name, wrong)
                return _blocked(call, prompts.calls.gate_failed(display_name))
        # What a gate sets is checked like a model's arguments, and replaces them.
        fits = not call.problem or final != call.args
        verdict: Verdict | None = None
        with attempt(logger, "run %s: the gates for %s failed", self.info.id, call.name):
            verdict = self._framed(call, object_of(final), context)
        if verdict is None:
            return _blocked(call, prompts.calls.gate_failed(display_name))
        if verdict.answer is not None:
            answered = await self._substituted(call, verdict.answer, stored=True)
            return replace(answered, yields=verdict.yields, over=verdict.over, steer=verdict.steer)
        if verdict.blocked is not None:
            return replace(_blocked(call, verdict.blocked), yields=verdict.yields, over=verdict.over)
        if call.tool is None or not fits:
            return replace(await self._around.unfit(call), over=verdict.over, steer=verdict.steer)
        allowed = "" if gate.asks is not None else self._preapproved(call, object_of(final), context)
        hint = one_line(str(gate.display_hint))
        return Gated("ok", final, over=verdict.over, steer=verdict.steer, ask=gate.asks, allowed_by=allowed, hint=hint)

    def _preapproved(self, call: PendingCall, args: dict[str, Any], context: ToolContext) -> str:
        """Returns why a call needs no approval although its tool asks for one; empty if it does need approval."""
        frame = self._frame
        for one in frame.skills:
            if one.preapproved(Call(call.name, args), state=context.state, names=frame.names):
                return "skill"
        return ""

    def _framed(self, call: PendingCall, args: dict[str, Any], context: ToolContext) -> Verdict:
        """Asks the framework's own gates, without awaiting; see `gates`."""
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
        if call.tool is not None and not stored and (output.bounds is not None or call.tool.traits.bounded):
            output = with_bounds(call.tool, output)
        output = await self._around.finished(call, output, stored=stored)
        return Gated("answered", call.args, output.parts, output.is_error, bounds=output.bounds)

    async def judge(self, turn: PendingTurn) -> Judged:
        return await ask_policy(getattr(self.owner, "policy_engine", None), turn, self.info)

    async def answer_await(self, asked: PendingAwait) -> CodeAnswer | None:
        listeners = ((self._hooks, self.context), *self.above.listeners)
        return await answer_by_code(
            asked, listeners, prepare=self.prepare, display_name=self._frame.aliases.wire(asked.call.name)
        )

    async def execute(
        self, call: PendingCall, context: ToolContext, invoke: Callable[[], Awaitable[ToolOutput]]
    ) -> ToolOutput:
        hooks, display_name = self._hooks, self._around.display_name(call)
        try:
            await self._around.before(call, context)
        except HookFailed:
            return ToolOutput.of(prompts.calls.blocked(prompts.calls.gate_failed(display_name)), is_error=True)
        raised: BaseException | None = None
        output = ToolOutput(())
        executing = attempt(logger, "run %s: the tool %s failed", self.info.id, call.name, or_cancelled=True)
        self._under_way += 1
        self.quiet.clear()
        token = left_behind.set(self._leave_behind)
        try:
            with executing:
                if server_of(call):
                    output = await around(
                        call, invoke, display_name=display_name, hooks=hooks, context=self.context, above=self.above
                    )
                else:
                    output = await invoke()
            if (raised := executing.error) is not None:
                output = raised_by(call.name, raised)
        finally:
            left_behind.reset(token)
            self._under_way -= 1
            if not self._under_way:
                self.quiet.set()
        if output.asks is not None:
            return output  # there is no result yet
        output = await self._around.after(call, output, raised)
        if not output.is_error:
            self._frame.dedup.remember(call, object_of(call.args), context.state)
        return output

    def _leave_behind(self, call: asyncio.Future[None]) -> None:
        self.threads.add(call)
        call.add_done_callback(self.threads.discard)

    # Calls that are child runs

    async def plan_child(self, call: PendingCall, context: ToolContext, *, limits: ChildLimits) -> RunPlan:
        subagent = call.tool
        assert isinstance(subagent, Subagent) and self._planner is not None and self._plan is not None
        task, system = subagent.task(call.args, render=self._notes.render)
        try:
            await self._around.before(call, context)
            if SpawnBefore in self._hooks:
                await self._around.notify(SpawnBefore(call.id, call.name, task, self.info.depth + 1))
        except HookFailed as failed:
            raise ToolFailed(prompts.calls.gate_failed(self._around.display_name(call))) from failed
        plan = await self._planner(self._plan, subagent, task, system=system, limits=limits)
        trace = below(self._plan.trace, plan.trace, run_id=self.info.id, turn=call.turn, index=call.index)
        asked_by = ParentCall(self.info.agent, call.id, call.name, Raw(call.args or b"{}"))
        return replace(plan, asked_by=asked_by, trace=trace)

    async def finish_child(self, call: PendingCall, context: ToolContext, end: ChildEnd) -> ToolOutput:
        subagent = call.tool
        output = subagent.result(end) if isinstance(subagent, Subagent) else as_result(call.name, end)
        where = end.run_id, call.id, call.name
        counts = end.turns, end.elapsed_us // 1000, end.usage, self.info.depth + 1
        try:
            if end.status == "succeeded":
                if SpawnComplete in self._hooks:
                    await self._around.notify(SpawnComplete(*where, end.text, *counts))
            elif SpawnError in self._hooks:
                await self._around.notify(SpawnError(*where, end.error, end.code or end.status, *counts))
        except HookFailed:
            return ToolOutput.of(prompts.calls.result_withheld(self._around.display_name(call)), is_error=True)
        return await self._around.after(call, output, None)

    # Answers and endings

    async def check_output(self, text: str) -> str:
        verdict = await self._reason_to_reject(text)
        try:
            await self._facts.judged()
        except HookFailed as failed:
            self._fail(str(failed), failed.__cause__, code="hook_failed")
        return verdict

    async def _reason_to_reject(self, text: str) -> str:
        value: object = text
        if self._output is not None:
            try:
                with attempt(logger, "run %s: the answer could not be checked", self.info.id, but=(ValueError,)) as it:
                    value = self._output.parse(text)
            except ValueError as error:
                return prompts.turns.answer_again(str(error))
            if it.error is not None:
                self._unchecked = it.error
                return prompts.turns.ANSWER_NOT_CHECKED
        if points.OutputReady in self._hooks:
            ready: points.OutputReady[Any] = points.OutputReady(value, text)
            self._unchecked = await self._hooks.gate(ready, self.context)
            if self._unchecked is not None:
                return prompts.turns.ANSWER_NOT_CHECKED
            return ready.rejected or ""
        return ""

    def about_to_drive(self, turn: int, *, calls: int, unclosed: int) -> None:
        self._facts.about_to_drive(turn, calls=calls, unclosed=unclosed)

    @property
    def watches(self) -> bool:
        return self._facts.has_hooks

    @property
    def may_be_overtaken(self) -> bool:
        return not self._facts.fail_closed

    async def on_facts(self, facts: Sequence[Fact], *, messages: Sequence[Message]) -> None:
        try:
            await self._facts.publish(facts, messages=messages)
        except HookFailed as failed:
            self._fail(str(failed), failed.__cause__, code="hook_failed")

    def ended(self, fact: RunEnded, body: bytes, memory: Mapping[str, Any]) -> None:
        self.over = True
        end_points = (points.RunEnded, points.RunCancelled)
        notifies_late = self._facts.waits or any(point in self._hooks for point in end_points)
        has_words = bool(self._frame.skills) or self._observed is not None or notifies_late or self.watches
        last = self._last_hooks(fact, memory) if has_words else None
        self.teardown.begin(last, None if self._deps is None else error_of(self.info.id, fact, body))

    def leave(self) -> None:
        if not self.teardown.begun:
            self.teardown.begin()

    async def _last_hooks(self, fact: RunEnded, memory: Mapping[str, Any]) -> None:
        inside = self.context.entered.inside
        if self.watches and inside is not None:
            await inside.watched(timeout_s=LEAVE_S)
        with suppress(HookFailed):
            await self._facts.judged()
        for one in self._frame.skills:
            await one.end_run(dict(memory), run_id=self.info.id)
        with suppress(HookFailed):  # the run has ended, so there is nothing left to fail
            if fact.status == "cancelled" and points.RunCancelled in self._hooks:
                await self._around.notify(points.RunCancelled(fact.reason))
        with suppress(HookFailed):
            if points.RunEnded in self._hooks:
                await self._around.notify(
                    points.RunEnded(fact.status, fact.code, fact.turns, fact.usage, usd(fact.cost_nusd))
                )
        if self._observed is not None:
            await self._observed()

    async def notify(self, point: points.Point) -> None:
        """Calls the watchers of this point. Raises `HookFailed` if one with `fail_closed` fails."""
        await self._around.notify(point)

    def _fail(self, problem: str, cause: BaseException | None, *, code: str = "agent_error") -> None:
        """Makes the next model call, and so the run, fail with this problem."""
        self._raised = self._raised or cause
        self._problem = self._problem or (code, self._public_message(problem, cause))

    def _public_message(self, problem: str, cause: BaseException | None) -> str:
        """Returns the problem as it is stored. Of what the agent's code raised, clients see only what is for them."""
        if not self.for_client or (isinstance(cause, WeftlineError) and cause.status < 500):
            return problem
        logger.error("run %s: %s", self.info.id, problem, exc_info=cause)
        return f"The agent's own code failed. The server's log says why: look for {self.info.id}."

    def _require_whole(self) -> None:
        if self._deps is not None and self._deps.lost is not None:
            lost = self._deps.lost
            self._fail(f"The agent's deps failed: {type(lost).__name__}: {lost}", lost)
        if self._problem is not None:
            code, problem = self._problem
            raise CodeFailed(problem, code=code) from self._raised


def _blocked(call: PendingCall, reason: str) -> Gated:
    return Gated("blocked", call.args, (Text(prompts.calls.blocked(reason)),), is_error=True)
