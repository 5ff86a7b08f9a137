"""Reads what a snapshot of a run needs; `wire.snapshots` builds it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from msgspec import UNSET, DecodeError, Raw

from weftline.errors import LOG_DAMAGED, Conflict, StoreError, WeftlineError, end_of_newer_code, of_newer_code
from weftline.events.parts import to_wire_clarification
from weftline.kernel.bodies import AwaitBody, decode_await
from weftline.kernel.control import RunPaused, RunResumed
from weftline.kernel.damage import UNREADABLE
from weftline.kernel.entries import FORMAT, KIND, RunEnded, decode_fact
from weftline.kernel.state import FOLD, decode_state
from weftline.runtime import ids
from weftline.runtime.engine import Engine
from weftline.runtime.people.grants import LoggedGrant
from weftline.runtime.reads.calls import MAX_DOUBTS, CallName, CancelReceipt, LoggedCall, stored_doubts
from weftline.runtime.reads.reading import StoredRuns
from weftline.store.records.pages import PAGE_BYTES
from weftline.store.rows import AwaitFilter, Item, LargeEntry, OpenAwait, RunFilter, RunRow
from weftline.wire import awaits, errors, responses, run_responses, snapshots
from weftline.wire.run_responses import Cancelled, RunView
from weftline.wire.session_responses import SessionUsage
from weftline.wire.turns import json_or_text
from weftline.work.heavy import in_turn
from weftline.workspace.context import Workspaces
from weftline.workspace.people import display_names


async def run_view(engine: StoredRuns, row: RunRow, *, max_bytes: int | None = None) -> RunView:
    """Returns what a snapshot shows. The spec is `{}` if retention has removed its entry.

    Raises `LargeEntry`, without reading it, if a required entry has more than `max_bytes`; `StoreError`
    (`log_damaged`) if one cannot be read, or `Conflict` (`unsupported_run`) if newer code has written the run.
    """
    first = await engine.logs.entry(row.key, 1, max_bytes=max_bytes)
    return await _view(engine, row, first, max_bytes=max_bytes)


async def run_summary(engine: StoredRuns, row: RunRow, *, max_bytes: int | None = None) -> RunView:
    """Like `run_view`, but does not read the spec, which may be large.

    A run whose end is unreadable reports that in its error, as it is one of many in a list.
    """
    try:
        return await _view(engine, row, None, max_bytes=max_bytes)
    except (StoreError, Conflict) as error:
        if not is_unreadable(error):
            raise
        return snapshots.damaged_run(row, run_id=ids.run_id(row.key, row.salt), error=error)


async def listed_run(engine: StoredRuns, row: RunRow) -> run_responses.ListedRun:
    return run_responses.listed_run(await run_summary(engine, row), agent_id=row.agent)


async def awaits_of(engine: StoredRuns, row: RunRow) -> list[awaits.OpenAwait]:
    """Returns what the run, and those below it, ask people."""
    if row.ended_at is not None:
        return []
    found = await engine.awaits(AwaitFilter(workspace=row.workspace, root=row.key, max_bytes=PAGE_BYTES))
    return await await_views([one for one in found if not one.unread], engine.session_id)


async def receipt_of(engine: StoredRuns, row: RunRow) -> run_responses.CancelReceipt | None:
    """Returns what became of the calls of a run that was cancelled, unless retention has removed them."""
    if row.status != "cancelled":
        return None
    try:
        known = await engine.logs.entry(row.key, 1, max_bytes=_BUILD_ON_LOOP_BYTES) is not None
    except LargeEntry:
        known = True
    # Retention removes the calls of a run together with its spec.
    return receipt_view(await engine.receipt(row.key)) if known else None


async def _view(engine: StoredRuns, row: RunRow, first: Item | None, *, max_bytes: int | None) -> RunView:
    if row.damaged:
        raise errors.row_damaged(ids.run_id(row.key, row.salt), row.damaged)
    last = await engine.logs.entry(row.key, row.next_seq - 1, max_bytes=max_bytes) if row.ended_at is not None else None
    session_id = await engine.session_id(row.listed_under)
    in_doubt = await _in_doubt(engine, row)
    parent = await engine.parent(row)
    pause = await _latest_pause(engine, row)

    def made() -> RunView:
        run_id = ids.run_id(row.key, row.salt)
        try:
            return snapshots.run_view(
                row,
                run_id=run_id,
                session_id=session_id,
                created=first.body if first is not None else None,
                ended=_end(last),
                in_doubt=_calls(in_doubt),
                parent=parent,
                pause=_pause(row, pause),
            )
        except UNREADABLE:
            raise unreadable(row) from None

    size = sum([one.size for one in (first, last) if one is not None])
    return made() if size <= _BUILD_ON_LOOP_BYTES else await in_turn(made)


async def _in_doubt(engine: StoredRuns, row: RunRow) -> tuple[CallName, ...]:
    """Returns the calls in doubt: those that are closed, and those that a person is asked about.

    They are read from the row, or from the log if another fold version wrote the row's state.
    """
    known, asked = stored_doubts(row), await engine.asked_doubts(row)
    try:
        closed = (await engine.receipt(row.key)).in_doubt if known is None else known
        return (*closed, *asked)[-MAX_DOUBTS:]
    except UNREADABLE:
        raise unreadable(row) from None


def is_unreadable(error: WeftlineError) -> bool:
    """Whether this is the error of a run that cannot be read: it is damaged, or newer code has written it."""
    return error.code in (LOG_DAMAGED, "unsupported_run")


def unreadable(row: RunRow) -> StoreError | Conflict:
    """Returns the error for a run with a required entry that cannot be read."""
    run_id = ids.run_id(row.key, row.salt)
    if row.format <= FORMAT:
        return errors.unreadable(run_id)
    return end_of_newer_code(run_id) if row.ended_at is not None else of_newer_code(run_id)


async def _latest_pause(engine: StoredRuns, row: RunRow) -> Item | None:
    """Returns the latest entry that paused or resumed the run.

    Few runs have one, and it is not searched for in those that only wait for people.
    """
    if row.status != "paused" or _only_waits(row):
        return None
    found = await engine.logs.newest_facts(row.key, kinds=(KIND[RunPaused], KIND[RunResumed]), limit=1, max_bytes=0)
    return found[-1] if found else None


def _only_waits(row: RunRow) -> bool:
    """Whether the row's own state shows that nobody paused the run."""
    if row.fold != FOLD or row.state_seq != row.next_seq - 1:
        return False
    try:
        return not decode_state(row.state).control.paused
    except DecodeError:
        return False


