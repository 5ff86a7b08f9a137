"""Stores with a bug, planted at the seam: a store around a store that breaks one promise of `store/base.py`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from msgspec.structs import replace

from weftline.store.base import LogStore, Store
from weftline.store.database import Database
from weftline.store.memory import MemoryDisk, MemoryStore
from weftline.store.rows import AwaitFilter, Copied, DueRun, Loaded, OpenAwait, Page, RunRow, Write, Written
from weftline.store.sqlite.database import SqliteDatabase, transact

Plant: TypeAlias = Callable[[LogStore], Any]


class Planted:
    """Passes everything on to a log that is in order. `LogStore` has many methods, a bug needs one."""

    def __init__(self, inner: LogStore) -> None:
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


class EpochsOnlyForWorkInFlight(Planted):
    """Two that claim an idle run after one another have the same epoch, and both may write."""

    async def claim(self, key: int, *, kinds: Sequence[str]) -> Loaded | None:
        loaded = await self.inner.claim(key, kinds=kinds)
        if loaded is not None and (loaded.row.due_at != 0 or loaded.row.state_seq == loaded.row.next_seq - 1):
            self.inner.release(key, loaded.epoch)
            loaded.epoch = loaded.row.epoch
        return loaded


class RowsJoinedToTheRun(Planted):
    """What a fenced writer streams enters the log of whoever has the run now, and both hear that all is well."""

    def flush(self, writes: Sequence[Write]) -> asyncio.Future[list[Written]]:
        return asyncio.ensure_future(self._flush(writes))

    async def _flush(self, writes: Sequence[Write]) -> list[Written]:
        results = await self.inner.flush(writes)
        for place, (write, result) in enumerate(zip(writes, results, strict=True)):
            deltas = [item for item in write.items if not item.head]
            row = await self.inner.run(write.key)
            if result.outcome == "conflict" and deltas and row is not None:
                joined = replace(write, items=deltas, state=None, base_seq=row.next_seq, base_version=row.version)
                joined = replace(joined, version=row.version, epoch=self.inner.next_epoch())
                results[place] = (await self.inner.flush([joined]))[0]
        return results


class FenceLeavesWithItsClaim(Planted):
    """Whoever was replaced by a claim that has left may write again."""

    def release(self, key: int, epoch: int) -> None:
        for earlier in range(epoch - 9, epoch + 1):
            self.inner.release(key, earlier)


class LastFirst(Planted):
    """Flushes that were given together take effect in another order."""

    def __init__(self, inner: LogStore) -> None:
        super().__init__(inner)
        self._given: list[tuple[Sequence[Write], asyncio.Future[list[Written]]]] = []

    def flush(self, writes: Sequence[Write]) -> asyncio.Future[list[Written]]:
        loop = asyncio.get_running_loop()
        told: asyncio.Future[list[Written]] = loop.create_future()
        self._given.append((writes, told))
        loop.call_soon(self._take_last)
        return told

    def _take_last(self) -> None:
        writes, told = self._given.pop()
        told.set_result(self.inner.flush(writes).result())


class OneForAll(Planted):
    """A member that does not fit takes its neighbours with it."""

    def flush(self, writes: Sequence[Write]) -> asyncio.Future[list[Written]]:
        return asyncio.ensure_future(self._flush(writes))

    async def _flush(self, writes: Sequence[Write]) -> list[Written]:
        rows = [await self.inner.run(write.key) for write in writes]
        fits = [
            write.new is not None
            if row is None
            else (row.next_seq, row.version) == (write.base_seq, write.base_version)
            for write, row in zip(writes, rows, strict=True)
        ]
        return await self.inner.flush(writes) if all(fits) else [Written("conflict") for _ in writes]


class ToldTooEarly(Planted):
    """Says yes before anything is written."""

    def flush(self, writes: Sequence[Write]) -> asyncio.Future[list[Written]]:
        asyncio.get_running_loop().call_later(0.001, self.inner.flush, writes)
        told: asyncio.Future[list[Written]] = asyncio.get_running_loop().create_future()
        told.set_result([Written() for _ in writes])
        return told


class EndInTwoTransactions(Planted):
    """A run ends in one transaction and leaves its thread in the next, whatever became of the first."""

    def flush(self, writes: Sequence[Write]) -> asyncio.Future[list[Written]]:
        return asyncio.ensure_future(self._flush(writes))

    async def _flush(self, writes: Sequence[Write]) -> list[Written]:
        results = await self.inner.flush([replace(write, thread_end=None) for write in writes])
        for write, result in zip(writes, results, strict=True):
            row = await self.inner.run(write.key)
            if write.thread_end is not None and row is not None:
                leaves = replace(write, items=[], kept=(), state=None, base_seq=row.next_seq, base_version=row.version)
                leaves = replace(leaves, version=row.version, new=None)
                result.promoted = (await self.inner.flush([leaves]))[0].promoted
        return results


class ChildrenInTheNextTransaction(Planted):
    """A parent's call begins in one transaction and its child in the next, whatever became of the first."""

    def flush(self, writes: Sequence[Write]) -> asyncio.Future[list[Written]]:
        return asyncio.ensure_future(self._flush(writes))

    async def _flush(self, writes: Sequence[Write]) -> list[Written]:
        results = await self.inner.flush([replace(write, children=()) for write in writes])
        await self.inner.flush([child for write in writes for child in write.children])
        return results


