"""Executes the calls of one caller to one agent, for both versions."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Sequence
from contextlib import aclosing, closing
from datetime import UTC, datetime
from hashlib import blake2b
from typing import Any, TypeAlias, TypeVar, assert_never

from msgspec.structs import replace

from weftline.api import following
from weftline.api.cancelling import cancel_run
from weftline.api.creating import Host
from weftline.api.following import Event, EventKind
from weftline.api.views import is_unreadable
from weftline.errors import Conflict, StoreError
from weftline.runtime.engine import Follower
from weftline.server.a2a.dialect import Dialect, ListQuery, Operation, SentMessage
from weftline.server.a2a.rpc import (
    INTERNAL_ERROR,
    PUSH_NOT_SUPPORTED,
    TASK_NOT_CANCELABLE,
    UNSUPPORTED_OPERATION,
    RpcError,
    invalid,
)
from weftline.server.a2a.sending import Deliveries, find_task, send
from weftline.server.a2a.tasks import STATES, Task, may_wait, read_task, unreadable_task
from weftline.server.large import LARGE_BYTES, RequestRoom
from weftline.store.records.agents import AgentRow
from weftline.store.rows import LargeEntry, RunFilter, RunRow
from weftline.work.heavy import parsed
from weftline.workspace.threads import CONTEXT_KEY

T = TypeVar("T")
UnlessGone: TypeAlias = Callable[[Coroutine[Any, Any, Task]], Awaitable[Task]]

STREAMS = frozenset({Operation.STREAM, Operation.SUBSCRIBE})
_LIST_BYTES = 4 * 1024 * 1024
"""The limit on the text of all tasks on a page of a list, which has fewer tasks if their text is longer."""
_TIME_CHARS = 40
_PAGE_CHARS = 48


class Serving:
    """Executes calls. Message ids are unique per `sender`; `room` is for tasks with a lot of text."""

    def __init__(
        self,
        app: Host,
        deliveries: Deliveries,
        agent: AgentRow,
        dialect: Dialect,
        *,
        sender: str,
        room: RequestRoom,
    ) -> None:
        self._app = app
        self._engine = app.engine
        self._deliveries = deliveries
        self._agent = agent
        self._dialect = dialect
        self._sender = sender
        self._room = room

    async def result(self, operation: Operation, params: bytes, *, unless_gone: UnlessGone) -> Any:
        """Returns the result of an operation that does not stream.

        `unless_gone` stops waiting when the caller has left.
        """
        match operation:
            case Operation.SEND:
                sent = await self._read(self._dialect.message, params)
                row = await self.send(sent)
                if sent.blocking:
                    return self._dialect.sent(await unless_gone(self._settled(row, sent.history)), waited=True)
                return self._dialect.sent(await self._as_of(row, sent.history), waited=False)
            case Operation.GET:
                query = await self._read(self._dialect.task_query, params)
                return self._dialect.task(await self._as_of(await self._find(query.id), query.history))
            case Operation.LIST:
                return await self._list(await self._read(self._dialect.list_query, params))
            case Operation.CANCEL:
                return self._dialect.task(await self._cancel(params))
            case Operation.PUSH:
                raise RpcError(PUSH_NOT_SUPPORTED, "Push notification is not supported.")
            case Operation.EXTENDED_CARD:
                code = self._dialect.extended_card_error
                raise RpcError(code, "This operation is not supported: the agent has no extended card.")
            case Operation.STREAM | Operation.SUBSCRIBE:
                raise AssertionError(f"{operation} streams")
            case _:
                assert_never(operation)

    async def notify(self, operation: Operation, params: bytes) -> None:
        """Executes a call that changes something, for a caller that wants no response."""
        if operation in (Operation.SEND, Operation.STREAM):
            await self.send(await self._read(self._dialect.message, params))
        elif operation is Operation.CANCEL:
            await self._cancel(params)

    async def stream(self, operation: Operation, params: bytes) -> AsyncGenerator[Sequence[Any]]:
        """Returns the events of a stream, in batches; an empty batch keeps the stream alive.

        Errors are raised before the first batch.
        """
        if operation is Operation.STREAM:
            sent = await self._read(self._dialect.message, params)
            row = await self.send(sent)
            task = await self._as_of(row, sent.history)
            # A new task may have made progress since it was read, so its text is sent from the first piece.
            return self._events(row, task, after=0 if sent.task_id is None else task.turn_seq, until_asked=True)
        query = await self._read(self._dialect.task_query, params)
        row = await find_task(self._app, self._agent, query.id, status=self._dialect.nothing_to_follow)
        task = await self._as_of(row, query.history)
        if task.ended and not self._dialect.follows_ended:
            raise RpcError(UNSUPPORTED_OPERATION, "This operation is not supported: the task has ended.")
        until_asked = self._dialect.follows_ended and not task.waits
        return self._events(row, task, after=task.turn_seq, until_asked=until_asked)

    async def send(self, sent: SentMessage) -> RunRow:
        return await send(self._app, self._deliveries, self._agent, sent, sender=self._sender)

    async def _read(self, read: Callable[[bytes], T], params: bytes) -> T:
        return await parsed(read, params)

    async def _find(self, id: str) -> RunRow:
        return await find_task(self._app, self._agent, id)

    async def _task(self, row: RunRow, history: int) -> Task:
        try:
            return await read_task(self._engine, row, history=history, max_bytes=LARGE_BYTES)
        except LargeEntry as large:
            await self._room.need(large.size)
            return await read_task(self._engine, row, history=history)

    async def _task_of_row(self, row: RunRow, history: int) -> Task:
        """Returns one task of many: one unreadable run must not empty the list."""
        try:
            return await self._task(row, history)
        except (StoreError, Conflict) as error:
            if not is_unreadable(error):
                raise
            return unreadable_task(row, error)

    async def _now(self, row: RunRow, history: int = 0) -> Task:
        return await self._as_of(await self._newest(row), history)

    async def _as_of(self, row: RunRow, history: int) -> Task:
        """Returns the task as of the row, or a newer one if that waited for something that has arrived."""
        while True:
            task = await self._task(row, history)
            if not task.waits:
                return task
            # Its questions are read after the row, and may have been answered in between.
            before, row = row, await self._newest(row)
            if row.next_seq == before.next_seq:
                return task

    async def _newest(self, row: RunRow) -> RunRow:
        newest = await self._engine.stored.row(row.key)
        assert newest is not None
        return newest

    async def _settled(self, row: RunRow, history: int) -> Task:
        """Waits until the task has ended or waits for input, and returns it."""
        while True:
            task = await self._now(row, history)
            if task.ended or task.waits:
                return task
            follower = self._follow(row, task, after=task.seq)
            about = {"taskId": task.id}
            del task
            self._room.free()  # others need it while there is nothing to send
            # Closed here, since an unused generator of events does not close it.
            with closing(follower):
                if await self._waits(row):
                    continue  # a run below it may have asked since it was read, which its own log does not show
                if not await self._moved(row, follower):
                    message = "The server is stopping; ask for the task's result later."
                    raise RpcError(INTERNAL_ERROR, message, about=about)

    async def _moved(self, row: RunRow, follower: Follower) -> bool:
        """Waits for an event that a caller may be waiting for; returns False if the server is stopping."""
        async with aclosing(following.run_events(follower)) as events:
            async for event in events:
                if event.kind in (EventKind.END, EventKind.CLIENT_CALL, EventKind.PAUSE):
                    return True
                if event.kind in (EventKind.CALL, EventKind.NOTHING) and await self._waits(row):
                    return True
        return False

    async def _waits(self, row: RunRow) -> bool:
        """Returns True if the task now waits for people."""
        newest = await self._newest(row)
        return await may_wait(self._engine, newest) and (await self._now(row)).waits

    def _follow(self, row: RunRow, task: Task, *, after: int) -> Follower:
        follower = self._engine.follow(row.key, task.id, after=after, workspace=row.workspace)
        follower.follows_below = True
        return follower

    async def _cancel(self, params: bytes) -> Task:
        query = await self._read(self._dialect.task_query, params)
        row = await self._find(query.id)
        if row.ended_at is not None:
            about = {"taskId": query.id}
            raise RpcError(TASK_NOT_CANCELABLE, f"The task has ended ({row.status}).", about=about)
        await cancel_run(self._engine, row.key, by=self._sender)
        return await self._now(row, query.history)

    async def _list(self, query: ListQuery) -> Any:
        statuses = tuple(status for status, state in STATES.items() if _may_be(state, query.state))
        if query.state and not statuses:
            return self._dialect.listed([], query=query, total=0, next_page="")
        wanted = RunFilter(
            workspace=self._agent.workspace,
            agents=(self._agent.id,),
            limit=query.limit + 1,
            statuses=statuses if query.state else (),
            metadata=((CONTEXT_KEY, query.context_id),) if query.context_id else (),
            changed_since=page_time(query.since) if query.since else None,
            by_change=True,
            before_change=page_cursor(query.page) if query.page else None,
        )
        found = await self._engine.stored.logs.runs(wanted)
        tasks: list[Task] = []
        size = taken = 0
        for row in found[: query.limit]:
            task = await self._task_of_row(row, query.history)
            size += task.size
            if taken and size > _LIST_BYTES:
                break
            taken += 1
            if query.state in ("", task.state):
                tasks.append(task)
        last = found[taken - 1] if taken < len(found) else None
        next_page = f"{last.changed_at}-{last.key}" if last is not None else ""
        total = await self._engine.stored.logs.count_runs(wanted)
        return self._dialect.listed(tasks, query=query, total=total, next_page=next_page)

    async def _events(self, row: RunRow, task: Task, *, after: int, until_asked: bool) -> AsyncGenerator[Sequence[Any]]:
        """Yields the task as it is, then its events: the answer as it is produced, and each change of status.

        Every turn starts the answer over, since only the text of the last turn is the answer. Ends with the task, or
        when it waits for input if `until_asked`.
        """
        dialect = self._dialect
        if task.ended or (task.waits and until_asked):
            yield [dialect.first(task), dialect.status(task, final=True)]
            return
        follower = self._follow(row, task, after=after)
        with closing(follower):
            yield [dialect.first(task)]
            # Questions of the runs below it are not in its own log and may have come since it was read, so they are
            # checked first.
            async with (
                aclosing(following.run_events(follower, Event(EventKind.CALL))) as events,
                aclosing(self._responses(row, replace(task, history=()), events, until_asked=until_asked)) as batches,
            ):
                async for batch in batches:
                    yield batch

    async def _responses(
        self, row: RunRow, task: Task, events: AsyncGenerator[Event], *, until_asked: bool
    ) -> AsyncGenerator[Sequence[Any]]:
        dialect = self._dialect
        streamed, reported, working = _Streamed(), task.waits_for, task.state != "submitted"
        async for event in events:
            if not working and event.kind is not EventKind.NOTHING and (begun := await self._begun(row, task)):
                working = True
                yield [dialect.status(begun, final=False)]
            match event.kind:
                case EventKind.ATTEMPT:
                    streamed.over = True
                case EventKind.TEXT:
                    yield [dialect.chunk(task, event.text, append=streamed.more(event.text))]
                case EventKind.TURN:
                    streamed.over = True
                case EventKind.CLIENT_CALL | EventKind.PAUSE | EventKind.CALL | EventKind.NOTHING:
                    if event.kind is EventKind.NOTHING:
                        yield ()
                    below = event.kind in (EventKind.CALL, EventKind.NOTHING) and reported is None
                    if below and not await may_wait(self._engine, await self._newest(row)):
                        continue
                    now = await self._now(row)
                    if now.ended or now.waits_for == reported:
                        continue
                    reported = now.waits_for
                    yield [dialect.status(now, final=now.waits and until_asked)]
                    if now.waits and until_asked:
                        return
                case EventKind.END:
                    yield self._end(await self._now(row), streamed)

    def _end(self, task: Task, streamed: _Streamed) -> Sequence[Any]:
        dialect = self._dialect
        events: list[Any] = []
        if task.result is not None:
            whole = not streamed.differs(task.result) and not (task.data and dialect.includes_data)
            # Only now is it known which piece was the last, so an empty one marks the end.
            events.append(dialect.chunk(task, "", append=True, last=True) if whole else dialect.answer(task))
        return [*events, dialect.status(task, final=True)]

    async def _begun(self, row: RunRow, task: Task) -> Task | None:
        """Returns the task as it was when it began to work, whatever its state now; None if it has not begun."""
        now = await self._engine.stored.row(row.key)
        if now is None or now.started_at is None:
            return None
        return replace(task, state="working", message=None, at_us=now.started_at)


class _Streamed:
    """The answer so far, as the reader of a stream has seen it."""

    def __init__(self) -> None:
        self.over = True
        """Whether the next piece starts the answer over."""
        self._digest: blake2b | None = None
        """None before the first piece, as no text is different from an empty text."""

    def more(self, text: str) -> bool:
        """Adds a piece; returns whether it continues the text before it."""
        goes_on = not self.over
        if self._digest is None or not goes_on:
            self.over, self._digest = False, blake2b()
        self._digest.update(text.encode())
        return goes_on

    def differs(self, text: str) -> bool:
        return self._digest is None or self._digest.digest() != blake2b(text.encode()).digest()


def _may_be(state: str, wanted: str) -> bool:
    """Returns True if a task in `state` may be in the state `wanted`: a running one may be waiting for input."""
    return state == wanted or (state == "working" and wanted == "input-required")


def page_time(text: str) -> int:
    try:
        at = datetime.fromisoformat(text[:_TIME_CHARS])
    except ValueError:
        raise invalid("statusTimestampAfter", "must be a time such as 2026-01-31T12:00:00Z.") from None
    return int((at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp() * 1_000_000)


def page_cursor(page: str) -> tuple[int, int]:
    at, _, key = page.partition("-")
    if len(page) > _PAGE_CHARS or not (at + key).isascii() or not at.isdigit() or not key.isdigit():
        raise invalid("pageToken", "did not come from an earlier page.")
    return min(int(at), 2**62), min(int(key), 2**62)
