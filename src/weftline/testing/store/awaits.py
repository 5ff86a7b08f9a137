"""Awaits: listed from the commit that opens one to the commit that answers it."""

from __future__ import annotations

from msgspec.structs import replace

from weftline.store.base import LogReader
from weftline.store.rows import AwaitFilter, NewAwait
from weftline.testing.store.subject import Subject, chain_of, commit, new_chain, new_thread, new_workspace, outcomes


def _asks(id: str, workspace: int, *, root: int = 1, kind: str = "confirm", deadline_at: int | None = None) -> NewAwait:
    tool = b"present_plan" if kind == "plan" else b"pay"
    body = b'{"prompt":"May it?","call":"call_0_0","name":"%b","args":{}}' % tool
    return NewAwait(id, workspace, root, kind, 5_000, deadline_at, body, tool.decode())


async def _ids(log: LogReader, wanted: AwaitFilter) -> list[tuple[int, str]]:
    return [(one.run, one.id) for one in await log.awaits(wanted)]


async def an_await_is_listed_until_it_is_answered(subject: Subject) -> None:
    run, workspace = await new_chain(subject), await new_workspace(subject)
    everything = AwaitFilter(workspace=workspace)
    write = run.append(b"opened", kind="await.opened", due_at=None)
    write.awaits = (_asks("b", workspace, deadline_at=7_000), _asks("a", workspace, kind="question"))
    assert outcomes(await commit(subject.store.log, write)) == ["ok"]
    listed = await subject.store.log.awaits(everything)
    assert len(listed) == 2 and await subject.store.log.waiting() == 1
    first, second = listed
    assert (first.run, first.salt, first.id, first.kind, first.root, first.root_salt) == (
        (1, "salt", "a", "question", 1, "salt")
    )
    assert (second.id, second.opened_at, second.deadline_at, second.body) == ("b", 5_000, 7_000, write.awaits[0].body)
    await subject.reopen(cleanly=False)
    assert await _ids(subject.store.log, everything) == [(1, "a"), (1, "b")]
    claimed = await subject.store.log.claim(1, kinds=())
    assert claimed is not None
    run.epoch = claimed.epoch
    answer = run.append(b"closed", kind="await.closed")
    answer.answered = ("a",)
    assert outcomes(await commit(subject.store.log, answer)) == ["ok"]
    assert await _ids(subject.store.log, everything) == [(1, "b")]


async def an_await_is_not_stored_with_a_stale_write(subject: Subject) -> None:
    run, neighbour, workspace = await new_chain(subject), await new_chain(subject, 2), await new_workspace(subject)
    log = subject.store.log
    opened, stale = run.append(b"opened", kind="await.opened"), neighbour.append(b"opened", kind="await.opened")
    opened.awaits, stale.awaits = (_asks("a", workspace),), (_asks("a", workspace),)
    stale.base_version += 1
    assert outcomes(await commit(log, opened, stale)) == ["ok", "conflict"]
    assert await _ids(log, AwaitFilter(workspace=workspace)) == [(1, "a")]
    late = run.append(b"closed", kind="await.closed")
    late.answered, late.base_version = ("a",), late.base_version + 1
    assert outcomes(await commit(log, late)) == ["conflict"]
    assert await _ids(log, AwaitFilter(workspace=workspace)) == [(1, "a")]


async def an_await_that_is_answered_in_the_same_commit_is_never_listed(subject: Subject) -> None:
    run, workspace = await new_chain(subject), await new_workspace(subject)
    write = run.append(b"opened", b"closed", kind="await.opened")
    write.awaits, write.answered = (_asks("a", workspace),), ("a",)
    assert outcomes(await commit(subject.store.log, write)) == ["ok"]
    assert await _ids(subject.store.log, AwaitFilter(workspace=workspace)) == []


