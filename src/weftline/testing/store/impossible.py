"""Writes that fail, whichever part of them is wrong: nothing of them is left."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, cast

from msgspec import Struct
from msgspec.structs import replace

from weftline.messages import Blob
from weftline.store.budgets import Booking, run_account
from weftline.store.database import Query, Row, statement
from weftline.store.records import budgets
from weftline.store.rows import (
    GIVEN,
    AwaitFilter,
    IdempotencyKey,
    Item,
    KeptMessage,
    MessageEdit,
    NewAwait,
    Progress,
    ThreadEnd,
    Write,
)
from weftline.testing.store.subject import (
    Chain,
    Subject,
    active_run,
    chain_of,
    check_log,
    commit,
    end_thread,
    new_chain,
    new_thread,
    new_workspace,
    outcomes,
)

_NOT_STORED = frozenset({"facts", "size", "seq"})
"""Fields that the store does not use, or sets itself."""
_NEVER = ("failed", "conflict")
"""The outcomes of a write that will never succeed."""
_PICTURE = Blob("picture", b"picture")


async def a_write_with_an_impossible_value_anywhere_fails(subject: Subject) -> None:
    log, workspace = subject.store.log, await new_workspace(subject)
    thread = await new_thread(subject, workspace)
    chain, neighbour = chain_of(log, 1, workspace, thread=thread), await new_chain(subject, 9)
    await commit(log, chain.create())
    write = chain.append(b"a", deltas=[b"b", b"c"], due_at=5, progress=Progress.ENDED)
    write.started_at, write.ended_at, write.format = 10, 20, 1
    write.awaits = (NewAwait("a", workspace, 1, "confirm", 5_000, 6_000, b"{}", "pay"),)
    write.answered, write.closes, write.wakes = ("b",), run_account(1), 9
    write.bookings = (Booking(workspace, run_account(1), 3, 1, 2, 3, 4, 5, 6, 7),)
    write.thread_end = ThreadEnd(thread, [b"m"])
    write.keeps, write.kept = thread, (KeptMessage("msg_1", "assistant", b"{}", 5_000, calls=1, asked_by="msg_0"),)
    write.edits = (MessageEdit(thread, 9, 1, 0, b"{}"),)
    write.children = (_create(chain_of(log, 2, workspace)),)
    await _fails_wherever_it_is_spoiled(subject, write, neighbour, thread=thread)
    assert outcomes(await commit(log, write)) == ["ok"]


async def a_new_run_with_an_impossible_value_anywhere_is_not_created(subject: Subject) -> None:
    log, workspace = subject.store.log, await new_workspace(subject)
    thread, neighbour = await new_thread(subject, workspace), await new_chain(subject, 9)
    write = _create(chain_of(log, 1, workspace, thread=thread))
    assert write.new is not None
    write.new.history = (b"m",)
    write.due_at = None  # its place in the queue decides
    await _fails_wherever_it_is_spoiled(subject, write, neighbour, thread=thread)
    assert outcomes(await commit(log, write)) == ["ok"]


async def a_new_run_that_its_thread_refuses_leaves_nothing(subject: Subject) -> None:
    log, workspace = subject.store.log, await new_workspace(subject)
    thread, other = await new_thread(subject, workspace), await new_thread(subject, workspace)
    parent, neighbour = await new_chain(subject, 3), await new_chain(subject, 9)
    await commit(log, parent.append(b"waits", due_at=None))
    await subject.store.records.write(end_thread(thread))
    write = _create(chain_of(log, 1, workspace, thread=thread))
    assert write.new is not None
    write.new.history = (b"m",)
    write.awaits = (NewAwait("a", workspace, 1, "confirm", 5_000, None, b"{}"),)
    write.bookings = (Booking(workspace, run_account(1), 3, nusd=5),)
    write.thread_end, write.wakes = ThreadEnd(other, [b"m"]), 3
    write.children = (chain_of(log, 2, workspace).create(),)
    before = [await _contents(subject, one) for one in (thread, other)]
    assert outcomes(await commit(log, write, neighbour.append(b"a"))) == ["failed", "ok"]
    assert [await _contents(subject, one) for one in (thread, other)] == before


async def numbers_that_add_up_to_something_impossible_fail(subject: Subject) -> None:
    log, chain, neighbour = subject.store.log, await new_chain(subject), await new_chain(subject, 9)
    most = Booking(chain.workspace, run_account(1), 3, nusd=2**63 - 1)
    spends = chain.append(b"a")
    spends.bookings = (most,)
    assert outcomes(await commit(log, spends)) == ["ok"]
    twice, more, long = chain.append(b"b"), chain.append(b"b"), chain.append(deltas=[b"b"])
    twice.bookings, more.bookings = (replace(most, day=4), replace(most, day=4)), (replace(most, nusd=1),)
    long.items = [Item(5_000, "delta.text", b"", b"", 2**63 - 1)]
    for bad in (twice, more, long):
        bad.base_seq, bad.base_version = spends.base_seq + 1, spends.base_version + 1
        reported = outcomes(await commit(log, neighbour.append(b"a"), bad))
        assert reported[0] == "ok" and reported[1] in _NEVER
    assert await subject.store.records.read(budgets.use(run_account(1))) == [most]
    assert await check_log(log, 1) == [b"{}", b"a"]


async def a_child_is_a_new_run_without_a_thread_and_nothing_else(subject: Subject) -> None:
    log, workspace = subject.store.log, await new_workspace(subject)
    thread = await new_thread(subject, workspace)
    parent, neighbour = await new_chain(subject), await new_chain(subject, 9)
    child = _create(chain_of(log, 2, workspace))
    assert child.new is not None
    wrong = [
        replace(child, new=replace(child.new, thread=thread)),
        replace(child, new=replace(child.new, thread=thread, history=(b"m",))),
        replace(child, new=replace(child.new, history=(b"m",))),
        replace(child, new=None),
        replace(child, awaits=(NewAwait("a", workspace, 1, "confirm", 5_000, None, b"{}"),)),
        replace(child, answered=("a",)),
        replace(child, bookings=(Booking(workspace, run_account(1), 3, nusd=5),)),
        replace(child, closes=run_account(1)),
        replace(child, thread_end=ThreadEnd(thread, [b"m"])),
        replace(child, wakes=1),
        replace(child, children=(chain_of(log, 3, workspace).create(),)),
    ]
    before = await _contents(subject, thread)
    for bad in wrong:
        write = parent.append(b"started", kind="call.started")
        parent.take_back(write)
        write.children = (bad,)
        assert outcomes(await commit(log, write, neighbour.append(b"a"))) == ["failed", "ok"]
        assert await _contents(subject, thread) == before
    write = parent.append(b"started", kind="call.started")
    write.children = (child,)
    assert outcomes(await commit(log, write)) == ["ok"]


async def _fails_wherever_it_is_spoiled(subject: Subject, write: Write, neighbour: Chain, *, thread: int) -> None:
    """Asserts that none of its spoiled copies is applied, wholly or in part, and that a neighbour is."""
    log, before = subject.store.log, await _contents(subject, thread)
    written = 1
    for where, bad in _spoiled(write):
        reported = outcomes(await commit(log, neighbour.append(b"a"), bad))
        written += 1
        assert reported[0] == "ok" and reported[1] in _NEVER, f"{where}: {reported}"
        assert await _contents(subject, thread) == before, f"{where}: some of it was written"
    assert len(await check_log(log, 9)) == written > 30


def _spoiled(value: Any, where: str = "") -> Iterator[tuple[str, Any]]:
    """Copies, each with one number or text that no database can hold, and where that is."""
    match value:
        case bool() | Progress():
            return
        case int():
            yield from [(where, 2**63), (where, -(2**63) - 1)]
        case str():
            yield where, "\ud800"
        case Struct():
            for name in value.__struct_fields__:
                if name not in _NOT_STORED:
                    for place, bad in _spoiled(getattr(value, name), f"{where}.{name}"):
                        yield place, replace(value, **{name: bad})
        case IdempotencyKey(route, key, digest):
            for place, (odd_route, odd_key) in _spoiled((route, key), where):
                yield place, IdempotencyKey(odd_route, odd_key, digest)
        case tuple() | list():
            parts = cast("Sequence[object]", value)
            for at, part in enumerate(parts):
                for place, bad in _spoiled(part, f"{where}[{at}]"):
                    copy = [*parts[:at], bad, *parts[at + 1 :]]
                    yield place, copy if isinstance(parts, list) else tuple(copy)
        case _:
            return


def _create(chain: Chain) -> Write:
    """A new run that has all that it may have."""
    write = chain.create(
        name="researcher",
        agent="billing",
        family=77,
        metadata='{"env":"prod"}',
        secrets=b"sealed",
        idempotency=IdempotencyKey("runs", "k", b"digest"),
        blobs=(_PICTURE,),
        salt=f"{GIVEN}nightly",
    )
    write.started_at = 10
    return write


async def _contents(subject: Subject, thread: int) -> list[object]:
    """Everything that the writes of these checks could change, except for the neighbour."""
    log, records = subject.store.log, subject.store.records
    (workspace,) = {row[0] for row in await records.read(_workspaces())}
    return [
        [(await log.run(key), await check_log(log, key)) for key in (1, 2, 3)],
        await log.awaits(AwaitFilter(workspace=workspace)),
        [await log.thread_messages(thread), await log.unfinished_of_thread(thread)],
        await records.read(active_run(thread)),
        await records.read(budgets.open_use()),
        [await log.blob(workspace, _PICTURE.id), await log.idempotent(workspace, "runs", "k")],
        await log.given("nightly", workspace=None),
        [row.key for row in await log.due_now(after=0, limit=99) if row.key != 9],
    ]


def _workspaces() -> Query[list[Row]]:
    rows = yield from statement("SELECT key FROM workspaces")
    return rows


CHECKS = (
    a_write_with_an_impossible_value_anywhere_fails,
    a_new_run_with_an_impossible_value_anywhere_is_not_created,
    a_new_run_that_its_thread_refuses_leaves_nothing,
    numbers_that_add_up_to_something_impossible_fail,
    a_child_is_a_new_run_without_a_thread_and_nothing_else,
)
