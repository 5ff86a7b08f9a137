"""Threads: creating, finding, listing and ending them. The engine handles their runs."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol, TypeAlias

from msgspec import DecodeError, Raw, Struct
from msgspec.json import Decoder, encode

from weftline.errors import LOG_DAMAGED, Conflict, NotFound, StoreError
from weftline.store.database import Query
from weftline.store.records import thread_effects, thread_messages, threads
from weftline.store.records.threads import Keeps, NewThread, ThreadFilter, ThreadRow
from weftline.store.rows import IdempotencyKey
from weftline.store.sealing import Headers
from weftline.workspace.agents import owns
from weftline.workspace.context import Caller, Workspaces

BY_NAME = b"library"
"""Stored in place of the digest of a request, for a thread created by code."""
CONTEXT_KEY = "a2a_context_id"
"""The metadata that tags a thread with the A2A context it belongs to."""
_decode_object = Decoder(dict[str, Raw]).decode
_READ_ON_LOOP_BYTES = 64 * 1024
"""Starting a thread costs more than reading this little."""


class ThreadDraft(Struct, frozen=True, kw_only=True):
    """A thread to create."""

    name: str
    agent: str | None
    spec: bytes
    """What each of its runs starts from: the client's JSON, checked, with header values `[redacted]`."""
    headers: Headers = {}
    """The header values."""
    metadata: dict[str, str] = {}
    user: str | None = None
    parent: int | None = None
    depth: int = 0
    keeps: Keeps = "exchange"


Also: TypeAlias = Callable[[ThreadRow], Query[None]]
"""What else is stored with a new thread."""


def _nothing(row: ThreadRow) -> Query[None]:
    yield from ()


async def create(
    at: Workspaces,
    workspace: int,
    draft: ThreadDraft,
    *,
    idempotency: IdempotencyKey | None = None,
    also: Also = _nothing,
) -> ThreadRow:
    """Creates a thread, or returns the one that was created under the same key; see `created_before`."""
    new, now = _new(at, workspace, draft), at.clock.now_us()

    def insert() -> Query[ThreadRow]:
        row = yield from threads.insert(new, now=now)
        yield from also(row)
        return row

    if idempotency is None:
        return await at.records.write(insert())

    def query(once: IdempotencyKey) -> Query[_Created]:
        earlier = yield from _under(once, workspace=workspace)
        if earlier is not None:
            return earlier
        row = yield from insert()
        yield from threads.keep_key(once.key, workspace=workspace, digest=once.digest, thread=row.key, now=now)
        return _Created(once.digest, row)

    return _same(idempotency, await at.records.write(query(idempotency)))


async def add(
    at: Workspaces,
    workspace: int,
    draft: ThreadDraft,
    messages: Sequence[tuple[int, bytes]],
    *,
    key: str,
    format: int,
) -> tuple[ThreadRow, bool]:
    """Adds an imported thread with its messages; returns whether it is new. One that is there under this key is left
    as it is.
    """
    new, now = _new(at, workspace, draft), at.clock.now_us()

    def query() -> Query[tuple[ThreadRow, bool]]:
        found = yield from threads.under(key, workspace=workspace)
        row = None if found is None else (yield from threads.by_key(found[1]))
        if row is not None:
            return row, False
        row = yield from threads.insert(new, now=now)
        yield from threads.keep_key(key, workspace=workspace, digest=BY_NAME, thread=row.key, now=now)
        yield from threads.add_messages(row.key, messages, format=format)
        return row, True

    return await at.records.write(query())


async def named(at: Workspaces, workspace: int, name: str) -> ThreadRow:
    """The thread that code refers to by this name. Raises `NotFound`."""
    found = await at.records.read(threads.under(name_key(name), workspace=workspace))
    row = None if found is None else await at.records.read(threads.by_key(found[1]))
    if row is None:
        raise NotFound(f"There is no thread {name!r}.")
    return row


async def is_named(at: Workspaces, thread: ThreadRow) -> bool:
    """Returns True if code refers to this thread by its name."""
    found = await at.records.read(threads.under(name_key(thread.name), workspace=thread.workspace))
    return found is not None and found[1] == thread.key


def name_key(name: str) -> str:
    """The key under which a thread created by code is stored, so that it is found by its name."""
    return f"library:{name}"


async def created_before(at: Workspaces, workspace: int, idempotency: IdempotencyKey) -> ThreadRow | None:
    """The thread that was created under this key, if there is one.

    Raises `Conflict` (`idempotency_conflict`) if that request had another body.
    """
    earlier = await at.records.read(_under(idempotency, workspace=workspace))
    return None if earlier is None else _same(idempotency, earlier)


async def is_marked(at: Workspaces, row: ThreadRow, mark: str) -> bool:
    return await at.records.read(threads.under(f"{mark}:{row.uuid}", workspace=row.workspace)) is not None


async def set_mark(at: Workspaces, row: ThreadRow, mark: str) -> None:
    """Notes that something was done for a thread, once."""
    now = at.clock.now_us()
    key = f"{mark}:{row.uuid}"
    await at.records.write(threads.keep_key(key, workspace=row.workspace, digest=BY_NAME, thread=row.key, now=now))


async def find(at: Workspaces, caller: Caller, key: int, *, salt: str) -> ThreadRow:
    """Raises `NotFound`, alike for an unknown id and for a thread of another workspace or agent."""
    row = await at.records.read(threads.by_key(key))
    if row is None or row.salt != salt or row.workspace != caller.workspace or not owns(caller, row.agent):
        raise NotFound("There is no such session.")
    return row


