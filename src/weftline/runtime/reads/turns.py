"""One turn of a run according to its log: what the model was sent, what it answered, and what it cost.

What hooks changed for a single request is not in the log, so it is not here either.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct, field

from weftline.errors import Conflict, NotFound, entry_damaged
from weftline.kernel import bodies
from weftline.kernel.damage import UNREADABLE
from weftline.kernel.entries import (
    FORMAT,
    AttemptFailed,
    AttemptStarted,
    CallClosed,
    Fact,
    HistoryPinned,
    How,
    ModelRef,
    RunCreated,
    RunEnded,
    TurnCompleted,
    decode_fact,
)
from weftline.messages import Assistant, Message, OutputSchema, Sampling, ToolResult, Usage
from weftline.plan import RunPlan, ToolRef, agent_of, decode_plan
from weftline.runtime import ids
from weftline.runtime.conversation import PARTS, Conversation
from weftline.runtime.model_calls.cutting import input_bytes
from weftline.store.base import LogReader
from weftline.store.rows import Item, LargeEntry, RunRow

_PAGE_BYTES = 256 * 1024


class LoggedAttempt(Struct, kw_only=True):
    """One call of the model. Times are microseconds; the cost is in billionths of a US dollar."""

    attempt: int
    model: ModelRef
    started_at: int
    cause: str = ""
    """For a repeated attempt: the class of the failure before it, or `abandoned`."""
    ended_at: int | None = None
    failure: str = ""
    """Why it failed, as a class; `abandoned` after a crash and `cancelled` with the run."""
    usage: Usage = Usage()
    estimated: bool = False
    cost_nusd: int | None = None
    active_us: int = 0


class LoggedRequest(Struct, frozen=True, kw_only=True):
    """The request to the model."""

    system: str | None
    messages: Sequence[Message]
    earlier: int
    """How many of the messages the previous turn's request had as well."""
    tools: Sequence[ToolRef]
    """Those that the run was created with."""
    offered: Sequence[bodies.OfferedTool] | None
    """Those that it had by then, if they are not all defined by the references. None in logs of older versions."""
    tools_disabled: bool
    output_schema: OutputSchema | None
    reasoning: int | None
    sampling: Sampling


class LoggedResult(Struct, frozen=True):
    """The result of a call of the turn."""

    how: How
    result: ToolResult


class LoggedTurn(Struct, kw_only=True):
    """A turn. `answer` is None if no attempt has completed it."""

    run_id: str
    turn: int
    last: int
    """The run's latest turn."""
    agent: str | None
    """The agent whose code has tools that the plan does not list."""
    request: LoggedRequest
    attempts: list[LoggedAttempt] = field(default_factory=list[LoggedAttempt])
    answer: Assistant | None = None
    args: Sequence[bytes] = ()
    """The final arguments of each call of the answer."""
    results: dict[str, LoggedResult] = field(default_factory=dict[str, LoggedResult])
    """By the ids of the calls."""
    finish: str | None = None
    problem: str = ""
    """How the answer violates the output schema."""
    metadata: dict[str, str] = {}


async def turn_of(log: LogReader, row: RunRow, turn: int | None, *, max_bytes: int | None = None) -> LoggedTurn:
    """Returns a turn of a run, or the latest one.

    Raises `NotFound` (`unknown_turn`) if there is no such turn yet, `Conflict` (`run_trimmed`) if retention removed the
    log, `StoreError` (`log_damaged`), and `LargeEntry`, with the size of all facts, if these exceed `max_bytes`.
    """
    fold = _Fold(log, row, turn)
    after, size = 0, 0
    while (page := await log.page(row.key, after=after, max_bytes=_PAGE_BYTES)) is not None and page.last_seq > after:
        if not after and (not page.items or page.items[0].kind != "run.created"):
            break
        after = page.last_seq
        for item in page.items:
            if not item.head:
                continue
            size += item.size
            if max_bytes is None or size <= max_bytes:  # otherwise they are only counted
                await fold.take(item)
    if max_bytes is not None and size > max_bytes:
        raise LargeEntry(size)
    if not after:
        raise Conflict(f"The log of {fold.run_id} has been removed by retention.", code="run_trimmed")
    if fold.found is None:
        known = "it has not called a model yet" if fold.last < 0 else f"its turns are 0 to {fold.last}"
        raise NotFound(f"{fold.run_id} has no turn {turn or 0}: {known}.", code="unknown_turn")
    fold.found.last = fold.last
    return fold.found


