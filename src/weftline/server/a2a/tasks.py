"""Projects a run to the task that A2A callers see, from its row and its entries.

A task waits for input while a client call is open: the caller is the client, and its next message is the result of that
call. It also waits while its run, or one below it, asks people and does nothing else; see `asking`.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple, TypeAlias

from msgspec import DecodeError, Raw, Struct
from msgspec.json import decode, encode
from msgspec.structs import replace

from weftline.api.following import usage
from weftline.api.views import run_view, unreadable
from weftline.errors import WeftlineError
from weftline.kernel import bodies
from weftline.kernel.damage import UNREADABLE
from weftline.kernel.entries import (
    FORMAT,
    KIND,
    AwaitClosed,
    AwaitOpened,
    CallClosed,
    CallOpened,
    CallStarted,
    Fact,
    MessageQueued,
    RunCreated,
    TurnCompleted,
    decode_fact,
)
from weftline.messages import Assistant, Text, User, joined_text
from weftline.plan import decode_content
from weftline.runtime import ids
from weftline.runtime.engine import Engine
from weftline.runtime.people.answering import AwaitAnswer
from weftline.server.a2a import asking
from weftline.server.a2a.asking import TaskMessage
from weftline.store.rows import AwaitFilter, Item, OpenAwait, RunRow
from weftline.wire.run_responses import RunView
from weftline.workspace.threads import CONTEXT_KEY

MESSAGE_KEY = "a2a_message_id"
"""The metadata key for the sender's id of the message that began the run."""

ANSWER = "result"
"""The id of the artifact with the answer, both in a stream and in a task that has ended."""

State: TypeAlias = Literal["submitted", "working", "input-required", "completed", "failed", "canceled"]
STATES: dict[str, State] = {
    "queued": "submitted",
    "running": "working",
    "paused": "input-required",
    "succeeded": "completed",
    "failed": "failed",
    "cancelled": "canceled",
}
TERMINAL = frozenset({"completed", "failed", "canceled"})

_CONVERSATION = (KIND[MessageQueued], KIND[TurnCompleted], KIND[AwaitOpened], KIND[AwaitClosed])
_CALLS = (KIND[CallOpened], KIND[CallClosed])
_LOOK_BACK = 200
"""How many entries are read to find open calls, however short the requested history."""
_LOOK_BACK_BYTES = 2 * 1024 * 1024
"""The limit on their bytes: a longer history is cut at its beginning."""
_DELIVERED_BYTES = 16 * 1024 * 1024
"""How many bytes of recent messages are searched for a duplicate."""
_QUESTION_ARGS = ("question", "message", "prompt", "text")


class Task(Struct, frozen=True):
    id: str
    context_id: str
    state: State
    at_us: int
    """When the run ended, else began, else was created."""
    seq: int
    """The last entry that this projection includes."""
    turn_seq: int
    """The entry that completed the last turn; 0 if there was none."""
    message: TaskMessage | None
    """The agent's message for this state: its answer, its error or its question."""
    result: str | None
    """The answer, if it succeeded."""
    data: Raw | None
    """The answer as JSON, if the agent has an output schema."""
    error: str | None
    error_class: str | None
    history: tuple[TaskMessage, ...]
    usage: dict[str, Any] | None
    question: str | None = None
    """The id of the call that the next message answers."""
    asked: tuple[OpenAwait, ...] = ()
    """The open questions to people."""

    @property
    def ended(self) -> bool:
        return self.state in TERMINAL

    @property
    def size(self) -> int:
        """The length of its text, in characters."""
        text = self.message.text if self.message is not None else ""
        return len(text) + len(self.result or "") + sum([len(one.text) for one in self.history])

    @property
    def waits(self) -> bool:
        return self.state == "input-required"

    @property
    def waits_for(self) -> tuple[str, ...] | None:
        """The ids of what it waits for; empty if it is only paused, None if it does not wait."""
        if not self.waits:
            return None
        return (self.question,) if self.question is not None else tuple([f"{one.run}/{one.id}" for one in self.asked])


class _Read(NamedTuple):
    seq: int
    head: Fact
    body: bytes


def context_of(run: RunView) -> str:
    """Returns the context of a run; a run that was not started over A2A has its session or itself as context."""
    return run.metadata.get(CONTEXT_KEY) or run.session_id or run.id


async def read_task(engine: Engine, row: RunRow, *, history: int = 0, max_bytes: int | None = None) -> Task:
    """Returns the task of a run, with the last `history` messages.

    Raises `LargeEntry`, without reading it, if its input or its answer has more than `max_bytes`, and what `run_view`
    raises for a run that cannot be read.
    """
    run = await run_view(engine.stored, row, max_bytes=max_bytes)
    try:
        return await _task_of(engine, row, run, history=history)
    except UNREADABLE:
        raise unreadable(row) from None


