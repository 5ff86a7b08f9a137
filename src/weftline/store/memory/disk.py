"""The part of a store in memory that would outlive its process: the runs, the records, and who owned them."""

from __future__ import annotations

import secrets
from bisect import bisect_right
from collections.abc import Sequence
from copy import copy
from typing import TypeVar

from msgspec.json import decode
from msgspec.structs import replace

from weftline.messages import Blob
from weftline.store.database import Query
from weftline.store.rows import (
    GIVEN,
    LEAVE_DUE,
    AwaitFilter,
    Item,
    NewAwait,
    NewRun,
    OpenAwait,
    Page,
    Progress,
    RunFilter,
    RunRow,
    Write,
)
from weftline.store.sqlite.database import records_in_memory, run_query, transact


class MemoryRun:
    def __init__(self, write: Write, new: NewRun) -> None:
        self.row = RunRow(
            key=write.key,
            salt=new.salt,
            workspace=new.workspace,
            thread=new.thread,
            name=new.name,
            agent=new.agent,
            metadata=new.metadata,
            status=write.status,
            created_at=new.created_at,
            started_at=None,
            ended_at=None,
            next_seq=1,
            version=0,
            epoch=write.epoch,
            due_at=0,
            rules=new.rules,
            format=write.format,
            thread_format=0,
            queued=False,
            state=b"",
            state_seq=0,
            fold=write.fold,
            trial_size=0,
            deaths_alone=0,
            deaths=0,
            family=new.family,
        )
        self.trial = 0
        """The owner epoch in which its recovery began."""
        self.secrets = new.secrets
        self.items: list[Item] = []
        self._tags: dict[str, str] = decode(new.metadata, type=dict[str, str])

    def fits(self, write: Write) -> bool:
        row = self.row
        return (row.next_seq, row.version) == (write.base_seq, write.base_version) and row.epoch <= write.epoch

    def apply(self, write: Write) -> None:
        """Applies a write that fits."""
        row, seq = self.row, write.base_seq
        for item in write.items:
            item.seq = seq
            self.items.append(copy(item))
            seq += item.count
        row.next_seq, row.version, row.epoch, row.status = seq, write.version, write.epoch, write.status
        row.format = write.format
        if write.due_at != LEAVE_DUE:
            row.due_at = write.due_at
        row.started_at = write.started_at if row.started_at is None else row.started_at
        row.ended_at = write.ended_at if row.ended_at is None else row.ended_at
        if write.state is not None:
            row.state, row.state_seq, row.fold = write.state, seq - 1, write.fold
        if write.ended_at is not None:
            self.secrets = None
        if write.progress:
            row.deaths_alone = 0
        if write.progress is Progress.ENDED:
            row.trial_size = self.trial = 0

    def view(self, *, active_run: int | None, thread_format: int) -> RunRow:
        """The row as a reader gets it, including what it takes from its thread; `active_run` is the one that may
        run.
        """
        row = self.row
        queued = row.thread is not None and row.ended_at is None and active_run != row.key
        return replace(row, queued=queued, thread_format=thread_format)

    def facts(self, *, after: int = 0, kinds: Sequence[str] = ()) -> list[Item]:
        return [item for item in self.items if item.head and item.seq > after and (not kinds or item.kind in kinds)]

    def item(self, seq: int) -> Item | None:
        """The item that holds this seq."""
        place = bisect_right(self.items, seq, key=lambda item: item.seq) - 1
        found = self.items[place] if place >= 0 else None
        return found if found and found.last_seq >= seq else None

    def page(self, *, after: int, max_bytes: int) -> Page:
        first = bisect_right(self.items, after, key=lambda item: item.last_seq)
        items: list[Item] = []
        size = 0
        for item in self.items[first:]:
            if items and size + item.size > max_bytes:
                break
            items.append(item)
            size += item.size
        upto = self.row.next_seq - 1
        whole = first + len(items) == len(self.items)
        last_seq = upto if whole else items[-1].last_seq
        return Page(items, last_seq, upto, self.row.ended_at is not None, self.row.format)

    def trim(self) -> bool:
        """Keeps the last entry; returns whether there was something to remove."""
        last = [item for item in self.items if item.seq >= self.row.next_seq - 1]
        trimmed, self.items = len(last) < len(self.items), last
        return trimmed

    def matches(self, wanted: RunFilter) -> bool:
        row = self.row
        return (
            (wanted.workspace is None or row.workspace == wanted.workspace)
            and (wanted.given_prefix is None or row.salt.startswith(GIVEN + wanted.given_prefix))
            and not (wanted.not_given and row.salt.startswith(GIVEN))
            and (wanted.before is None or row.key < wanted.before)
            and (
                wanted.thread is None
                or row.thread == wanted.thread
                or (wanted.with_children and row.family == wanted.thread)
            )
            and (not wanted.agents or row.agent in wanted.agents)
            and (not wanted.statuses or row.status in wanted.statuses)
            and (wanted.changed_since is None or row.changed_at >= wanted.changed_since)
            and (wanted.before_change is None or (row.changed_at, row.key) < wanted.before_change)
            and all(self._tags.get(name) == value for name, value in wanted.metadata)
        )


T = TypeVar("T")