class AnswersInTheNextTransaction(Planted):
    """An await that is answered at once is open for a moment."""

    def flush(self, writes: Sequence[Write]) -> asyncio.Future[list[Written]]:
        return asyncio.ensure_future(self._flush(writes))

    async def _flush(self, writes: Sequence[Write]) -> list[Written]:
        results = await self.inner.flush([replace(write, answered=()) for write in writes])
        for write, result in zip(writes, results, strict=True):
            row = await self.inner.run(write.key)
            if write.answered and result.outcome == "ok" and row is not None:
                later = replace(write, items=[], awaits=(), bookings=(), children=(), thread_end=None, new=None)
                await self.inner.flush([replace(later, base_seq=row.next_seq, base_version=row.version)])
        return results


class OpensAgain(Planted):
    """An await that is open already is left as it is, and the write that opens it again is accepted."""

    def __init__(self, inner: LogStore) -> None:
        super().__init__(inner)
        self._open: set[tuple[int, str]] = set()

    def flush(self, writes: Sequence[Write]) -> asyncio.Future[list[Written]]:
        return self.inner.flush([self._without_known(write) for write in writes])

    def _without_known(self, write: Write) -> Write:
        new = {one.id: one for one in write.awaits if (write.key, one.id) not in self._open}
        self._open |= {(write.key, id) for id in new}
        return replace(write, awaits=tuple(new.values()))


class PromotesAnyNewRun(Planted):
    """Whatever is created as a run ends is said to follow it."""

    def flush(self, writes: Sequence[Write]) -> asyncio.Future[list[Written]]:
        results = self.inner.flush(writes)
        created = [write.key for write in writes if write.new is not None]
        for write, result in zip(writes, results.result(), strict=True):
            if write.thread_end is not None and created:
                result.promoted = created[0]
        return results


class LeavesWhatItCould(Planted):
    """A write that fails leaves its entries and its row, as if only the rest had failed."""

    def flush(self, writes: Sequence[Write]) -> asyncio.Future[list[Written]]:
        results = self.inner.flush(writes)
        for write, result in zip(writes, results.result(), strict=True):
            if result.outcome == "failed":
                rest = replace(write, awaits=(), answered=(), bookings=(), closes=None, thread_end=None, wakes=None)
                self.inner.flush([replace(rest, children=())])
        return results


class WakesFirst(Planted):
    """The end of a child makes its parent due, but before what the same flush says about the parent."""

    def flush(self, writes: Sequence[Write]) -> asyncio.Future[list[Written]]:
        return asyncio.ensure_future(self._flush(writes))

    async def _flush(self, writes: Sequence[Write]) -> list[Written]:
        return [result for write in writes for result in await self.inner.flush([write])]


class TellsTooMuch(Planted):
    """A page that is cut in the middle leaves the rest of it out, and says that it told everything."""

    async def page(self, key: int, *, after: int, max_bytes: int) -> Page | None:
        page = await self.inner.page(key, after=after, max_bytes=max_bytes)
        return page and replace(page, last_seq=page.upto)


class ForgetsTheTrial(Planted):
    """Who was being recovered is noted after they were touched: a death comes first."""

    async def begin_trial(self, keys: Sequence[int]) -> None:
        pass


class ForgivesAfterTheDeathOfAGroup(Planted):
    """If several runs were on trial, nobody is charged any more, as if none had been."""

    _forgives = False

    async def charge_death(self) -> None:
        await self.inner.charge_death()
        rows = await self.inner.due_now(after=0, limit=99)
        self._forgives = any(row.trial_size > 1 for row in rows)

    async def due_now(self, *, after: int, limit: int) -> list[DueRun]:
        rows = await self.inner.due_now(after=after, limit=limit)
        return [replace(row, deaths_alone=0, deaths=0) for row in rows] if self._forgives else rows


