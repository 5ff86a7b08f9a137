"""Budgets and webhooks: what a run spends, and who is notified of it, is stored with the write that says so."""

from __future__ import annotations

from weftline.store.base import Store
from weftline.store.budgets import Booking, run_account, workspace_account
from weftline.store.database import Query, statement
from weftline.store.records import budgets, webhooks
from weftline.store.rows import NewAwait
from weftline.testing.store.subject import Subject, chain_of, commit, new_chain, new_workspace, outcomes


async def what_a_run_spends_is_booked_with_its_write(subject: Subject) -> None:
    log, workspace = subject.store.log, await new_workspace(subject)
    chain, neighbour = await new_chain(subject), await new_chain(subject, 2)
    of_run, of_all = run_account(1), workspace_account(workspace)
    first, second, stale = chain.append(b"a"), neighbour.append(b"a"), neighbour.append(b"b")
    spent = Booking(workspace, of_all, 3, 40, 30, 20, 1, 8, 7, 6)
    first.bookings = (Booking(workspace, of_run, 3, nusd=5), spent)
    second.bookings = (spent,)
    stale.bookings, stale.base_version = (spent,), stale.base_version + 1
    assert outcomes(await commit(log, first, second)) == ["ok", "ok"]
    assert outcomes(await commit(log, stale)) == ["conflict"]
    later = chain.append(b"b")
    later.bookings = (Booking(workspace, of_all, 4, calls=1), Booking(workspace, of_run, 3, nusd=2, held_calls=-1))
    assert outcomes(await commit(log, later)) == ["ok"]
    await subject.reopen(cleanly=False)
    assert await _use(subject.store, of_run) == [Booking(workspace, of_run, 3, nusd=7, held_calls=-1)]
    assert await _use(subject.store, of_all) == [
        Booking(workspace, of_all, 3, 80, 60, 40, 2, 16, 14, 12),
        Booking(workspace, of_all, 4, calls=1),
    ]


async def the_account_of_a_run_is_closed_when_the_run_ends(subject: Subject) -> None:
    log, workspace = subject.store.log, await new_workspace(subject)
    chains = [await new_chain(subject, key) for key in (1, 2)]
    for chain in chains:
        write = chain.append(b"a")
        write.bookings = (Booking(workspace, run_account(chain.key), 3, nusd=5),)
        assert outcomes(await commit(log, write)) == ["ok"]
    last, stale = chains[0].end(), chains[1].end()
    last.closes, last.bookings = run_account(1), (Booking(workspace, run_account(1), 3, nusd=1),)
    stale.closes, stale.base_version = run_account(2), stale.base_version + 1
    assert outcomes(await commit(log, last, stale)) == ["ok", "conflict"]
    await subject.reopen(cleanly=False)
    still_open = await subject.store.records.read(budgets.open_use())
    assert still_open == [Booking(workspace, run_account(2), 3, nusd=5)]
    assert await _use(subject.store, run_account(1)) == [Booking(workspace, run_account(1), 3, nusd=6)]


async def an_account_is_closed_by_a_write_that_books_nothing(subject: Subject) -> None:
    log, workspace, chain = subject.store.log, await new_workspace(subject), await new_chain(subject)
    spends, ends = chain.append(b"a"), chain.end()
    spends.bookings, ends.closes = (Booking(workspace, run_account(1), 3, nusd=5),), run_account(1)
    assert [outcomes(await commit(log, write)) for write in (spends, ends)] == [["ok"], ["ok"]]
    assert await subject.store.records.read(budgets.open_use()) == []


async def webhooks_are_notified_of_ends_and_of_awaits(subject: Subject) -> None:
    log, workspace = subject.store.log, await new_workspace(subject)
    await _add_webhook(subject, workspace)
    first, second, third = [await new_chain(subject, key) for key in (1, 2, 3)]
    asks, stale = first.append(b"asks", kind="await.opened"), third.end()
    asks.awaits = (NewAwait("a", workspace, 1, "confirm", 5_000, None, b"{}"),)
    stale.base_version += 1
    assert outcomes(await commit(log, asks, second.end(status="failed"), stale)) == ["ok", "ok", "conflict"]
    assert await subject.store.records.read(_deliveries()) == [(1, "a")], "the webhook wants no runs that failed"
    assert outcomes(await commit(log, first.end())) == ["ok"]
    await subject.reopen(cleanly=False)
    assert await subject.store.records.read(_deliveries()) == [(1, ""), (1, "a")]


async def webhooks_are_not_notified_of_imported_runs(subject: Subject) -> None:
    log, workspace = subject.store.log, await new_workspace(subject)
    await _add_webhook(subject, workspace)
    for key in (1, 2):
        chain = chain_of(log, key, workspace)
        write, end = chain.create(), chain.end()
        write.items, write.version = [*write.items, *end.items], end.version
        write.status, write.due_at, write.ended_at = end.status, None, end.ended_at
        write.imported = key == 1
        assert outcomes(await commit(log, write)) == ["ok"]
    assert await subject.store.records.read(_deliveries()) == [(2, "")]


async def webhooks_are_not_notified_of_an_await_that_is_answered_at_once(subject: Subject) -> None:
    log, chain = subject.store.log, await new_chain(subject)
    await _add_webhook(subject, chain.workspace)
    write = chain.append(b"opened", b"closed", kind="await.opened")
    write.awaits = tuple([NewAwait(id, chain.workspace, 1, "confirm", 5_000, None, b"{}") for id in "ab"])
    write.answered = ("a",)
    assert outcomes(await commit(log, write)) == ["ok"]
    assert await subject.store.records.read(_deliveries()) == [(1, "b")]


async def _use(store: Store, account: str) -> list[Booking]:
    return await store.records.read(budgets.use(account))


async def _add_webhook(subject: Subject, workspace: int) -> None:
    events = ("succeeded", webhooks.WAITING)
    new = webhooks.insert("hook", workspace=workspace, url="https://example.com", events=events, secret=b"", now=1)
    await subject.store.records.write(new)


def _deliveries() -> Query[list[tuple[int, str]]]:
    """The run of each, and the await that it is about."""
    rows = yield from statement("SELECT run, about FROM deliveries ORDER BY run, about")
    return [(run, about) for run, about in rows]


CHECKS = (
    what_a_run_spends_is_booked_with_its_write,
    the_account_of_a_run_is_closed_when_the_run_ends,
    an_account_is_closed_by_a_write_that_books_nothing,
    webhooks_are_notified_of_ends_and_of_awaits,
    webhooks_are_not_notified_of_imported_runs,
    webhooks_are_not_notified_of_an_await_that_is_answered_at_once,
)
