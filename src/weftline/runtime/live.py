"""A run in memory, `LiveRun`, consists of four parts, each with its owner:

* `RunLog`, the log's: state and cursor, the contents of the store's row (`LiveRow`, `StoredState`), and what is about
  to be written (`Outbox`);
* `Residency`, the engine's: whether anyone drives the run;
* `WorkingSet`, the content: the plan, the conversation, the tools;
* `Driving`, the driver's: what is running.
"""

from __future__ import annotations

import asyncio
from enum import Enum
from typing import Protocol

from msgspec import Struct, field

from weftline.kernel.bodies import TurnBody
from weftline.kernel.context import CompactionFailed, ContextCompacted
from weftline.kernel.entries import AttemptFailed, AwaitClosed, AwaitOpened, Fact, RunCreated
from weftline.kernel.seats import SeatTaken
from weftline.kernel.state import Command, Doubt, State
from weftline.plan import RunPlan
from weftline.providers.assemble import Assembler
from weftline.providers.catalog import Catalog
from weftline.runtime import ids
from weftline.runtime.budgets.ledger import Account
from weftline.runtime.conversation import Conversation
from weftline.runtime.tool_calls.toolbox import Toolbox
from weftline.store.pieces import Split
from weftline.store.rows import LEAVE_DUE, KeptMessage, MessageEdit, NewAwait, NewRun, Progress, Write

STATE_BYTES = 8 * 1024
"""Up to this many bytes of facts, folding them again is cheaper than storing the state."""


class Residency(Enum):
    """The phase that a run in memory is in. `LiveRun.move` allows nothing else:

        created or loaded                          created or loaded with earlier runs in its thread
              │                                                  │
              ▼             no earlier run is left               ▼
           PARKED ◀─────────────────────────────────────────── BEHIND
            │  ▲ ▲
            │  │ └──────── cancelled in the queue ─────┐
            │  └────────── nothing left to do ─────────│─────────┐
            │                                          │         │
            └──────────── something to do ──▶ SCHEDULED ──▶ DRIVEN
                                                    a free slot
           any ──▶ GONE    ended, out of memory for a while, or starts over from its log

    A run that is GONE is never used again: it has to be loaded again.
    """

    PARKED = "parked"
    """Not driven: it waits for someone outside, for a time, or for its first driver."""
    BEHIND = "behind"
    """Waits for earlier runs of its thread."""
    SCHEDULED = "scheduled"
    """Waits for a driver."""
    DRIVEN = "driven"
    GONE = "gone"

    next: tuple[Residency, ...]
    """The phases that may follow."""


PARKED, BEHIND, SCHEDULED, DRIVEN, GONE = Residency
"""Aliases, because looking up an enum member costs ten times as much as an attribute."""
PARKED.next = (SCHEDULED, GONE)
BEHIND.next = (PARKED, GONE)
SCHEDULED.next = (DRIVEN, PARKED, GONE)
DRIVEN.next = (PARKED, GONE)
GONE.next = (GONE,)


class Draft(Struct, gc=False):
    """A fact that is not durable yet. `turn` avoids decoding the body of a turn that was just encoded."""

    head: Fact
    body: bytes = b""
    turn: TurnBody | None = None
    child: Write | None = None
    """The run that is created in the same transaction as this fact."""
    edits: tuple[MessageEdit, ...] = ()
    put: tuple[KeptMessage, ...] = ()
    """Changes to messages of the run's thread, and new ones, that this fact tells the run about."""
    encoded: bytes = b""
    """The head as it is stored, if that is known."""
    parts: Split | None = None
    """The body as it is stored, if that is known."""


class Waiter(Struct):
    seq: int
    future: asyncio.Future[None]
    outside: bool
    """An outside caller is waiting, and gets an error if the store refuses the write."""


