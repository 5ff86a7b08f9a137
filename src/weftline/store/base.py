"""What a store is: its protocols, and the rows that cross them.

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
from enum import IntEnum
from pathlib import Path
from typing import Literal, NamedTuple, Protocol

from msgspec import Struct

from weftline.errors import WeftlineError
from weftline.kernel.entries import Fact
from weftline.messages import Blob
from weftline.store.awaits import AwaitFilter, NewAwait, OpenAwait
from weftline.store.budgets import Booking
from weftline.store.copies import Copied
from weftline.store.database import Database
from weftline.store.secrets import Vault

LEAVE_DUE = -1
"""A `due_at` that keeps the row's value: only the store knows when a run that is queued on its thread may start."""
GIVEN = "="
"""The prefix of `salt` for a run whose id was chosen by the client; the id follows. There is an index on these."""


ITEM_BYTES = 64
"""The overhead of an item beyond its content."""


# The log: what is written


class Item(Struct, gc=False):
    """One entry, or `count` observations of one kind whose bodies are joined by newlines.

    A fact has a head; observations have none, and only they can share an item.
    """

    at: int
    kind: str
    head: bytes
    body: bytes
    count: int = 1
    seq: int = 0
    """The number of its first entry, assigned by the store when it writes the item."""

    @property
    def last_seq(self) -> int:
        return self.seq + self.count - 1

    @property
    def size(self) -> int:
        return len(self.head) + len(self.body) + ITEM_BYTES


class IdempotencyKey(NamedTuple):
    """Identifies a repeated request to create a run or a thread."""

    route: str
    key: str
    digest: bytes
    """Digest of the body: another body under the same key is a conflict."""


class NewRun(Struct):
    """The columns that are written once, when the run is created."""

    salt: str
    """The random part of its id; or `GIVEN` and the client's id, which must be unique in the workspace."""
    workspace: int
    name: str
    metadata: str
    created_at: int
    rules: int
    thread: int | None = None
    agent: str | None = None
    family: int | None = None
    """For a child run: the thread of the top-level run above it. The child is listed there, but is not in its queue."""
    idempotency: IdempotencyKey | None = None
    secrets: bytes | None = None
    """Encrypted header values of the tools that the server calls; deleted when the run ends."""
    blobs: tuple[Blob, ...] = ()
    """The blobs that its messages refer to. A workspace keeps each once, while a run's log or a thread refers to it."""
    history: tuple[bytes, ...] = ()
    """For a fork: the earlier messages, which its new thread begins with."""


class ThreadEnd(Struct):
    """What the end of a run does to its thread: these messages are added, and the next queued run may start."""

    thread: int
    messages: list[bytes]


class Progress(IntEnum):
    """Whether a write shows progress of a run, which clears it of the suspicion that it kills the process."""

    NONE = 0
    STREAMED = 1
    ENDED = 2
    """Something that the run began has ended."""


class Write(Struct):
    """What one commit does to one run; at most one per run in a flush.

    It takes effect if the row still has `base_version` and `base_seq`, and there was no claim later than `epoch`. If
    `state` is None, the stored state, if any, is left unchanged; recovery folds the newer facts.
    """

    key: int
    epoch: int
    base_seq: int
    base_version: int
    items: list[Item]
    version: int
    status: str
    due_at: int | None
    """0 for immediately, a time, or None; `LEAVE_DUE` for a run that is queued on its thread."""
    format: int = 0
    """The version of the vocabulary that the items are written in."""
    state: bytes | None = None
    fold: int = 0
    """Which version of the fold made `state`."""
    progress: Progress = Progress.NONE
    started_at: int | None = None
    ended_at: int | None = None
    new: NewRun | None = None
    thread_end: ThreadEnd | None = None
    children: tuple[Write, ...] = ()
    """New runs that are created in the same transaction.

    A child has no thread and no history. It has entries and a row, and nothing else in this write: a child that opens
    awaits, books anything, wakes another run or has children fails together with its parent's write.
    """
    wakes: int | None = None
    """A run that becomes due immediately unless it has ended: the parent of a run that ends."""
    awaits: tuple[NewAwait, ...] = ()
    answered: tuple[str, ...] = ()
    """The ids of awaits that are not open after this write, even if it opens them."""
    bookings: tuple[Booking, ...] = ()
    """What its facts add to accounts in the budget tree."""
    closes: str | None = None
    """The run's account, if it has one and ends here."""
    imported: bool = False
    """The run was imported and ended elsewhere: no webhook is notified."""
    facts: list[Fact] = []
    """The facts among the items, decoded, for those who are notified of the commit. The store does not use them."""
    size: int = 0
    """The bytes of the items, counted by whoever limits how much is queued."""


class Written(Struct):
    """The outcome of one `Write`.

    `refused`: nothing was written, and the same write may succeed later (disk full, store locked). `conflict`: the row
    is not what the writer assumed, so the write will never succeed. `failed`: it will never succeed, for another
    reason.
    """

    outcome: Literal["ok", "refused", "conflict", "failed"] = "ok"
    error: WeftlineError | None = None
    queued: bool = False
    """For a new run on a thread: it waits for earlier runs of the thread."""
    promoted: int | None = None
    """The run of the thread that may start now."""


# The log: what is read


