"""Threads: one run is active, the others are queued, and the end of one starts the next in the same transaction."""

from __future__ import annotations

from hashlib import sha256

from weftline.messages import Blob
from weftline.store.database import Query, statement
from weftline.store.records.thread_messages import MessageFilter
from weftline.store.rows import LEAVE_DUE, History, IdempotencyKey, KeptMessage, MessageEdit
from weftline.testing.store.subject import (
    Subject,
    active_run,
    chain_of,
    check_log,
    code,
    commit,
    due_times,
    end_thread,
    new_thread,
    new_workspace,
    outcomes,
    the_row,
)


async def runs_of_a_thread_run_one_at_a_time(subject: Subject) -> None:
    log, records = subject.store.log, subject.store.records
    workspace = await new_workspace(subject)
    thread = await new_thread(subject, workspace)
    chains = [chain_of(log, key, workspace, thread=thread) for key in (1, 2, 3)]
    results = await commit(log, *[chain.create() for chain in chains])
    assert [result.queued for result in results] == [False, True, True]
    assert [(await the_row(log, key)).queued for key in (1, 2, 3)] == [False, True, True]
    assert await due_times(log, 1, 2, 3) == [0, None, None]
    (result,) = await commit(log, chains[0].end(messages=[b"q1", b"a1"]))
    assert (result.outcome, result.promoted) == ("ok", 2)
    assert await due_times(log, 1, 2, 3) == [None, 0, None]
    assert [(await the_row(log, key)).queued for key in (1, 2, 3)] == [False, False, True]
    assert await log.thread_messages(thread) == [b"q1", b"a1"]
    assert await log.unfinished_of_thread(thread) == [2, 3]
    results = await commit(
        log, chains[1].end(messages=[b"q2"]), chains[2].append(b"x", status="queued", due_at=LEAVE_DUE)
    )
    assert (outcomes(results), results[0].promoted) == (["ok", "ok"], 3)
    assert await due_times(log, 3) == [0]
    (result,) = await commit(log, chains[2].end())
    assert result.promoted is None and await records.read(active_run(thread)) is None
    assert await log.thread_messages(thread) == [b"q1", b"a1", b"q2"]
    assert await log.thread_size(thread) == 6
    assert await log.log_size(1) == sum(len(fact.head) + len(fact.body) for fact in await log.facts(1)) > 0
    assert await log.log_size(99) == 0
    (result,) = await commit(log, chain_of(log, 4, workspace, thread=thread).create())
    assert not result.queued and await due_times(log, 4) == [0]


async def what_a_run_keeps_is_on_its_thread_before_it_ends(subject: Subject) -> None:
    log, workspace = subject.store.log, await new_workspace(subject)
    thread, other = await new_thread(subject, workspace), await new_thread(subject, workspace)
    chain = chain_of(log, 1, workspace, thread=thread)
    await commit(log, chain.create())
    said, asked = (
        KeptMessage("msg_a", "user", b'"hi"', 1_000),
        KeptMessage("msg_b", "assistant", b'"f"', 2_000, calls=2),
    )
    results = [
        KeptMessage(
            f"msg_{place}", "tool", b'{"role":"tool","results":[%d]}' % place, 3_000, asked_by="msg_b", place=place
        )
        for place in (1, 0)
    ]
    failed = KeptMessage("msg_c", "assistant", b'"no"', 4_000, status="failed", silent=True)
    for kept in ((said, asked), (results[0],)):
        write = chain.append(b"x")
        write.keeps, write.kept = thread, kept
        assert outcomes(await commit(log, write)) == ["ok"]
    assert await log.thread_messages(thread) == [b'"hi"']  # a call has no result yet
    write = chain.append(b"x")
    write.keeps, write.kept = thread, (results[1], failed)
    assert outcomes(await commit(log, write)) == ["ok"]
    assert outcomes(await commit(log, chain.end(messages=[b'"bye"'], status="failed"))) == ["ok"]
    whole = [b'"hi"', b'"f"', b'{"role":"tool","results":[0,1]}', b'"bye"']
    assert (await log.thread_history(thread)) == History(whole, through=6)
    rows, total = await log.thread_rows(MessageFilter(thread=thread))
    assert total == 6 and [row.name for row in rows] == ["msg_a", "msg_b", "msg_1", "msg_0", "msg_c", "msg_1-6"]
    assert [row.created_at for row in rows] == [1_000, 2_000, 3_000, 3_000, 4_000, 9_000]
    rows, total = await log.thread_rows(
        MessageFilter(thread=thread, limit=2, offset=1, newest_first=True, with_silent=False, max_depth=0)
    )
    assert total == 5 and [row.name for row in rows] == ["msg_0", "msg_1"]
    for name in ("msg_b", "msg_1-6"):
        found, total = await log.thread_rows(MessageFilter(thread=thread, id=name))
        assert total == 1 and [row.name for row in found] == [name]
    for key, name in ((thread, "msg_9-6"), (thread, "msg_x"), (other, "msg_b"), (thread, "msg_1-1")):
        assert await log.thread_rows(MessageFilter(thread=key, id=name)) == ([], 0)