class MemoryDisk:
    """The data that stores are opened on, one after another; the last one is the owner.

    Args:
        id: The id of the store; random by default.
    """

    def __init__(self, *, id: str | None = None) -> None:
        self.id = id or secrets.token_hex(8)
        self.key = secrets.token_bytes(32)
        """The key that encrypts the store's secrets."""
        self.owner_epoch = 0
        self.clean = True
        self.held = False
        self.died: int | None = None
        """The epoch of the last owner that died uncleanly, until that death is charged."""
        self.records = records_in_memory()
        self.runs: dict[int, MemoryRun] = {}
        self.latest_at = 0
        self.idempotency: dict[tuple[int, str, str], tuple[bytes, int]] = {}
        self.given: dict[str, dict[int, int]] = {}
        """The runs whose ids were chosen by clients, by id and workspace."""
        self.blobs: dict[tuple[int, str], tuple[bytes, set[int]]] = {}
        """By workspace and id: the content, and the runs that refer to it."""
        self.awaits: dict[tuple[int, str], NewAwait] = {}
        """The open questions to people, by run and id."""
        self._due: dict[int, MemoryRun] = {}
        self._of_thread: dict[int, list[MemoryRun]] = {}

    def take_over(self) -> int:
        """The epoch of a new owner."""
        if not self.clean:
            self.died = self.owner_epoch
        self.owner_epoch += 1
        self.clean = False
        return self.owner_epoch

    def query(self, query: Query[T]) -> T:
        """Runs a query on records here and now; in a commit, as part of its transaction."""
        return run_query(self.records, query)

    def change_records(self, query: Query[T]) -> T:
        """Runs a query as one transaction, whoever owns the disk."""
        return transact(self.records, lambda db: run_query(db, query))

    def add(self, run: MemoryRun) -> None:
        """Adds a new run, last in its thread's queue."""
        row = run.row
        self.runs[row.key] = run
        if row.salt.startswith(GIVEN):
            self.given.setdefault(row.salt[1:], {})[row.workspace] = row.key
        if run.row.thread is not None:
            self._of_thread.setdefault(run.row.thread, []).append(run)

    def remove(self, key: int) -> None:
        """Removes a run that has ended and will not be asked for again. A run on a thread is kept, because later ones
        follow it.
        """
        run = self.runs.get(key)
        if run is not None and run.row.ended_at is not None and run.row.thread is None:
            self.drop_blobs(run)
            self._due.pop(key, None)
            if run.row.salt.startswith(GIVEN):
                del self.given[run.row.salt[1:]][run.row.workspace]
            del self.runs[key]

    def keep_awaits(self, write: Write) -> None:
        """Adds the awaits that a write opens, and removes those that it answers."""
        self.awaits |= {(write.key, new.id): new for new in write.awaits}
        for id in write.answered:
            self.awaits.pop((write.key, id), None)

    def open_awaits(self, wanted: AwaitFilter) -> list[OpenAwait]:
        found: list[OpenAwait] = []
        left = wanted.max_bytes
        for (key, id), one in sorted(self.awaits.items()):
            row, top = self.runs[key].row, self.runs.get(one.root)
            above = row if top is None else top.row
            thread = row.thread if row.thread is not None else above.thread
            agent = row.agent if row.agent is not None else above.agent
            fits = (
                one.workspace == wanted.workspace
                and (key, id) > wanted.after
                and wanted.id in (None, id)
                and wanted.run in (None, key)
                and wanted.root in (None, one.root, key)
                and wanted.thread in (None, thread)
                and (not wanted.agents or agent in wanted.agents)
                and (not wanted.kinds or one.kind in wanted.kinds)
                and (wanted.due_before is None or (one.deadline_at or wanted.due_before) < wanted.due_before)
                and (wanted.opened_until is None or one.opened_at <= wanted.opened_until)
                and wanted.tool in (None, one.tool)
            )
            if fits and len(found) < wanted.limit:
                reads = left is None or len(one.body) <= left or (not found and wanted.max_bytes != 0)
                if left is not None:
                    left = left - len(one.body) if reads else 0
                found.append(
                    OpenAwait(
                        run=key,
                        salt=row.salt,
                        id=id,
                        workspace=one.workspace,
                        root=one.root,
                        root_salt="" if top is None else top.row.salt,
                        thread=thread,
                        agent=agent,
                        name=row.name,
                        kind=one.kind,
                        opened_at=one.opened_at,
                        deadline_at=one.deadline_at,
                        body=one.body if reads else b"",
                        unread=not reads,
                    )
                )
        return found

    def keep(self, blobs: Sequence[Blob], *, run: int, workspace: int) -> None:
        for blob in blobs:
            self.blobs.setdefault((workspace, blob.id), (blob.data, set()))[1].add(run)

    def drop_blobs(self, run: MemoryRun, *, staying: Sequence[bytes] = ()) -> None:
        """Removes the blobs that only this run refers to, except those that the bodies and messages that stay need."""
        for place, (_, runs) in list(self.blobs.items()):
            if run.row.key in runs and not any(place[1].encode() in one for one in staying):
                runs.discard(run.row.key)
            if not runs:
                del self.blobs[place]

    def apply(self, run: MemoryRun, write: Write) -> None:
        run.apply(write)
        self.latest_at = next((item.at for item in reversed(write.items) if item.head), self.latest_at)
        self.set_due(run, run.row.due_at)

    def set_due(self, run: MemoryRun, at: int | None) -> None:
        run.row.due_at = at
        if at is None:
            self._due.pop(run.row.key, None)
        else:
            self._due[run.row.key] = run

    def of_thread(self, thread: int) -> Sequence[MemoryRun]:
        """The runs of a thread, in the order of its queue."""
        return self._of_thread.get(thread, ())

    def due(self) -> list[tuple[int, MemoryRun]]:
        """Runs with a due time, sorted by it and by key."""
        found = [(run.row.due_at, key, run) for key, run in self._due.items() if run.row.due_at is not None]
        return [(at, run) for at, _, run in sorted(found, key=lambda one: one[:2])]