class LiveRow(Struct, eq=False, gc=False):
    """The run's row in the store, and the times that it will have after the next write."""

    version: int = 0
    due_at: int | None = LEAVE_DUE
    started_at: int | None = None
    ended_at: int | None = None
    latest: int = 0
    """The latest of its times: no later one may be before it, even if the clock is set back."""

    def starts(self, at: int) -> None:
        """Called when a model is called: records when the run started, if it had not."""
        if self.started_at is None:
            self.started_at = self.latest = max(at, self.latest)

    def ends(self, at: int) -> None:
        self.ended_at = max(at, self.latest)


class StoredState(Struct, eq=False, gc=False):
    """The state in the row, from which the next process starts, and how much would have to be folded on top of it."""

    size: int = 0
    newer: int = 0
    """Bytes of facts that are newer than it."""
    doubts: tuple[Doubt, ...] = ()
    """The calls in doubt that it contains, as far as this process has stored it."""

    def is_stale(self, state: State) -> bool:
        """Returns True if the state should be stored again, given the current one.

        It is stored when the run ends, and before that only once the newer facts take up as many bytes as it does, even
        when the run parks: a large batch parks after each answer. Loading the run folds what is newer. A new call in
        doubt is stored at once, because lists and snapshots display it without reading the log.
        """
        if not self.newer:
            return False
        ended = state.step == "ended"
        return ended or state.guards.doubts is not self.doubts or self.newer >= max(self.size, STATE_BYTES)

    def store(self, state: State, size: int) -> None:
        self.size, self.newer, self.doubts = size, 0, state.guards.doubts

    def was_refused(self) -> None:
        """It is stored with the next write."""
        self.newer = max(self.newer, self.size, STATE_BYTES)


class Outbox(Struct, eq=False, gc=False):
    """Entries to write: those that wait for the next flush, and those of the current one.

    append ──▶ pending ── take ──▶ flight ──▶ written
                  ▲                   │
                  └──── put_back ─────┘ refused
    """

    pending: Write | None = None
    flight: Write | None = None
    flight_seq: int = 0
    """The last seq of `flight`."""
    size: int = 0
    """The bytes of both."""

    @property
    def empty(self) -> bool:
        return self.pending is None and self.flight is None

    def take(self, last_seq: int) -> Write:
        """Takes what is pending, to be written now, up to this seq."""
        write = self.pending
        assert write is not None
        self.pending, self.flight, self.flight_seq = None, write, last_seq
        return write

    def put_back(self, write: Write) -> bool:
        """Puts a refused write back, before whatever was added since. Returns whether nothing was."""
        later, self.pending = self.pending, write
        if later is None:
            return True
        write.items += later.items
        write.facts += later.facts
        write.size += later.size
        write.thread_end = later.thread_end or write.thread_end
        write.seated = later.seated or write.seated
        write.kept += later.kept
        write.edits += later.edits
        write.keeps = later.keeps if write.keeps is None else write.keeps
        write.progress = max(write.progress, later.progress)
        write.children += later.children
        write.awaits += later.awaits
        write.answered += later.answered
        write.bookings += later.bookings
        write.closes = write.closes or later.closes
        write.wakes = later.wakes if write.wakes is None else write.wakes
        return False


class RunLog(Struct, eq=False):
    """State and cursor. `state` and `next_seq` run ahead of the log; `durable` survives a crash."""

    epoch: int
    state: State = State()
    next_seq: int = 1
    durable: int = 0
    outcome_seq: int = 0
    """The first seq of the append that has the latest outcome of a model call; it is durable if that is."""
    due_at: int | None = 0
    """For the row: 0 for now, a time, or None if only someone outside can advance the run."""
    taken_over: bool = False
    """Whether its latest entry is from another process, so that the time since then does not count as active."""
    waiters: list[Waiter] | None = None
    row: LiveRow = field(default_factory=LiveRow)
    stored: StoredState = field(default_factory=StoredState)
    outbox: Outbox = field(default_factory=Outbox)

    def pop_waiters(self) -> list[Waiter]:
        waiters, self.waiters = self.waiters, None
        return waiters or []

    def wake(self) -> None:
        """Wakes those who wait for what is durable now."""
        later: list[Waiter] = []
        durable = self.durable
        for waiter in self.waiters or ():
            if waiter.seq > durable:
                later.append(waiter)
            elif not waiter.future.done():
                waiter.future.set_result(None)
        self.waiters = later or None

    @property
    def status(self) -> str:
        state = self.state
        if state.status != "running":
            return state.status
        if state.questions.open and state.waits_for_people:
            return "paused"
        return "running" if state.totals.attempts else "queued"


