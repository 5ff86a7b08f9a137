"""The store in memory: both halves, and who owns the disk."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from weftline.errors import StoreError
from weftline.store.memory.disk import MemoryDisk, MemoryRun
from weftline.store.memory.transaction import write_all
from weftline.store.outcomes import Claims, moved_on
from weftline.store.records import thread_messages, thread_queues
from weftline.store.records.thread_messages import MessageFilter, MessageRow
from weftline.store.rows import (
    AwaitFilter,
    Copied,
    DueRun,
    History,
    Item,
    LargeEntry,
    Loaded,
    OpenAwait,
    Page,
    RunFilter,
    RunRow,
    TimedRun,
    Write,
    Written,
)
from weftline.store.sealing import Vault
from weftline.store.sqlite.database import MemoryDatabase, transact

_TRIM_BATCH = 100


class MemoryLog:
    """`check_owner` raises if the disk has another owner by now."""

    def __init__(self, disk: MemoryDisk, *, owner_epoch: int, check_owner: Callable[[], None]) -> None:
        self._disk = disk
        self._owner_epoch = owner_epoch
        self._check_owner = check_owner
        self._claims = Claims(owner_epoch)
        self._unclean = disk.died is not None

    @property
    def id(self) -> str:
        return self._disk.id

    @property
    def unclean(self) -> bool:
        return self._unclean

    @property
    def held(self) -> bool:
        return self._disk.held

    async def lift_hold(self) -> None:
        self._check_owner()
        self._disk.held = False

    def flush(self, writes: Sequence[Write]) -> asyncio.Future[list[Written]]:
        self._check_owner()
        stale = [self._claims.stale(write) for write in writes]
        done = iter(write_all(self._disk, [write for write, old in zip(writes, stale, strict=True) if not old]))
        future: asyncio.Future[list[Written]] = asyncio.get_running_loop().create_future()
        future.set_result([moved_on() if old else next(done) for old in stale])
        return future

    async def probe(self) -> None:
        self._check_owner()

    def next_epoch(self) -> int:
        return self._claims.next_epoch()

    async def claim(self, key: int, *, kinds: Sequence[str]) -> Loaded | None:
        epoch = self._claims.claim(key)
        run = self._disk.runs.get(key)
        if run is None:
            self._claims.release(key, epoch)
            return None
        row = self._row_view(run)
        first = run.item(1)
        return Loaded(
            row,
            epoch,
            self._claims.earlier(row.epoch),
            first.body if first else b"",
            facts=run.facts(after=row.state_seq if row.state else 0),
            conversation=run.facts(kinds=kinds) if kinds else [],
            history=[] if row.thread is None else self._disk.query(thread_messages.messages(row.thread)),
            secrets=run.secrets,
        )

    def release(self, key: int, epoch: int) -> None:
        self._claims.release(key, epoch)

    async def run(self, key: int) -> RunRow | None:
        run = self._disk.runs.get(key)
        return self._row_view(run) if run else None

    async def given(self, run_id: str, *, workspace: int | None) -> list[int]:
        return sorted([key for where, key in self._disk.given.get(run_id, {}).items() if workspace in (None, where)])

    async def runs(self, wanted: RunFilter) -> list[RunRow]:
        found = [run for _, run in sorted(self._disk.runs.items(), reverse=True) if run.matches(wanted)]
        if wanted.by_change:
            found.sort(key=lambda run: (run.row.changed_at, run.row.key), reverse=True)
        return [self._row_view(run) for run in found[: wanted.limit]]

    async def count_runs(self, wanted: RunFilter) -> int:
        whole = replace(wanted, before=None, before_change=None)
        return sum(run.matches(whole) for run in self._disk.runs.values())

    async def awaits(self, wanted: AwaitFilter) -> list[OpenAwait]:
        return self._disk.open_awaits(wanted)

    async def last_key(self) -> int:
        return max(self._disk.runs, default=0)

    async def latest_at(self) -> int:
        return self._disk.latest_at

    async def entry(self, key: int, seq: int, *, max_bytes: int | None = None) -> Item | None:
        run = self._disk.runs.get(key)
        found = run.item(seq) if run else None
        if found is not None and max_bytes is not None and len(found.body) > max_bytes:
            raise LargeEntry(len(found.body))
        return found

    async def facts(self, key: int, *, kinds: Sequence[str] = ()) -> list[Item]:
        run = self._disk.runs.get(key)
        return run.facts(kinds=kinds) if run else []

    async def heads(self, key: int, *, kinds: Sequence[str]) -> list[bytes]:
        return [fact.head for fact in await self.facts(key, kinds=kinds)]

    async def newest_facts(self, key: int, *, kinds: Sequence[str], limit: int, max_bytes: int) -> list[Item]:
        run = self._disk.runs.get(key)
        found = run.facts(kinds=kinds)[-limit:] if run else []
        while len(found) > 1 and sum(one.size for one in found) > max_bytes:
            del found[0]
        return found

    async def page(self, key: int, *, after: int, max_bytes: int) -> Page | None:
        run = self._disk.runs.get(key)
        return run.page(after=after, max_bytes=max_bytes) if run else None

    async def log_size(self, key: int) -> int:
        return sum(len(fact.head) + len(fact.body) for fact in await self.facts(key))

    async def due_now(self, *, after: int, limit: int) -> list[DueRun]:
        due = [run for at, run in self._disk.due() if at == 0 and run.row.key > after]
        rows = [self._row_view(run) for run in due[:limit]]
        return [
            DueRun(
                row.key,
                row.trial_size,
                row.deaths_alone,
                row.deaths,
                row.rules,
                row.format,
                row.thread_format,
                self._first_head(row.key),
            )
            for row in rows
        ]

    def _first_head(self, key: int) -> bytes:
        first = self._disk.runs[key].item(1)
        return b"" if first is None else first.head

    async def due(self, now: int, *, after: tuple[int, int], limit: int) -> list[TimedRun]:
        found = [(at, run) for at, run in self._disk.due() if 0 < at <= now and (at, run.row.key) > after]
        rows = [(at, self._row_view(run)) for at, run in found[:limit]]
        return [TimedRun(at, row.key, row.workspace, row.rules, row.format, row.thread_format) for at, row in rows]

    async def next_due(self, after: int) -> int | None:
        return next((at for at, _ in self._disk.due() if at > after), None)

    async def idempotent(self, workspace: int, route: str, key: str) -> tuple[bytes, int] | None:
        return self._disk.idempotency.get((workspace, route, key))

    async def ends_of_thread(self, thread: int) -> list[bytes]:
        ended = [run for run in self._disk.of_thread(thread) if run.row.ended_at is not None]
        last = [run.item(run.row.next_seq - 1) for run in ended]
        return [item.head for item in last if item is not None and item.head]

    async def unfinished_of_thread(self, thread: int) -> list[int]:
        return [run.row.key for run in self._disk.of_thread(thread) if run.row.ended_at is None]

    async def ended_threads_with_runs(self) -> list[int]:
        return self._disk.query(thread_queues.ended_with_runs())

    async def queued_behind(self) -> list[tuple[int, int]]:
        waiting = [run for run in self._disk.runs.values() if run.row.thread is not None and run.row.ended_at is None]
        rows = sorted([self._row_view(run) for run in waiting], key=lambda row: row.key)
        return [(row.key, row.workspace) for row in rows if row.queued]

    async def thread_messages(self, thread: int) -> list[bytes]:
        return self._disk.query(thread_messages.messages(thread))

    async def thread_history(self, thread: int) -> History:
        standing = self._disk.query(thread_messages.standing(thread))
        return History(self._disk.query(thread_messages.messages(thread)), *standing)

    async def thread_pinned(self, thread: int, *, through: int, revision: int) -> list[bytes] | None:
        return self._disk.query(thread_messages.pinned(thread, through=through, revision=revision))

    async def thread_rows(self, wanted: MessageFilter) -> tuple[list[MessageRow], int]:
        return self._disk.query(thread_messages.page(wanted))

    async def thread_size(self, thread: int) -> int:
        return self._disk.query(thread_queues.size(thread))

    async def unfinished(self) -> int:
        return sum(run.row.ended_at is None for run in self._disk.runs.values())

    async def waiting(self) -> int:
        due = {key: run.row.due_at for key, run in self._disk.runs.items()}
        asked = {run for run, _ in self._disk.awaits}
        return sum(at != 0 and (at is not None or key in asked) for key, at in due.items())

    async def blob(self, workspace: int, id: str) -> bytes | None:
        found = self._disk.blobs.get((workspace, id))
        return found[0] if found else None

    async def begin_trial(self, keys: Sequence[int]) -> None:
        self._set_trial(keys, self._owner_epoch)

    async def end_trial(self, keys: Sequence[int]) -> None:
        self._set_trial(keys, 0)

    async def survived(self, keys: Sequence[int]) -> None:
        self._set_trial(keys, -self._owner_epoch)

    def _set_trial(self, keys: Sequence[int], trial: int) -> None:
        self._check_owner()
        for key in keys:
            if run := self._disk.runs.get(key):
                run.trial = trial

    async def charge_death(self) -> None:
        self._check_owner()
        dead, self._disk.died = self._disk.died, None
        if dead is None:
            return
        unfinished = [run for run in self._disk.runs.values() if run.row.ended_at is None]
        tried = [run for run in unfinished if run.trial == dead]
        survivors = [run for run in unfinished if run.trial == -dead]
        for run in tried or survivors:
            run.row.trial_size = len(tried or survivors)
        if len(tried) == 1:
            tried[0].row.deaths_alone += 1
            tried[0].row.deaths += 1
        elif not tried:
            for run in survivors:
                run.row.deaths += 1
            for run in unfinished if not survivors else ():
                run.row.deaths_alone = run.row.deaths = 0

    async def trim(self, *, before: int, after: int, workspace: int | None) -> tuple[int, int]:
        self._check_owner()
        old = [
            run
            for key, run in sorted(self._disk.runs.items())
            if key > after
            and run.row.ended_at is not None
            and run.row.ended_at < before
            and workspace in (None, run.row.workspace)
        ][:_TRIM_BATCH]
        for run in old:
            row = run.row
            staying = (
                thread_queues.left_by(row.key, workspace=row.workspace)  # it may have been imported
                if row.thread is None
                else thread_messages.messages(row.thread)
            )
            last = run.item(row.next_seq - 1)
            kept = [] if last is None else [last.body]
            self._disk.drop_blobs(run, staying=[*kept, *self._disk.query(staying)])
        return (old[-1].row.key if old else 0), sum(run.trim() for run in old)

    def _row_view(self, run: MemoryRun) -> RunRow:
        thread = run.row.thread
        if thread is None:
            return run.view(active_run=None, thread_format=0)
        active_run, thread_format = self._disk.query(thread_queues.standing(thread))
        return run.view(active_run=active_run, thread_format=thread_format)


class MemoryStore:
    def __init__(self, disk: MemoryDisk | None = None) -> None:
        self._disk = disk or MemoryDisk()
        self._closed = False
        self.owner_epoch = self._disk.take_over()
        self.log = MemoryLog(self._disk, owner_epoch=self.owner_epoch, check_owner=self._check_owner)
        self.records = MemoryDatabase(self._disk.records, self._write)
        self.vault = Vault(Path(), key=self._disk.key)

    @property
    def folder(self) -> None:
        return None

    @property
    def outlives_process(self) -> bool:
        return False

    def announce(self, *, socket: str) -> None:
        """Does nothing: no other process can open a store in memory."""

    def remove_run(self, key: int) -> None:
        """Removes a run that has ended."""
        self._disk.remove(key)

    async def back_up(self, to: Path) -> Copied:
        raise StoreError("A store in memory has no backup.")

    async def shrink(self) -> int:
        return 0

    async def close(self) -> None:
        if not self._closed and self._disk.owner_epoch == self.owner_epoch:
            self._disk.clean = True
        self._closed = True

    def _check_owner(self) -> None:
        if self._closed:
            raise StoreError("The store is closed.")
        if self._disk.owner_epoch != self.owner_epoch:
            raise StoreError("The store was opened by another owner.", code="store_in_use")

    async def _write(self, job: Callable[[Any], Any]) -> Any:
        self._check_owner()
        return transact(self._disk.records, job)
