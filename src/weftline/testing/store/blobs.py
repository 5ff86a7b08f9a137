"""Blobs: written with the run that brings them, stored once, and removed when nothing refers to them any more."""

from __future__ import annotations

from hashlib import sha256

from msgspec.structs import replace

from weftline.messages import Blob
from weftline.store.records import thread_queues
from weftline.store.rows import IdempotencyKey
from weftline.testing.store.subject import Subject, chain_of, commit, new_thread, new_workspace, outcomes


def _blob(data: bytes) -> Blob:
    return Blob(sha256(data).hexdigest(), data)


A, B = _blob(b"a"), _blob(bytes(range(256)) * 4096)


async def a_blob_is_stored_with_its_run_and_survives_a_crash(subject: Subject) -> None:
    log, workspace = subject.store.log, await new_workspace(subject)
    assert await log.blob(workspace, A.id) is None
    chain = chain_of(log, 1, workspace)
    assert outcomes(await commit(log, chain.create(blobs=(A, B, A)))) == ["ok"]
    await subject.reopen(cleanly=False)
    log = subject.store.log
    assert [await log.blob(workspace, blob.id) for blob in (A, B)] == [A.data, B.data]
    assert await log.blob(workspace, "unknown") is None


async def a_blob_of_a_run_that_is_refused_is_not_kept(subject: Subject) -> None:
    log, workspace = subject.store.log, await new_workspace(subject)
    first, second = chain_of(log, 1, workspace), chain_of(log, 2, workspace)
    once = IdempotencyKey("runs", "key", b"digest")
    await commit(log, first.create(idempotency=once))
    assert outcomes(await commit(log, second.create(idempotency=once, blobs=(A,)))) == ["conflict"]
    assert await log.blob(workspace, A.id) is None


async def another_workspace_has_blobs_of_its_own(subject: Subject) -> None:
    log, mine, other = subject.store.log, await new_workspace(subject), await new_workspace(subject, "other")
    await commit(log, chain_of(log, 1, mine).create(blobs=(A,)))
    assert await log.blob(other, A.id) is None
    theirs = chain_of(log, 2, other)
    await commit(log, theirs.create(blobs=(A,)))
    await commit(log, theirs.end(ended_at=100))
    await log.trim(before=200, after=0, workspace=None)
    assert (await log.blob(mine, A.id), await log.blob(other, A.id)) == (A.data, None)


async def a_blob_is_deleted_with_the_last_log_that_refers_to_it(subject: Subject) -> None:
    log, workspace = subject.store.log, await new_workspace(subject)
    early, late = chain_of(log, 1, workspace), chain_of(log, 2, workspace)
    await commit(log, early.create(blobs=(A, B)), late.create(blobs=(A,)))
    await commit(log, early.end(ended_at=100))
    await log.trim(before=200, after=0, workspace=None)
    assert [await log.blob(workspace, blob.id) for blob in (A, B)] == [A.data, None]
    await commit(log, late.end(ended_at=100))
    await log.trim(before=200, after=0, workspace=None)
    assert await log.blob(workspace, A.id) is None


async def blobs_of_a_threads_messages_stay_and_others_are_deleted(subject: Subject) -> None:
    log, workspace = subject.store.log, await new_workspace(subject)
    thread = await new_thread(subject, workspace)
    delivered, failed = chain_of(log, 1, workspace, thread=thread), chain_of(log, 2, workspace, thread=thread)
    await commit(log, delivered.create(blobs=(A,)))
    await commit(log, failed.create(blobs=(B,)))
    await commit(log, delivered.end(messages=[b'{"blob":"%s"}' % A.id.encode()], ended_at=100))
    await commit(log, failed.end(ended_at=100, status="failed"))
    await log.trim(before=200, after=0, workspace=None)
    assert [await log.blob(workspace, blob.id) for blob in (A, B)] == [A.data, None]


async def a_blob_of_the_last_entry_stays_with_it(subject: Subject) -> None:
    log, workspace = subject.store.log, await new_workspace(subject)
    chain = chain_of(log, 1, workspace)
    await commit(log, chain.create(blobs=(A, B)))
    end = chain.end(ended_at=100)
    end.items = [replace(end.items[0], body=b'{"blob":"%s"}' % A.id.encode())]
    await commit(log, end)
    assert await log.trim(before=200, after=0, workspace=None) == (1, 1)
    assert [await log.blob(workspace, blob.id) for blob in (A, B)] == [A.data, None]
    assert await log.trim(before=200, after=0, workspace=None) == (1, 0)
    assert await log.blob(workspace, A.id) == A.data


async def blobs_of_messages_that_an_imported_run_has_left_on_a_thread_stay(subject: Subject) -> None:
    """It is on no thread itself."""
    log, workspace = subject.store.log, await new_workspace(subject)
    thread, chain = await new_thread(subject, workspace), chain_of(log, 1, workspace)
    await commit(log, chain.create(blobs=(A, B)))
    await commit(log, chain.append(b"{}", kind="history.pinned"))
    await commit(log, chain.end(ended_at=100))
    message = b'{"blob":"%s"}' % A.id.encode()
    await subject.store.records.write(thread_queues.begin(thread, [(message, None)], run=1, format=0, at=0))
    assert await log.trim(before=200, after=0, workspace=None) == (1, 1)
    assert [await log.blob(workspace, blob.id) for blob in (A, B)] == [A.data, None]


CHECKS = (
    a_blob_is_stored_with_its_run_and_survives_a_crash,
    a_blob_of_a_run_that_is_refused_is_not_kept,
    another_workspace_has_blobs_of_its_own,
    a_blob_is_deleted_with_the_last_log_that_refers_to_it,
    blobs_of_a_threads_messages_stay_and_others_are_deleted,
    a_blob_of_the_last_entry_stays_with_it,
    blobs_of_messages_that_an_imported_run_has_left_on_a_thread_stay,
)