def without(**parts: Any) -> Plant:
    """A store that ignores some fields of every write: it sees these values instead."""

    class Without(Planted):
        def flush(self, writes: Sequence[Write]) -> asyncio.Future[list[Written]]:
            return self.inner.flush([replace(write, **parts) for write in writes])

    return Without


def created_without(**parts: Any) -> Plant:
    """The same for the fields of new runs."""

    class CreatedWithout(Planted):
        def flush(self, writes: Sequence[Write]) -> asyncio.Future[list[Written]]:
            news = [write.new and replace(write.new, **parts) for write in writes]
            return self.inner.flush([replace(write, new=new) for write, new in zip(writes, news, strict=True)])

    return CreatedWithout


def children_without(**parts: Any) -> Plant:
    """The same for the fields of new runs that are children."""

    def strip(child: Write) -> Write:
        return replace(child, new=child.new and replace(child.new, **parts))

    return with_children(strip)


def with_children(change: Callable[[Write], Write]) -> Plant:
    """A store that sees other children than it was given."""

    class WithChildren(Planted):
        def flush(self, writes: Sequence[Write]) -> asyncio.Future[list[Written]]:
            families = [tuple([change(child) for child in write.children]) for write in writes]
            return self.inner.flush(
                [replace(write, children=family) for write, family in zip(writes, families, strict=True)]
            )

    return WithChildren


def only_new_runs(child: Write) -> Write:
    """A child without everything that a child cannot have, which nobody is told of."""
    child = replace(child, awaits=(), answered=(), bookings=(), closes=None, thread_end=None, wakes=None, children=())
    return replace(child, new=child.new and replace(child.new, thread=None, history=()))


def answering(method: str, change: Callable[[Any], Any]) -> Plant:
    """A store that changes what one of its methods returns."""

    def plant(inner: LogStore) -> Planted:
        async def changed(*args: Any, **options: Any) -> Any:
            return change(await getattr(inner, method)(*args, **options))

        planted = Planted(inner)
        setattr(planted, method, changed)
        return planted

    return plant


def rows_with(**parts: Any) -> Callable[[list[Any]], list[Any]]:
    """Rows that all have these values."""
    return lambda rows: [replace(row, **parts) for row in rows]


class LivingRows(Planted):
    """A row is the store's own object, and changes with it."""

    def __init__(self, inner: LogStore) -> None:
        super().__init__(inner)
        self._rows: dict[int, RunRow] = {}

    async def run(self, key: int) -> RunRow | None:
        row = await self.inner.run(key)
        return row and self._rows.setdefault(key, row)

    def flush(self, writes: Sequence[Write]) -> asyncio.Future[list[Written]]:
        results = self.inner.flush(writes)
        for row in self._rows.values():
            row.status = "changed"
        return results


class SkipsRuns(Planted):
    """Retention says that it has examined everything after its first batch."""

    async def trim(self, *, before: int, after: int, workspace: int | None) -> tuple[int, int]:
        last, trimmed = await self.inner.trim(before=before, after=after, workspace=workspace)
        return await self.inner.last_key() if last else 0, trimmed


class BeginsAgain(Planted):
    """Retention examines the first runs every time."""

    async def trim(self, *, before: int, after: int, workspace: int | None) -> tuple[int, int]:
        return await self.inner.trim(before=before, after=0, workspace=workspace)


class LatestOfAll(Planted):
    """The latest time of a write is the highest of its times, not the last."""

    _latest = 0

    def flush(self, writes: Sequence[Write]) -> asyncio.Future[list[Written]]:
        self._latest = max([item.at for write in writes for item in write.items if item.head], default=self._latest)
        return self.inner.flush(writes)

    async def latest_at(self) -> int:
        return self._latest


class LooksInEveryThread(Planted):
    async def awaits(self, wanted: AwaitFilter) -> list[OpenAwait]:
        return await self.inner.awaits(replace(wanted, thread=None))


class KeepsTheHold(Planted):
    async def lift_hold(self) -> None:
        pass


def unfenced(method: str) -> Plant:
    """A store in which one method of a replaced owner takes effect, as if the present owner had called it."""
    owners: list[LogStore] = []

    def plant(inner: LogStore) -> Planted:
        owners.append(inner)

        def late(*args: Any, **options: Any) -> Any:
            return getattr(owners[-1], method)(*args, **options)

        planted = Planted(inner)
        setattr(planted, method, late)
        return planted

    return plant


class UnfencedRecords(MemoryStore):
    """A replaced owner can still write records."""

    async def _write(self, job: Callable[[Any], Any]) -> Any:
        return transact(self._disk.records, job)


