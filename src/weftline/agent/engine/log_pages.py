"""The log of a run, a page of entries at a time."""

from __future__ import annotations

from functools import partial
from typing import Any

from msgspec import Struct
from msgspec.json import decode

from weftline.errors import InvalidRequest, NotFound
from weftline.events.project_details import facts_of
from weftline.store.base import LogReader
from weftline.store.rows import Item

_READ_BYTES = 256 * 1024


class LogEntry(Struct, frozen=True, kw_only=True):
    """One entry, as it is stored. `at` is in microseconds since the epoch, UTC. Observations have no head."""

    run_id: str
    seq: int
    at: int
    kind: str
    head: dict[str, Any] | None
    body: Any
    turn_id: str = ""
    """The turn id that the run was started with, or else the run's id."""


class LogPage(Struct, frozen=True):
    """Consecutive entries of a run. The next page is the one after `last_seq`."""

    entries: tuple[LogEntry, ...]
    last_seq: int
    at_tail: bool
    """Whether there were no further entries when the page was read."""


async def log_page(log: LogReader, key: int, run_id: str, *, after: int, limit: int) -> LogPage:
    """Returns a page of a run's log. Raises `InvalidRequest` for a limit below 1."""
    if limit < 1:
        raise InvalidRequest(f"limit must be 1 or more, not {limit}.")
    first = await log.entry(key, 1)
    turn_id = facts_of(run_id, created=None if first is None else first.body, thread=None).turn_id
    found: list[LogEntry] = []
    last = max(after, 0)
    while True:
        page = await log.page(key, after=last, max_bytes=_READ_BYTES)
        if page is None:
            raise NotFound(f"There is no run {run_id!r}.", code="unknown_run")
        for entry in [entry for item in page.items for entry in _entries(run_id, turn_id, item) if entry.seq > last]:
            if len(found) == limit:
                return LogPage(tuple(found), last, at_tail=False)
            found.append(entry)
            last = entry.seq
        last = max(last, page.last_seq)
        if last >= page.upto:
            return LogPage(tuple(found), last, at_tail=True)


def _entries(run_id: str, turn_id: str, item: Item) -> list[LogEntry]:
    if item.head:
        body = decode(item.body) if item.body else None
        head: dict[str, Any] = decode(item.head)
        entry = LogEntry(run_id=run_id, seq=item.seq, at=item.at, kind=item.kind, head=head, body=body, turn_id=turn_id)
        return [entry]
    of_run = partial(LogEntry, run_id=run_id, turn_id=turn_id, at=item.at, kind=item.kind, head=None)
    return [of_run(seq=item.seq + number, body=decode(body)) for number, body in enumerate(item.body.split(b"\n"))]
