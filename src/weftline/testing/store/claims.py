"""Claims: each has a new epoch, and a replaced claimant can no longer write."""

from __future__ import annotations

import asyncio

from weftline.testing.store.subject import (
    TIMEOUT_S,
    Chain,
    Subject,
    chain_of,
    check_log,
    commit,
    new_chain,
    new_thread,
    new_workspace,
    outcomes,
    the_row,
)


async def claimed(subject: Subject, key: int) -> int:
    """The epoch of a new claim."""
    loaded = await subject.store.log.claim(key, kinds=())
    assert loaded is not None
    return loaded.epoch


async def every_claim_has_a_new_epoch(subject: Subject) -> None:
    """Also for a run with nothing in flight that no earlier claim has written to."""
    chain = await new_chain(subject)
    epochs = [chain.epoch, await claimed(subject, 1), await claimed(subject, 1), subject.store.log.next_epoch()]
    subject.store.log.release(1, epochs[2])
    epochs.append(await claimed(subject, 1))
    assert epochs == sorted(set(epochs)), f"epochs do not rise: {epochs}"
    assert (await the_row(subject.store.log, 1)).epoch == chain.epoch


async def an_unknown_run_is_not_claimed(subject: Subject) -> None:
    assert await subject.store.log.claim(7, kinds=()) is None
    chain = await new_chain(subject, 7)
    assert outcomes(await commit(subject.store.log, chain.append(b"a"))) == ["ok"]


async def a_write_of_an_earlier_claim_changes_nothing(subject: Subject) -> None:
    """Whatever it holds: facts, observations, or only a row."""
    log = subject.store.log
    creator = await new_chain(subject)
    epoch = await claimed(subject, 1)
    before = await log.run(1)
    for bodies, deltas in (([b"late"], []), ([], [b"late"]), ([], [])):
        write = creator.append(*bodies, deltas=deltas, due_at=5)
        creator.take_back(write)
        assert outcomes(await commit(log, write)) == ["conflict"]
    assert await log.run(1) == before and await check_log(log, 1) == [b"{}"]
    creator.epoch = epoch
    assert outcomes(await commit(log, creator.append(b"a", deltas=[b"b"]))) == ["ok"]


async def the_later_of_two_claims_wins(subject: Subject) -> None:
    log = subject.store.log
    chain = await new_chain(subject)
    first, second = await claimed(subject, 1), await claimed(subject, 1)
    chain.epoch = first
    write = chain.append(b"late")
    chain.take_back(write)
    assert outcomes(await commit(log, write)) == ["conflict"]
    log.release(1, first)
    assert outcomes(await commit(log, write)) == ["conflict"]
    chain.epoch = second
    assert outcomes(await commit(log, chain.append(b"a"))) == ["ok"]


async def an_earlier_claim_stays_fenced_after_the_later_one_has_written_and_left(subject: Subject) -> None:
    log = subject.store.log
    old = await new_chain(subject)
    epoch = await claimed(subject, 1)
    new = Chain(1, 1, epoch=epoch)
    new.seq, new.version = old.seq, old.version
    await commit(log, new.append(b"a"))
    log.release(1, epoch)
    old.seq, old.version = new.seq, new.version
    assert outcomes(await commit(log, old.append(b"late", deltas=[b"late"]))) == ["conflict"]
    assert await check_log(log, 1) == [b"{}", b"a"]


async def an_earlier_claim_stays_fenced_after_the_later_one_has_left_without_writing(subject: Subject) -> None:
    log, chain = subject.store.log, await new_chain(subject)
    first, second, third = [await claimed(subject, 1) for _ in range(3)]
    for left in (third, second):
        log.release(1, left)
        chain.epoch = first
        late = chain.append(b"late", deltas=[b"late"])
        chain.take_back(late)
        assert outcomes(await commit(log, late)) == ["conflict"]
    log.release(1, first)
    chain.epoch = await claimed(subject, 1)
    assert outcomes(await commit(log, chain.append(b"a"))) == ["ok"]
    assert await check_log(log, 1) == [b"{}", b"a"]


async def the_holder_of_a_claim_may_go_on_under_a_higher_epoch(subject: Subject) -> None:
    log, chain = subject.store.log, await new_chain(subject)
    first = await claimed(subject, 1)
    chain.epoch = log.next_epoch()
    assert outcomes(await commit(log, chain.append(b"a"))) == ["ok"]
    late = Chain(1, chain.workspace, epoch=first)
    late.seq, late.version = chain.seq, chain.version
    assert outcomes(await commit(log, late.append(b"late"))) == ["conflict"]
    log.release(1, chain.epoch)
    assert await claimed(subject, 1) > chain.epoch


async def a_fenced_write_does_not_affect_others_in_its_batch(subject: Subject) -> None:
    log = subject.store.log
    chains = [await new_chain(subject, key) for key in (1, 2, 3)]
    await claimed(subject, 2)
    results = await commit(log, *[chain.append(b"a", deltas=[b"b"]) for chain in chains])
    assert outcomes(results) == ["ok", "conflict", "ok"]
    assert [len(await check_log(log, key)) for key in (1, 2, 3)] == [2, 1, 2]


async def a_claim_sees_what_was_flushed_before_it(subject: Subject) -> None:
    log = subject.store.log
    chain = await new_chain(subject)
    flushes = [log.flush([chain.append(b"%d" % number, deltas=[b"d"])]) for number in range(10)]
    async with asyncio.timeout(TIMEOUT_S):
        loaded = await log.claim(1, kinds=())
        assert loaded is not None and loaded.row.next_seq == chain.seq
        assert [outcomes(await future) for future in flushes] == [["ok"]] * 10
    chain.epoch = loaded.epoch
    assert outcomes(await commit(log, chain.append(b"mine"))) == ["ok"]


