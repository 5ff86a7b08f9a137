"""The engine protocol: everything that the server, the commands and the library can do with runs.

`Engine` is what an engine has to do itself. What is read comes from the store and is the
same for every engine: `weftline.runtime.reads.reading.StoredRuns`.

Whatever is accepted is durable when the call returns. Every engine behaves the same towards its clients; the suite in
`weftline.testing.engine` defines how.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from types import CoroutineType, TracebackType
from typing import Any, Protocol, Self, TypeAlias, TypedDict, TypeVar, Unpack

from msgspec import Struct

from weftline.kernel.bodies import Origin
from weftline.kernel.control import LEASE_US
from weftline.kernel.entries import AwaitOutcome, Fact
from weftline.messages import Blob
from weftline.plan import RunPlan
from weftline.runtime.clock import Clock
from weftline.runtime.metrics import Measured
from weftline.runtime.people.answering import AwaitAnswer
from weftline.runtime.people.await_answers import PersonOf
from weftline.runtime.reads.calls import CancelReceipt
from weftline.runtime.reads.reading import StoredRuns
from weftline.runtime.thread_messages import ThreadMessages
from weftline.runtime.tool_calls.provided import NO_PROBLEMS, Problems, Provided
from weftline.store.rows import IdempotencyKey, Item, Write, Written
from weftline.tools.base import ToolOutput

T = TypeVar("T")

DRAIN_S = 30.0
"""How long running work may take to finish when an engine is stopped."""
QUIET_BEATS = 3
"""A follower that has received nothing since the previous ones is woken by this beat: after two to three intervals.
"""


class CreateOptions(TypedDict, total=False):
    """Options for creating a run, in addition to its plan."""

    sent: bytes | None
    """The client's own bytes, returned in snapshots."""
    thread: int | None
    metadata: str
    idempotency: IdempotencyKey | None
    secrets: bytes | None
    """The headers of the tools that the server calls, encrypted by the store's vault."""
    blobs: Sequence[Blob]
    """The contents that the plan's messages refer to."""
    origin: Origin | None
    """Where a fork begins."""
    run_id: str | None
    """Replaces a generated id. Raises `InvalidRequest` if it is not valid and `Conflict` (`run_exists`) if it is
    taken.
    """
    history: Sequence[bytes]
    """The messages before that, which its thread begins with."""


class Create(Protocol):
    """`Engine.create`."""

    def __call__(
        self, workspace: int, plan: RunPlan, **options: Unpack[CreateOptions]
    ) -> CoroutineType[Any, Any, str]: ...


class EntryBatch(Struct, eq=False, gc=False):
    """Consecutive entries of one run, from one commit or from one page of its log.

    `ended` means that the last one is the last of the run. `heads` has the decoded facts, in order, of a batch that
    comes from a commit; None for one read from the log. `missing` is the range of seqs that retention has removed
    before the first item. `newer` means that newer code has written to the run; otherwise an entry that cannot be
    decoded is damaged.
    """

    run_id: str
    items: Sequence[Item]
    size: int
    last_seq: int
    ended: bool
    after: int = 0
    """Observations of the first item up to this seq have already been read."""
    heads: Sequence[Fact] | None = None
    missing: tuple[int, int] | None = None
    newer: bool = False
    key: int = 0
    """The key of the run, in a batch that comes from a commit."""
    views: dict[Any, Any] = {}
    """What was made of it and is kept, by what made it; see `view`."""

    def view(self, project: Callable[[EntryBatch], T]) -> T:
        """The result of `project` for the batch, computed once however many clients follow the run."""
        if project not in self.views:
            self.views[project] = project(self)
        return self.views[project]


Observer: TypeAlias = Callable[[EntryBatch], object]
"""Receives what was committed, run by run in the order of the log. It is called on the loop and must return at once."""


class Resumed(Struct, frozen=True):
    """The outcome of releasing the runs of a store."""

    held: bool
    """Whether they were held until then."""
    runs: int
    """How many have not ended."""


