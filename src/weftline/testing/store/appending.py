"""Appends: numbered by the store, checked against the row, in the order of the calls, each whole or not at all."""

from __future__ import annotations

import asyncio

from msgspec.structs import replace

from weftline.store.rows import LEAVE_DUE, IdempotencyKey, Item, RunFilter
from weftline.testing.store.subject import (
    TIMEOUT_S,
    Subject,
    chain_of,
    check_log,
    code,
    commit,
    new_chain,
    new_workspace,
    outcomes,
    read_log,
    the_row,
)


async def entries_are_read_as_they_were_written(subject: Subject) -> None:
    log = subject.store.log
    chain = await new_chain(subject, body=b"first")
    await commit(log, chain.append(b"second", deltas=[b"d3", b"d4", b"d5"]))
    await commit(log, chain.append(b"\x00\xff"))
    assert await check_log(log, 1) == [b"first", b"second", b"\x00\xff"]
    assert await read_log(log, 1) == [
        Item(5_000, "run.created", b"{}", b"first", seq=1),
        Item(5_000, "call.closed", b"{}", b"second", seq=2),
        Item(5_000, "delta.text", b"", b"d3\nd4\nd5", 3, seq=3),
        Item(5_000, "call.closed", b"{}", b"\x00\xff", seq=6),
    ]


async def the_store_numbers_the_entries(subject: Subject) -> None:
    log = subject.store.log
    chain = chain_of(log, 1, await new_workspace(subject))
    writes = [
        chain.create(),
        chain.append(b"a", deltas=[b"b", b"c"]),
        chain.append(b"d"),
        chain.append(deltas=[b"e"]),
        chain.append(b"f", b"g"),
    ]
    writes[-1].items.insert(1, Item(5_000, "note.provider_call", b"", b"n\nn", 2))
    for write in writes:
        assert outcomes(await commit(log, write)) == ["ok"]
    numbered = [item for write in writes for item in write.items]
    assert [item.seq for item in numbered] == [1, 2, 3, 5, 6, 7, 8, 10]
    assert await read_log(log, 1) == numbered
    assert (await the_row(log, 1)).next_seq == 11


async def a_stale_write_changes_nothing(subject: Subject) -> None:
    log = subject.store.log
    chain = await new_chain(subject)
    await commit(log, chain.append(b"a"))
    before = await log.run(1)
    for field, by in [("base_seq", -1), ("base_seq", 1), ("base_version", -1), ("base_version", 1)]:
        write = chain.append(b"stale", deltas=[b"stale"])
        chain.take_back(write)
        setattr(write, field, getattr(write, field) + by)
        (result,) = await commit(log, write)
        assert (result.outcome, code(result)) == ("conflict", "conflict")
    assert await log.run(1) == before
    assert await check_log(log, 1) == [b"{}", b"a"]


async def a_write_to_an_unknown_run_changes_nothing(subject: Subject) -> None:
    log = subject.store.log
    chain = chain_of(log, 1, await new_workspace(subject))
    chain.create()
    assert outcomes(await commit(log, chain.append(b"a"))) == ["conflict"]
    assert await check_log(log, 1) == []


async def a_run_is_created_once(subject: Subject) -> None:
    log = subject.store.log
    workspace = await new_workspace(subject)
    first, second, third = (chain_of(log, 1, workspace).create(body=body) for body in (b"1st", b"2nd", b"3rd"))
    assert outcomes(await commit(log, first, second)) == ["ok", "conflict"]
    assert outcomes(await commit(log, third)) == ["conflict"]
    assert await check_log(log, 1) == [b"1st"]


async def a_stale_write_does_not_affect_others_in_its_batch(subject: Subject) -> None:
    log = subject.store.log
    chains = [await new_chain(subject, key) for key in range(1, 6)]
    writes = [chain.append(b"a", deltas=[b"b"]) for chain in chains]
    writes[2].base_version += 1
    results = await commit(log, *writes)
    assert outcomes(results) == ["ok", "ok", "conflict", "ok", "ok"]
    assert [write.items[0].seq for write in (*writes[:2], *writes[3:])] == [2] * 4
    assert [len(await check_log(log, key)) for key in range(1, 6)] == [2, 2, 1, 2, 2]


async def a_write_that_cannot_be_stored_fails_alone(subject: Subject) -> None:
    log = subject.store.log
    workspace = await new_workspace(subject)
    good, broken, huge, double, last = (chain_of(log, key, workspace) for key in range(1, 6))
    writes = [good.create(), broken.create(name="\ud800"), huge.create(), double.create(), last.create()]
    writes[2].due_at = 2**63
    writes[3].items = [Item(5_000, "run.created", b"{}", b"a\nb", 2)]
    assert outcomes(await commit(log, *writes)) == ["ok", "failed", "failed", "failed", "ok"]
    assert [await log.run(key) is not None for key in range(1, 6)] == [True, False, False, False, True]