async def a_message_that_is_edited_stays_as_it_was_for_the_run_that_reads_it(subject: Subject) -> None:
    log, workspace = subject.store.log, await new_workspace(subject)
    thread = await new_thread(subject, workspace)
    first, second = chain_of(log, 1, workspace, thread=thread), chain_of(log, 2, workspace, thread=thread)
    await commit(log, first.create(), second.create())
    await commit(log, first.end(messages=[b"1", b"2", b"3"]))
    for number, (pos, message) in enumerate(((1, b"one"), (2, None), (1, b"uno")), 1):
        write = second.append(b"x")
        write.edits = (MessageEdit(thread, pos, number, pos - 1, message, '{"n":1}', keep=True),)
        assert outcomes(await commit(log, write)) == ["ok"]
    assert await log.thread_history(thread) == History([b"uno", b"3"], through=3, revision=3, edited_upto=0)
    versions = {0: [b"1", b"2", b"3"], 1: [b"one", b"2", b"3"], 2: [b"one", b"3"], 3: [b"uno", b"3"]}
    for revision, messages in versions.items():
        assert await log.thread_pinned(thread, through=3, revision=revision) == messages
    assert await log.thread_pinned(thread, through=2, revision=0) == [b"1", b"2"]
    [row], total = await log.thread_rows(MessageFilter(thread=thread, limit=1))
    assert (row.name, row.metadata, total) == ("msg_1-1", '{"n":1}', 2)
    end = second.end()
    assert end.thread_end is not None
    end.thread_end.read = True
    await commit(log, end)
    assert await log.thread_pinned(thread, through=3, revision=0) is None
    assert await log.thread_history(thread) == History([b"uno", b"3"], through=3, revision=3)


async def a_thread_with_newer_messages_takes_no_older_run(subject: Subject) -> None:
    log = subject.store.log
    workspace = await new_workspace(subject)
    thread = await new_thread(subject, workspace)
    first, second, third, fourth = (chain_of(log, key, workspace, thread=thread) for key in (1, 2, 3, 4))
    await commit(log, first.create(), second.create())
    newer = first.end(messages=[b"of tomorrow"])
    newer.format = 7
    await commit(log, newer)
    assert [(await the_row(log, key)).thread_format for key in (1, 2)] == [7, 7]
    await commit(log, second.end(messages=[b"of today"]))
    assert (await the_row(log, 2)).thread_format == 7
    (refused,) = await log.flush([third.create()])
    assert (refused.outcome, code(refused)) == ("failed", "unsupported_run")
    as_new = fourth.create()
    as_new.format = 7
    assert outcomes(await log.flush([as_new])) == ["ok"]


async def a_write_to_a_queued_run_does_not_promote_it(subject: Subject) -> None:
    log = subject.store.log
    workspace = await new_workspace(subject)
    thread = await new_thread(subject, workspace)
    first, second = (chain_of(log, key, workspace, thread=thread) for key in (1, 2))
    await commit(log, first.create(), second.create())
    await commit(log, second.append(b"a", status="queued", due_at=LEAVE_DUE))
    assert await due_times(log, 2) == [None] and await log.due_now(after=1, limit=9) == []


async def a_queued_run_that_is_written_as_it_is_promoted_stays_due(subject: Subject) -> None:
    """The writer of a queued run does not know that it may run by now."""
    log = subject.store.log
    workspace = await new_workspace(subject)
    thread = await new_thread(subject, workspace)
    first, second = (chain_of(log, key, workspace, thread=thread) for key in (1, 2))
    await commit(log, first.create(), second.create())
    stale = chain_of(log, 3, workspace).append(b"a")
    flushes = [log.flush([first.end(), stale]), log.flush([second.append(b"a", status="queued", due_at=LEAVE_DUE)])]
    assert [outcomes(await future) for future in flushes] == [["ok", "conflict"], ["ok"]]
    assert await due_times(log, 2) == [0]


