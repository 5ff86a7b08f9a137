"""The findings of a start: everything reported, what is due, and which runs an owner was recovering when it died."""

from __future__ import annotations

from msgspec.structs import replace

from weftline.messages import Blob
from weftline.store.budgets import Booking, run_account
from weftline.store.records import budgets
from weftline.store.rows import GIVEN, AwaitFilter, DueRun, IdempotencyKey, NewAwait, Progress, RunFilter, TimedRun
from weftline.testing.store.subject import (
    Subject,
    active_run,
    chain_of,
    check_log,
    commit,
    new_chain,
    new_thread,
    new_workspace,
    outcomes,
    read_log,
    the_row,
    unsealed,
)

_PICTURE = Blob("picture", b"picture")


async def everything_survives_reopening_the_store(subject: Subject) -> None:
    await _survives(subject, cleanly=True)


async def everything_survives_the_death_of_the_owner(subject: Subject) -> None:
    await _survives(subject, cleanly=False)


async def _survives(subject: Subject, *, cleanly: bool) -> None:
    log, workspace = subject.store.log, await new_workspace(subject)
    thread = await new_thread(subject, workspace)
    chains = [chain_of(log, key, workspace, thread=thread) for key in (5, 3, 4)]
    for chain in chains:
        created = chain.create(
            salt=f"{GIVEN}{chain.key}",
            secrets=b"sealed %d" % chain.key,
            idempotency=IdempotencyKey("runs", f"k{chain.key}", b"digest"),
            blobs=(_PICTURE,),
            metadata='{"env":"prod"}',
        )
        assert outcomes(await commit(log, created)) == ["ok"]
    asks = chains[0].append(b"a", kind="await.opened", deltas=[b"b"])
    asks.awaits = (NewAwait("a", workspace, 5, "confirm", 5_000, None, b"{}"),)
    asks.bookings = (Booking(workspace, run_account(5), 3, nusd=5),)
    await commit(log, asks)
    timed, early = chain_of(log, 7, workspace), chain_of(log, 6, workspace)
    await commit(log, timed.create(), early.create())
    await commit(log, timed.append(b"a", due_at=70))
    last = early.append(b"a")
    last.items[0].at = 4_000
    await commit(log, last)
    sealed = subject.store.vault.seal(b"secret", place="here")
    before = await _everything(subject, workspace, thread)
    assert await log.waiting() == 1
    await subject.reopen(cleanly=cleanly)
    assert await _everything(subject, workspace, thread) == before
    assert unsealed(subject.store, sealed, place="here") == b"secret"
    assert await subject.store.records.read(active_run(thread)) == 5
    for chain, following in zip(chains, (3, 4, None), strict=True):
        loaded = await subject.store.log.claim(chain.key, kinds=())
        assert loaded is not None and loaded.secrets == b"sealed %d" % chain.key
        chain.epoch = loaded.epoch
        (result,) = await commit(subject.store.log, chain.end(messages=[b"m"]))
        assert (result.outcome, result.promoted) == ("ok", following)


async def _everything(subject: Subject, workspace: int, thread: int) -> list[object]:
    log, keys = subject.store.log, range(3, 8)
    return [
        log.id,
        [await log.run(key) for key in keys],
        [await read_log(log, key) for key in keys],
        [await log.last_key(), await log.unfinished(), await log.waiting(), await log.latest_at()],
        [await log.due_now(after=0, limit=9), await log.due(99, after=(0, 0), limit=9)],
        [await log.unfinished_of_thread(thread), await log.queued_behind()],
        [await log.idempotent(workspace, "runs", f"k{key}") for key in keys],
        [await log.given(str(key), workspace=workspace) for key in keys],
        [row.key for row in await log.runs(RunFilter(metadata=(("env", "prod"),)))],
        await log.awaits(AwaitFilter(workspace=workspace)),
        await log.blob(workspace, _PICTURE.id),
        await subject.store.records.read(budgets.open_use()),
    ]


async def acknowledged_writes_survive_the_death_of_the_owner(subject: Subject) -> None:
    chain = await new_chain(subject)
    for number in range(5):
        await commit(subject.store.log, chain.append(b"%d" % number))
    await subject.reopen(cleanly=False)
    assert await check_log(subject.store.log, 1) == [b"{}", b"0", b"1", b"2", b"3", b"4"]