async def an_await_that_is_answered_and_opened_in_one_commit_is_not_open(subject: Subject) -> None:
    run, workspace = await new_chain(subject), await new_workspace(subject)
    for answered in ((), ("a",)):
        write = run.append(b"opened", kind="await.opened")
        write.awaits, write.answered = (_asks("a", workspace),), answered
        assert outcomes(await commit(subject.store.log, write)) == ["ok"]
    assert await _ids(subject.store.log, AwaitFilter(workspace=workspace)) == []


async def an_await_is_opened_once(subject: Subject) -> None:
    run, neighbour = await new_chain(subject), await new_chain(subject, 2)
    log, workspace = subject.store.log, await new_workspace(subject)
    for ids, expected in (("a", "ok"), ("a", "conflict"), ("bb", "conflict"), ("b", "ok")):
        write, other = run.append(b"opened", kind="await.opened"), neighbour.append(b"a")
        write.awaits = tuple([_asks(id, workspace) for id in ids])
        assert outcomes(await commit(log, write, other)) == [expected, "ok"]
        if expected != "ok":
            run.take_back(write)
    assert await _ids(log, AwaitFilter(workspace=workspace)) == [(1, "a"), (1, "b")]


async def awaits_are_found_by_run_root_kind_agent_and_deadline(subject: Subject) -> None:
    log, workspace = subject.store.log, await new_workspace(subject)
    other = await new_workspace(subject, "other")
    runs = [chain_of(log, 1, workspace), chain_of(log, 2, workspace), chain_of(log, 3, other)]
    for run, agent in zip(runs, ("billing", "travel", None), strict=True):
        assert outcomes(await commit(log, run.create(agent=agent))) == ["ok"]
        write = run.append(b"opened", kind="await.opened")
        owner = other if run.key == 3 else workspace
        write.awaits = (
            _asks("a", owner, root=1, deadline_at=1_000 * run.key),
            _asks("b", owner, root=run.key, kind="plan"),
        )
        assert outcomes(await commit(log, write)) == ["ok"]

    async def found(**filters: object) -> list[tuple[int, str]]:
        return await _ids(log, AwaitFilter(**({"workspace": workspace} | filters)))  # type: ignore[arg-type]

    assert await found() == [(1, "a"), (1, "b"), (2, "a"), (2, "b")]
    assert await found(limit=1, after=(1, "a")) == [(1, "b")]
    assert await found(run=2) == [(2, "a"), (2, "b")]
    assert await found(root=1) == [(1, "a"), (1, "b"), (2, "a")]
    assert await found(kinds=("plan",)) == [(1, "b"), (2, "b")]
    assert await found(agents=("travel",)) == [(2, "a"), (2, "b")]
    assert await found(due_before=2_000) == [(1, "a")]
    assert await found(tool="present_plan") == [(1, "b"), (2, "b")]
    assert await found(opened_until=4_999) == []
    assert await found(opened_until=5_000, limit=2) == [(1, "a"), (1, "b")]
    assert await found(root=2) == [(2, "a"), (2, "b")]
    assert await found(workspace=other) == [(3, "a"), (3, "b")]


async def an_await_of_a_run_below_belongs_to_the_agent_and_the_thread_at_the_top(subject: Subject) -> None:
    log, workspace = subject.store.log, await new_workspace(subject)
    top, below = chain_of(log, 1, workspace), chain_of(log, 2, workspace)
    assert outcomes(await commit(log, top.create(agent="billing"), below.create())) == ["ok", "ok"]
    write = below.append(b"opened", kind="await.opened")
    write.awaits = (_asks("a", workspace, root=1),)
    assert outcomes(await commit(log, write)) == ["ok"]
    (listed,) = await log.awaits(AwaitFilter(workspace=workspace, agents=("billing",), root=1))
    assert (listed.run, listed.root, listed.agent) == (2, 1, "billing")
    assert await _ids(log, AwaitFilter(workspace=workspace, agents=("travel",))) == []


