"""Child runs: created with a write of their parent or not at all, and their end makes the parent due."""

from __future__ import annotations

from weftline.messages import Blob
from weftline.store.rows import GIVEN, IdempotencyKey, RunFilter
from weftline.testing.store.subject import (
    Subject,
    chain_of,
    check_log,
    commit,
    due_times,
    new_chain,
    new_thread,
    new_workspace,
    outcomes,
    the_row,
)


async def a_child_is_created_with_the_write_of_its_parent(subject: Subject) -> None:
    parent = await new_chain(subject)
    log = subject.store.log
    workspace = await new_workspace(subject)
    children = [chain_of(log, key, workspace) for key in (2, 3)]
    write = parent.append(b"started", kind="call.started", due_at=None)
    write.children = tuple([child.create(body=b"child", name="researcher") for child in children])
    assert outcomes(await commit(log, write)) == ["ok"]
    assert [one.items[0].seq for one in (write, *write.children)] == [2, 1, 1]
    assert [await check_log(log, key) for key in (1, 2, 3)] == [[b"{}", b"started"], [b"child"], [b"child"]]
    assert (await the_row(log, 2)).name == "researcher"
    assert await due_times(log, 1, 2, 3) == [None, 0, 0]
    await subject.reopen(cleanly=False)
    assert [row.key for row in await subject.store.log.due_now(after=0, limit=9)] == [2, 3]


async def a_child_has_all_that_a_new_run_may_have(subject: Subject) -> None:
    log, workspace = subject.store.log, await new_workspace(subject)
    thread, blob = await new_thread(subject, workspace), Blob("picture", b"picture")
    parent = await new_chain(subject)
    write = parent.append(b"started", kind="call.started")
    child = chain_of(log, 2, workspace).create(
        agent="billing",
        family=thread,
        metadata='{"env":"prod"}',
        rules=3,
        secrets=b"sealed",
        idempotency=IdempotencyKey("runs", "k", b"digest"),
        blobs=(blob,),
        salt=f"{GIVEN}nightly",
    )
    child.status, child.due_at, child.started_at, child.format, child.fold = "paused", 50, 40, 2, 6
    write.children = (child,)
    assert outcomes(await commit(log, write)) == ["ok"]
    await subject.reopen(cleanly=False)
    log = subject.store.log
    row, new = await the_row(log, 2), child.new
    assert new is not None
    assert (row.salt, row.agent, row.family, row.rules) == (new.salt, new.agent, new.family, new.rules)
    assert (row.status, row.due_at, row.started_at) == ("paused", 50, 40)
    assert (row.format, row.fold, row.state, row.state_seq) == (2, 6, child.state, 1)
    wanted = RunFilter(thread=thread, with_children=True, metadata=(("env", "prod"),))
    assert [one.key for one in await log.runs(wanted)] == [2]
    assert await log.given("nightly", workspace=workspace) == [2]
    assert await log.idempotent(workspace, "runs", "k") == (b"digest", 2)
    assert await log.blob(workspace, blob.id) == blob.data
    loaded = await log.claim(2, kinds=())
    assert loaded is not None and loaded.secrets == b"sealed"


async def a_child_is_not_created_with_a_stale_write(subject: Subject) -> None:
    parent, neighbour = await new_chain(subject), await new_chain(subject, 2)
    log = subject.store.log
    child = chain_of(log, 3, await new_workspace(subject))
    write = parent.append(b"started", kind="call.started")
    write.base_version += 1
    write.children = (child.create(),)
    assert outcomes(await commit(log, write, neighbour.append(b"a"))) == ["conflict", "ok"]
    assert await log.run(3) is None
    assert [len(await check_log(log, key)) for key in (1, 2)] == [1, 2]


async def a_write_fails_if_its_child_cannot_be_created(subject: Subject) -> None:
    parent, neighbour = await new_chain(subject), await new_chain(subject, 2)
    log = subject.store.log
    workspace = await new_workspace(subject)
    for name, key, expected in (("", 2, "conflict"), ("", 3, "conflict"), ("\ud800", 4, "failed")):
        write = parent.append(b"started", kind="call.started")
        write.children = (chain_of(log, 3, workspace).create(), chain_of(log, key, workspace).create(name=name))
        parent.take_back(write)
        assert outcomes(await commit(log, write, neighbour.append(b"a"))) == [expected, "ok"]
        assert await log.run(3) is None
    write = parent.append(b"started", kind="call.started")
    late = chain_of(log, 4, workspace).create()
    late.base_version += 1
    write.children = (chain_of(log, 3, workspace).create(), late)
    parent.take_back(write)
    assert outcomes(await commit(log, write, neighbour.append(b"a"))) == ["conflict", "ok"]
    assert await log.run(3) is await log.run(4) is None
    assert [len(await check_log(log, key)) for key in (1, 2)] == [1, 5]


async def the_end_of_a_child_makes_its_parent_due(subject: Subject) -> None:
    parent, child = await new_chain(subject), await new_chain(subject, 2)
    log = subject.store.log
    assert outcomes(await commit(log, parent.append(b"waits", due_at=None))) == ["ok"]
    ended = child.end()
    ended.wakes = 1
    # In one flush with a write of the parent, which does not know of it yet, in either order.
    assert outcomes(await commit(log, ended, parent.append(b"steered", due_at=None))) == ["ok", "ok"]
    assert await due_times(log, 1, 2) == [0, None]
    await subject.reopen(cleanly=False)
    assert [row.key for row in await subject.store.log.due_now(after=0, limit=9)] == [1]


async def an_end_that_fails_wakes_nobody(subject: Subject) -> None:
    parent, child = await new_chain(subject), await new_chain(subject, 2)
    log = subject.store.log
    await commit(log, parent.append(b"waits", due_at=None))
    ended = child.end()
    ended.wakes = 1
    ended.base_version += 1
    assert outcomes(await commit(log, ended)) == ["conflict"]
    assert await due_times(log, 1) == [None]


async def a_parent_that_has_ended_is_not_woken(subject: Subject) -> None:
    parent, child = await new_chain(subject), await new_chain(subject, 2)
    log = subject.store.log
    await commit(log, parent.end())
    ended = child.end()
    ended.wakes = 1
    assert outcomes(await commit(log, ended)) == ["ok"]
    assert await due_times(log, 1) == [None]


CHECKS = (
    a_child_is_created_with_the_write_of_its_parent,
    a_child_has_all_that_a_new_run_may_have,
    a_child_is_not_created_with_a_stale_write,
    a_write_fails_if_its_child_cannot_be_created,
    the_end_of_a_child_makes_its_parent_due,
    an_end_that_fails_wakes_nobody,
    a_parent_that_has_ended_is_not_woken,
)