class RunRow(Struct):
    key: int
    salt: str
    """See `NewRun`."""
    workspace: int
    thread: int | None
    name: str
    agent: str | None
    metadata: str
    status: str
    created_at: int
    started_at: int | None
    ended_at: int | None
    next_seq: int
    version: int
    epoch: int
    due_at: int | None
    rules: int
    format: int
    """The version of the vocabulary of its latest entries."""
    thread_format: int
    """The version of the vocabulary of its thread's messages; 0 if it has no thread."""
    queued: bool
    """Whether it waits for earlier runs of its thread."""
    state: bytes
    state_seq: int
    """The last seq that `state` has folded."""
    fold: int
    trial_size: int
    """How many runs, including this one, were on trial when the process last died; 0 if it is not a suspect.
    SQLite's column is `suspect`.
    """
    deaths_alone: int
    """How often the process died while this run was on trial alone, without progress since. SQLite's column is
    `alone`.
    """
    deaths: int
    """How often it was charged with a death: alone, whatever its progress, or long after its trial began."""
    family: int | None = None
    """See `NewRun`."""
    damaged: str = ""
    """The first damaged column, or ""; see `weftline.store.columns`."""

    @property
    def listed_under(self) -> int | None:
        """The thread that it belongs to, directly or through the runs above it."""
        return self.family if self.thread is None else self.thread

    @property
    def changed_at(self) -> int:
        """When it ended, else when it began to run, else when it was created."""
        return self.ended_at or self.started_at or self.created_at


class LargeEntry(Exception):
    """An item of the log is larger than the caller's limit."""

    def __init__(self, size: int) -> None:
        super().__init__(f"The entry has {size} bytes.")
        self.size = size


class Page(Struct, frozen=True):
    """Part of a run's log after a cursor: a consistent view, even while retention removes entries."""

    items: list[Item]
    last_seq: int
    """The seq up to which this page is complete; anything missing below it was removed by retention."""
    upto: int
    """The last seq of the run's log when the page was read."""
    ended: bool
    """Whether the run had ended by then."""
    format: int = 0
    """The version of the run's log. If it is known, entries that cannot be decoded are damaged."""


class Loaded(Struct):
    """Everything needed to continue a run, read at one moment."""

    row: RunRow
    epoch: int
    """The epoch of this claim, higher than that of any earlier claim of the run. Nothing else can be read from it."""
    taken_over: bool
    """Whether the latest write to the run came from an earlier owner of the store: nobody may have driven it since."""
    created_body: bytes
    """The body of its first entry."""
    facts: list[Item]
    """The facts newer than the row's state; all of them if it has none yet."""
    conversation: list[Item]
    """All entries of the requested kinds."""
    history: list[bytes]
    """The messages of its thread, oldest first."""
    secrets: bytes | None = None


class DueRun(Struct, frozen=True):
    """A run that is due immediately."""

    key: int
    trial_size: int
    deaths_alone: int
    deaths: int
    rules: int
    format: int
    thread_format: int
    """As in `RunRow`, like the two before it."""
    created_head: bytes = b""
    """The head of its first entry."""

    @property
    def ended_at(self) -> None:
        """A run that is due has not ended."""


class TimedRun(Struct, frozen=True):
    """A run that was waiting for a time."""

    due_at: int
    key: int
    workspace: int
    rules: int
    format: int
    thread_format: int
    """As in `RunRow`, like the two before it."""

    @property
    def ended_at(self) -> None:
        """A run that is due has not ended."""


class RunFilter(Struct, frozen=True, kw_only=True):
    """What a page of runs must match, and where it begins: below the key `before`."""

    workspace: int | None = None
    before: int | None = None
    limit: int = 50
    statuses: tuple[str, ...] = ()
    given_prefix: str | None = None
    """Only runs whose id was chosen by the client and begins with this."""
    not_given: bool = False
    """Only runs with a generated id."""
    thread: int | None = None
    with_children: bool = False
    """Also the runs below those of the thread."""
    agents: tuple[str, ...] = ()
    """Only runs of these agents, if any are given."""
    metadata: tuple[tuple[str, str], ...] = ()
    changed_since: int | None = None
    """Only runs whose status has changed at this time or later."""
    by_change: bool = False
    """Sorts by the time of the last change of status, the latest first. The page then begins below `before_change`."""
    before_change: tuple[int, int] | None = None
    """When the last run of the previous page changed, and its key."""


class LogReader(Protocol):
    """What can be read from the log, even by a process that does not own the store."""

    async def run(self, key: int) -> RunRow | None: ...

    async def given(self, run_id: str, *, workspace: int | None) -> list[int]:
        """The runs that a client created with this id: at most one in each workspace."""
        ...

    async def runs(self, wanted: RunFilter) -> list[RunRow]:
        """Runs that match, newest first."""
        ...

    async def count_runs(self, wanted: RunFilter) -> int:
        """How many runs match, wherever the page begins."""
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

    async def thread_messages(self, thread: int) -> list[bytes]: ...

    async def thread_size(self, thread: int) -> int:
        """The size of a thread's messages in bytes."""
        ...

    async def unfinished(self) -> int:
        """How many runs have not ended."""
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
    def id(self) -> str:
        """Part of every idempotency key: another store means another timeline."""
        ...

    @property
    def unclean(self) -> bool:
        """Whether an owner died without closing the store and no later owner has called `charge_death`."""
        ...

    @property
    def held(self) -> bool:
        """Whether the store comes from a backup and its runs have not been released yet."""
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

    async def close(self) -> None: ...


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
        """Whether another process, and so other code, may continue its runs."""
        ...

    def announce(self, *, admin_socket: str) -> None:
        """Publishes the address of the owner's control interface, for commands that cannot open the store
        themselves.
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
