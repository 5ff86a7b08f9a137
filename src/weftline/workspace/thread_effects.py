"""Effects of threads: scheduling, listing and cancelling them. `weftline.threads.effects` runs them."""

from __future__ import annotations

import secrets

from weftline.errors import Conflict, QuotaExceeded, invalid_field
from weftline.store.database import Query
from weftline.store.records import thread_effects
from weftline.store.records.thread_effects import EffectFilter, EffectRow, EffectStatus, NewEffect
from weftline.store.records.threads import ThreadRow
from weftline.workspace import threads
from weftline.workspace.context import Change, Workspaces

MAX_PENDING = 10_000
MAX_SETTLED = 1_000
"""How many that are over a thread keeps."""
MAX_ARGS_BYTES = 256 * 1024
MAX_DELAY_MS = 100 * 365 * 86_400_000


async def schedule(
    at: Workspaces,
    thread: ThreadRow,
    name: str,
    args: bytes,
    *,
    delay_ms: int = 0,
    origin: bytes | None = None,
    repeats: bool = False,
) -> EffectRow:
    """Stores an effect whose arguments were checked, or returns the one of the same origin.

    If that is another one, this is a `Conflict` (`idempotency_conflict`) for a request that `repeats`, else new.
    """
    check_delay(delay_ms)
    if len(args) > MAX_ARGS_BYTES:
        raise QuotaExceeded(
            f"The arguments of an effect have at most {MAX_ARGS_BYTES:,} bytes.", limit="effect", max=MAX_ARGS_BYTES
        )
    now = at.clock.now_us()

    def query() -> Query[EffectRow]:
        yield from threads.open_row(thread.key)
        kept = origin
        earlier = None if origin is None else (yield from thread_effects.by_origin(thread.key, origin))
        if earlier is not None:
            if (earlier.name, earlier.args, earlier.due_at - earlier.created_at) == (name, args, delay_ms * 1000):
                return earlier
            if repeats:
                raise Conflict("This Idempotency-Key was used for another request.", code="idempotency_conflict")
            kept = None
        if (yield from thread_effects.count_pending(thread.key)) >= MAX_PENDING:
            raise QuotaExceeded(f"A thread has at most {MAX_PENDING:,} effects.", limit="effects", max=MAX_PENDING)
        new = NewEffect(
            id=f"eff_{secrets.token_hex(10)}",
            workspace=thread.workspace,
            thread=thread.key,
            name=name,
            args=args,
            due_at=now + delay_ms * 1000,
            origin=kept,
        )
        return (yield from thread_effects.insert(new, now=now))

    row = await at.records.write(query())
    await at.changed(Change("effects", thread.workspace))
    return row


def check_delay(delay_ms: object) -> None:
    """Raises `InvalidRequest` for what is not a number of milliseconds."""
    if isinstance(delay_ms, bool) or not isinstance(delay_ms, int) or not 0 <= delay_ms <= MAX_DELAY_MS:
        raise invalid_field("delay_ms", f"must be a whole number of milliseconds from 0 to {MAX_DELAY_MS}.")


async def page(at: Workspaces, wanted: EffectFilter) -> list[EffectRow]:
    """Newest first."""
    return await at.records.read(thread_effects.page(wanted))


async def find(at: Workspaces, thread: ThreadRow, id: str) -> EffectRow | None:
    return await at.records.read(thread_effects.by_id(thread.key, id))


async def cancel(at: Workspaces, thread: ThreadRow, id: str) -> bool:
    """Cancels an effect that has not begun; returns False for any other."""
    now = at.clock.now_us()

    def query() -> Query[bool]:
        cancelled = yield from thread_effects.cancel(thread.key, id, now=now)
        if cancelled:
            yield from thread_effects.keep_latest(thread.key, MAX_SETTLED)
        return cancelled

    return await at.records.write(query())


async def begin(at: Workspaces, workspace: int) -> EffectRow | None:
    """Begins the next effect that is due in a workspace; None if there is none."""
    while (key := await at.records.read(thread_effects.due(at.clock.now_us(), workspace=workspace))) is not None:
        if (row := await at.records.write(thread_effects.begin(key))) is not None:
            return row
    return None


def settled(at: Workspaces, row: EffectRow, status: EffectStatus, *, error: str = "") -> Query[None]:
    """Records how an attempt has ended."""
    yield from thread_effects.settle(row, status, error=error, now=at.clock.now_us())
    yield from thread_effects.keep_latest(row.thread, MAX_SETTLED)
