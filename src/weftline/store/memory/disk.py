"""The part of a store in memory that would outlive its process: the runs, the records, and who owned them."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import TypeVar

from weftline.messages import Blob
from weftline.store.awaits import AwaitFilter, NewAwait, OpenAwait
from weftline.store.database import Query
from weftline.store.memory.run import MemoryRun
from weftline.store.rows import GIVEN, Write
from weftline.store.sqlite.database import records_in_memory, run_query, transact

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