async def what_is_queued_is_written_before_the_store_is_closed(subject: Subject) -> None:
    log = subject.store.log
    chain = await new_chain(subject)
    flushes = [log.flush([chain.append(b"%d" % number)]) for number in range(20)]
    await subject.reopen()
    assert [outcomes(await future) for future in flushes] == [["ok"]] * 20
    assert len(await check_log(subject.store.log, 1)) == 21


async def due_runs_are_those_whose_time_has_come(subject: Subject) -> None:
    log = subject.store.log
    others = await new_workspace(subject, "others")
    chains = [await new_chain(subject, key) for key in (1, 2, 3)]
    chains += [chain_of(log, key, others) for key in (4, 5)]
    await commit(log, *[chain.create() for chain in chains[3:]])
    for chain, at in zip(chains, [0, 200, None, 100, 0], strict=True):
        await commit(log, chain.append(b"a", due_at=at))
    first, fifth = (DueRun(key, 0, 0, 0, 1, 0, 0, created_head=b"{}") for key in (1, 5))
    assert await log.due_now(after=0, limit=9) == [first, fifth]
    assert await log.due_now(after=0, limit=1) == [first]
    assert await log.due_now(after=1, limit=9) == [fifth]
    everybody = (0, 0)
    earlier, later = TimedRun(100, 4, others, 1, 0, 0), TimedRun(200, 2, await new_workspace(subject), 1, 0, 0)
    assert [await log.due(now, after=everybody, limit=9) for now in (99, 100, 200)] == [
        [],
        [earlier],
        [earlier, later],
    ]
    assert await log.due(200, after=everybody, limit=1) == [earlier]
    assert await log.due(200, after=(100, 4), limit=9) == [later]
    assert [await log.next_due(after) for after in (0, 100, 200)] == [100, 200, None]


async def a_due_run_comes_with_what_decides_whether_it_may_be_driven(subject: Subject) -> None:
    """Its versions, and the head of its first entry, which says whether it is below another run."""
    log, workspace = subject.store.log, await new_workspace(subject)
    thread = await new_thread(subject, workspace)
    before, after, below = (chain_of(log, key, workspace, thread=thread if key < 3 else None) for key in (1, 2, 3))
    first, second, child = before.create(), after.create(rules=5), below.create(rules=6)
    first.format = second.format = 7
    created = b'{"parent":{"run":"run_1"}}'
    child.items = [replace(child.items[0], head=created)]
    await commit(log, first, second, child)
    end = before.end(messages=[b"m"])
    end.format = 7
    await commit(log, end)
    expected = [
        DueRun(2, 0, 0, 0, rules=5, format=7, thread_format=7, created_head=b"{}"),
        DueRun(3, 0, 0, 0, rules=6, format=0, thread_format=0, created_head=created),
    ]
    assert await log.due_now(after=0, limit=9) == expected
    assert [(await the_row(log, key)).rules for key in (1, 2, 3)] == [1, 5, 6]
    assert [(await the_row(log, key)).thread_format for key in (2, 3)] == [7, 0]
    await subject.reopen(cleanly=False)
    assert await subject.store.log.due_now(after=0, limit=9) == expected


async def an_unclean_death_is_known_until_it_is_charged(subject: Subject) -> None:
    assert not subject.store.log.unclean
    await subject.reopen(cleanly=False)
    assert subject.store.log.unclean
    await subject.reopen()
    assert subject.store.log.unclean, "an owner that charged no run hid the death of the previous one"
    await subject.store.log.charge_death()
    assert subject.store.log.unclean
    await subject.reopen()
    assert not subject.store.log.unclean


async def a_death_is_charged_once_to_the_run_that_was_on_trial_alone(subject: Subject) -> None:
    for key in (1, 2, 3):
        await new_chain(subject, key)
    await subject.store.log.begin_trial([2])
    await _dies(subject)
    await subject.store.log.charge_death()
    assert await charges(subject) == [(0, 0, 0), (1, 1, 1), (0, 0, 0)]
    await subject.store.log.begin_trial([3])
    await _dies(subject)
    assert await charges(subject) == [(0, 0, 0), (1, 1, 1), (1, 1, 1)]


async def a_death_of_a_group_makes_suspects_and_charges_nobody(subject: Subject) -> None:
    for key in (1, 2, 3):
        await new_chain(subject, key)
    await subject.store.log.begin_trial([1, 3])
    await _dies(subject)
    assert await charges(subject) == [(2, 0, 0), (0, 0, 0), (2, 0, 0)]


