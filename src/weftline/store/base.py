"""The protocols of a store. The rows that cross them are in `weftline.store.rows`.

A store has two halves. The *log* holds runs: each store writes it in the way that suits it best, many runs to a commit.
The *records* (workspaces, keys, agents, tools, webhooks, threads …) are plain rows behind one small database protocol,
in `weftline.store.database`. They meet in one place: a commit of the log also changes some records, see
`LogStore.flush`.

Everything above knows only these protocols. Reads are awaited: a driver reads everything it needs at once and then
decides without awaiting.
"""

from __future__ import annotations

from asyncio import Future
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol, runtime_checkable

from weftline.errors import StoreError
from weftline.store.database import Database
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
from weftline.store.sealing import Vault


class LogReader(Protocol):
    """Reads of the log, even by a process that does not own the store."""

    @property
    def id(self) -> str:
        """Part of every idempotency key: another store means another timeline."""
        ...

    async def run(self, key: int) -> RunRow | None: ...

    async def given(self, run_id: str, *, workspace: int | None) -> list[int]:
        """The runs that a client created with this id: at most one in each workspace."""
        ...

    async def runs(self, wanted: RunFilter) -> list[RunRow]:
        """Runs that match, newest first."""
        ...

    async def count_runs(self, wanted: RunFilter) -> int:
        """Returns the number of runs that match, wherever the page begins."""
        ...

    async def awaits(self, wanted: AwaitFilter) -> list[OpenAwait]:
        """The open questions to people, by run and id."""
        ...

    async def last_key(self) -> int:
        """The key of the newest run; 0 if there is none."""
        ...

    async def latest_at(self) -> int:
        """The time of the fact that was written last, by the clock of whoever wrote it; 0 if there is none."""
        ...

    async def entry(self, key: int, seq: int, *, max_bytes: int | None = None) -> Item | None:
        """The item that holds this seq; observations that share a row come together.

        Raises `LargeEntry`, without having read it, if its body has more than `max_bytes`.
        """
        ...

    async def facts(self, key: int, *, kinds: Sequence[str] = ()) -> list[Item]:
        """The run's facts in order; with `kinds` only those."""
        ...

    async def heads(self, key: int, *, kinds: Sequence[str]) -> list[bytes]:
        """The heads of the facts of these kinds, in order. Their bodies, which may be large, are not read."""
        ...

    async def newest_facts(self, key: int, *, kinds: Sequence[str], limit: int, max_bytes: int) -> list[Item]:
        """The last facts of these kinds, in order: as many as fit, and at least one."""
        ...

    async def page(self, key: int, *, after: int, max_bytes: int) -> Page | None:
        """The items after seq `after`, at least one if there is any; None for an unknown run.

        Observations that share a row come together, including those up to `after`.
        """
        ...

    async def log_size(self, key: int) -> int:
        """The size of the run's facts in bytes, without reading them."""
        ...

    async def due_now(self, *, after: int, limit: int) -> list[DueRun]:
        """Runs that are due immediately, by key."""
        ...

    async def due(self, now: int, *, after: tuple[int, int], limit: int) -> list[TimedRun]:
        """The runs that have become due (not those due immediately), by time and key, which are above `after`."""
        ...

    async def next_due(self, after: int) -> int | None: ...

    async def idempotent(self, workspace: int, route: str, key: str) -> tuple[bytes, int] | None:
        """Digest and run of an earlier create with this key."""
        ...

    async def ends_of_thread(self, thread: int) -> list[bytes]:
        """The heads of the terminal entries of a thread's runs, in order."""
        ...

    async def unfinished_of_thread(self, thread: int) -> list[int]:
        """The unfinished runs of a thread, in the order in which they will run."""
        ...

    async def ended_threads_with_runs(self) -> list[int]:
        """Threads that have ended although some of their runs have not."""
        ...

    async def queued_behind(self) -> list[tuple[int, int]]:
        """The runs that are queued behind earlier runs of their threads, by key, each with its workspace."""
        ...

    async def thread_messages(self, thread: int) -> list[bytes]:
        """The messages of a thread that models read, oldest first."""
        ...

    async def thread_history(self, thread: int) -> History:
        """The same messages, and where the thread stands."""
        ...

    async def thread_pinned(self, thread: int, *, through: int, revision: int) -> list[bytes] | None:
        """The messages as they were for a run that began at this position and revision; None if some of them were
        edited and what they were is gone.
        """
        ...

    async def thread_rows(self, wanted: MessageFilter) -> tuple[list[MessageRow], int]:
        """Messages of a thread as they are listed, and how many match in all."""
        ...

    async def thread_size(self, thread: int) -> int:
        """The size of a thread's messages in bytes."""
        ...

    async def unfinished(self) -> int:
        """Returns the number of runs that have not ended."""
        ...

    async def waiting(self) -> int:
        """Returns the number of runs that wait for a time, a deadline or a person, and are not due. This reads only
        indexes.
        """
        ...

    async def blob(self, workspace: int, id: str) -> bytes | None:
        """The content of a blob; None if nothing refers to it any more."""
        ...


