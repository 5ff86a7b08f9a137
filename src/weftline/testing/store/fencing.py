"""An owner that was taken for dead and replaced can no longer change anything."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping

from weftline.errors import StoreError
from weftline.store.base import Store
from weftline.testing.store.starting import charges
from weftline.testing.store.subject import (
    EVERYTHING,
    TIMEOUT_S,
    Chain,
    Subject,
    commit,
    create_workspace,
    find_workspace,
    new_chain,
    outcomes,
)


async def nothing_that_a_replaced_owner_writes_takes_effect(subject: Subject) -> None:
    """Each method by itself, because a store may end the process of the owner at the first of them."""
    chain, ended = await new_chain(subject), await new_chain(subject, 2)
    await commit(subject.store.log, ended.append(b"a"))
    await commit(subject.store.log, ended.end(ended_at=100))
    for name, late in _LATE.items():
        old = await subject.take_over()
        before = await _contents(subject)
        assert await _is_refused(subject, lambda late=late, old=old: late(old, chain)), f"{name} was not refused"
        assert await _contents(subject) == before, f"{name} was refused, and took effect"
        await old.close()


async def a_replaced_owner_does_not_charge_its_own_death(subject: Subject) -> None:
    await new_chain(subject)
    await subject.store.log.begin_trial([1])
    old = await subject.take_over()
    assert await _is_refused(subject, old.log.charge_death)
    await subject.store.log.charge_death()
    assert await charges(subject) == [(1, 1, 1)]
    await old.close()


async def a_claim_of_a_replaced_owner_does_not_fence_its_successor(subject: Subject) -> None:
    chain = await new_chain(subject)
    old = await subject.take_over()
    mine = await subject.store.log.claim(1, kinds=())
    assert mine is not None
    chain.epoch = mine.epoch
    try:
        theirs = await old.log.claim(1, kinds=())
    except StoreError:
        theirs = None
    assert outcomes(await commit(subject.store.log, chain.append(b"a"))) == ["ok"]
    if theirs is not None:
        assert theirs.epoch < mine.epoch
        late = Chain(1, mine.row.workspace, epoch=theirs.epoch)
        late.seq, late.version = chain.seq, chain.version
        assert await _is_refused(subject, lambda: old.log.flush([late.append(b"late")]))
    assert outcomes(await commit(subject.store.log, chain.append(b"b"))) == ["ok"]
    await old.close()


async def a_replaced_owner_that_closes_the_store_does_not_hide_the_death_of_its_successor(subject: Subject) -> None:
    first = await subject.take_over()
    await subject.store.log.charge_death()
    await first.close()
    second = await subject.take_over()
    assert subject.store.log.unclean
    await second.close()


async def _is_refused(subject: Subject, late: Callable[[], Awaitable[object]]) -> bool:
    """Returns True if a call of a replaced owner raises `StoreError`, or ends its process."""

    async def call() -> bool:
        try:
            await late()
        except StoreError:
            return True
        return False

    called, stopped = asyncio.ensure_future(call()), asyncio.ensure_future(subject.stopped())
    try:
        async with asyncio.timeout(TIMEOUT_S):
            await asyncio.wait({called, stopped}, return_when=asyncio.FIRST_COMPLETED)
        return called.result() if called.done() else True
    finally:
        called.cancel()
        stopped.cancel()
        await asyncio.gather(called, stopped, return_exceptions=True)


async def _contents(subject: Subject) -> list[object]:
    log = subject.store.log
    runs = [(await log.run(key), await log.page(key, after=0, max_bytes=EVERYTHING)) for key in (1, 2, 3)]
    return [*runs, await log.due_now(after=0, limit=9), await subject.store.records.read(find_workspace("late"))]


async def _append(store: Store, chain: Chain) -> None:
    write = chain.append(b"late", deltas=[b"late"])
    chain.take_back(write)
    await store.log.flush([write])


async def _create(store: Store, chain: Chain) -> None:
    await store.log.flush([Chain(3, chain.workspace, epoch=store.log.next_epoch()).create()])


_LATE: Mapping[str, Callable[[Store, Chain], Awaitable[object]]] = {
    "flush": _append,
    "flush of a new run": _create,
    "probe": lambda store, _: store.log.probe(),
    "lift_hold": lambda store, _: store.log.lift_hold(),
    "begin_trial": lambda store, _: store.log.begin_trial([1]),
    "end_trial": lambda store, _: store.log.end_trial([1]),
    "survived": lambda store, _: store.log.survived([1]),
    "charge_death": lambda store, _: store.log.charge_death(),
    "trim": lambda store, _: store.log.trim(before=200, after=0, workspace=None),
    "write": lambda store, _: store.records.write(create_workspace("late")),
}

CHECKS = (
    nothing_that_a_replaced_owner_writes_takes_effect,
    a_replaced_owner_does_not_charge_its_own_death,
    a_claim_of_a_replaced_owner_does_not_fence_its_successor,
    a_replaced_owner_that_closes_the_store_does_not_hide_the_death_of_its_successor,
)