async def a_death_of_a_group_changes_no_earlier_charge(subject: Subject) -> None:
    """Neither of those in the group, nor of others."""
    for key in (1, 2, 3, 4):
        await new_chain(subject, key)
    for alone in (1, 2):
        await subject.store.log.begin_trial([alone])
        await _dies(subject)
    await subject.store.log.begin_trial([1, 3, 4])
    await subject.store.log.survived([4])
    await _dies(subject)
    assert await charges(subject) == [(2, 1, 1), (1, 1, 1), (2, 0, 0), (0, 0, 0)]


async def survivors_are_charged_only_if_nobody_is_on_trial(subject: Subject) -> None:
    for key in (1, 2, 3):
        await new_chain(subject, key)
    await subject.store.log.begin_trial([1, 2, 3])
    await subject.store.log.survived([1, 2])
    await _dies(subject)
    assert await charges(subject) == [(0, 0, 0), (0, 0, 0), (1, 1, 1)]
    await subject.store.log.begin_trial([1, 2])
    await subject.store.log.survived([1, 2])
    await _dies(subject)
    assert await charges(subject) == [(2, 0, 1), (2, 0, 1), (1, 1, 1)]


async def a_run_whose_trial_was_ended_is_charged_with_nothing(subject: Subject) -> None:
    for key in (1, 2):
        await new_chain(subject, key)
    await subject.store.log.begin_trial([1, 2])
    await subject.store.log.end_trial([1])
    await _dies(subject)
    assert await charges(subject) == [(0, 0, 0), (1, 1, 1)]


async def charges_are_dropped_after_a_death_while_no_run_was_on_trial(subject: Subject) -> None:
    for key in (1, 2):
        await new_chain(subject, key)
    await subject.store.log.begin_trial([1])
    await _dies(subject)
    assert await charges(subject) == [(1, 1, 1), (0, 0, 0)]
    await _dies(subject)
    assert await charges(subject) == [(1, 0, 0), (0, 0, 0)]


async def a_suspect_is_cleared_when_something_that_it_began_has_ended(subject: Subject) -> None:
    chain = await new_chain(subject)
    await subject.store.log.begin_trial([1, 99])
    await _dies(subject)
    loaded = await subject.store.log.claim(1, kinds=())
    assert loaded is not None
    chain.epoch = loaded.epoch
    await subject.store.log.begin_trial([1])
    await commit(subject.store.log, chain.append(b"a"))
    assert await charges(subject, 1) == [(1, 1, 1)]
    await commit(subject.store.log, chain.append(deltas=[b"b"], progress=Progress.STREAMED))
    assert await charges(subject, 1) == [(1, 0, 1)], "what it streams is progress, and no more than that"
    await commit(subject.store.log, chain.append(b"c", progress=Progress.ENDED))
    assert await charges(subject, 1) == [(0, 0, 1)]
    await _dies(subject)
    assert await charges(subject, 1) == [(0, 0, 0)]


async def a_run_that_has_ended_is_charged_with_nothing(subject: Subject) -> None:
    chain = await new_chain(subject)
    await subject.store.log.begin_trial([1])
    await commit(subject.store.log, chain.end())
    await _dies(subject)
    assert (await the_row(subject.store.log, 1)).deaths == 0


async def _dies(subject: Subject) -> None:
    await subject.reopen(cleanly=False)
    await subject.store.log.charge_death()


async def charges(subject: Subject, *keys: int) -> list[tuple[int, int, int]]:
    """Suspect, alone and deaths of each run; by default of all that are active."""
    runs = await subject.store.log.due_now(after=0, limit=99)
    return [(run.trial_size, run.deaths_alone, run.deaths) for run in runs if not keys or run.key in keys]


CHECKS = (
    everything_survives_reopening_the_store,
    everything_survives_the_death_of_the_owner,
    acknowledged_writes_survive_the_death_of_the_owner,
    what_is_queued_is_written_before_the_store_is_closed,
    due_runs_are_those_whose_time_has_come,
    a_due_run_comes_with_what_decides_whether_it_may_be_driven,
    an_unclean_death_is_known_until_it_is_charged,
    a_death_is_charged_once_to_the_run_that_was_on_trial_alone,
    a_death_of_a_group_makes_suspects_and_charges_nobody,
    a_death_of_a_group_changes_no_earlier_charge,
    survivors_are_charged_only_if_nobody_is_on_trial,
    a_run_whose_trial_was_ended_is_charged_with_nothing,
    charges_are_dropped_after_a_death_while_no_run_was_on_trial,
    a_suspect_is_cleared_when_something_that_it_began_has_ended,
    a_run_that_has_ended_is_charged_with_nothing,
)