async def an_end_that_fails_releases_nothing(subject: Subject) -> None:
    log = subject.store.log
    workspace = await new_workspace(subject)
    thread = await new_thread(subject, workspace)
    first, second = (chain_of(log, key, workspace, thread=thread) for key in (1, 2))
    await commit(log, first.create(), second.create())
    end = first.end(messages=[b"never"])
    end.base_version += 1
    (result,) = await commit(log, end)
    assert (result.outcome, result.promoted) == ("conflict", None)
    assert await subject.store.records.read(active_run(thread)) == 1
    assert await log.thread_messages(thread) == [] and await due_times(log, 2) == [None]


async def a_run_that_leaves_the_queue_promotes_nobody(subject: Subject) -> None:
    log = subject.store.log
    workspace = await new_workspace(subject)
    thread = await new_thread(subject, workspace)
    chains = [chain_of(log, key, workspace, thread=thread) for key in (1, 2, 3)]
    await commit(log, *[chain.create() for chain in chains])
    (left,) = await commit(log, chains[1].end())
    assert left.promoted is None and await due_times(log, 3) == [None]
    (ended,) = await commit(log, chains[0].end())
    assert ended.promoted == 3


async def a_run_created_as_the_one_before_it_ends_is_not_forgotten(subject: Subject) -> None:
    log = subject.store.log
    workspace = await new_workspace(subject)
    thread = await new_thread(subject, workspace)
    first, second = (chain_of(log, key, workspace, thread=thread) for key in (1, 2))
    await commit(log, first.create())
    results = await commit(log, first.end(), second.create())
    assert outcomes(results) == ["ok", "ok"]
    assert await subject.store.records.read(active_run(thread)) == 2 and await due_times(log, 2) == [0]


async def only_a_run_of_the_thread_follows_one_that_ends(subject: Subject) -> None:
    log, workspace = subject.store.log, await new_workspace(subject)
    thread, other = await new_thread(subject, workspace), await new_thread(subject, workspace)
    first = chain_of(log, 1, workspace, thread=thread)
    await commit(log, first.create())
    elsewhere, free = chain_of(log, 2, workspace, thread=other), chain_of(log, 3, workspace)
    results = await commit(log, elsewhere.create(), free.create(), first.end())
    assert (outcomes(results), results[2].promoted) == (["ok"] * 3, None)
    assert await subject.store.records.read(active_run(thread)) is None


async def a_run_that_cannot_be_created_takes_no_place_in_its_thread(subject: Subject) -> None:
    log, workspace = subject.store.log, await new_workspace(subject)
    thread = await new_thread(subject, workspace)
    first, second, third = (chain_of(log, key, workspace, thread=thread) for key in (1, 2, 3))
    once = IdempotencyKey("runs", "key", b"digest")
    assert outcomes(await commit(log, first.create(idempotency=once, salt="=mine"))) == ["ok"]
    again = chain_of(log, 1, workspace, thread=thread)
    odd = chain_of(log, 4, workspace, thread=thread).create()
    odd.base_version = 1
    for refused in (again.create(), second.create(idempotency=once), third.create(salt="=mine"), odd):
        assert outcomes(await commit(log, refused)) == ["conflict"]
    assert await log.unfinished_of_thread(thread) == [1]
    (ended,) = await commit(log, first.end(messages=[b"m"]))
    assert (ended.outcome, ended.promoted) == ("ok", None)
    assert await check_log(log, 1) == [b"{}", b"{}"]


async def a_thread_was_last_used_when_its_last_run_was_created_or_ended(subject: Subject) -> None:
    log, workspace = subject.store.log, await new_workspace(subject)
    thread = await new_thread(subject, workspace)
    chain = chain_of(log, 1, workspace, thread=thread)
    await commit(log, chain.create())
    assert await subject.store.records.read(_last_used_at(thread)) == 1_001
    await commit(log, chain.end(ended_at=9_000))
    assert await subject.store.records.read(_last_used_at(thread)) == 9_000


def _last_used_at(thread: int) -> Query[int]:
    rows = yield from statement("SELECT last_used_at FROM threads WHERE key = $1", thread)
    return rows[0][0]


async def a_thread_that_has_ended_takes_no_runs(subject: Subject) -> None:
    log = subject.store.log
    workspace = await new_workspace(subject)
    thread = await new_thread(subject, workspace)
    await subject.store.records.write(end_thread(thread))
    late, free = chain_of(log, 1, workspace, thread=thread).create(), chain_of(log, 2, workspace).create()
    results = await commit(log, late, free)
    assert [(result.outcome, code(result)) for result in results] == [("failed", "thread_ended"), ("ok", None)]
    assert await check_log(log, 1) == [] and await check_log(log, 2) == [b"{}"]


