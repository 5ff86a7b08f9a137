"""The rows that cross the protocols of a store: what is written to the log, and what is read from it."""

from __future__ import annotations

from enum import IntEnum
from typing import Literal, NamedTuple

from msgspec import Struct

from weftline.errors import WeftlineError
from weftline.kernel.entries import Fact
from weftline.messages import Blob
from weftline.store.budgets import Booking
from weftline.store.pieces import Split

KINDS = ("question", "confirm", "plan", "doubt", "clarification", "deploy", "budget")
"""The kinds of awaits. The first approves nothing, so it stands in for a damaged one."""


class NewAwait(Struct, frozen=True):
    """A question to a person that a run opens. The store lists it until the run closes it."""

    id: str
    workspace: int
    root: int
    """The top-level run, which people know: its own, unless it is a child."""
    kind: str
    opened_at: int
    deadline_at: int | None
    body: bytes
    """The same bytes as in the log."""
    tool: str = ""
    """The tool whose call it is about."""


class OpenAwait(Struct, frozen=True):
    """An open question to a person, with details of its run."""

    run: int
    salt: str
    id: str
    workspace: int
    root: int
    root_salt: str
    thread: int | None
    agent: str | None
    """The agent of the run, or else of the top-level run."""
    name: str
    """The name of the run."""
    kind: str
    opened_at: int
    deadline_at: int | None
    body: bytes
    """Empty if it was not read, because those before it have used up `AwaitFilter.max_bytes`."""
    unread: bool = False
    damaged: str = ""
    """The first damaged column, or ""; see `weftline.store.database`."""


class AwaitFilter(Struct, frozen=True, kw_only=True):
    """A filter of open awaits, and the place where a page begins: after the run and id in `after`."""

    workspace: int
    after: tuple[int, str] = (0, "")
    limit: int = 50
    max_bytes: int | None = None
    """How many bytes of bodies, which may be large, are read: as many as fit, and always the first unless this is 0."""
    id: str | None = None
    run: int | None = None
    root: int | None = None
    """Only those of this run and, if it is a top-level run, of all runs below it.

    `runtime.reads.below` finds those of any run.
    """
    thread: int | None = None
    agents: tuple[str, ...] = ()
    kinds: tuple[str, ...] = ()
    due_before: int | None = None
    """Only those whose deadline comes before this time."""
    tool: str | None = None
    opened_until: int | None = None
    """Only those that were already open at this time."""


LEAVE_DUE = -1
"""A `due_at` that keeps the row's value: only the store knows when a run that is queued on its thread may start."""
GIVEN = "="
"""The prefix of `salt` for a run whose id was chosen by the client; the id follows. There is an index on these."""
ITEM_BYTES = 64
"""The overhead of an item beyond its content."""


# What is written


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
    parts: Split | None = None
    """The body without its long strings, if it has been taken apart already: that takes milliseconds for a large one,
    and whoever commits next would wait for it.
    """

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


class KeptMessage(Struct, frozen=True, gc=False):
    """A message that a run adds to its thread as soon as there is one, and what is stored of it besides its content."""

    id: str
    role: str
    message: bytes
    created_at: int
    sent_at: int | None = None
    """Of an answer: when the model was asked."""
    silent: bool = False
    status: str = "completed"
    tool_status: str | None = None
    calls: int = 0
    """Of an answer: how many results follow."""
    asked_by: str | None = None
    """Of a result: the answer that asked for the call."""
    place: int = 0
    """Of a result: the call's place in that answer."""
    metadata: str = "{}"
    origin: str | None = None
    """Of a message that code added: the same however often the code is run for one call."""


class MessageEdit(Struct, frozen=True):
    """A change to a message of a thread."""

    thread: int
    pos: int
    revision: int
    """How often the thread's messages have been edited, with this one."""
    index: int
    """How many messages that models read come before it."""
    message: bytes | None = None
    """What it is now; None if it is gone."""
    metadata: str = "{}"
    silent: bool = False
    keep: bool = False
    """Whether a run reads the thread as it was before."""


class ThreadEnd(Struct):
    """The change to a thread at the end of a run: these messages are added, and the next queued run may start."""

    thread: int
    messages: list[bytes]
    read: bool = False
    """Whether the run has begun, and so knows of all edits before its end."""


class Progress(IntEnum):
    """Progress of a run in a write, which clears it of the suspicion that it kills the process."""

    NONE = 0
    STREAMED = 1
    ENDED = 2
    """Something that the run began has ended."""


class Write(Struct):
    """The changes of one commit to one run; at most one per run in a flush.

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
    seated: tuple[int, str] | None = None
    """The thread that was handed over, and the agent that speaks on it from now on."""
    kept: tuple[KeptMessage, ...] = ()
    """What it adds to the thread of `keeps`, before its end."""
    keeps: int | None = None
    edits: tuple[MessageEdit, ...] = ()
    """Changes to earlier messages of its thread."""
    children: tuple[Write, ...] = ()
    """New runs that are created in the same transaction.

    A child has no thread and no history. It has entries and a row, and nothing else in this write: a child that opens
    awaits, books anything, wakes another run or has children fails together with its parent's write.
    """
    wakes: int | None = None
    """A run that becomes due immediately unless it has ended: the parent of a run that ends."""
    awaits: tuple[NewAwait, ...] = ()
    """Those that it opens. If one of them is open already, the write is a conflict."""
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


# What is read


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
    """The first damaged column, or ""; see `weftline.store.database`."""

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


class History(Struct, frozen=True):
    """The messages of a thread for a run that begins, oldest first."""

    messages: list[bytes]
    through: int = 0
    """The position of the thread's last message."""
    revision: int = 0
    """How often its messages have been edited."""
    edited_upto: int | None = None
    """How many of them, from the first, no edit has changed since the thread's latest run began; None for all."""


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
    """A filter of runs, and the place where a page begins: below the key `before`."""

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


class Unreadable(Struct, frozen=True):
    """Something in a store that cannot be read. `key` is that of its run, if it belongs to one."""

    what: str
    run: int = 0
    salt: str = ""


class Copied(Struct, frozen=True):
    """A copy of a store: its size, and what was found in it that cannot be read."""

    bytes: int
    unreadable: int = 0
    examples: tuple[Unreadable, ...] = ()
    """The first few of these."""


class Salvaged(Struct):
    """A copy of what could be read of a damaged store. Runs are given as key and salt."""

    damaged: list[str]
    """The tables that have lost rows."""
    bytes: int = 0
    whole: int = 0
    """How many runs are there with their whole log."""
    shortened: list[tuple[int, str]] = []
    """Those that had ended and have lost part of their log: what is left is how they ended."""
    failing: list[tuple[int, str]] = []
    """Those that had not ended and have lost part of their log: they will end as `worker_error`."""
    lost: int = 0
    """How many runs are lost of which something can still be seen. Others may have left no trace."""
    unreadable: int = 0
    """How many other values cannot be read: specs, messages of sessions, attachments."""
