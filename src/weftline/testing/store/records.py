"""Records: a query is one atomic transaction, and what it wrote can be read at once."""

from __future__ import annotations

import asyncio

from weftline.errors import Conflict, StoreError
from weftline.store.database import Query, Row, statement
from weftline.testing.store.subject import (
    TIMEOUT_S,
    Subject,
    commit,
    create_workspace,
    find_workspace,
    new_chain,
    outcomes,
    the_row,
    unsealed,
)


class Refused(Exception):
    """An exception that a query of this suite raises itself."""


def create_two(first: str, second: str) -> Query[tuple[int, int]]:
    one = yield from create_workspace(first)
    other = yield from create_workspace(second)
    return one, other


def create_and_refuse(slug: str) -> Query[None]:
    yield from create_workspace(slug)
    raise Refused


def create_and_break(slug: str) -> Query[None]:
    yield from create_workspace(slug)
    yield from statement("INSERT INTO nowhere (a) VALUES ($1)", 1)


def create_twice(slug: str) -> Query[None]:
    for _ in range(2):
        yield from statement("INSERT INTO workspaces (slug, name, created_at) VALUES ($1, $2, $3)", slug, "", 1)


def add_letter(slug: str) -> Query[str]:
    """Reads and writes: two of them at once must not see the same value."""
    rows = yield from statement("SELECT name FROM workspaces WHERE slug = $1", slug)
    name: str = rows[0][0] + "x"
    yield from statement("UPDATE workspaces SET name = $1 WHERE slug = $2", name, slug)
    return name


async def a_transaction_is_atomic_and_readable_at_once(subject: Subject) -> None:
    records = subject.store.records
    first, second = await records.write(create_two("a", "b"))
    assert first != second
    assert [await records.read(find_workspace(slug)) for slug in ("a", "b", "c")] == [first, second, None]
    await subject.reopen()
    assert await subject.store.records.read(find_workspace("b")) == second


async def an_exception_in_a_query_rolls_everything_back(subject: Subject) -> None:
    records = subject.store.records
    for query, expected in (
        (create_and_refuse("a"), Refused),
        (create_and_break("a"), StoreError),
        (create_twice("a"), Conflict),
    ):
        try:
            await records.write(query)
        except expected:
            pass
        else:
            raise AssertionError(f"{expected.__name__} was not raised")
    assert await records.read(find_workspace("a")) is None
    assert await records.write(create_workspace("a")) == await records.read(find_workspace("a"))


async def an_exception_in_a_reading_query_reaches_the_caller(subject: Subject) -> None:
    def refuse() -> Query[None]:
        yield from find_workspace("a")
        raise Refused

    def run_no_query() -> Query[None]:
        yield from statement("SELECT a FROM nowhere")

    for query, expected in ((refuse(), Refused), (run_no_query(), StoreError)):
        try:
            await subject.store.records.read(query)
        except expected:
            pass
        else:
            raise AssertionError(f"{expected.__name__} was not raised")


async def a_query_that_should_only_read_cannot_write(subject: Subject) -> None:
    records = subject.store.records
    await records.write(create_workspace("a"))

    def change_nothing() -> Query[None]:
        yield from statement("UPDATE workspaces SET name = $1 WHERE slug = $2", "x", "nobody")

    for heavy in (False, True):
        for query in (create_workspace("b"), add_letter("a"), change_nothing()):
            try:
                await records.read(query, heavy=heavy)
            except StoreError:
                pass
            else:
                raise AssertionError("a query wrote while it was read")
    assert await records.read(find_workspace("b")) is None
    assert await records.write(add_letter("a")) == "ax"


async def transactions_run_one_at_a_time(subject: Subject) -> None:
    records = subject.store.records
    await records.write(create_workspace("a"))
    async with asyncio.timeout(TIMEOUT_S):
        names = await asyncio.gather(*[records.write(add_letter("a")) for _ in range(20)])
    assert sorted(names, key=len) == ["a" + "x" * count for count in range(1, 21)]


async def values_are_read_as_they_were_written(subject: Subject) -> None:
    def echo() -> Query[list[object]]:
        rows = yield from statement(
            "INSERT INTO agents (id, workspace, slug, name, description, spec, secrets, metadata, system, created_at,"
            " updated_at) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $10)"
            " RETURNING id, spec, secrets, description, created_at",
            "x",
            1,
            "s",
            "n",
            "é\U0001f9f5",
            b"\x00\xff",
            None,
            "{}",
            0,
            2**62,
        )
        return list(rows[0])

    await subject.store.records.write(create_workspace("a"))
    assert await subject.store.records.write(echo()) == ["x", b"\x00\xff", None, "é\U0001f9f5", 2**62]


async def an_end_queues_its_webhooks_in_the_same_transaction(subject: Subject) -> None:
    log, records = subject.store.log, subject.store.records
    chains = [await new_chain(subject, key) for key in (1, 2, 3)]
    workspace = (await the_row(log, 1)).workspace
    for hook, events, enabled in ((1, '["succeeded","failed"]', 1), (2, '["failed"]', 1), (3, '["succeeded"]', 0)):
        await records.write(_add_webhook(hook, workspace, events, enabled))
    end, stale = chains[0].end(ended_at=77), chains[1].end()
    stale.base_version += 1
    assert outcomes(await commit(log, end, stale, chains[2].append(b"a"))) == ["ok", "conflict", "ok"]
    assert await records.read(_deliveries()) == [(1, 1, "pending", 77)]


def _add_webhook(key: int, workspace: int, events: str, enabled: int) -> Query[None]:
    yield from statement(
        "INSERT INTO webhooks (key, id, workspace, url, events, secret, enabled, created_at)"
        " VALUES ($1, $2, $3, $4, $5, $6, $7, $8)",
        key,
        f"wh_{key}",
        workspace,
        "https://example.com",
        events,
        b"",
        enabled,
        1,
    )


def _deliveries() -> Query[list[Row]]:
    rows = yield from statement("SELECT webhook, run, status, due_at FROM deliveries ORDER BY key")
    return rows


async def a_secret_can_be_decrypted_after_the_store_is_reopened(subject: Subject) -> None:
    sealed = subject.store.vault.seal(b"secret", place="here")
    await subject.reopen()
    assert unsealed(subject.store, sealed, place="here") == b"secret"


CHECKS = (
    a_transaction_is_atomic_and_readable_at_once,
    an_exception_in_a_query_rolls_everything_back,
    an_exception_in_a_reading_query_reaches_the_caller,
    a_query_that_should_only_read_cannot_write,
    transactions_run_one_at_a_time,
    values_are_read_as_they_were_written,
    an_end_queues_its_webhooks_in_the_same_transaction,
    a_secret_can_be_decrypted_after_the_store_is_reopened,
)
