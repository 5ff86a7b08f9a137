"""Messages of threads, as an engine has them: with the answer that a model is just giving, and how they are edited.

A run reads its thread as it was when it began. What is edited while it does is a fact of its log, appended in the
transaction that changes the rows: a restart builds the same requests. Otherwise only the rows change.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Any, Protocol, TypeAlias
from weakref import WeakValueDictionary

from msgspec import Struct
from msgspec.json import decode, encode
from msgspec.structs import replace

from weftline.errors import Conflict, NotFound, invalid_field
from weftline.kernel import bodies
from weftline.kernel.accept import accepts
from weftline.kernel.bodies import AddedMessage, ChangedMessage, EditedBody
from weftline.kernel.context import ContextRestored, MessagesEdited
from weftline.kernel.entries import FORMAT
from weftline.messages import Assistant, Message, System, Text, ToolCall, ToolResults, User
from weftline.runtime import ids
from weftline.runtime.clock import Clock
from weftline.runtime.kept import message_id
from weftline.runtime.live import Draft, LiveRun
from weftline.store.base import Store
from weftline.store.database import Query
from weftline.store.records import thread_messages, threads
from weftline.store.records.thread_messages import MessageFilter, MessageRow
from weftline.store.records.threads import ThreadRow
from weftline.store.rows import KeptMessage, MessageEdit

Append: TypeAlias = Callable[[LiveRun, Sequence[Draft]], None]


class Log(Protocol):
    """`weftline.runtime.log.Log`, as edits need it."""

    def require_writable(self) -> None: ...
    async def durable(self, run: LiveRun, *, outside: bool = False) -> None: ...


class NewMessage(Struct, frozen=True, kw_only=True):
    """A message that somebody puts into a thread."""

    role: str = "user"
    text: str
    silent: bool = False
    metadata: Mapping[str, Any] = {}
    origin: str | None = None
    """The same however often the code that adds it is run for one call."""

    @property
    def message(self) -> Message:
        match self.role:
            case "user":
                return User.of(self.text, injected=self.silent)
            case "assistant":
                return Assistant((Text(self.text),))
            case "system":
                return System(self.text)
            case _:
                raise invalid_field("role", "must be user, assistant or system: a result has a call.")


class Changes(Struct, frozen=True, kw_only=True):
    """What is changed of a message; None leaves it as it is."""

    text: str | None = None
    silent: bool | None = None
    metadata: Mapping[str, Any] = {}
    """Merged into what is there."""


class ThreadEdits:
    """Edits of threads, one at a time. A run that begins waits for them, and they wait until it has begun."""

    def __init__(self) -> None:
        self._turns: WeakValueDictionary[int, asyncio.Lock] = WeakValueDictionary()
        self._counts: dict[int, int] = {}

    def of(self, thread: int | None) -> AbstractAsyncContextManager[None]:
        return nullcontext() if thread is None else self._turns.setdefault(thread, asyncio.Lock())

    def count(self, thread: int | None) -> int:
        """How many edits of the thread there have been in this process."""
        return 0 if thread is None else self._counts.get(thread, 0)

    def add(self, thread: int) -> None:
        self._counts[thread] = self.count(thread) + 1


class ThreadMessages:
    def __init__(
        self,
        store: Store,
        log: Log,
        edits: ThreadEdits,
        *,
        clock: Clock,
        resident: Mapping[int, LiveRun],
        load: Callable[[int], Awaitable[LiveRun]],
        append: Append,
    ) -> None:
        """`resident` has the runs in memory by their keys; `append` appends facts to a run and continues it."""
        self._store = store
        self._log = log
        self._edits = edits
        self._clock = clock
        self._resident = resident
        self._load = load
        self._append = append

    # Reading

    async def page(self, wanted: MessageFilter, *, within: bool = False) -> tuple[list[MessageRow], int]:
        """Messages of a thread, the latest of which may be pending, and how many match in all.

        `within` its run, everything that the run has said so far is there.
        """
        run = await self.written(wanted.thread) if within else await self._active(wanted.thread)
        pending = None if run is None else _pending(run)
        if pending is None or wanted.id not in (None, pending.id):
            return await self._store.log.thread_rows(wanted)
        if wanted.id is not None:
            return [pending], 1
        earlier = wanted
        if wanted.newest_first:
            first = wanted.offset == 0
            earlier = replace(wanted, offset=max(0, wanted.offset - 1), limit=max(0, wanted.limit - first))
        rows, total = await self._store.log.thread_rows(earlier)
        if any(row.id == pending.id for row in rows):
            return rows, total  # it was completed meanwhile
        if wanted.newest_first:
            rows = [pending, *rows] if wanted.offset == 0 and wanted.limit else rows
        elif len(rows) < wanted.limit and wanted.offset <= total:
            rows = [*rows, pending]
        return rows, total + 1

    async def one(self, thread: int, id: str, *, within: bool = False) -> MessageRow | None:
        """A message of a thread; None if the thread has none with this id."""
        rows, _ = await self.page(MessageFilter(thread=thread, id=id, limit=1), within=within)
        return rows[0] if rows else None

    async def written(self, thread: int) -> LiveRun | None:
        """Returns when all that the thread's run has appended is durable. The run, if it is in memory."""
        run = await self._active(thread)
        if run is not None:
            await self._log.durable(run)
        return run

    async def _active(self, thread: int) -> LiveRun | None:
        """The run of the thread that may move, if it is in memory."""
        row = await self._store.records.read(threads.by_key(thread))
        return None if row is None or row.active_run is None else self._resident.get(row.active_run)

    # Editing

    async def inject(self, thread: int, new: NewMessage) -> MessageRow:
        """Puts a message at the end of a thread, which starts no run. One that reads it does so in its next request.

        Raises `Conflict` (`thread_ended`).
        """
        message = new.message
        async with self._edits.of(thread):
            self._log.require_writable()
            if new.origin is not None:
                await self.written(thread)
                earlier = await self._store.records.read(thread_messages.by_origin(thread, new.origin))
                if earlier is not None:
                    return await self._found(thread, earlier)
            row, run = await self._open(thread)
            put = KeptMessage(
                f"msg_{ids.new_salt()}{ids.new_salt()}",
                new.role,
                bodies.encode(message),
                self._clock.now_us(),
                silent=new.silent,
                metadata=encode(dict(new.metadata)).decode(),
                origin=new.origin,
            )
            if run is None:
                self._edits.add(thread)
                await self._store.records.write(_keep(thread, put))
            else:
                body = EditedBody(added=(AddedMessage(put.id, message),))
                await self._tell(run, MessagesEdited(row.revision), body, put=(put,))
            return await self._found(thread, put.id)

    async def update(self, thread: int, id: str, changes: Changes) -> MessageRow:
        """Changes a message, for all requests from the next one on.

        Raises `NotFound`, or `Conflict` (`thread_ended`, `message_in_use`).
        """
        async with self._edits.of(thread):
            self._log.require_writable()
            row, run = await self._open(thread)
            found = await self._found(thread, id)
            message = bodies.decode_message(found.message)
            if changes.text is not None:
                message = _with_text(message, changes.text)
            silent = found.silent if changes.silent is None else changes.silent
            if isinstance(message, User):
                message = replace(message, injected=silent)
            edit = MessageEdit(
                thread,
                found.pos,
                row.revision + 1,
                index=0,
                message=bodies.encode(message),
                metadata=encode({**decode(found.metadata, type=dict[str, Any]), **changes.metadata}).decode(),
                silent=silent,
            )
            await self._change(run, found, (edit,))
            return await self._found(thread, id)

    async def delete(self, thread: int, id: str) -> bool:
        """Removes a message, with the results of its calls. Returns False if there is none.

        Raises `Conflict` (`thread_ended`, `message_in_use`), or `InvalidRequest` for a result alone.
        """
        async with self._edits.of(thread):
            self._log.require_writable()
            row, run = await self._open(thread)
            found = await self._stored(thread, id)
            if found is None:
                return False
            if found.asked_by is not None:
                raise invalid_field("messageId", "a result goes with the answer that asked for its call.")
            below = [] if found.id is None else await self._store.records.read(thread_messages.below(thread, found.id))
            edits = [MessageEdit(thread, pos, row.revision + 1, index=0) for pos in (found.pos, *below)]
            await self._change(run, found, edits)
            return True

    async def _open(self, thread: int) -> tuple[ThreadRow, LiveRun | None]:
        """The thread, and its run if it has begun to read."""
        while True:
            row = await self._store.records.read(threads.by_key(thread))
            if row is None:
                raise NotFound("There is no such thread.")
            if row.ended_at is not None:
                raise Conflict("This thread has ended.", code="thread_ended")
            if row.active_run is None:
                return row, None
            run = await self._load(row.active_run)
            await self._log.durable(run, outside=True)
            if not run.state.ended and not run.gone:
                return row, None if run.state.history is None else run

    async def _stored(self, thread: int, id: str) -> MessageRow | None:
        rows, _ = await self._store.log.thread_rows(MessageFilter(thread=thread, id=id, limit=1))
        return rows[0] if rows else None

    async def _found(self, thread: int, id: str) -> MessageRow:
        row = await self._stored(thread, id)
        if row is None:
            raise NotFound("The thread has no such message.", code="unknown_message")
        return row

    async def _change(self, run: LiveRun | None, found: MessageRow, edits: Sequence[MessageEdit]) -> None:
        """Changes rows, the first of which is `found`; the others go with it."""
        thread = edits[0].thread
        if run is not None and _is_in_use(run, found):
            raise Conflict(
                "This message belongs to a turn whose calls are open, or is still being written.",
                code="message_in_use",
            )
        index = await self._store.records.read(thread_messages.index_of(thread, found.pos))
        if run is None or index is None:
            # Nobody reads it now.
            self._edits.add(thread)
            await self._store.records.write(_edited([replace(one, index=index or 0) for one in edits]))
            return
        body = await self._as_read(run, found, edits)
        first = min([*body.removed, *[one.at for one in body.changed]], default=index)
        covered = run.work.conversation.view.cut
        restores = (Draft(ContextRestored()),) if covered is not None and first < covered.upto else ()
        given = run.work.conversation.given
        head = MessagesEdited(edits[0].revision, removed=sum([at < given for at in body.removed]))
        kept = tuple([replace(one, index=index, keep=True) for one in edits])
        await self._tell(run, head, body, edits=kept, restores=restores)

    async def _as_read(self, run: LiveRun, found: MessageRow, edits: Sequence[MessageEdit]) -> EditedBody:
        """What the edits are in the run's conversation."""
        conversation = run.work.conversation
        known = conversation.position_of(found.name.removeprefix(message_id(run.work.unique_id)))
        if known is None and found.pos <= conversation.through:
            known = await self._store.records.read(thread_messages.index_of(edits[0].thread, found.pos))
        if known is None:
            raise Conflict("This message is still being written.", code="message_in_use")
        change = edits[0].message
        if change is None:
            after = conversation.messages[known + 1 : known + 2]
            results = [known + 1] if len(edits) > 1 and after and isinstance(after[0], ToolResults) else []
            return EditedBody(removed=(known, *results))
        message = bodies.decode_message(change)
        old = conversation.messages[known]
        if isinstance(message, ToolResults) and isinstance(old, ToolResults):
            new = {one.id: one for one in message.results}
            message = ToolResults(tuple([new.get(one.id, one) for one in old.results]))
        return EditedBody(changed=(ChangedMessage(known, message),))

    async def _tell(
        self,
        run: LiveRun,
        head: MessagesEdited,
        body: EditedBody,
        *,
        edits: tuple[MessageEdit, ...] = (),
        put: tuple[KeptMessage, ...] = (),
        restores: tuple[Draft, ...] = (),
    ) -> None:
        """Appends an edit to the log of the run that reads the thread, with the change of the rows."""
        if not accepts(run.state, head):
            raise Conflict("The run that reads this thread cannot take an edit now.", code="message_in_use")
        self._append(run, (Draft(head, bodies.encode(body), edits=edits, put=put), *restores))
        await self._log.durable(run, outside=True)