class ReadsMayWrite(MemoryStore):
    """A query that should only read can write, and nobody waits until that is durable."""

    def __init__(self, disk: MemoryDisk | None = None) -> None:
        super().__init__(disk)
        self.records = SqliteDatabase(self._disk.records, self._write)


class ClosesForAnother(MemoryStore):
    """A replaced owner that leaves marks the store of its successor as cleanly closed."""

    async def close(self) -> None:
        self._disk.clean = True
        await super().close()


class PlainEpochs(Planted):
    """Not a bug: epochs that count from 1, whoever owns the store."""

    def __init__(self, inner: LogStore, issued: list[int]) -> None:
        super().__init__(inner)
        self._issued = issued
        """What each of them is to the store inside."""

    def _number(self, epoch: int) -> int:
        if epoch not in self._issued:
            self._issued.append(epoch)
        return self._issued.index(epoch) + 1

    def _inside(self, write: Write) -> Write:
        children = tuple([self._inside(child) for child in write.children])
        return replace(write, epoch=self._issued[write.epoch - 1], children=children)

    def next_epoch(self) -> int:
        return self._number(self.inner.next_epoch())

    def flush(self, writes: Sequence[Write]) -> asyncio.Future[list[Written]]:
        return self.inner.flush([self._inside(write) for write in writes])

    async def run(self, key: int) -> RunRow | None:
        row = await self.inner.run(key)
        return row and replace(row, epoch=self._number(row.epoch))

    async def claim(self, key: int, *, kinds: Sequence[str]) -> Loaded | None:
        loaded = await self.inner.claim(key, kinds=kinds)
        if loaded is None:
            return None
        row = replace(loaded.row, epoch=self._number(loaded.row.epoch))
        return replace(loaded, row=row, epoch=self._number(loaded.epoch))

    def release(self, key: int, epoch: int) -> None:
        self.inner.release(key, self._issued[epoch - 1])


def with_plain_epochs() -> Plant:
    issued: list[int] = []
    return lambda inner: PlainEpochs(inner, issued)


class PlantedStore:
    """A store whose log has the bug."""

    def __init__(self, inner: MemoryStore, plant: Plant) -> None:
        self.inner = inner
        self.log: LogStore = plant(inner.log)
        self.records: Database = inner.records
        self.vault = inner.vault
        self.folder = None
        self.outlives_process = False

    def announce(self, *, socket: str) -> None:
        self.inner.announce(socket=socket)

    async def back_up(self, to: Path) -> Copied:
        return await self.inner.back_up(to)

    async def shrink(self) -> int:
        return await self.inner.shrink()

    async def close(self) -> None:
        await self.inner.close()


class PlantedSubject:
    def __init__(self, plant: Plant = Planted, *, inner: type[MemoryStore] = MemoryStore) -> None:
        self._disk, self._plant, self._inner = MemoryDisk(), plant, inner
        self.store: Store = self._open()

    def _open(self) -> PlantedStore:
        return PlantedStore(self._inner(self._disk), self._plant)

    async def reopen(self, *, cleanly: bool = True) -> None:
        if cleanly:
            await self.store.close()
        self.store = self._open()

    async def take_over(self) -> Store:
        old, self.store = self.store, self._open()
        return old

    async def stopped(self) -> None:
        await asyncio.Event().wait()

    async def restore(self) -> None:
        self._disk.held = True
        await self.reopen()


class ForgetfulSubject(PlantedSubject):
    """A store that loses something when its owner closes it, or dies."""

    def __init__(self, lose: Callable[[MemoryDisk], object], *, cleanly: bool) -> None:
        super().__init__()
        self._lose, self._cleanly = lose, cleanly

    async def reopen(self, *, cleanly: bool = True) -> None:
        if cleanly is self._cleanly:
            self._lose(self._disk)
        await super().reopen(cleanly=cleanly)


def of_all_runs(**lost: Any) -> Callable[[MemoryDisk], object]:
    """Sets these fields of the rows of all runs."""

    def lose(disk: MemoryDisk) -> None:
        for run in disk.runs.values():
            run.row = replace(run.row, **lost)

    return lose


def lose_secrets(disk: MemoryDisk) -> None:
    for run in disk.runs.values():
        run.secrets = None


def lose_due_times(disk: MemoryDisk) -> None:
    for run in disk.runs.values():
        disk.set_due(run, None)


def lose_the_order_of_queues(disk: MemoryDisk) -> None:
    for queue in disk._of_thread.values():  # pyright: ignore[reportPrivateUsage]
        queue.sort(key=lambda run: run.row.key)


def lose_last_items(disk: MemoryDisk) -> None:
    for run in disk.runs.values():
        run.items.pop()
