"""Forks: new runs that continue from a turn of a run that has ended.

A fork begins with the messages before that turn; no model or tool is called for them again. From there on everything is
the fork's own: its turns, its idempotency keys, its approvals, its cost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Protocol, Unpack

from msgspec import UNSET, Struct
from msgspec.structs import replace

from weftline.errors import LOG_DAMAGED, InvalidRequest, StoreError, invalid_field
from weftline.kernel.bodies import CreatedBody, Origin, decode_created, encode
from weftline.kernel.damage import UNREADABLE
from weftline.kernel.entries import AttemptStarted, HistoryPinned, decode_fact
from weftline.messages import Blob, Message, User
from weftline.plan import RunPlan, decode_plan, limits_of
from weftline.replay.exporting import messages_of
from weftline.replay.recorded import StoredRun
from weftline.replay.refusing import require_whole
from weftline.runtime import ids
from weftline.runtime.conversation import Conversation
from weftline.runtime.engine import CreateOptions, Engine
from weftline.runtime.model_view import blobs_of
from weftline.store.base import LogReader
from weftline.store.rows import Item, RunRow


class ForkPoint(Struct, frozen=True):
    """Where a fork begins: its origin's plan, and the messages before the turn."""

    origin: Origin
    plan: RunPlan
    sent: bytes | None
    """The client's request, if there was one."""
    messages: tuple[Message, ...]
    blobs: tuple[Blob, ...] = ()
    """The blobs that these messages refer to."""
    thread: int | None = None
    """The thread of the origin, if it has one."""

    def continued(self, plan: RunPlan, *, message: str | None, requested_by: str = "") -> RunPlan:
        """A plan that continues from here, with an additional message before the turn if desired.

        The earlier messages are in the plan, or in the thread if the fork has one.
        """
        added = (User.of(message),) if message is not None else ()
        before = self.messages if self.thread is None else ()
        return replace(
            plan,
            messages=(*before, *added),
            given=len(before),
            path=(),
            requested_by=requested_by,
            engine=None,
        )


async def fork_point(log: LogReader, row: RunRow, *, turn: int) -> ForkPoint:
    """Raises `Conflict` for a run that has not ended or is incomplete, `InvalidRequest` for a turn that it did not
    have, and `StoreError` (`log_damaged`).
    """
    first = await require_whole(log, row)
    try:
        return await _read_fork_point(log, row, first, turn=turn)
    except UNREADABLE:
        run_id = ids.run_id(row.key, row.salt)
        raise StoreError(f"The log of run {run_id} is damaged: it cannot be forked.", code=LOG_DAMAGED) from None


async def _read_fork_point(log: LogReader, row: RunRow, first: Item, *, turn: int) -> ForkPoint:
    created, plan = await asyncio.to_thread(_created, first)
    if plan.path:
        raise InvalidRequest("The run of a subagent cannot be forked; fork the one above it.")
    recorded = StoredRun(log, row)
    history = messages_of(await recorded.history())
    conversation = Conversation([*plan.messages], result_limit_bytes=plan.model_result_limit_bytes)
    turns = 0
    async for item in recorded.facts():
        head = decode_fact.decode(item.head)
        if isinstance(head, AttemptStarted):
            if head.turn == turn:
                break
            turns = head.turn + 1
        if isinstance(head, HistoryPinned):
            conversation.begin(history, size=0)
        conversation.take(head, item.body)
    else:
        had = "no turn" if not turns else f"turns 0 to {turns - 1}" if turns > 1 else "turn 0 alone"
        raise invalid_field("turn", f"{recorded.run_id} had {had}, and no turn {turn}.")
    messages = tuple(conversation.messages)
    sent = None if created.sent is UNSET else bytes(created.sent)
    origin = Origin(ids.run_id(row.key, row.salt), turn)
    return ForkPoint(origin, plan, sent, messages, await _blobs(log, row, messages), row.thread)


class Threads(Protocol):
    """Creates the threads of forks."""

    async def branch(self, thread: int) -> int:
        """A new, empty thread with the settings of this one."""
        ...

    async def remove_unused(self, thread: int) -> None:
        """Removes a thread if no run was ever created on it."""
        ...


async def create_fork(
    engine: Engine,
    threads: Threads,
    point: ForkPoint,
    plan: RunPlan,
    *,
    workspace: int,
    **options: Unpack[CreateOptions],
) -> str:
    """Creates a fork with a plan that continues from `point`. If the origin is on a thread, the fork gets one of its
    own.
    """
    options |= {"origin": point.origin, "blobs": point.blobs}
    if point.thread is None:
        return await engine.create(workspace, plan, **options)
    once = options.get("idempotency")
    if once is not None and (earlier := await engine.created_before(workspace, once)) is not None:
        return earlier
    await engine.check(plan, workspace=workspace)  # before a thread is created
    history = await asyncio.to_thread(_encoded, point.messages)
    thread = await threads.branch(point.thread)
    options |= {"thread": thread, "history": history}
    try:
        return await engine.create(workspace, plan, **options)
    finally:
        await threads.remove_unused(thread)


def _encoded(messages: Sequence[Message]) -> list[bytes]:
    return [encode(message) for message in messages]


def _created(first: Item) -> tuple[CreatedBody, RunPlan]:
    """Decodes in a thread, because it may have many megabytes."""
    created = decode_created(first.body)
    return created, decode_plan(created.plan, limits_of(first.head))


async def _blobs(log: LogReader, row: RunRow, messages: Sequence[Message]) -> tuple[Blob, ...]:
    found = {id: await log.blob(row.workspace, id) for id in sorted(blobs_of(messages))}
    return tuple([Blob(id, data) for id, data in found.items() if data is not None])