async def runs_that_wait_for_earlier_ones_of_their_threads_are_found(subject: Subject) -> None:
    log = subject.store.log
    workspace, other = await new_workspace(subject), await new_workspace(subject, "other")
    thread, elsewhere = await new_thread(subject, workspace), await new_thread(subject, other)
    first, second, third = [chain_of(log, key, workspace, thread=thread) for key in (1, 2, 3)]
    await commit(log, *[chain_of(log, key, other, thread=elsewhere).create() for key in (4, 5)])
    await commit(log, first.create(), third.create(), second.create())
    await commit(log, chain_of(log, 6, workspace).create())
    assert await log.queued_behind() == [(2, workspace), (3, workspace), (5, other)]
    await commit(log, third.end())
    await commit(log, first.end())
    assert await log.queued_behind() == [(5, other)]


async def a_thread_that_ended_over_its_runs_is_found(subject: Subject) -> None:
    log = subject.store.log
    workspace = await new_workspace(subject)
    thread, idle = await new_thread(subject, workspace), await new_thread(subject, workspace)
    chain = chain_of(log, 1, workspace, thread=thread)
    await commit(log, chain.create())
    assert await log.ended_threads_with_runs() == []
    for one in (thread, idle):
        await subject.store.records.write(end_thread(one))
    assert await log.ended_threads_with_runs() == [thread]
    await commit(log, chain.end())
    assert await log.ended_threads_with_runs() == []


async def the_ends_of_a_thread_are_in_the_order_of_its_queue(subject: Subject) -> None:
    log = subject.store.log
    workspace = await new_workspace(subject)
    thread = await new_thread(subject, workspace)
    chains = [chain_of(log, key, workspace, thread=thread) for key in (5, 3, 4)]
    for chain in chains:
        await commit(log, chain.create())
    for chain in (chains[1], chains[0]):
        end = chain.end()
        end.items = [type(item)(item.at, item.kind, b"end %d" % chain.key, item.body) for item in end.items]
        await commit(log, end)
    assert await log.ends_of_thread(thread) == [b"end 5", b"end 3"]
    assert await log.unfinished_of_thread(thread) == [4]


async def a_new_thread_may_begin_with_messages_of_another(subject: Subject) -> None:
    log, workspace = subject.store.log, await new_workspace(subject)
    thread = await new_thread(subject, workspace)
    picture = Blob(sha256(b"picture").hexdigest(), b"picture")
    before = (b"q", b'{"blob":"%s"}' % picture.id.encode())
    chain = chain_of(log, 1, workspace, thread=thread)
    create = chain.create(blobs=(picture,))
    assert create.new is not None
    create.new.history = before
    assert outcomes(await commit(log, create)) == ["ok"]
    loaded = await log.claim(1, kinds=())
    assert loaded is not None and loaded.history == list(before)
    chain.epoch = loaded.epoch
    await commit(log, chain.end(status="failed", ended_at=100))
    await log.trim(before=200, after=0, workspace=None)
    assert await log.thread_messages(thread) == list(before)
    assert await log.blob(workspace, picture.id) == picture.data, "the thread goes on, although the run has failed"


CHECKS = (
    runs_of_a_thread_run_one_at_a_time,
    what_a_run_keeps_is_on_its_thread_before_it_ends,
    a_message_that_is_edited_stays_as_it_was_for_the_run_that_reads_it,
    a_thread_with_newer_messages_takes_no_older_run,
    a_write_to_a_queued_run_does_not_promote_it,
    a_queued_run_that_is_written_as_it_is_promoted_stays_due,
    an_end_that_fails_releases_nothing,
    a_run_that_leaves_the_queue_promotes_nobody,
    a_run_created_as_the_one_before_it_ends_is_not_forgotten,
    only_a_run_of_the_thread_follows_one_that_ends,
    a_run_that_cannot_be_created_takes_no_place_in_its_thread,
    a_thread_was_last_used_when_its_last_run_was_created_or_ended,
    a_thread_that_has_ended_takes_no_runs,
    a_thread_that_ended_over_its_runs_is_found,
    runs_that_wait_for_earlier_ones_of_their_threads_are_found,
    the_ends_of_a_thread_are_in_the_order_of_its_queue,
    a_new_thread_may_begin_with_messages_of_another,
)