def _pause(row: RunRow, latest: Item | None) -> RunPaused | None:
    try:
        head = None if latest is None else decode_fact.decode(latest.head)
    except UNREADABLE:
        if row.format <= FORMAT:
            raise
        return None  # the status still says that it is paused
    return head if isinstance(head, RunPaused) else None


_BUILD_ON_LOOP_BYTES = 64 * 1024
_COUNT_ON_LOOP = 200


async def session_usage(engine: Engine, thread: int) -> SessionUsage:
    """Returns what the ended runs of a thread used. Raises as `session_unreadable` says."""
    ends = await engine.stored.logs.ends_of_thread(thread)

    def used() -> SessionUsage:
        heads = [decode_fact.decode(head) for head in ends]
        return snapshots.session_usage([head for head in heads if isinstance(head, RunEnded)])

    try:
        return used() if len(ends) <= _COUNT_ON_LOOP else await in_turn(used)
    except UNREADABLE:
        damaged = StoreError("The log of a run of this session is damaged.", code=LOG_DAMAGED)
        raise await session_unreadable(engine, thread, damaged) from None


async def session_unreadable(engine: Engine, thread: int, damaged: StoreError) -> StoreError | Conflict:
    """Returns the error for a session that cannot be read: `damaged`, or `Conflict` (`unsupported_run`) if newer code
    has continued it.
    """
    before: int | None = None
    while rows := await engine.stored.logs.runs(RunFilter(thread=thread, before=before)):
        if any(max(row.format, row.thread_format) > FORMAT for row in rows):
            return Conflict("A newer version of Weftline has continued this session.", code="unsupported_run")
        before = rows[-1].key
    return damaged