def unreadable_task(row: RunRow, error: WeftlineError) -> Task:
    """Returns what a list shows for a run that cannot be read: where it stands, and why there is no more."""
    run_id = ids.run_id(row.key, row.salt)
    return Task(
        id=run_id,
        context_id=run_id,
        state=STATES[row.status],
        at_us=row.changed_at,
        seq=row.next_seq - 1,
        turn_seq=0,
        message=TaskMessage(f"msg_{run_id}", "agent", error.message),
        result=None,
        data=None,
        error=error.message,
        error_class=None,
        history=(),
        usage=None,
    )


async def _task_of(engine: Engine, row: RunRow, run: RunView, *, history: int) -> Task:
    facts = await _facts(engine, row, run, history=history)
    open_calls = _open_calls(facts) if row.ended_at is None else []
    state = STATES[run.status]
    asked = await _asked(engine, row) if row.ended_at is None else []
    question = open_calls[0] if open_calls and (state == "working" or asked) else None
    if question is not None or asked:
        state = "input-required"
    return Task(
        id=run.id,
        context_id=context_of(run),
        state=state,
        at_us=row.changed_at,
        seq=row.next_seq - 1,
        turn_seq=max((fact.seq for fact in facts if type(fact.head) is TurnCompleted), default=0),
        message=_question(question)
        if question is not None
        else asking.put(asked, task=row.key)
        if asked
        else _final_message(run),
        result=(run.final_text or "") if run.status == "succeeded" else None,
        data=_data(run),
        error=run.error,
        error_class=run.error_class,
        history=await _history(engine, row, run, facts, history) if history else (),
        usage=usage(run) if run.finished_us is not None else None,
        question=question.head.id if question is not None and isinstance(question.head, CallOpened) else None,
        asked=tuple(asked),
    )


async def _asked(engine: Engine, row: RunRow) -> list[OpenAwait]:
    """Returns the open questions of the run and the runs below it, in order, if they wait for nothing else."""
    if row.status not in ("paused", "running") or not await may_wait(engine, row):
        return []
    if row.status == "running" and not await engine.waits_for_people(row.key):
        return []
    asked = await engine.stored.awaits(AwaitFilter(workspace=row.workspace, root=row.key, limit=asking.MAX_QUESTIONS))
    return sorted(asked, key=lambda one: (one.opened_at, one.run, len(one.id), one.id))


async def may_wait(engine: Engine, row: RunRow) -> bool:
    """Returns True if anything is asked, so that it must be checked whether the run does anything else."""
    return row.status == "paused" or bool(
        row.ended_at is None
        and await engine.stored.awaits(AwaitFilter(workspace=row.workspace, root=row.key, limit=1, max_bytes=0))
    )


async def _facts(engine: Engine, row: RunRow, run: RunView, *, history: int) -> list[_Read]:
    if row.ended_at is not None and not history:
        return []
    # Results of server tools can be large, so calls are only read if the caller may be asked to answer one. They are
    # read for themselves: many of them must not push messages out of the history.
    stored: list[Item] = []
    for kinds in (_CONVERSATION, _CALLS) if run.outline.asks_client else (_CONVERSATION,):
        limit = max(_LOOK_BACK, history)
        stored += await engine.stored.logs.newest_facts(row.key, kinds=kinds, limit=limit, max_bytes=_LOOK_BACK_BYTES)
    stored.sort(key=lambda one: one.seq)
    # Nothing newer than the row: followers of the task get that as an event.
    newer = row.format > FORMAT
    return [read for one in stored if one.seq < row.next_seq and (read := _read(one, skip=newer)) is not None]


def _read(one: Item, *, skip: bool) -> _Read | None:
    """Decodes an entry; None for one that cannot be decoded, if those may be skipped."""
    try:
        return _Read(one.seq, decode_fact.decode(one.head), one.body)
    except UNREADABLE:
        if not skip:
            raise
        return None


def _open_calls(facts: list[_Read]) -> list[_Read]:
    """Returns the calls that wait for the client, in the order in which they were offered."""
    waiting: dict[str, _Read] = {}
    for fact in facts:
        match fact.head:
            case CallOpened(client=str(), blocked=False) as head:
                waiting[head.id] = fact
            case CallClosed() as head:
                waiting.pop(head.id, None)
            case _:
                pass
    return list(waiting.values())


def _final_message(run: RunView) -> TaskMessage | None:
    text = run.final_text if run.status == "succeeded" else run.error
    return TaskMessage(f"msg_{run.id}", "agent", text) if text else None


def _data(run: RunView) -> Raw | None:
    """Returns the answer as JSON. With an output schema, a run only succeeds with a valid answer."""
    if run.status != "succeeded" or not run.final_text or run.outline.output_schema is None:
        return None
    return Raw(run.final_text.encode())


