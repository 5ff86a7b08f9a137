"""A run for whoever started or attached to it: follow it, steer it and await its result."""

# pyright: reportPrivateUsage=false
# A run and its engine know each other.

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from functools import partial
from typing import Any, Generic, Literal, Protocol, TypeAlias, cast, overload

from weftline.agent.engine.budget_methods import BudgetUse
from weftline.agent.engine.logs import LogPage, log_page
from weftline.agent.events import Cursor, events_of, profiled_events, with_children
from weftline.agent.output import OutputType
from weftline.agent.records import record_of
from weftline.agent.results import CallRecord, OutputT, RunResult, failure
from weftline.agent.settings import Budget
from weftline.agent.stored_messages import KINDS, SavedMessage, stored_messages
from weftline.api.snapshots import projection_of, snapshot_of
from weftline.errors import Conflict, InvalidRequest, of_newer_code, short_traceback
from weftline.events import AnyEvent, Event, TextDelta, TurnFinished, TurnRestarted
from weftline.events.details import AnyDetail
from weftline.events.profiles import Profile, classes_of
from weftline.events.snapshot import KINDS_OF_USAGE, RunSnapshot, usage_by_model
from weftline.kernel import bodies
from weftline.kernel.context import CompactionFailed, ContextCompacted, ContextRestored
from weftline.kernel.damage import UNREADABLE
from weftline.kernel.entries import (
    AttemptFailed,
    FinalForced,
    HistoryPinned,
    RunCreated,
    RunEnded,
    TurnCompleted,
    decode_fact,
)
from weftline.kernel.notes import RUN_NOTE, RunNote, decode_run_note
from weftline.messages import Assistant, Message, Usage
from weftline.plan import agent_of, decode_content
from weftline.runtime.agent_code.code import PastCall
from weftline.runtime.conversation import Conversation
from weftline.runtime.deploys import known_facts
from weftline.runtime.engine import Engine, EntryBatch
from weftline.runtime.people.answering import NAMELESS, AwaitAnswer, pattern_of
from weftline.runtime.reads.calls import CancelReceipt
from weftline.runtime.tool_calls.provided import Provided
from weftline.workspace.context import Workspaces
from weftline.workspace.people import person_of

Status: TypeAlias = Literal["queued", "running", "paused", "succeeded", "failed", "cancelled"]
_MANY = 2**31 - 1


class RunEngine(Protocol):
    """The engine of a run, as the run needs it."""

    @property
    def workspaces(self) -> Workspaces: ...

    async def runtime(self) -> Engine: ...
    async def _locate(self, run_id: str) -> int: ...

    async def _settled(self, run_id: str) -> None:
        """Waits until the last hook of a run that ended here has returned."""
        ...

    def _error_of(self, run_id: str) -> BaseException | None:
        """Returns what the agent's own code raised here, if the run failed with that."""
        ...

    async def budgets(self, *, run_id: str | None = None) -> list[BudgetUse]: ...
    async def set_budget(self, budget: Budget | None = None, *, run_id: str | None = None, by: str) -> BudgetUse: ...

    async def _history_of(self, run_id: str, upto: int) -> Sequence[Message]:
        """Returns the first messages of the run's thread."""
        ...