async def await_views(
    found: Sequence[OpenAwait], session_id: Callable[[int | None], Awaitable[str | None]]
) -> list[awaits.OpenAwait]:
    """Returns the open questions, as the protocol shows them; `session_id` returns the id of a thread."""
    sessions = {one.thread: await session_id(one.thread) for one in found}

    def made() -> list[awaits.OpenAwait]:
        return [_await_view(one, session_id=sessions[one.thread]) for one in found]

    return made() if sum([len(one.body) for one in found]) <= _BUILD_ON_LOOP_BYTES else await in_turn(made)


def _await_view(one: OpenAwait, *, session_id: str | None) -> awaits.OpenAwait:
    damaged = one.damaged
    try:
        body = decode_await(one.body.decode())  # the arguments are passed on verbatim, so they must be UTF-8
    except UNREADABLE:
        damaged, body = "body", AwaitBody("", "", "", Raw(b"{}"))
    run_id = ids.run_id(one.run, one.salt)
    return awaits.OpenAwait(
        one.id,
        run_id,
        ids.run_id(one.root, one.root_salt) if one.root_salt else run_id,
        session_id,
        one.agent,
        one.name,
        one.kind,
        body.prompt,
        body.name,
        body.args,
        body.call,
        body.options,
        body.multiple,
        None if body.clarification is None else to_wire_clarification(body.clarification),
        responses.iso(one.opened_at),
        None if one.deadline_at is None else responses.iso(one.deadline_at),
        body.key or UNSET,
        responses.iso(body.called_at) if body.called_at else UNSET,
        body.approvers or UNSET,
        errors.error_code(damaged),
    )


def call_views(found: Sequence[LoggedCall]) -> list[run_responses.Call]:
    """Calls as the protocol shows them."""
    return [
        run_responses.Call(
            run_id=one.run_id,
            tool_use_id=one.id,
            turn=one.turn,
            index=one.index,
            name=one.name,
            digest=one.digest,
            idempotency_key=one.key,
            effect=one.effect,
            state=one.state,
            how=one.how,
            attempts=one.attempts,
            opened_at=responses.iso(one.opened_at),
            started_at=None if one.started_at is None else responses.iso(one.started_at),
            closed_at=None if one.closed_at is None else responses.iso(one.closed_at),
            client=one.client,
            child_run_id=one.child or None,
            parent_tool_use_id=one.parent or None,
            args=UNSET if one.args is None else json_or_text(one.args),
            result=UNSET if one.args is None else one.result,
            ok=UNSET if one.args is None else None if one.result is None else not one.is_error,
        )
        for one in found
    ]


async def grant_views(at: Workspaces, given: Sequence[LoggedGrant]) -> list[awaits.Grant]:
    """Returns the approvals of a run, as the protocol shows them."""
    names = await display_names(at, [one.by for one in given])
    return [
        awaits.Grant(
            run_id=one.run_id,
            await_id=one.await_id,
            kind=one.kind,
            tool_use_id=one.call_id,
            name=one.name,
            args=one.args,
            digest=one.digest,
            edited=one.edited,
            shown_args=one.shown_args,
            shown_digest=one.shown_digest,
            by=one.by,
            by_name=names.get(one.by),
            at=responses.iso(one.at),
            expires_at=responses.iso(one.expires_at),
            remember=one.remembered,
            labels=one.labels,
            used=[awaits.GrantUse(use.call_id, responses.iso(use.at)) for use in one.used],
        )
        for one in given
    ]


def _end(last: Item | None) -> tuple[RunEnded, bytes] | None:
    if last is None:
        return None
    head = decode_fact.decode(last.head)
    return (head, last.body) if isinstance(head, RunEnded) else None


def cancelled(receipt: CancelReceipt) -> Cancelled:
    """Returns the response to a cancel."""
    return Cancelled(receipt.status, _calls(receipt.stopped), _calls(receipt.finished), _calls(receipt.in_doubt))


def receipt_view(receipt: CancelReceipt) -> run_responses.CancelReceipt:
    """Returns the receipt as part of a snapshot."""
    return run_responses.CancelReceipt(
        receipt.status, _calls(receipt.stopped), _calls(receipt.finished), _calls(receipt.in_doubt)
    )


def _calls(named: tuple[CallName, ...]) -> list[run_responses.CallName]:
    return [run_responses.CallName(call.id, call.name, call.run or UNSET) for call in named]