class LogStore(LogReader, Protocol):
    """The log half of an open store. All methods are called from one event loop.

    A store has one owner. From the moment another one opens it, nothing that the earlier owner writes takes effect,
    in either half: each such call raises `StoreError` (`store_in_use`), unless the store ends the process. Its claims
    do not fence those of the new owner, and closing its store does not mark the new owner's as cleanly closed.
    """

    @property
    def unclean(self) -> bool:
        """True if an owner died without closing the store and no later owner has called `charge_death`."""
        ...

    @property
    def held(self) -> bool:
        """True if the store comes from a backup and its runs have not been released yet."""
        ...

    async def lift_hold(self) -> None:
        """Durably releases the runs of a restored store."""
        ...

    def flush(self, writes: Sequence[Write]) -> Future[list[Written]]:
        """Writes in one transaction; a write that does not fit is left out without affecting the others.

        The future is done when those that fit are durable. Flushes take effect in call order, awaited or not.

        A `StoreError`, raised or in the future, means that nothing was written and that the same writes may succeed
        later. After any other exception, or too few results, nobody knows what was written: the runs are loaded again.

        The same transaction changes these records, with queries of `weftline.store.records`:

        * A new run on a thread takes a place in its queue (`thread_queues.take_place`); it is refused if the thread has
          ended, or if newer code has written to it. `NewRun.history` becomes the thread's messages.
        * `kept` adds messages to the thread of `keeps` (`thread_messages.keep`).
        * `edits` change messages that the run's thread has (`thread_messages.edit`).
        * `ThreadEnd` adds messages to the thread and passes it on to the next unfinished run (`thread_queues.end_run`),
          which becomes due.
        * `bookings` are added to their accounts, and `closes` closes one (`budgets.book`).
        * A run that ends, unless it is `imported`, and every await that it opens and does not answer at once creates a
          delivery for each enabled webhook of the workspace that subscribes to it (`deliveries.add`).
        """
        ...

    async def probe(self) -> None:
        """Makes a dummy write. Raises `StoreError` while the store accepts no writes."""
        ...

    def next_epoch(self) -> int:
        """An epoch that is higher than every earlier one, of claims too, whoever owned the store.

        It is for the write that creates a run, whose creator drives it without a claim, and for the holder of a run's
        latest claim, which may go on under a higher epoch. It fences nobody until something is written under it.
        """
        ...

    async def claim(self, key: int, *, kinds: Sequence[str]) -> Loaded | None:
        """Takes over a run to drive it. Every claim gets a new epoch, and writes of earlier claims no longer fit.

        It loads everything flushed before the claim. None for an unknown run.
        """
        ...

    def release(self, key: int, epoch: int) -> None:
        """Ends a claim, given its epoch or a later one that its holder went on under: the run is no longer driven.

        Earlier claims that have not been released stay fenced, even if this one has written nothing.
        """
        ...

    async def begin_trial(self, keys: Sequence[int]) -> None:
        """Records that this owner is about to recover these runs, before it touches them.

        A write that shows that something ended (`Progress.ENDED`) removes the record, and the suspicion with it.
        """
        ...

    async def end_trial(self, keys: Sequence[int]) -> None:
        """Removes the record of runs that cannot be loaded, or have nothing to do."""
        ...

    async def survived(self, keys: Sequence[int]) -> None:
        """The trial of these runs is over: the process is still alive, though nothing that they began has ended."""
        ...

    async def charge_death(self) -> None:
        """After an unclean death: turns the runs that the dead owner had on trial into suspects.

        A run that was on trial alone is charged with the death. If none was on trial, the runs that had survived their
        trial without progress are suspects, and each is charged, though not as alone. If there are none of those
        either, something else kills the process, and all charges are dropped. Each death is charged once.
        """
        ...

    async def trim(self, *, before: int, after: int, workspace: int | None) -> tuple[int, int]:
        """Removes the logs, except the last entry, of the next runs above key `after` that ended before that time.

        Blobs that nothing refers to after that are removed too. The messages of a thread are kept, and so are the blobs
        that they or the last entry refer to. Returns the last key examined (0 if no run is left) and how many runs had
        something to remove.
        """
        ...


class ReadStore(Protocol):
    """Both halves, open for reading alongside the owner."""

    @property
    def log(self) -> LogReader: ...
    @property
    def records(self) -> Database:
        """Read-only: `write` raises `StoreError`."""
        ...

    @property
    def vault(self) -> Vault: ...

    @property
    def folder(self) -> Path | None: ...

    async def close(self) -> None: ...


@runtime_checkable
class Store(Protocol):
    """Both halves, open."""

    @property
    def log(self) -> LogStore: ...
    @property
    def records(self) -> Database: ...
    @property
    def vault(self) -> Vault: ...
    @property
    def folder(self) -> Path | None:
        """The directory of the store, for its files; None if it has none."""
        ...

    @property
    def outlives_process(self) -> bool:
        """True if another process, and so other code, may continue its runs."""
        ...

    def announce(self, *, socket: str) -> None:
        """Publishes where the owner's socket is, for commands that cannot open the store themselves: its path, relative
        to the folder.
        """
        ...

    async def back_up(self, to: Path) -> Copied:
        """Copies a snapshot of the store, with its keys, to a new directory while others write.

        The copy is checked and held. Raises `StoreError` if `to` already exists.
        """
        ...

    async def shrink(self) -> int:
        """Returns some unused space to the disk; the result is the number of bytes, 0 at the end."""
        ...

    async def close(self) -> None:
        """Finishes what is queued, marks the store as cleanly closed and releases it. Closing again does nothing."""
        ...


def owned(store: ReadStore) -> Store:
    """Returns the store with what only its owner can do. Raises `StoreError` if it was opened for reading."""
    if not isinstance(store, Store):
        raise StoreError("The store was opened read-only.")
    return store