async def by_uuid(at: Workspaces, uuid: str) -> ThreadRow | None:
    return await at.records.read(threads.by_uuid(uuid))


async def by_key_and_salt(at: Workspaces, key: int, salt: str) -> ThreadRow | None:
    row = await at.records.read(threads.by_key(key))
    return row if row is not None and row.salt == salt else None


def open_row(thread: int) -> Query[ThreadRow]:
    """A thread that may change. Raises `Conflict` (`thread_ended`) for one that has ended."""
    row = yield from threads.by_key(thread)
    if row is None:
        raise NotFound("There is no such thread.")
    if row.ended_at is not None:
        raise Conflict("This thread has ended.", code="thread_ended")
    return row


async def spec(at: Workspaces, thread: ThreadRow) -> bytes:
    """Returns the spec that each of its runs starts from. Raises `StoreError` (`log_damaged`) if it cannot be read."""
    spec = await at.records.read(threads.spec_of(thread.key), heavy=thread.spec_bytes > _READ_ON_LOOP_BYTES)
    try:
        _decode_object(spec)
    except (DecodeError, UnicodeDecodeError, RecursionError):
        raise StoreError("The session is damaged: its spec cannot be read.", code=LOG_DAMAGED) from None
    return spec


async def of_context(at: Workspaces, workspace: int, draft: ThreadDraft) -> ThreadRow:
    """The newest open thread of the draft's agent and A2A context; created from the draft if there is none."""
    assert draft.agent is not None
    context = draft.metadata[CONTEXT_KEY]
    found = await at.records.read(_tagged(context, workspace=workspace, agent=draft.agent))
    if found is not None:
        return found
    new = _new(at, workspace, draft)

    def query(agent: str) -> Query[ThreadRow]:
        existing = yield from _tagged(context, workspace=workspace, agent=agent)
        return existing or (yield from threads.insert(new, now=at.clock.now_us()))

    return await at.records.write(query(draft.agent))


async def page(at: Workspaces, wanted: ThreadFilter) -> list[ThreadRow]:
    """Threads that match, newest first."""
    return await at.records.read(threads.page(wanted), heavy=True)


async def count(at: Workspaces, wanted: ThreadFilter) -> int:
    """Returns the number of threads that match, on all pages."""
    return await at.records.read(threads.count(wanted), heavy=True)


async def runs_of_messages(at: Workspaces, key: int) -> list[int]:
    """The key of the run that added each message of a thread, oldest first."""
    return await at.records.read(thread_messages.runs_of(key))


async def by_key(at: Workspaces, key: int) -> ThreadRow:
    """Raises `NotFound`."""
    row = await at.records.read(threads.by_key(key))
    if row is None:
        raise NotFound("There is no such thread.")
    return row


class ThreadRuns(Protocol):
    """The engine that has the runs of threads."""

    def require_writable(self) -> None:
        """Raises `Unavailable` while the store refuses writes."""

    async def end_thread(self, thread: int, *, requested_by: str = "") -> None:
        """Cancels all runs of a thread that has ended."""


async def end(at: Workspaces, runs: ThreadRuns, thread: ThreadRow, *, requested_by: str) -> None:
    """Ends a thread: it takes no more messages, and its unfinished runs are cancelled. Repeating it completes an end
    that was interrupted between the two.
    """
    if thread.ended_at is None:
        runs.require_writable()
        now = at.clock.now_us()

        def query() -> Query[None]:
            yield from threads.end(thread.key, now=now)
            yield from thread_effects.cancel_all(thread.key, now=now)

        await at.records.write(query())
    await runs.end_thread(thread.key, requested_by=requested_by)


async def sealed_headers(at: Workspaces, thread: ThreadRow) -> bytes | None:
    """The secret headers of its tools, encrypted, to be stored with a run."""
    return await at.records.read(threads.secrets_of(thread.key))


class _Created(NamedTuple):
    digest: bytes
    """Digest of the body that it was created from."""
    thread: ThreadRow


def _under(idempotency: IdempotencyKey, *, workspace: int) -> Query[_Created | None]:
    found = yield from threads.under(idempotency.key, workspace=workspace)
    if found is None:
        return None
    digest, key = found
    row = yield from threads.by_key(key)
    assert row is not None  # threads are never deleted
    return _Created(digest, row)


def _same(idempotency: IdempotencyKey, created: _Created) -> ThreadRow:
    if created.digest != idempotency.digest:
        raise Conflict("This Idempotency-Key was used for another request.", code="idempotency_conflict")
    return created.thread


def _new(at: Workspaces, workspace: int, draft: ThreadDraft) -> NewThread:
    return NewThread(
        workspace=workspace,
        salt=secrets.token_hex(6),
        name=draft.name,
        agent=draft.agent,
        spec=draft.spec,
        metadata=encode(draft.metadata).decode(),
        secrets=at.vault.seal_headers(draft.headers, workspace=workspace),
        user=draft.user,
        parent=draft.parent,
        depth=draft.depth,
        keeps=draft.keeps,
    )


def _tagged(context: str, *, workspace: int, agent: str) -> Query[ThreadRow | None]:
    return threads.newest_tagged(CONTEXT_KEY, context, workspace=workspace, agent=agent)
