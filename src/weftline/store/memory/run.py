"""One run in memory: its row, and its log as a list."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from copy import copy

from msgspec.json import decode
from msgspec.structs import replace

from weftline.store.rows import GIVEN, LEAVE_DUE, Item, NewRun, Page, Progress, RunFilter, RunRow, Write


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