class Leased(Struct, frozen=True):
    """A call that a client has claimed. `attempt` counts how often it was offered."""

    token: str
    until: int
    lease_us: int
    attempt: int


class Follower(Protocol):
    """Follows one run from a cursor."""

    taken: int
    """The last seq that the reader has received."""
    left: bool
    """Whether the reader has disconnected."""
    follows_below: bool
    """Whether an empty list also means that a run below this one has advanced, or that its awaits have changed."""

    async def next(self) -> Sequence[EntryBatch] | None:
        """The batches that are due, at least one; an empty list after `QUIET_BEATS` without any; None at the end."""
        ...

    def rewind(self, seq: int) -> None:
        """Continues after `seq`, which is at most `taken`; drops what is queued, since the log has it."""
        ...

    def leave(self) -> None:
        """Called when the reader has disconnected: `next` returns None."""
        ...

    def close(self) -> None: ...


class StreamPlace(Protocol):
    """A place among a workspace's streams, which can be reserved before there is a run to follow."""

    def follow(self, key: int, run_id: str, *, after: int = 0) -> Follower:
        """Uses the place; the follower releases it when it is closed."""
        ...

    def release(self) -> None:
        """Releases a place that was not used."""
        ...


class Engine(Protocol):
    """What every engine does; see the module."""

    @property
    def stored(self) -> StoredRuns:
        """Reads runs and threads from the store, in the same way for every engine."""
        ...

    @property
    def messages(self) -> ThreadMessages:
        """Reads and changes the messages of threads."""
        ...

    async def locate(self, run_id: str, *, workspace: int) -> int:
        """The key of a run. Raises `NotFound` for an unknown id and for a run of another workspace alike."""
        ...

    # Readiness of an engine to take requests, and of its runs to proceed

    @property
    def clock(self) -> Clock: ...

    def require_accepting(self) -> None:
        """Raises `Unavailable` while the engine is starting or stopping, or its store refuses writes."""
        ...

    def require_writable(self) -> None:
        """Raises `Unavailable` while the store refuses writes."""
        ...

    async def wait_released(self) -> None:
        """Returns when runs may proceed: at once, unless the store comes from a backup and is held."""
        ...

    async def resume_all(self) -> Resumed:
        """Lets the runs of a restored store continue."""
        ...

    # Creating runs

    async def check(self, plan: RunPlan, *, workspace: int, runs_now: bool = True) -> None:
        """Raises `WeftlineError` for models and tools that the workspace lacks, and for settings that a model rejects.

        A plan that names no model needs a default model only if it `runs_now`.
        """
        ...

    async def create(self, workspace: int, plan: RunPlan, **options: Unpack[CreateOptions]) -> str:
        """Accepts a run and returns its id, or that of the run that was created under the same key before.

        Raises `RateLimited` (`too_many_runs`) if too many runs of the workspace are queued, unless it was created
        before.
        """
        ...

    async def created_before(self, workspace: int, idempotency: IdempotencyKey) -> str | None:
        """The run that an earlier request with this key created, if there was one; `create` returns it too.

        Raises `Conflict` (`idempotency_conflict`) if that request had another body.
        """
        ...

    async def add_ended(self, write: Write, *, last_key: int) -> Written:
        """Adds runs that ran elsewhere and have ended. No new run gets a key up to `last_key`."""
        ...

    # Messages to a run under way, and its pauses

    async def steer(
        self,
        key: int,
        text: str,
        *,
        message_id: str = "",
        by: str = "",
        labels: Mapping[str, str] | None = None,
        idempotency_key: str = "",
    ) -> str:
        """Gives a message to the run at its next turn; calls that have not begun by then are skipped.

        `message_id`, the sender's own id for it, is stored with it, and so are `labels` and `by`, the sender's name:
        anyone who sends a run instructions counts for the four-eyes rule. Returns the id of the message. With an
        `idempotency_key`, the same message is accepted once, and a different one raises `Conflict`
        (`idempotency_conflict`).
        """
        ...

    async def follow_up(
        self,
        key: int,
        text: str,
        *,
        by: str = "",
        labels: Mapping[str, str] | None = None,
        idempotency_key: str = "",
    ) -> str:
        """Gives a message to the run when it would otherwise end; otherwise like `steer`."""
        ...

    async def pause(
        self, key: int, *, reason: str = "", requested_by: str = "", labels: Mapping[str, str] | None = None
    ) -> None:
        """Finishes work in progress and starts nothing new until `resume`. Pausing a paused run changes nothing.

        Raises `Forbidden` (`interrupts_not_allowed`) if the run does not allow it.
        """
        ...

    async def resume(
        self,
        key: int,
        *,
        notes: str = "",
        requested_by: str = "",
        labels: Mapping[str, str] | None = None,
        messages: Sequence[str] = (),
    ) -> None:
        """Resumes a paused run. The model reads `messages` before its next turn, as if they had been steered.

        Raises `Conflict` (`not_paused`) if it is not paused.
        """
        ...

    # Facts from outside for runs that have not ended, and their early end

    async def accept(self, key: int, head: Fact, body: bytes = b"") -> bool:
        """Appends a request; False if the run does not accept it.

        A request is an answer, a message, a cancel, a pause, a resume, or undoing a summary.

        Raises `InvalidRequest` for any other fact, and for a body that cannot be decoded.
        """
        ...

    async def cancel(self, key: int, *, reason: str = "user", requested_by: str = "") -> CancelReceipt:
        """Ends the run at once. Repeating it, or cancelling a run that has ended, changes nothing."""
        ...

    async def end_thread(self, thread: int, *, requested_by: str = "") -> None:
        """Cancels all runs of a thread that has ended, newest first."""
        ...

    # Answers of clients to the calls offered to them

    async def answer(
        self,
        key: int,
        call_id: str,
        output: ToolOutput,
        *,
        message_id: str = "",
        idempotency_key: str = "",
        token: str = "",
    ) -> bool:
        """Accepts a client's result for a call that waits for it. Returns False if the run was cancelled in the
        meantime.

        `message_id` is stored with it, for a client whose messages have ids. With an `idempotency_key`, the same result
        is accepted again once it has closed the call; a different one raises `Conflict` (`idempotency_conflict`).

        `token` is that of a lease. Raises `Conflict` (`lease_held`) if another client has claimed the call, and
        (`lease_lost`) if another client has taken it over.
        """
        ...

    async def provide(
        self,
        key: int,
        await_id: str,
        results: Sequence[Provided],
        *,
        problems: Problems = NO_PROBLEMS,
        message_id: str = "",
        idempotency_key: str = "",
    ) -> bool:
        """Accepts the results of all calls of a turn that wait for somebody outside, all or none of them, in the order
        of the calls. Returns False if the run was cancelled in the meantime.

        Raises `InvalidRequest` (`invalid_answer`) that lists everything that is wrong with them, including the
        `problems` that the caller found while parsing, `NotFound` (`unknown_await`) if no call of this turn waits for a
        result, and `Conflict` (`run_terminal`) once the run has ended; otherwise like `answer`.
        """
        ...

    async def claim(
        self, key: int, call_id: str, *, lease_us: int = LEASE_US, claim_id: str = "", by: str = ""
    ) -> Leased:
        """Claims an offered call for a client, for `lease_us`. The same `claim_id` gets the same token again.

        Raises `Conflict` (`lease_held`) with `until`, the time at which the other client's lease ends, `NotFound`
        (`unknown_call`) if the call does not wait for a result, and `Conflict` (`run_terminal`).
        """
        ...

    async def heartbeat(self, key: int, call_id: str, token: str) -> Leased:
        """Extends a lease by its duration, from now on. The call's own time limit is unchanged.

        Raises `Conflict` (`lease_lost`, `run_terminal`).
        """
        ...

    async def release(self, key: int, call_id: str, token: str) -> None:
        """Releases a claimed call, which is offered to all clients again. Raises as `heartbeat` does."""
        ...

    # Answering the questions that a run asks people

    async def answer_await(
        self, key: int, await_id: str, answer: AwaitAnswer, *, by: str, person_of: PersonOf
    ) -> AwaitOutcome:
        """Accepts a person's answer to an await; `by` is their name. Repeating the same answer is accepted.

        `person_of` maps names to people, for the four-eyes rule: somebody may have several names.

        Raises `NotFound` (`unknown_await`), `InvalidRequest` (`invalid_answer`) if the answer does not fit, `Forbidden`
        (`four_eyes`), and `Conflict` (`await_closed`, `await_expired`, `run_terminal`) if it comes too late, or
        (`idempotency_conflict`) if the same person has given a different answer under its key. After each of these the
        run keeps waiting.
        """
        ...

    async def waits_for_people(self, key: int) -> bool:
        """Returns True if neither the run nor any run below it can advance before a person has answered: `awaits` then
        lists everything.
        """
        ...

    # Following the entries of runs

    def follow(self, key: int, run_id: str, *, after: int = 0, workspace: int = 0) -> Follower:
        """Follows a run. The stream counts towards `workspace`. Raises `RateLimited` if that has too many streams
        open.
        """
        ...

    def reserve_stream(self, workspace: int) -> StreamPlace:
        """Reserves a place for a stream. Raises `RateLimited` as `follow` does. A place that is not used must be
        released.
        """
        ...

    def beat(self) -> None:
        """Called at regular intervals, so that followers can send a keep-alive: wakes each of them that has received
        nothing, and has not been woken, for `QUIET_BEATS` calls, this one included.
        """
        ...

    def observe(self, observer: Observer) -> Callable[[], None]:
        """Calls `observer` with every entry of every run from now on, after its commit. Returns a function that
        unsubscribes.

        Exceptions from it are logged, and change nothing for the run or for other observers; it is called again.
        """
        ...

    def watch_ends(self, ended: Callable[[], None] | None) -> None:
        """Calls `ended` after each commit that ended a run or opened an await; None switches this off."""
        ...

    # Operations on the store and its limits

    def measure(self) -> Measured:
        """What the engine has counted since its start, and how much is going on now."""
        ...

    async def budgets_changed(self, workspace: int, *, by: str = "") -> None:
        """Called when somebody has changed limits: they apply from the next call of every run, and runs that wait for
        them continue.
        """
        ...

    async def trim(self, *, before: int, after: int, workspace: int | None) -> tuple[int, int]:
        """Removes the logs of runs that ended before that time; see `LogStore.trim`."""
        ...


class OwnedEngine(Engine, Protocol):
    """An engine as its owner sees it, which also starts and stops it."""

    async def start(self) -> Self:
        """Opens the store if a path was given, and resumes what an earlier process left unfinished."""
        ...

    async def code_changed(self) -> None:
        """Looks again at the runs that wait for code that this process did not have."""
        ...

    async def workspace(self, slug: str) -> int:
        """The key of a workspace, which is created if it does not exist."""
        ...

    async def drain(self, drain_s: float) -> None:
        """Starts no further run, turn or call, and waits for running ones, `drain_s` at most."""
        ...

    async def abort(self, *, hurry: asyncio.Event | None = None) -> bool:
        """Cancels what is still running, makes everything appended durable, and ends all streams.

        Returns False if the store refused some of it until the end, which comes at once when `hurry` is set.
        """
        ...

    async def stop(self, *, drain_s: float = DRAIN_S) -> None:
        """Starts nothing new, gives running work `drain_s` to finish, cancels the rest, and closes the store."""
        ...

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None: ...
