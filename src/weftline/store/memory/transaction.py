"""One flush as one transaction: the records are changed first, which may fail, and then the log, which cannot."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cache
from operator import attrgetter
from typing import cast

from msgspec import Struct
from msgspec.json import decode

from weftline.errors import Conflict, StoreError
from weftline.store.memory.disk import MemoryDisk, MemoryRun
from weftline.store.outcomes import (
    Moved,
    already_there,
    check_children,
    events_of,
    impossible,
    moved_on,
    refused_by_thread,
)
from weftline.store.records import budgets, deliveries, thread_messages, thread_queues, webhooks
from weftline.store.rows import GIVEN, NewRun, Write, Written
from weftline.store.sqlite.database import transact

_MIN, _MAX = -(2**63), 2**63 - 1
_NOT_STORED = frozenset({"facts", "size"})
"""The fields of a write that are not for the store."""


def check_possible(write: Write) -> None:
    """Raises `ValueError` for invalid text and for integers over 64 bits, also in what it creates or adds."""
    _check_values((write,))
    for one in (write, *write.children):
        if any(item.count < 1 or (item.head and item.count != 1) for item in one.items):
            raise ValueError("an item is one fact, or one or more observations")
        _check_values((one.base_seq + sum([item.count for item in one.items]),))
        if one.new is not None:
            decode(one.new.metadata, type=dict[str, str])


def _check_values(values: Iterable[object]) -> None:
    for value in values:
        if value is None or isinstance(value, bytes):
            continue
        if isinstance(value, int):
            if not _MIN <= value <= _MAX:
                raise ValueError(f"{value} has more than 64 bits")
        elif isinstance(value, str):
            value.encode()
        elif isinstance(value, Struct):
            _check_values(_stored_fields(type(value))(value))
        else:
            _check_values(cast("Iterable[object]", value))


@cache
def _stored_fields(kind: type[Struct]) -> Callable[[Struct], Iterable[object]]:
    return attrgetter(*[name for name in kind.__struct_fields__ if name not in _NOT_STORED])


def write_all(disk: MemoryDisk, writes: Sequence[Write]) -> list[Written]:
    """Writes everything together or, if that fails, one by one, so that a bad write does not harm the others."""
    try:
        results = transact(disk.records, lambda _: _change_records(disk, writes))
    except Exception as error:
        if len(writes) == 1:
            return [_failure(error)]
        return [result for write in writes for result in write_all(disk, [write])]
    _change_log(disk, writes, results)
    return results


def _failure(error: Exception) -> Written:
    """Returns how to treat a write that failed on its own."""
    match error:
        case Moved():
            return moved_on()
        case Conflict():
            return Written("conflict", error=error)
        case StoreError(code="unavailable"):
            return Written("refused", error=error)
        case _:
            return impossible(error)


def _change_records(disk: MemoryDisk, writes: Sequence[Write]) -> list[Written]:
    """Everything that can fail, inside a transaction that is rolled back if it does. The log is only read."""
    for write in writes:
        check_possible(write)
        check_children(write)
    results = [Written() if write.new is None else _take_place(disk, write, write.new) for write in writes]
    accepted = _accepted(writes, results)
    _check_fit(disk, [one for write in accepted for one in (write, *write.children)])
    for write in accepted:
        new = write.new
        if write.bookings or write.closes is not None:
            disk.query(budgets.book(write.bookings, closed=() if write.closes is None else (write.closes,)))
        if new is not None and new.history and new.thread is not None:
            messages = [(message, None) for message in new.history]
            begun = thread_queues.begin(new.thread, messages, run=write.key, format=write.format, at=new.created_at)
            disk.query(begun)
        if write.seated is not None:
            disk.query(thread_queues.seat(*write.seated))
        if write.keeps is not None and write.kept:
            kept = [(one, (one.message, None)) for one in write.kept]
            disk.query(thread_messages.keep(write.keeps, kept, run=write.key, format=write.format))
        for change in write.edits:
            disk.query(thread_messages.edit(change))
        events = events_of(write)
        if events and disk.query(webhooks.any_enabled()):
            workspace = disk.runs[write.key].row.workspace if new is None else new.workspace
            disk.query(deliveries.add(events, workspace=workspace))
    for write, result in zip(writes, results, strict=True):
        if result.outcome == "ok" and write.thread_end is not None:
            result.promoted = _end_in_thread(disk, write, accepted)
    return results


def _accepted(writes: Sequence[Write], results: Sequence[Written]) -> list[Write]:
    return [write for write, result in zip(writes, results, strict=True) if result.outcome == "ok"]


def _take_place(disk: MemoryDisk, write: Write, new: NewRun) -> Written:
    """Gives a new run its place in the queue of its thread."""
    if new.thread is None:
        return Written()
    taking = thread_queues.take_place(new.thread, run=write.key, at=new.created_at, format=write.format)
    place = disk.query(taking)
    if place is None:
        return refused_by_thread(disk.query(thread_queues.open_format(new.thread)), write) or moved_on()
    return Written(queued=place.queued)


def _check_fit(disk: MemoryDisk, writes: Sequence[Write]) -> None:
    """Raises `Moved` or `Conflict` unless all of them can be applied together."""
    taken: set[tuple[object, ...]] = set()
    for write in writes:
        run = disk.runs.get(write.key)
        if write.new is not None:
            fits = (write.base_seq, write.base_version) == (1, 0)
        else:
            fits = run is not None and run.fits(write)
        if not fits:
            raise Moved
        for name, is_taken in _names(disk, write):
            if is_taken or name in taken:
                raise already_there(" ".join(map(str, name)))
            taken.add(name)


def _names(disk: MemoryDisk, write: Write) -> list[tuple[tuple[object, ...], bool]]:
    """Returns the names that only one write can have, and whether an earlier one has them."""
    new = write.new
    names: list[tuple[tuple[object, ...], bool]] = [(("run", write.key), new is not None and write.key in disk.runs)]
    asked = [(write.key, one.id) for one in write.awaits if one.id not in write.answered]
    names += [(("await", *place), place in disk.awaits) for place in asked]
    if new is not None and new.salt.startswith(GIVEN):
        there = disk.given.get(new.salt[1:], {})
        names.append((("the run id", new.workspace, new.salt), new.workspace in there))
    if new is not None and new.idempotency is not None:
        used = (new.workspace, new.idempotency.route, new.idempotency.key)
        names.append((("the idempotency key", *used), used in disk.idempotency))
    return names


def _end_in_thread(disk: MemoryDisk, write: Write, accepted: Sequence[Write]) -> int | None:
    """Adds the messages of a run that succeeded, releases the thread and passes it on to the next queued run."""
    end = write.thread_end
    assert end is not None
    queue = [run.row.key for run in disk.of_thread(end.thread) if run.row.ended_at is None]
    queue += [one.key for one in accepted if one.new is not None and one.new.thread == end.thread]
    gone = {write.key} | {one.key for one in accepted if one.ended_at is not None}
    following = next((key for key in queue if key not in gone), None)
    ending = thread_queues.end_run(
        end.thread,
        [(message, None) for message in end.messages],
        run=write.key,
        format=write.format,
        following=following,
        at=write.ended_at or 0,
        read=end.read,
    )
    return following if disk.query(ending) else None


def _change_log(disk: MemoryDisk, writes: Sequence[Write], results: Sequence[Written]) -> None:
    """Applies what was accepted. Nothing here may fail."""
    for write, result in zip(writes, results, strict=True):
        if result.outcome != "ok":
            continue
        if write.new is None:
            disk.apply(disk.runs[write.key], write)
        else:
            _create(disk, write, write.new, queued=result.queued)
        for child in write.children:
            assert child.new is not None, "it was checked"
            _create(disk, child, child.new, queued=False)
        disk.keep_awaits(write)
    # After all of them, because a run that is written in the same flush does not know of this yet.
    for write, result in zip(writes, results, strict=True):
        for key in (result.promoted, write.wakes if result.outcome == "ok" else None):
            run = None if key is None else disk.runs.get(key)
            if run is not None and run.row.ended_at is None:
                disk.set_due(run, 0)


def _create(disk: MemoryDisk, write: Write, new: NewRun, *, queued: bool) -> None:
    run = MemoryRun(write, new)
    disk.add(run)
    disk.apply(run, write)
    if new.thread is not None:
        disk.set_due(run, None if queued else 0)
    disk.keep(new.blobs, run=write.key, workspace=new.workspace)
    if (once := new.idempotency) is not None:
        disk.idempotency[new.workspace, once.route, once.key] = (once.digest, write.key)