def _question(fact: _Read) -> TaskMessage:
    head = fact.head
    assert isinstance(head, CallOpened)
    args = bodies.decode_opened(fact.body).args
    given = decode(args)
    words = next((given[name] for name in _QUESTION_ARGS if isinstance(given.get(name), str)), None)
    data = {"toolUseId": head.id, "name": head.name, "args": Raw(args), "kind": head.client}
    return TaskMessage(head.id, "agent", words or f"{head.name} {bytes(args).decode()}", (data,))


async def _history(
    engine: Engine, row: RunRow, run: RunView, facts: list[_Read], length: int
) -> tuple[TaskMessage, ...]:
    messages = [one for fact in facts if (one := _message_of(run, fact)) is not None]
    read = len([fact for fact in facts if KIND[type(fact.head)] in _CONVERSATION])
    if len(messages) < length and read < max(_LOOK_BACK, length):
        messages = await _input(engine, row, run) + messages
    return tuple(messages[-length:])


def _message_of(run: RunView, fact: _Read) -> TaskMessage | None:
    match fact.head:
        case MessageQueued(id=identity):
            queued = bodies.decode_queued(fact.body)
            return TaskMessage(queued.message_id or f"{run.id}_{identity}", "user", joined_text(queued.parts))
        case TurnCompleted(turn=turn):
            text = bodies.decode_turn(fact.body).message.text
            return TaskMessage(f"{run.id}_turn_{turn}", "agent", text) if text else None
        case CallOpened(client=str(), blocked=False):
            return _question(fact)
        case CallClosed(client=str(), how="returned" | "failed") as head:
            closed = bodies.decode_closed(fact.body)
            return TaskMessage(closed.message_id or f"{head.id}_answer", "user", joined_text(closed.parts))
        case AwaitOpened(id=identity, kind=kind):
            return asking.question(identity, kind, bodies.decode_await(fact.body))
        case AwaitClosed() as head:
            return asking.reply(head, fact.body)
        case _:
            return None


async def _input(engine: Engine, row: RunRow, run: RunView) -> list[TaskMessage]:
    """Returns the run's input; empty if retention has removed it."""
    first = await engine.stored.logs.entry(row.key, 1)
    if first is None:
        return []
    try:
        planned = decode_content(bodies.decode_created(first.body).plan).messages
    except DecodeError:  # from newer code, or damaged
        return []
    given = [message for message in planned if isinstance(message, User | Assistant) and message.parts]
    messages = [_given(message, f"{run.id}_in_{number}") for number, message in enumerate(given)]
    if messages and MESSAGE_KEY in run.metadata:
        messages[-1] = replace(messages[-1], id=run.metadata[MESSAGE_KEY])
    return messages


def _given(message: User | Assistant, id: str) -> TaskMessage:
    if isinstance(message, Assistant):
        return TaskMessage(id, "agent", message.text)
    files = [part for part in message.parts if not isinstance(part, Text)]
    about = [{"mediaType": file.media_type, "name": file.name, "sizeBytes": file.size} for file in files]
    return TaskMessage(id, "user", message.text, ({"attachments": about},) if about else ())


async def has_received(engine: Engine, key: int, answer: AwaitAnswer) -> bool:
    """Returns True if the run, or one below it, has already received this answer from this very request."""
    kinds = KIND[AwaitClosed], KIND[CallStarted]
    for one in await engine.stored.logs.newest_facts(key, kinds=kinds, limit=1000, max_bytes=_DELIVERED_BYTES):
        if one.kind == KIND[AwaitClosed]:
            if one.body and bodies.decode_answer(one.body).sent == answer.digest:
                return True
            continue
        head = decode_fact.decode(one.head)
        if isinstance(head, CallStarted) and head.child and await has_received(engine, ids.key_of(head.child), answer):
            return True
    return False


async def is_below(engine: Engine, row: RunRow, task: str) -> bool:
    """Returns True if a run is a descendant of the task's run."""
    first = await engine.stored.logs.entry(row.key, 1)
    if first is None:
        return False
    head = decode_fact.decode(first.head)
    return isinstance(head, RunCreated) and head.parent is not None and (head.parent.root or head.parent.run) == task


async def has_taken(engine: Engine, row: RunRow, message_id: str, text: str) -> bool:
    """Returns True if the run's recent messages include one with this id and text."""
    for kind in (KIND[MessageQueued], KIND[CallClosed]):
        stored = await engine.stored.logs.newest_facts(row.key, kinds=(kind,), limit=1000, max_bytes=_DELIVERED_BYTES)
        if any(_is_delivery(one, message_id, text) for one in stored):
            return True
    return False


def _is_delivery(one: Item, message_id: str, text: str) -> bool:
    if encode(message_id)[1:-1] not in one.body:
        return False
    body = bodies.decode_queued(one.body) if one.kind == KIND[MessageQueued] else bodies.decode_closed(one.body)
    return body.message_id == message_id and joined_text(body.parts) == text