class NestedCaller(Protocol):
    """A running call that may ask for others."""

    @property
    def skip_on_drain(self) -> bool:
        """True if waiting for it is useless once no further call may begin."""
        ...

    def deliver_results(self) -> None:
        """Called when facts were appended, some of which may answer it."""
        ...


class WorkingSet(Struct, eq=False):
    """The content of a run: what `step` and `carry_out` need besides its state. Any engine can create one."""

    run_id: str
    plan: RunPlan
    conversation: Conversation
    unique_id: str = ""
    """An id that no other run of the store has, in any workspace."""
    secrets: bytes | None = None
    """Encrypted header values of the tools that the server calls."""
    blobs: dict[str, bytes] = {}
    """The blobs that came with the run, until it is opened."""
    nested_callers: dict[int, NestedCaller] = {}
    """The running calls that ask for others, by index."""
    toolbox: Toolbox | None = None
    logged_toolbox: Toolbox | None = None
    """The latest whose tools this process has written to the log."""
    catalog: Catalog | None = None
    workspace_slug: str = ""
    store_id: str = ""
    """The id of the store, once the run is opened."""
    session_id: str | None = None
    """The session id of its thread; a child run has that of its top-level run."""
    account: Account | None = None
    """Where its spending is booked; None if it is not, as in a replay."""
    answering: Assembler | None = None
    """What the current attempt has received so far, or an interrupted one of an earlier process; None before the first
    byte.
    """

    def drop_blobs(self, durable: asyncio.Future[None]) -> None:
        """Drops the blobs once they are durable and can be read again, since a run may be queued for long. Keeps them
        if the caller has gone away, because that proves nothing.
        """
        if not durable.cancelled() and durable.exception() is None:
            self.blobs.clear()


class Cut(Enum):
    """Progress of stopping the work of a cancelled run: NO ──▶ BEGUN ──▶ DONE."""

    NO = "no"
    BEGUN = "begun"
    """Its driver is cancelled and has some time to leave. Nothing else is decided before that."""
    DONE = "done"


CUT_BEGUN = Cut.BEGUN
"""An alias, as above."""


WATCHING = (-1, -5, 0)
"""The key of the task in which the agent's watchers are called; no command has it."""


class Driving(Struct, eq=False):
    """The part of a run that only its driver needs."""

    cut: Cut = Cut.NO
    aborted: asyncio.Event | None = None
    """Set when the run is cancelled, if its agent's code has asked for it."""
    opening: asyncio.Lock | None = None
    """Held while the tools are created, for this driver or that of a child run."""
    opened: bool = False
    """Whether tools, models and history are loaded, and work left by an earlier driver is adopted."""
    waits_to_open: bool = False
    """Whether its driver is waiting for that."""
    due_at: int | None = None
    """When the run needs attention while its commands are running."""
    tasks: dict[tuple[int, int, int], asyncio.Task[None]] = {}
    """Running commands by (turn, index, attempt), if there may be several, and the agent's watchers (`WATCHING`)."""
    commands: dict[tuple[int, int, int], Command] = {}
    """The commands of these tasks, and of some earlier ones."""
    dropped: dict[asyncio.Task[None], None] = {}
    """Cancelled commands that the run no longer needs, until they have ended. An empty set would cost the garbage
    collector something.
    """
    wake: asyncio.Future[None] | None = None
    facts: tuple[Fact, ...] = ()
    """Facts that were appended since the run was opened and that the agent's code has not seen yet."""
    introduced: bool = False
    """Whether the agent's code has heard of the run."""
    rested_at: int = -1
    """The version at which the latest step found nothing to do; -1 if it found something."""

    @property
    def is_opening(self) -> bool:
        return self.opening is not None and self.opening.locked()

    @property
    def is_getting_ready(self) -> bool:
        """True if a driver has nothing under way yet: the tools are being opened, or watchers hold its commands
        back.
        """
        return self.waits_to_open or (WATCHING in self.tasks and len(self.tasks) == 1)

    def pop_facts(self) -> tuple[Fact, ...]:
        facts, self.facts = self.facts, ()
        return facts


