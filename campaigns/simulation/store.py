"""A store behind simulated connections: it keeps the promises of any store, with the delays, refusals and crashes of a
disk.

A commit is atomic at one moment of virtual time and is reported at a later one; a read sees one moment between request
and answer. A crash may come before, between or after; after it, nothing from this process reaches the disk, and nothing
from the disk reaches the process.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, TypeVar

from campaigns.simulation.disk import Disk
from campaigns.simulation.trace import require
from weftline.kernel.context import CompactionStarted
from weftline.kernel.entries import KIND, AttemptStarted, CallStarted
from weftline.store.base import LogStore, Store
from weftline.store.database import Database, Query
from weftline.store.records.thread_messages import MessageFilter, MessageRow
from weftline.store.rows import (
    AwaitFilter,
    Copied,
    DueRun,
    History,
    Item,
    Loaded,
    OpenAwait,
    Page,
    RunFilter,
    RunRow,
    TimedRun,
    Write,
    Written,
)

T = TypeVar("T")

_BEGINNINGS = frozenset({KIND[AttemptStarted], KIND[CallStarted], KIND[CompactionStarted]})


class Wires:
    """The connection between a process and its disk. `cut` is the death of the process."""

    def __init__(self, disk: Disk) -> None:
        self.disk = disk
        self.dead = False

    def check(self) -> None:
        if self.dead:
            raise asyncio.CancelledError

    async def _pass(self) -> None:
        delay_s = self.disk.latency_s()
        if delay_s:
            await asyncio.sleep(delay_s)
        self.check()

    async def read(self, reading: Coroutine[Any, Any, T], *, first: Callable[[], Awaitable[None]] | None = None) -> T:
        """Executes a read some time after the request, and returns the result some time later."""
        try:
            await self._pass()
            if first is not None:
                await first()
            self.disk.check_readable()
        except BaseException:
            reading.close()
            raise
        value = await reading
        await self._pass()
        return value

    async def write(self, writing: Coroutine[Any, Any, T]) -> T:
        try:
            await self._pass()
            self.disk.check_writable()
        except BaseException:
            writing.close()
            raise
        value = await writing
        await self._pass()
        return value

    def later(self, callback: Callable[[], None]) -> None:
        delay_s = self.disk.latency_s()
        if delay_s:
            asyncio.get_running_loop().call_later(delay_s, callback)
        else:
            callback()


class SimulatedLog:
    def __init__(self, inner: LogStore, wires: Wires) -> None:
        self.inner = inner
        self._wires = wires
        self._disk = wires.disk
        self._queue: deque[tuple[Sequence[Write], asyncio.Future[list[Written]], asyncio.Future[None]]] = deque()
        """Flushes that are not committed yet, with the futures for their report and their commit."""
        self._tried: set[int] = set()
        """Runs that were recorded as being on trial."""

    @property
    def id(self) -> str:
        return self.inner.id

    @property
    def unclean(self) -> bool:
        return self.inner.unclean

    @property
    def held(self) -> bool:
        return self.inner.held

    async def lift_hold(self) -> None:
        await self._wires.write(self.inner.lift_hold())

    # Writing

    def flush(self, writes: Sequence[Write]) -> asyncio.Future[list[Written]]:
        loop = asyncio.get_running_loop()
        report: asyncio.Future[list[Written]] = loop.create_future()
        self._queue.append((writes, report, loop.create_future()))
        if len(self._queue) == 1:
            self._wires.later(self._commit_first)
        return report

    def _commit_first(self) -> None:
        if self._wires.dead:
            return
        writes, report, committed = self._queue[0]
        self._suspects_wait(writes)
        self._disk.observer.before(writes)
        if self._wires.dead:
            return
        results = self._disk.commit(writes, lambda fit: self.inner.flush(fit).result())
        for watch in self._disk.watches:
            watch(writes)
        self._queue.popleft()
        committed.set_result(None)
        self._disk.observer.after(writes, results)
        if self._wires.dead:
            return
        self._wires.later(lambda: self._report(report, results))
        if self._queue:
            self._wires.later(self._commit_first)

    def _suspects_wait(self, writes: Sequence[Write]) -> None:
        """C13: a suspect begins nothing before its row says that it is on trial, whoever wakes it."""
        for write in writes:
            begins = any(item.kind in _BEGINNINGS for item in write.items)
            row = self._disk.row(write.key) if begins and write.key not in self._tried else None
            if row is not None:
                require("C13", not row.trial_size, f"run {write.key}: a suspect was driven before it was on trial")

    async def finish(self) -> None:
        """Returns when everything flushed is committed."""
        while self._queue and not self._wires.dead:
            await asyncio.shield(self._queue[-1][2])

    def _report(self, report: asyncio.Future[list[Written]], results: list[Written]) -> None:
        if not self._wires.dead and not report.done():
            report.set_result(results)

    async def probe(self) -> None:
        self._disk.observer.before(())
        await self._wires.write(self.inner.probe())
        self._disk.observer.after((), ())

    def next_epoch(self) -> int:
        return self.inner.next_epoch()

    async def claim(self, key: int, *, kinds: Sequence[str]) -> Loaded | None:
        waiting = [committed for writes, _, committed in self._queue if any(write.key == key for write in writes)]

        async def flushed() -> None:
            for committed in waiting:
                await asyncio.shield(committed)
            self._wires.check()

        loaded = await self._wires.read(self.inner.claim(key, kinds=kinds), first=flushed)
        if loaded is not None:
            self._disk.observer.claimed(key, loaded.epoch)
        return loaded

    def release(self, key: int, epoch: int) -> None:
        if not self._wires.dead:
            self.inner.release(key, epoch)

    async def begin_trial(self, keys: Sequence[int]) -> None:
        await self._wires.write(self.inner.begin_trial(keys))
        self._tried.update(keys)

    async def end_trial(self, keys: Sequence[int]) -> None:
        await self._wires.write(self.inner.end_trial(keys))

    async def survived(self, keys: Sequence[int]) -> None:
        await self._wires.write(self.inner.survived(keys))

    async def charge_death(self) -> None:
        await self._wires.write(self.inner.charge_death())

    async def trim(self, *, before: int, after: int, workspace: int | None) -> tuple[int, int]:
        return await self._wires.write(self.inner.trim(before=before, after=after, workspace=workspace))

    # Reading

    async def run(self, key: int) -> RunRow | None:
        return await self._wires.read(self.inner.run(key))

    async def runs(self, wanted: RunFilter) -> list[RunRow]:
        return await self._wires.read(self.inner.runs(wanted))

    async def count_runs(self, wanted: RunFilter) -> int:
        return await self._wires.read(self.inner.count_runs(wanted))

    async def awaits(self, wanted: AwaitFilter) -> list[OpenAwait]:
        return await self._wires.read(self.inner.awaits(wanted))

    async def last_key(self) -> int:
        return await self._wires.read(self.inner.last_key())

    async def latest_at(self) -> int:
        return await self.inner.latest_at()  # takes no time, since nothing depends on it

    async def entry(self, key: int, seq: int, *, max_bytes: int | None = None) -> Item | None:
        return await self._wires.read(self.inner.entry(key, seq, max_bytes=max_bytes))

    async def facts(self, key: int, *, kinds: Sequence[str] = ()) -> list[Item]:
        return await self._wires.read(self.inner.facts(key, kinds=kinds))

    async def heads(self, key: int, *, kinds: Sequence[str]) -> list[bytes]:
        return await self._wires.read(self.inner.heads(key, kinds=kinds))

    async def newest_facts(self, key: int, *, kinds: Sequence[str], limit: int, max_bytes: int) -> list[Item]:
        return await self._wires.read(self.inner.newest_facts(key, kinds=kinds, limit=limit, max_bytes=max_bytes))

    async def page(self, key: int, *, after: int, max_bytes: int) -> Page | None:
        return await self._wires.read(self.inner.page(key, after=after, max_bytes=max_bytes))

    async def log_size(self, key: int) -> int:
        return await self._wires.read(self.inner.log_size(key))

    async def due_now(self, *, after: int, limit: int) -> list[DueRun]:
        return await self._wires.read(self.inner.due_now(after=after, limit=limit))

    async def due(self, now: int, *, after: tuple[int, int], limit: int) -> list[TimedRun]:
        return await self._wires.read(self.inner.due(now, after=after, limit=limit))

    async def next_due(self, after: int) -> int | None:
        return await self._wires.read(self.inner.next_due(after))

    async def idempotent(self, workspace: int, route: str, key: str) -> tuple[bytes, int] | None:
        return await self._wires.read(self.inner.idempotent(workspace, route, key))

    async def given(self, run_id: str, *, workspace: int | None) -> list[int]:
        return await self._wires.read(self.inner.given(run_id, workspace=workspace))

    async def ends_of_thread(self, thread: int) -> list[bytes]:
        return await self._wires.read(self.inner.ends_of_thread(thread))

    async def unfinished_of_thread(self, thread: int) -> list[int]:
        return await self._wires.read(self.inner.unfinished_of_thread(thread))

    async def ended_threads_with_runs(self) -> list[int]:
        return await self._wires.read(self.inner.ended_threads_with_runs())

    async def queued_behind(self) -> list[tuple[int, int]]:
        return await self.inner.queued_behind()  # once, before anything moves

    async def thread_messages(self, thread: int) -> list[bytes]:
        return await self._wires.read(self.inner.thread_messages(thread))

    async def thread_history(self, thread: int) -> History:
        return await self._wires.read(self.inner.thread_history(thread))

    async def thread_pinned(self, thread: int, *, through: int, revision: int) -> list[bytes] | None:
        return await self._wires.read(self.inner.thread_pinned(thread, through=through, revision=revision))

    async def thread_rows(self, wanted: MessageFilter) -> tuple[list[MessageRow], int]:
        return await self._wires.read(self.inner.thread_rows(wanted))

    async def thread_size(self, thread: int) -> int:
        return await self._wires.read(self.inner.thread_size(thread))

    async def unfinished(self) -> int:
        return await self._wires.read(self.inner.unfinished())

    async def waiting(self) -> int:
        return await self.inner.waiting()  # once, for the log

    async def blob(self, workspace: int, id: str) -> bytes | None:
        return await self._wires.read(self.inner.blob(workspace, id))


class SimulatedRecords:
    def __init__(self, inner: Database, wires: Wires) -> None:
        self._inner = inner
        self._wires = wires

    async def read(self, query: Query[T], *, heavy: bool = False) -> T:
        return await self._wires.read(self._inner.read(query))

    async def write(self, query: Query[T]) -> T:
        return await self._wires.write(self._inner.write(query))


class SimulatedStore:
    """One process's view of the disk. After `die`, nothing passes through it.

    `new_log` creates the log half: `SimulatedLog`, or a replacement in a test.
    """

    folder = None
    outlives_process = False

    def __init__(
        self, disk: Disk, inner: Store, *, new_log: Callable[[LogStore, Wires], SimulatedLog] = SimulatedLog
    ) -> None:
        self._wires = Wires(disk)
        self._inner = inner
        self.log = new_log(inner.log, self._wires)
        self.records = SimulatedRecords(inner.records, self._wires)
        self.vault = inner.vault

    @property
    def dead(self) -> bool:
        return self._wires.dead

    def die(self) -> None:
        self._wires.dead = True

    def announce(self, *, socket: str) -> None:
        self._inner.announce(socket=socket)

    async def back_up(self, to: Path) -> Copied:
        return await self._wires.read(self._inner.back_up(to))

    async def shrink(self) -> int:
        return await self._wires.write(self._inner.shrink())

    async def close(self) -> None:
        await self.log.finish()
        if not self._wires.dead:
            await self._inner.close()
            self.die()