async def items_that_are_no_entries_and_metadata_that_is_no_json_fail(subject: Subject) -> None:
    log, workspace = subject.store.log, await new_workspace(subject)
    writes = [chain_of(log, key, workspace).create() for key in range(1, 4)]
    good, empty, tagged = writes
    empty.items = [*empty.items, Item(5_000, "delta.text", b"", b"", 0)]
    assert tagged.new is not None
    tagged.new.metadata = "no JSON"
    assert outcomes(await commit(log, *writes)) == ["ok", "failed", "failed"]
    assert [await check_log(log, key) for key in range(1, 4)] == [[b"{}"], [], []]
    assert good.items[0].seq == 1


async def a_number_has_64_bits(subject: Subject) -> None:
    log, chain = subject.store.log, await new_chain(subject)
    for number in (2**63 - 1, -(2**63)):
        write, beyond = chain.append(b"a"), chain.append(b"b")
        chain.take_back(beyond)
        write.fold, beyond.fold = number, number + (1 if number > 0 else -1)
        assert [outcomes(await commit(log, one)) for one in (write, beyond)] == [["ok"], ["failed"]]
        assert (await the_row(log, 1)).fold == number


async def flushes_take_effect_in_the_order_of_the_calls(subject: Subject) -> None:
    log = subject.store.log
    chain = chain_of(log, 1, await new_workspace(subject))
    bodies = [b"%d" % number for number in range(50)]
    writes = [chain.create(body=b"0"), *[chain.append(body) for body in bodies[1:]]]
    flushes = [log.flush([write]) for write in writes]
    async with asyncio.timeout(TIMEOUT_S):
        for number, future in reversed(list(enumerate(flushes, 1))):
            (result,) = await future
            assert (result.outcome, writes[number - 1].items[0].seq) == ("ok", number)
    assert await check_log(log, 1) == bodies


async def a_flush_that_nobody_waits_for_is_written(subject: Subject) -> None:
    log = subject.store.log
    chain = await new_chain(subject)
    log.flush([chain.append(b"a")]).cancel()
    assert outcomes(await commit(log, chain.append(b"b"))) == ["ok"]
    assert await check_log(log, 1) == [b"{}", b"a", b"b"]


async def a_chain_fails_from_its_first_failure_on(subject: Subject) -> None:
    log = subject.store.log
    chain = await new_chain(subject)
    writes = [chain.append(b"%d" % number) for number in range(4)]
    writes[1].base_version += 7
    flushes = [log.flush([write]) for write in writes]
    assert [outcomes(await future) for future in flushes] == [["ok"], ["conflict"], ["conflict"], ["conflict"]]
    assert await check_log(log, 1) == [b"{}", b"0"]


async def acknowledged_writes_are_readable(subject: Subject) -> None:
    log = subject.store.log
    chain = await new_chain(subject)
    for number in range(20):
        write = chain.append(b"%d" % number)
        await log.flush([write])
        (item,) = write.items
        assert await log.entry(1, item.seq) == item
        assert (await the_row(log, 1)).next_seq == item.seq + 1


async def a_row_has_the_values_of_the_last_write(subject: Subject) -> None:
    log = subject.store.log
    chain = await new_chain(subject)
    started = chain.append(b"a", due_at=77)
    started.started_at, started.fold, started.format = 1_234, 5, 3
    await commit(log, started)
    row = await the_row(log, 1)
    assert (row.next_seq, row.version, row.epoch, row.due_at, row.status) == (3, 2, chain.epoch, 77, "running")
    assert (row.state, row.state_seq, row.fold) == (b"state 2", 2, 5)
    assert (row.started_at, row.ended_at, row.queued) == (1_234, None, False)
    assert (row.salt, row.created_at, row.rules, row.metadata) == ("salt", 1_001, 1, "{}")
    assert row.format == 3
    await commit(log, chain.append(deltas=[b"x"]))
    assert (await the_row(log, 1)).format == 0


async def a_row_that_was_read_does_not_change(subject: Subject) -> None:
    log, chain = subject.store.log, await new_chain(subject)
    loaded = await log.claim(1, kinds=())
    assert loaded is not None
    chain.epoch = loaded.epoch
    (listed,) = await log.runs(RunFilter())
    rows = [await the_row(log, 1), listed, loaded.row]
    before = [replace(row) for row in rows]
    for write in (chain.append(b"a", deltas=[b"b"], due_at=77, status="paused"), chain.end()):
        write.started_at, write.format = 7, 2
        assert outcomes(await commit(log, write)) == ["ok"]
    assert rows == before