async def a_claim_brings_all_that_a_driver_needs(subject: Subject) -> None:
    log = subject.store.log
    workspace = await new_workspace(subject)
    thread = await new_thread(subject, workspace)
    first, second = (chain_of(log, key, workspace, thread=thread) for key in (1, 2))
    await commit(log, first.create(), second.create(body=b"the plan", secrets=b"sealed"))
    await commit(log, first.end(messages=[b"m1", b"m2"]))
    await commit(log, second.append(b"t1", kind="turn.completed", deltas=[b"x", b"y"]))
    newer = second.append(b"c1", b"c2", kind="call.closed")
    newer.state = None
    await commit(log, newer)
    loaded = await log.claim(2, kinds=("turn.completed", "run.adopted"))
    assert loaded is not None
    assert (loaded.row, loaded.created_body, loaded.secrets) == (await log.run(2), b"the plan", b"sealed")
    assert (loaded.row.state, loaded.row.state_seq) == (b"state 2", 4)
    assert [(fact.seq, fact.body) for fact in loaded.facts] == [(5, b"c1"), (6, b"c2")]
    assert [(fact.seq, fact.body) for fact in loaded.conversation] == [(2, b"t1")]
    assert loaded.history == [b"m1", b"m2"]


async def a_claim_of_a_run_without_a_state_brings_all_its_facts(subject: Subject) -> None:
    log = subject.store.log
    workspace = await new_workspace(subject)
    for key, state in enumerate((None, b""), 1):
        chain = chain_of(log, key, workspace)
        created, newer = chain.create(), chain.append(b"c1")
        created.state, newer.state = state, None
        await commit(log, created)
        await commit(log, newer)
        loaded = await log.claim(key, kinds=())
        assert loaded is not None
        assert (loaded.row.state, [fact.seq for fact in loaded.facts]) == (b"", [1, 2])
        assert state is not None or loaded.row.state_seq == 0


async def a_claim_brings_what_was_asked_for_and_what_is_left(subject: Subject) -> None:
    log, chain = subject.store.log, await new_chain(subject)
    await commit(log, chain.append(b"a"))
    await commit(log, chain.end(ended_at=100))
    whole = await log.claim(1, kinds=())
    assert whole is not None and (whole.created_body, whole.conversation) == (b"{}", [])
    await log.trim(before=200, after=0, workspace=None)
    rest = await log.claim(1, kinds=("run.ended",))
    assert rest is not None and rest.created_body == b""
    assert [fact.seq for fact in rest.conversation] == [3]


async def a_long_run_is_claimed_like_a_short_one(subject: Subject) -> None:
    log = subject.store.log
    chain = await new_chain(subject)
    await commit(log, chain.append(*[b"%d" % number * 2_000 for number in range(600)], kind="turn.completed"))
    loaded = await log.claim(1, kinds=("turn.completed",))
    assert loaded is not None and loaded.facts == []
    assert [fact.seq for fact in loaded.conversation] == list(range(2, 602))


async def claims_of_a_later_owner_are_newer(subject: Subject) -> None:
    chain = await new_chain(subject)
    epochs = [chain.epoch, await claimed(subject, 1)]
    for cleanly in (True, False):
        await subject.reopen(cleanly=cleanly)
        epochs += [subject.store.log.next_epoch(), await claimed(subject, 1)]
    assert epochs == sorted(set(epochs))
    chain.epoch = epochs[-1]
    assert outcomes(await commit(subject.store.log, chain.append(b"a"))) == ["ok"]
    chain.epoch = epochs[1]
    assert outcomes(await commit(subject.store.log, chain.append(b"late"))) == ["conflict"]


async def a_claim_tells_whether_an_earlier_owner_wrote_last(subject: Subject) -> None:
    """Whatever its epochs look like: the time since then was nobody's."""
    chain = await new_chain(subject)
    assert not await _taken_over(subject, chain)
    for cleanly in (True, False):
        await subject.reopen(cleanly=cleanly)
        assert await _taken_over(subject, chain)
        assert await _taken_over(subject, chain), "a claim alone is not a write"
        assert outcomes(await commit(subject.store.log, chain.append(b"a"))) == ["ok"]
        assert not await _taken_over(subject, chain)


async def _taken_over(subject: Subject, chain: Chain) -> bool:
    """Returns the answer to a new claim, under which the chain continues."""
    loaded = await subject.store.log.claim(chain.key, kinds=())
    assert loaded is not None
    chain.epoch = loaded.epoch
    return loaded.taken_over


CHECKS = (
    every_claim_has_a_new_epoch,
    an_unknown_run_is_not_claimed,
    a_write_of_an_earlier_claim_changes_nothing,
    the_later_of_two_claims_wins,
    an_earlier_claim_stays_fenced_after_the_later_one_has_written_and_left,
    an_earlier_claim_stays_fenced_after_the_later_one_has_left_without_writing,
    the_holder_of_a_claim_may_go_on_under_a_higher_epoch,
    a_fenced_write_does_not_affect_others_in_its_batch,
    a_claim_sees_what_was_flushed_before_it,
    a_claim_brings_all_that_a_driver_needs,
    a_claim_of_a_run_without_a_state_brings_all_its_facts,
    a_claim_brings_what_was_asked_for_and_what_is_left,
    a_long_run_is_claimed_like_a_short_one,
    claims_of_a_later_owner_are_newer,
    a_claim_tells_whether_an_earlier_owner_wrote_last,
)