def _keep(thread: int, new: KeptMessage) -> Query[None]:
    yield from thread_messages.keep(thread, [(new, (new.message, None))], run=0, format=FORMAT)


def _edited(edits: Sequence[MessageEdit]) -> Query[None]:
    for one in edits:
        yield from thread_messages.edit(one)


def _is_in_use(run: LiveRun, row: MessageRow) -> bool:
    """Whether a message belongs to the turn whose calls are open, or came while they were."""
    if not run.work.conversation.turn.has_open_calls:
        return False
    answer = f"{message_id(run.work.unique_id)}_{run.state.turn - 1}"
    return answer in (row.id, row.asked_by)


def _with_text(message: Message, text: str) -> Message:
    """The message with this text in place of its own; files and calls stay."""
    new = Text(text)
    match message:
        case System():
            return System(text)
        case User():
            return replace(message, parts=(new, *[one for one in message.parts if not isinstance(one, Text)]))
        case Assistant():
            before = [one for one in message.parts if not isinstance(one, Text | ToolCall)]
            calls = [one for one in message.parts if isinstance(one, ToolCall)]
            return Assistant((*before, new, *calls))
        case ToolResults(results):
            files = [one for one in results[0].parts if not isinstance(one, Text)]
            return ToolResults((replace(results[0], parts=(new, *files)), *results[1:]))


def _pending(run: LiveRun) -> MessageRow | None:
    """The answer that the model is giving, under the id that it keeps."""
    state, work = run.state, run.work
    if not state.attempt.open or work.conversation.kept is None:
        return None
    text = "" if work.answering is None else work.answering.text
    return MessageRow(
        pos=0,
        run=run.key,
        message=bodies.encode(Assistant((Text(text),))),
        id=f"{message_id(work.unique_id)}_{state.turn}",
        depth=0,
        parent=None,
        silent=False,
        status="pending",
        tool_status=None,
        metadata="{}",
        created_at=state.now,
        sent_at=state.now,
        asked_by=None,
    )