class Run(Generic[OutputT]):
    """A run that you started or attached to (`Engine.start`, `Engine.attach`, `Agent.stream`).

    Iterating over it yields its events from the beginning, and ends when the run has.
    """

    def __init__(self, engine: RunEngine, run_id: str, *, output: OutputType[Any] | None) -> None:
        self.id = run_id
        self._engine = engine
        self._output = output

    def __repr__(self) -> str:
        return f"<Run {self.id}>"

    def __aiter__(self) -> AsyncIterator[AnyEvent]:
        return self.events()

    @overload
    def events(
        self, *, after: int | Cursor = 0, children: bool = False, profile: None = None
    ) -> AsyncGenerator[AnyEvent]: ...
    @overload
    def events(self, *, after: int = 0, profile: Profile) -> AsyncGenerator[AnyEvent | AnyDetail]: ...
    def events(
        self, *, after: int | Cursor = 0, children: bool = False, profile: Profile | None = None
    ) -> AsyncGenerator[Any]:
        """Yields the events of the run after the given `seq`, from the log and then live.

        With `children`, the events of its child runs come in between, at any depth: `run_id` says which run an event
        belongs to, and a child that had not ended by then is followed from its beginning. To continue where you left
        off, note the `seq` of the last event of each run, and pass all of them as `after={run_id: seq, …}`.

        A `profile` says which events: `all` has those of `weftline.details` too, `metrics` has usage and phases, and a
        list of classes has just those. The end of the run is always included. Raises `InvalidRequest` for another name.
        Not with `children`.
        """
        if profile is None:
            return self._plain(after=after, children=children)
        if children or not isinstance(after, int):
            raise InvalidRequest("profile= is for one run: follow its children by their own ids.")
        return self._profiled(classes_of(profile), after=after)

    async def _profiled(self, classes: frozenset[type[Event]], *, after: int) -> AsyncGenerator[AnyEvent | AnyDetail]:
        projection = await projection_of(await self._engine.runtime(), await self._key(), self.id)
        async for batch in self._batches(after=after):
            for event in profiled_events(batch, projection, classes):
                yield event

    async def _plain(self, *, after: int | Cursor, children: bool) -> AsyncGenerator[AnyEvent]:
        if children:
            async for event in with_children(self.id, self._of_run, after=after):
                yield event
            return
        seq = after if isinstance(after, int) else after.get(self.id, 0)
        async for batch in self._batches(after=seq):
            for event in events_of(batch):
                yield event

    async def entries(self, *, after: int = 0, limit: int = 100) -> LogPage:
        """A page of the run's log, oldest entry first: up to `limit` entries after the given `seq`, as they are stored.

        Raises `InvalidRequest` for a limit below 1, and `NotFound` for an unknown run.
        """
        host = await self._engine.runtime()
        return await log_page(host.stored.logs, await self._key(), self.id, after=after, limit=limit)

    def _of_run(self, run_id: str) -> AsyncIterator[AnyEvent]:
        return Run[object](self._engine, run_id, output=None).events()

    async def text(self) -> AsyncGenerator[str]:
        """The text of the answer as it is written. After a `TurnRestarted` it starts over."""
        async for event in self.events():
            if isinstance(event, TextDelta):
                yield event.text

    async def partials(self) -> AsyncGenerator[Any]:
        """A typed answer as it grows: JSON, unvalidated."""
        written = ""
        latest: object = None
        async for event in self.events():
            match event:
                case TextDelta():
                    written += event.text
                    partial = written if self._output is None else self._output.partial(written)
                    if partial is not None and partial != latest:
                        latest = partial
                        yield partial
                case TurnRestarted() | TurnFinished():
                    written = ""
                case _:
                    pass

    async def result(self) -> RunResult[OutputT]:
        """Waits for the run to end and returns its result.

        Raises `RunFailed` if it failed, but not if it was cancelled.
        """
        with short_traceback:
            outcome = _Outcome(self.id)
            async for batch in self._batches():
                outcome.take(batch)
            await self._engine._settled(self.id)
            history = await self._engine._history_of(self.id, outcome.pinned) if outcome.pinned else ()
            result = cast("RunResult[OutputT]", outcome.result(self._output, history))
            if result.status == "failed":
                raise failure(result) from self._engine._error_of(self.id)
            return result

    async def messages(self) -> list[SavedMessage]:
        """The messages of this run so far, each as soon as its turn has ended."""
        host = await self._engine.runtime()
        facts = await host.stored.logs.newest_facts(await self._key(), kinds=KINDS, limit=_MANY, max_bytes=_MANY)
        return stored_messages(self.id, facts)

    async def status(self) -> Status:
        """Returns `queued`, `running` or `paused`, or how the run has ended."""
        host = await self._engine.runtime()
        row = await host.stored.row(await self._key())
        assert row is not None
        return cast("Status", row.status)

    async def snapshot(self) -> RunSnapshot:
        """The run's current state: its phase, text and usage, its calls and children, and its open questions."""
        host = await self._engine.runtime()
        row = await host.stored.row(await self._key())
        assert row is not None
        return await snapshot_of(host.stored.logs, row, thread=await host.stored.session_id(row.listed_under))

    async def usage(self) -> dict[str, Usage]:
        """Returns the tokens that the run's own model calls have used so far, by model id."""
        host = await self._engine.runtime()
        return usage_by_model(await known_facts(host.stored.logs, await self._key(), kinds=KINDS_OF_USAGE))

    async def budgets(self) -> list[BudgetUse]:
        """The budgets that apply to the run, nearest first: each limit with what is spent and reserved."""
        return await self._engine.budgets(run_id=self.id)

    async def set_budget(self, budget: Budget | None, *, by: str = NAMELESS) -> BudgetUse:
        """Replaces the run's own limits, from its next call on; None restores those that it was started with.

        If the run waits because a call did not fit, it continues once that limit is raised. `by` is who raised it,
        which the log keeps. The limits of its thread, agent and workspace are set with `Engine.set_budget`.

        Raises `Conflict` if the run has ended, or was started without a budget.
        """
        return await self._engine.set_budget(budget, run_id=self.id, by=by)

    async def steer(self, text: str, *, by: str = "", labels: Mapping[str, str] | None = None) -> None:
        """Hands a message to the run at its next turn; calls that have not begun by then are skipped.

        Args:
            by: Who sends it, for the log and for the four-eyes rule.
            labels: Kept with the message in the log.
        """
        host = await self._engine.runtime()
        await host.steer(await self._key(), text, by=by, labels=labels)

    async def follow_up(self, text: str, *, by: str = "", labels: Mapping[str, str] | None = None) -> None:
        """Hands a message to the run when it would otherwise end."""
        host = await self._engine.runtime()
        await host.follow_up(await self._key(), text, by=by, labels=labels)

    async def pause(self, reason: str = "", *, by: str = "", labels: Mapping[str, str] | None = None) -> None:
        """Finishes work in progress and starts nothing new until `resume`."""
        host = await self._engine.runtime()
        await host.pause(await self._key(), reason=reason, requested_by=by, labels=labels)

    async def resume(
        self, notes: str = "", *, messages: Sequence[str] = (), by: str = "", labels: Mapping[str, str] | None = None
    ) -> None:
        """Lets a paused run continue. The model reads `messages` before its next turn."""
        host = await self._engine.runtime()
        await host.resume(await self._key(), notes=notes, requested_by=by, labels=labels, messages=messages)

    async def restore_context(self, *, by: str = "") -> bool:
        """Undoes a summary of older messages: from the next request on, the model gets the whole conversation again.

        The run makes no further summary unless the model refuses a request as too long. Returns False if there is no
        summary to undo, or the next one is just being written.
        """
        host = await self._engine.runtime()
        return await host.accept(await self._key(), ContextRestored(by))

    async def cancel(self, reason: str = "user", *, by: str = "") -> CancelReceipt:
        """Ends the run at once; returns what was stopped, what had finished and what is in doubt."""
        host = await self._engine.runtime()
        return await host.cancel(await self._key(), reason=reason, requested_by=by)

    async def approve(
        self,
        await_id: str,
        *,
        args: Mapping[str, Any] | None = None,
        remember: bool | Mapping[str, object] = False,
        comment: str = "",
        by: str = NAMELESS,
    ) -> None:
        """Approves the call that an await asks about, optionally with other arguments, or a plan.

        Args:
            await_id: See `Engine.awaits`.
            args: All arguments of the call, replacing those that were shown. For a plan, `{"plan": …}` replaces it.
            remember: Also allows later calls of the same tool in this run: True for all of them, or the arguments that
                they must have. A string that ends in `*` is a prefix, which plain words may follow.
            comment: A comment on a plan, for the model to read.
            by: Who approves it.

        Raises:
            InvalidRequest: `invalid_answer`, if it does not fit the question; the run keeps waiting.
            Conflict: `await_closed`, `await_expired` or `run_terminal`, if it comes too late.
            Forbidden: `four_eyes`, if somebody else has to decide.
            NotFound: `unknown_await`.
        """
        if args is not None and not isinstance(args, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidRequest("The arguments of a call are a mapping of names to values.", code="invalid_answer")
        given = None if args is None else dict(args)
        pattern = pattern_of("", remember)
        await self._answer_await(
            await_id, AwaitAnswer(outcome="approved", args=given, remember=pattern, reason=comment), by=by
        )

    async def deny(self, await_id: str, reason: str = "", *, by: str = NAMELESS) -> None:
        """Denies a call, or declines to answer a question. The model reads the reason."""
        await self._answer_await(await_id, AwaitAnswer(outcome="denied", reason=reason), by=by)

    async def answer(
        self, await_id: str, value: Any, *, by: str = NAMELESS, labels: Mapping[str, str] | None = None
    ) -> None:
        """Answers a question, comments on a plan, or gives the result of a call that was in doubt.

        Several questions of one call are answered with a list, in order, or with one string that answers them all.
        The answer to a clarification is a string, which the model reads; an empty one lets it continue without.
        `labels` are kept with the answer.
        """
        await self._answer_await(
            await_id, AwaitAnswer(outcome="answered", value=value, labels=dict(labels or {})), by=by
        )

    async def provide(self, await_id: str, results: Sequence[Provided]) -> None:
        """Provides the results of all calls of a turn that wait for an outside system.

        Args:
            await_id: The id from `AwaitExternalTools`: `external_` and the number of the turn.
            results: One for each call, in any order. They are accepted together or not at all.

        Raises:
            InvalidRequest: `invalid_answer`, with every problem in `issues`; the run keeps waiting.
            NotFound: `unknown_await`, if no call of this turn waits for a result.
            Conflict: `run_terminal`, if the run has ended.
        """
        host = await self._engine.runtime()
        await host.provide(await self._key(), await_id, tuple(results))

    def below(self, run_id: str) -> Run[object]:
        """Returns a descendant of this run, at any depth, so that its questions can be answered."""
        return Run(self._engine, run_id, output=None)

    async def _answer_await(self, await_id: str, answer: AwaitAnswer, *, by: str) -> None:
        host = await self._engine.runtime()
        person = partial(person_of, self._engine.workspaces)
        await host.answer_await(await self._key(), await_id, answer, by=by, person_of=person)

    async def _key(self) -> int:
        return await self._engine._locate(self.id)

    async def _batches(self, *, after: int = 0) -> AsyncIterator[EntryBatch]:
        host = await self._engine.runtime()
        follower = host.follow(await self._key(), self.id, after=after)
        try:
            while (batches := await follower.next()) is not None:
                for batch in batches:
                    yield batch
        finally:
            follower.close()


class _Outcome:
    """Builds a result from the entries of a run."""

    def __init__(self, run_id: str) -> None:
        self._run_id = run_id
        self._conversation = Conversation([])
        self._given = 0
        self.pinned = 0
        """How many messages of its thread come before its own."""
        self._own = Usage()
        self._agent: str | None = None
        self._child = False
        self._notes: list[RunNote] = []
        self._began_us = 0
        self._ended_us = 0
        self._end: tuple[RunEnded, bodies.EndedBody] | None = None

    def take(self, batch: EntryBatch) -> None:
        """Raises `Conflict` (`unsupported_run`) for a run that newer code has written, unless it can be read."""
        try:
            self._fold(batch)
        except UNREADABLE:
            if not batch.newer:
                raise
            raise of_newer_code(self._run_id) from None

    def _fold(self, batch: EntryBatch) -> None:
        for item in batch.items:
            if not item.head:
                if item.kind == RUN_NOTE:
                    self._notes += [decode_run_note(body) for body in item.body.split(b"\n")]
                continue
            head = decode_fact.decode(item.head)
            match head:
                case RunCreated():
                    self._child = head.parent is not None
                    self._agent = agent_of(bodies.decode_created(item.body).plan)
                    plan = decode_content(bodies.decode_created(item.body).plan)
                    self._conversation, self._given = Conversation([*plan.messages]), plan.given
                    self._began_us = item.at
                case HistoryPinned():
                    self.pinned = head.upto
                case TurnCompleted() | AttemptFailed() | ContextCompacted() | CompactionFailed():
                    self._own += head.usage
                case RunEnded():
                    self._end = head, bodies.decode_ended(item.body)
                    self._ended_us = item.at
                case _:
                    pass
            # The text before a forced last turn is an instruction, not a message of the run.
            if not isinstance(head, FinalForced):
                self._conversation.take(head, item.body)

    def _in_order(self) -> tuple[CallRecord, ...]:
        """Returns the calls in the order in which the model made them; which of them ended first is chance.

        Calls that a call's code made come before that call.
        """
        past = self._conversation.calls.results
        places = {call.head.id: call.head.index for call in past}

        def place(call: PastCall) -> tuple[int, int, bool, int]:
            head = call.head
            below = head.parent in places
            return head.turn, places[head.parent] if below else head.index, not below, head.index

        return tuple([record_of(call) for call in sorted(past, key=place)])

    def result(self, output: OutputType[Any] | None, history: Sequence[Message]) -> RunResult[Any]:
        if self._end is None:
            raise Conflict("The engine was closed before the run had ended.")
        head, ended = self._end
        messages: list[Message] = self._conversation.messages
        value: Any = None
        if head.status == "succeeded":
            value = ended.text if output is None else _parsed(ended.text, output, self._run_id)
        calls = self._in_order()
        return RunResult(
            run_id=self._run_id,
            status=head.status,
            text=ended.text or ended.partial_text or "",
            value=value,
            messages=(*history, *messages),
            new_messages=tuple(messages[self._given :]),
            calls=calls,
            usage=head.usage,
            own_usage=self._own,
            cost_usd=None if head.cost_nusd is None else head.cost_nusd / 1_000_000_000,
            turns=head.turns,
            attempts=head.attempts,
            elapsed_ms=max(self._ended_us - self._began_us, 0) // 1000,
            error=ended.error,
            code=head.code,
            agent=self._agent,
            final=_final(head, messages),
            final_call=next((call for call in calls if call.id == head.call), None) if self._child else None,
            notes=tuple([note for note in self._notes if note.turn == max(head.turns - 1, 0)]),
            provider_failure=ended.provider,
            reason=head.reason,
        )


def _final(head: RunEnded, messages: Sequence[Message]) -> Assistant | None:
    """Returns the answer that a run ended with."""
    last = messages[-1] if messages else None
    return last if head.status == "succeeded" and not head.call and isinstance(last, Assistant) else None


def _parsed(text: str, output: OutputType[Any], run_id: str) -> Any:
    try:
        return output.parse(text)
    except ValueError as error:
        raise Conflict(
            f"The answer of {run_id} does not fit the output type of the agent it was attached with: {error}"
        ) from None