async def awaits_are_found_by_the_thread_of_their_run_or_of_the_one_at_the_top(subject: Subject) -> None:
    log, workspace = subject.store.log, await new_workspace(subject)
    threads = [await new_thread(subject, workspace) for _ in range(3)]
    first, second = (chain_of(log, key, workspace, thread=thread) for key, thread in zip((1, 2), threads, strict=False))
    below, free = chain_of(log, 3, workspace), chain_of(log, 4, workspace)
    created = [first.create(), second.create(), below.create(family=threads[0]), free.create()]
    assert outcomes(await commit(log, *created)) == ["ok"] * 4
    for run in (first, second, below, free):
        write = run.append(b"opened", kind="await.opened")
        write.awaits = (_asks("a", workspace, root=1 if run is below else run.key),)
        assert outcomes(await commit(log, write)) == ["ok"]
    found = [await _ids(log, AwaitFilter(workspace=workspace, thread=thread)) for thread in threads]
    assert found == [[(1, "a"), (3, "a")], [(2, "a")], []]
    assert [one.thread for one in await log.awaits(AwaitFilter(workspace=workspace))] == [
        threads[0],
        threads[1],
        threads[0],
        None,
    ]


async def bodies_of_awaits_are_read_as_far_as_they_fit(subject: Subject) -> None:
    log, workspace, run = subject.store.log, await new_workspace(subject), await new_chain(subject)
    write = run.append(b"opened", kind="await.opened")
    write.awaits = tuple([_asks(id, workspace) for id in "abc"])
    size = len(write.awaits[0].body)
    assert outcomes(await commit(log, write)) == ["ok"]

    async def read(max_bytes: int) -> list[bool]:
        found = await log.awaits(AwaitFilter(workspace=workspace, max_bytes=max_bytes))
        assert all(one.unread == (not one.body) for one in found)
        return [not one.unread for one in found]

    assert await read(3 * size) == [True, True, True]
    assert await read(3 * size - 1) == [True, True, False]
    assert await read(1) == [True, False, False]
    assert await read(0) == [False, False, False]
    assert await _ids(log, AwaitFilter(workspace=workspace, run=1, id="b")) == [(1, "b")]
    more = run.append(b"opened", kind="await.opened")
    more.awaits, more.answered = (replace(_asks("b2", workspace), body=b"x" * 4 * size),), ("b",)
    assert outcomes(await commit(log, more)) == ["ok"]
    assert await read(3 * size) == [True, False, False], "what comes after one that does not fit was read"


async def an_await_below_an_unknown_run_belongs_to_its_own(subject: Subject) -> None:
    log, workspace = subject.store.log, await new_workspace(subject)
    thread = await new_thread(subject, workspace)
    run = chain_of(log, 1, workspace, thread=thread)
    assert outcomes(await commit(log, run.create(agent="billing"))) == ["ok"]
    write = run.append(b"opened", kind="await.opened")
    write.awaits = (_asks("a", workspace, root=99),)
    assert outcomes(await commit(log, write)) == ["ok"]
    (listed,) = await log.awaits(AwaitFilter(workspace=workspace))
    assert (listed.root, listed.root_salt, listed.agent, listed.thread) == (99, "", "billing", thread)


CHECKS = (
    an_await_is_listed_until_it_is_answered,
    an_await_is_not_stored_with_a_stale_write,
    an_await_that_is_answered_in_the_same_commit_is_never_listed,
    an_await_that_is_answered_and_opened_in_one_commit_is_not_open,
    an_await_is_opened_once,
    awaits_are_found_by_run_root_kind_agent_and_deadline,
    an_await_of_a_run_below_belongs_to_the_agent_and_the_thread_at_the_top,
    awaits_are_found_by_the_thread_of_their_run_or_of_the_one_at_the_top,
    bodies_of_awaits_are_read_as_far_as_they_fit,
    an_await_below_an_unknown_run_belongs_to_its_own,
)
