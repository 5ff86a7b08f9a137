"""The owner's work on a store as a whole: backups, the hold on a restored one, and its directory."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

from weftline.errors import StoreError
from weftline.store import owner_of
from weftline.store.base import Store
from weftline.testing.store.subject import (
    Subject,
    check_log,
    commit,
    create_workspace,
    find_workspace,
    new_chain,
    outcomes,
)

_SOCKET = "/run/weftline-conformance.sock"


async def a_restored_store_is_held_until_its_hold_is_lifted(subject: Subject) -> None:
    chain = await new_chain(subject)
    assert outcomes(await commit(subject.store.log, chain.append(b"a"))) == ["ok"]
    assert not subject.store.log.held
    await subject.restore()
    assert subject.store.log.held
    assert await check_log(subject.store.log, 1) == [b"{}", b"a"]
    await subject.reopen(cleanly=False)
    assert subject.store.log.held, "a held store was released because its owner died"
    await subject.store.log.lift_hold()
    assert not subject.store.log.held
    await subject.reopen(cleanly=False)
    assert not subject.store.log.held, "the release of a held store was not durable"


async def a_store_with_a_directory_is_backed_up_to_a_new_one(subject: Subject) -> None:
    await new_chain(subject)
    folder = subject.store.folder
    with TemporaryDirectory() as parent:
        to = Path(parent) / "backup"
        if folder is None:
            assert await _refuses_a_backup(subject.store, to) and not to.exists()
            return
        assert folder.is_dir() and subject.store.outlives_process
        copied = await subject.store.back_up(to)
        assert copied.bytes > 0
        assert await _refuses_a_backup(subject.store, to), "a backup was overwritten"
    assert not subject.store.log.held, "a backup holds the original"


async def a_store_gives_back_its_unused_space_in_steps(subject: Subject) -> None:
    log, chain = subject.store.log, await new_chain(subject)
    # Bodies that hardly shrink when they are compressed.
    bodies = [b"".join([b"%x" % (number * 7919**power) for power in range(1, 40)]) for number in range(200)]
    for write in (chain.append(*bodies), chain.end(ended_at=100)):
        assert outcomes(await commit(log, write)) == ["ok"]
    await log.trim(before=200, after=0, workspace=None)
    for _ in range(1_000):
        if not await subject.store.shrink():
            break
    else:
        raise AssertionError("there is always more space to give back")
    assert await subject.store.shrink() == 0
    assert outcomes(await commit(log, (await new_chain(subject, 2)).append(b"a"))) == ["ok"]


async def the_address_of_the_owner_is_found_in_the_directory(subject: Subject) -> None:
    subject.store.announce(socket=_SOCKET)
    if subject.store.folder is not None:
        owner = owner_of(subject.store.folder)
        assert owner is not None and owner.socket == _SOCKET


async def a_store_that_is_closed_takes_no_writes(subject: Subject) -> None:
    store, chain = subject.store, await new_chain(subject)
    await store.close()
    await store.close()
    for late in (lambda: store.log.flush([chain.append(b"late")]), store.log.probe, lambda: _write_late(store)):
        try:
            await late()
        except StoreError:
            continue
        raise AssertionError("a store that is closed was written to")
    await subject.reopen()
    assert not subject.store.log.unclean
    assert await check_log(subject.store.log, 1) == [b"{}"]
    assert await subject.store.records.read(find_workspace("late")) is None


async def _write_late(store: Store) -> int:
    return await store.records.write(create_workspace("late"))


async def _refuses_a_backup(store: Store, to: Path) -> bool:
    try:
        await store.back_up(to)
    except StoreError:
        return True
    return False


CHECKS = (
    a_restored_store_is_held_until_its_hold_is_lifted,
    a_store_with_a_directory_is_backed_up_to_a_new_one,
    a_store_gives_back_its_unused_space_in_steps,
    the_address_of_the_owner_is_found_in_the_directory,
    a_store_that_is_closed_takes_no_writes,
)