class _Fold:
    def __init__(self, log: LogReader, row: RunRow, wanted: int | None) -> None:
        self.run_id = ids.run_id(row.key, row.salt)
        self.found: LoggedTurn | None = None
        self.last = -1
        self._log, self._row, self._wanted = log, row, wanted
        self._plan = RunPlan(messages=())
        self._agent: str | None = None
        self._offered: Sequence[bodies.OfferedTool] | None = None
        self._conversation = Conversation([])
        self._sent = 0
        """How many messages the latest request had."""
        self._earlier = 0
        """How many of them the previous turn's requests had as well."""

    async def take(self, item: Item) -> None:
        try:
            head = decode_fact.decode(item.head)
            if isinstance(head, HistoryPinned) and self._row.thread is not None:
                history = await self._history(self._row.thread, head)
                self._conversation.begin([bodies.decode_message(one) for one in history], size=0)
            else:
                self._add(head, item.body, at=item.at)
        except UNREADABLE:
            if self._row.format <= FORMAT:  # otherwise newer code wrote it
                raise entry_damaged(self.run_id, item.seq) from None

    async def _history(self, thread: int, head: HistoryPinned) -> list[bytes]:
        """What the run began with; if it was edited since, what is left of it."""
        if head.through is not None:
            found = await self._log.thread_pinned(thread, through=head.through, revision=head.revision)
            if found is not None:
                return found
        return (await self._log.thread_messages(thread))[: head.upto]

    def _add(self, head: Fact, body: bytes, *, at: int) -> None:
        match head:
            case RunCreated():
                stored = bodies.decode_created(body).plan
                plan = self._plan = decode_plan(stored, head.limits)
                self._agent = None if plan.code is None else agent_of(stored) or plan.name
                self._conversation = Conversation(
                    [*plan.messages], size=input_bytes(plan), result_limit_bytes=plan.model_result_limit_bytes
                )
            case AttemptStarted():
                if body:
                    self._offered = bodies.decode_offered(body).tools
                self._start(head, at=at)
            case AttemptFailed() if self._is_wanted(head.turn):
                self._end(head, at=at, failure=head.cls if head.reason == "error" else head.reason)
            case TurnCompleted() if self._is_wanted(head.turn):
                self._complete(head, bodies.decode_turn(body), at=at)
            case CallClosed() if self._is_wanted(head.turn) and not head.parent:
                closed = bodies.decode_closed(body)
                result = ToolResult(head.id, head.name, closed.parts, head.is_error)
                self._found.results[head.id] = LoggedResult(head.how, result)
            case RunEnded() if self.found is not None and self.found.turn == self.last and self.found.answer is None:
                self._found.attempts[-1].ended_at = self._found.attempts[-1].ended_at or at
            case _:
                pass
        if type(head) in PARTS:
            self._conversation.take(head, body)

    @property
    def _found(self) -> LoggedTurn:
        assert self.found is not None
        return self.found

    def _is_wanted(self, turn: int) -> bool:
        return self.found is not None and self.found.turn == turn

    def _start(self, head: AttemptStarted, *, at: int) -> None:
        visible = self._conversation.view.visible
        if head.turn != self.last:
            # A summary in place of older messages makes it another conversation.
            self._earlier = self._sent if self._sent <= len(visible) and not self._conversation.view.compacted else 0
            self.last = head.turn
        self._sent = len(visible)
        seen = self._conversation.sides.seen_by_speaker(self._plan.limits.seats, visible)
        if seen is not visible:
            self._earlier = 0
        if self._wanted is not None and head.turn != self._wanted:
            return
        if not self._is_wanted(head.turn):
            self.found = None
        plan = self._plan
        rendered = self._conversation.system
        request = LoggedRequest(
            system=plan.system if rendered is None else rendered,
            messages=[*seen],
            earlier=self._earlier,
            tools=plan.tools,
            offered=self._offered,
            tools_disabled=head.final,
            output_schema=plan.output_schema,
            reasoning=plan.reasoning,
            sampling=plan.sampling,
        )
        if self.found is None:
            self.found = LoggedTurn(
                run_id=self.run_id, turn=head.turn, last=head.turn, agent=self._agent, request=request
            )
        self._found.request = request
        attempt = LoggedAttempt(attempt=head.attempt, model=head.model, started_at=at, cause=head.cause)
        self._found.attempts.append(attempt)

    def _end(self, head: AttemptFailed | TurnCompleted, *, at: int, failure: str = "") -> None:
        for one in self._found.attempts:
            if one.attempt == head.attempt:
                one.ended_at, one.failure, one.usage = at, failure, head.usage
                one.estimated, one.cost_nusd, one.active_us = head.estimated, head.cost_nusd, head.active_us

    def _complete(self, head: TurnCompleted, body: bodies.TurnBody, *, at: int) -> None:
        self._end(head, at=at)
        found = self._found
        found.answer, found.args = body.message, bodies.turn_args(body)
        found.finish, found.problem, found.metadata = head.finish, body.problem, head.metadata