async def a_write_without_a_state_leaves_the_stored_one(subject: Subject) -> None:
    log = subject.store.log
    chain = await new_chain(subject)
    deltas = chain.append(deltas=[b"x", b"y"], due_at=LEAVE_DUE, status="paused")
    deltas.fold = 9
    await commit(log, deltas)
    row = await the_row(log, 1)
    assert (row.next_seq, row.version, row.status, row.due_at) == (4, 1, "paused", 0)
    assert (row.state, row.state_seq, row.fold) == (b"state 1", 1, 1)
    fact = chain.append(b"a", due_at=55)
    fact.state = None
    await commit(log, fact)
    await commit(log, chain.append(due_at=LEAVE_DUE))
    row = await the_row(log, 1)
    assert (row.next_seq, row.version, row.state_seq, row.due_at) == (5, 2, 1, 55)


async def a_run_starts_and_ends_once(subject: Subject) -> None:
    log = subject.store.log
    chain = await new_chain(subject)
    for at in (10, 20):
        write = chain.append(b"a")
        write.started_at = at
        await commit(log, write)
    await commit(log, chain.end(ended_at=4_321))
    await commit(log, chain.append(due_at=None, status="succeeded"))
    row = await the_row(log, 1)
    assert (row.status, row.due_at, row.started_at, row.ended_at) == ("succeeded", None, 10, 4_321)
    assert await log.unfinished() == 0


async def the_secrets_of_a_run_are_deleted_when_it_ends(subject: Subject) -> None:
    log = subject.store.log
    chain = chain_of(log, 1, await new_workspace(subject))
    await commit(log, chain.create(secrets=b"sealed"))
    loaded = await log.claim(1, kinds=())
    assert loaded is not None and loaded.secrets == b"sealed"
    chain.epoch = loaded.epoch
    await commit(log, chain.end())
    loaded = await log.claim(1, kinds=())
    assert loaded is not None and loaded.secrets is None


async def an_idempotency_key_is_used_once(subject: Subject) -> None:
    log = subject.store.log
    workspace, other = await new_workspace(subject), await new_workspace(subject, "other")
    first = chain_of(log, 1, workspace).create(idempotency=IdempotencyKey("runs", "k", b"digest 1"))
    same = chain_of(log, 2, workspace).create(idempotency=IdempotencyKey("runs", "k", b"digest 2"))
    route = chain_of(log, 3, workspace).create(idempotency=IdempotencyKey("sessions", "k", b"digest 3"))
    tenant = chain_of(log, 4, other).create(idempotency=IdempotencyKey("runs", "k", b"digest 4"))
    results = await commit(log, first, same, route, tenant)
    assert outcomes(results) == ["ok", "conflict", "ok", "ok"]
    assert code(results[1]) == "conflict"
    assert await log.idempotent(workspace, "runs", "k") == (b"digest 1", 1)
    assert await log.idempotent(other, "runs", "k") == (b"digest 4", 4)
    assert await log.idempotent(workspace, "runs", "unused") is None
    assert await check_log(log, 2) == []


async def a_probe_changes_nothing(subject: Subject) -> None:
    log = subject.store.log
    await new_chain(subject)
    before = await log.run(1)
    await log.probe()
    assert (await log.run(1), await log.last_key(), await log.unfinished()) == (before, 1, 1)


CHECKS = (
    entries_are_read_as_they_were_written,
    the_store_numbers_the_entries,
    a_stale_write_changes_nothing,
    a_write_to_an_unknown_run_changes_nothing,
    a_run_is_created_once,
    a_stale_write_does_not_affect_others_in_its_batch,
    a_write_that_cannot_be_stored_fails_alone,
    items_that_are_no_entries_and_metadata_that_is_no_json_fail,
    a_number_has_64_bits,
    flushes_take_effect_in_the_order_of_the_calls,
    a_flush_that_nobody_waits_for_is_written,
    a_chain_fails_from_its_first_failure_on,
    acknowledged_writes_are_readable,
    a_row_has_the_values_of_the_last_write,
    a_row_that_was_read_does_not_change,
    a_write_without_a_state_leaves_the_stored_one,
    a_run_starts_and_ends_once,
    the_secrets_of_a_run_are_deleted_when_it_ends,
    an_idempotency_key_is_used_once,
    a_probe_changes_nothing,
)