class LiveRun(Struct, eq=False):
    key: int
    workspace: int
    thread: int | None
    log: RunLog
    work: WorkingSet
    family: int | None = None
    """For a child run: the thread of the top-level run above it."""
    residency: Residency = PARKED
    driving: Driving = field(default_factory=Driving)
    task: asyncio.Task[None] | None = None
    new: NewRun | None = None
    """The row to be created with the first write."""
    touched_s: float = 0.0

    @property
    def id(self) -> str:
        return self.work.run_id

    @property
    def listed_under(self) -> int | None:
        """The thread that it belongs to, directly or through the runs above it."""
        return self.family if self.thread is None else self.thread

    @property
    def parent(self) -> int | None:
        """The key of the run whose call it executes."""
        parent = self.log.state.parent
        return None if parent is None else ids.parent_key(parent)

    @property
    def state(self) -> State:
        return self.log.state

    @property
    def gone(self) -> bool:
        return self.residency is GONE

    @property
    def active(self) -> bool:
        """True if it has a driver or is queued for one."""
        return self.residency is DRIVEN or self.residency is SCHEDULED

    def move(self, to: Residency) -> None:
        if to not in self.residency.next:
            raise RuntimeError(f"run {self.id} cannot go from {self.residency.value} to {to.value}")
        self.residency = to

    def wake(self) -> None:
        """Wakes the driver when it waits for its commands."""
        wake = self.driving.wake
        if wake is not None and not wake.done():
            wake.set_result(None)


NOTED: frozenset[type[Fact]] = frozenset(
    {RunCreated, AttemptFailed, ContextCompacted, CompactionFailed, AwaitOpened, AwaitClosed, SeatTaken}
)


def note_fact(run: LiveRun, write: Write, head: Fact, body: bytes, *, at: int, state: State) -> None:
    """Adds what one of the `NOTED` facts changes. `state` has all facts of the append folded."""
    match head:
        case RunCreated():
            run.log.row.latest = at
            if run.new is not None:
                run.new.created_at = at
        case AttemptFailed():
            run.log.outcome_seq = run.log.next_seq
            if head.reason == "error":
                write.progress = Progress.ENDED
        case ContextCompacted():
            run.log.outcome_seq, write.progress = run.log.next_seq, Progress.ENDED
        case CompactionFailed():
            run.log.outcome_seq = run.log.next_seq
        case AwaitOpened():
            write.awaits += (_new_await(run, head, body, at, state=state),)
        case AwaitClosed():
            write.answered += (head.id,)
        case SeatTaken(why="handoff") if run.thread is not None:
            write.seated = run.thread, head.name.rpartition("/")[0]
        case _:
            pass


def _new_await(run: LiveRun, head: AwaitOpened, body: bytes, at: int, *, state: State) -> NewAwait:
    parent = run.state.parent
    root = run.key if parent is None else ids.root_key(parent)
    deadline_at = None if head.timeout_us is None else at + head.timeout_us
    tool = state.batch.calls[head.index].name if 0 <= head.index < len(state.batch.calls) else ""
    return NewAwait(head.id, run.workspace, root, head.kind, at, deadline_at, body, tool)
