"""A call that asks for further calls while it runs, such as code that calls the agent's tools.

Each request is a fact (`call.asked`), on which the kernel decides as it does on a call of the model. The answer is the
call's result, handed out in the order of the log. A call that was interrupted begins again from the start, and its
requests are then looked up in the log: none is made a second time, and no new one before all of the old ones have been
repeated.

    asked ──▶ known from the log? ──▶ its result, when everything before that in the log was asked for
                   │ no
                   ├── some of what the log has was not asked for yet ──▶ Diverged
                   └── call.asked ──▶ … ──▶ call.closed ──▶ its result
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from weftline import prompts
from weftline.kernel import bodies
from weftline.kernel.accept import MAX_NESTED
from weftline.kernel.entries import CallAsked
from weftline.kernel.state import RunTool, State
from weftline.messages import ToolCall
from weftline.runtime.live import Draft, WorkingSet
from weftline.runtime.model_view import Closed, Nested, NestedCall
from weftline.runtime.services import Outcome, Services, Sink
from weftline.runtime.tool_calls.preparing import prepare_call
from weftline.text.canonical import NotCanonical, canonical
from weftline.tools.base import Diverged, Tool, ToolFailed, ToolOutput

TOOL_TIMEOUT_S = 120.0


def tool_timeout_s(tool: Tool, state: State, work: WorkingSet, services: Services) -> float:
    """Returns how long a call may take: by the run's policy, else by its tool, and no longer than its budgets allow."""
    rule = state.limits.policy
    own_s = tool.timeout_s if rule is None else rule.tool_timeout_s(tool.spec.name, tool.timeout_s)
    limit_s = own_s or TOOL_TIMEOUT_S
    return limit_s if work.account is None else work.account.within(limit_s, services.clock)


class AskingCall:
    """Implements `weftline.tools.base.FurtherCalls` for one attempt of one call."""

    def __init__(
        self, command: RunTool, state: State, work: WorkingSet, services: Services, sink: Sink, *, limit_s: float
    ) -> None:
        self._command = command
        call = state.batch.calls[command.index]
        self._id = call.id
        self._repeatable = call.effect in ("read", "idempotent")
        self._withheld = state.guards.withheld
        self._work = work
        self._services = services
        self._sink = sink
        self._log: list[Nested] = work.conversation.turn.nested.setdefault(command.index, [])
        """The nested calls and their results so far; it grows."""
        self._first_ms = services.clock.now_us() // 1000
        self._left = {one.index: one for one in self._log if isinstance(one, NestedCall)}
        """The calls of an interrupted attempt that this one has not requested yet, by index."""
        self._seen: set[int] = set()
        """The indexes of the calls that were requested in this attempt."""
        self._read = 0
        """How many items of the log have been handed out."""
        self._waiting: dict[int, asyncio.Future[Closed]] = {}
        self._in_order = asyncio.Lock()
        """Keeps calls in the log in the order of the requests, however long each takes to prepare."""
        self._closed = False
        self._time = _OwnTime(limit_s)
        work.nested_callers[command.index] = self

    @property
    def clock_ms(self) -> int:
        first = self._log[0] if self._log else None
        return first.body.clock_ms if isinstance(first, NestedCall) else self._first_ms

    @property
    def skip_on_drain(self) -> bool:
        """True if waiting for it is useless while no call may begin: it can be repeated, or it waits for a nested call
        itself.
        """
        return self._repeatable or bool(self._waiting)

    @property
    def own_s(self) -> float:
        """The time that it took, not counting the time spent waiting for nested calls."""
        return self._time.spent_s

    def hold(self) -> None:
        self._time.stop()

    def limit(self, expired: Callable[[], None]) -> None:
        self._time.limit(expired)

    async def ask(self, tool: str, args: str) -> ToolOutput:
        try:
            written = canonical(args).decode()
        except NotCanonical as error:
            raise ToolFailed(prompts.code.not_arguments(tool, str(error))) from None
        async with self._in_order:
            index = self._known(tool, written)
            if index is None:
                index = await self._new(tool, written)
            self._seen.add(index)
            self._left.pop(index, None)
            answer = self._waiting[index] = asyncio.get_running_loop().create_future()
        self.deliver_results()
        self._keep_time()
        try:
            closed = await answer
        finally:
            self._waiting.pop(index, None)
            self._keep_time()
        return ToolOutput(closed.result.parts, closed.result.is_error, is_json=closed.is_json)

    async def settled(self) -> None:
        while self._waiting:
            await asyncio.wait(self._waiting.values())
            await asyncio.sleep(0)  # lets the waiting tasks run

    def deliver_results(self) -> None:
        """Hands out the results that come next in the log."""
        while self._read < len(self._log):
            match self._log[self._read]:
                case NestedCall(index=index):
                    if index not in self._seen:
                        return  # later results were not known before this was requested
                case Closed(index=index) as closed:
                    waiting = self._waiting.get(index)
                    if waiting is not None and not waiting.done():
                        waiting.set_result(closed)
            self._read += 1

    def close(self) -> None:
        """Called when the call has ended or was interrupted."""
        self._closed = True
        self._time.stop()
        if self._work.nested_callers.get(self._command.index) is self:
            del self._work.nested_callers[self._command.index]
        for one in self._waiting.values():
            one.cancel()

    def _known(self, tool: str, written: str) -> int | None:
        """The index of a request that was made before the interruption; None if all of those have been repeated."""
        for one in self._left.values():
            if (one.name, one.body.written) == (tool, written):
                return one.index
        if self._left:
            raise Diverged(prompts.code.diverged(next(iter(self._left.values())).name, tool))
        return None

    async def _new(self, tool: str, written: str) -> int:
        command, conversation = self._command, self._work.conversation
        identity = f"{self._id}.{len(self._seen) + 1}"  # all of those in the log have been requested again
        while identity in conversation.calls.ids:
            identity += "_"
        call = ToolCall(identity, tool, written)
        prepared = await prepare_call(
            call, self._work, self._services, turn=command.turn, parent=self._id, withheld=self._withheld
        )
        body = bodies.AskedBody(written, prepared.stored(written), self.clock_ms)
        index = len(conversation.turn.args)
        head = CallAsked(command.turn, index, command.index, prepared.asked)
        if self._closed or not self._sink.take(Outcome(Draft(head, bodies.encode(body)), command.attempt)):
            raise ToolFailed(prompts.code.too_many_calls(MAX_NESTED))
        return index

    def _keep_time(self) -> None:
        if self._waiting and not self._left:
            self._time.stop()
        elif not self._closed:
            # Time also passes while it waits for requests that have yet to be repeated: they may never come.
            self._time.run()


class _OwnTime:
    """The time of a call, without the time that it waits for nested calls."""

    def __init__(self, limit_s: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._limit_s = limit_s
        self._before_s = 0.0
        self._since_s: float | None = None
        self._expired: Callable[[], None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.run()

    @property
    def spent_s(self) -> float:
        return self._before_s + (0.0 if self._since_s is None else self._loop.time() - self._since_s)

    def limit(self, expired: Callable[[], None]) -> None:
        self._expired = expired
        self.run()
        self._set()

    def run(self) -> None:
        if self._since_s is None:
            self._since_s = self._loop.time()
            self._set()

    def stop(self) -> None:
        self._before_s, self._since_s = self.spent_s, None
        self._set()

    def _set(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._since_s is not None and self._expired is not None:
            left_s = max(self._limit_s - self.spent_s, 0.0)
            self._timer = self._loop.call_later(left_s, self._expired)
