"""What can be done with runs: the protocol that the server, the commands and the library use, and all they use.

Whatever is accepted is durable when the call returns. Every engine behaves the same towards its clients; the suite in
`weftline.testing.engine` says how.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Protocol, Self, TypeAlias, TypedDict, TypeVar, Unpack

from msgspec import Struct

from weftline.kernel.bodies import Origin
from weftline.kernel.entries import AwaitOutcome, Fact
from weftline.kernel.lease import LEASE_US
from weftline.messages import Blob
from weftline.plan import RunPlan
from weftline.runtime.answering import Answer
from weftline.runtime.calls import DoubtPage, LoggedCall
from weftline.runtime.clock import Clock
from weftline.runtime.four_eyes import PersonOf, as_named
from weftline.runtime.grants import LoggedGrant
from weftline.runtime.provided import NO_FAULTS, Faults, Provided
from weftline.runtime.receipts import CallName, CancelReceipt
from weftline.store.awaits import AwaitFilter, OpenAwait
from weftline.store.base import IdempotencyKey, LogReader, RunFilter, RunRow, Stored, Write, Written
from weftline.tools.base import ToolOutput

T = TypeVar("T")

DRAIN_S = 30.0
"""How long work under way may take to finish when an engine is stopped."""
QUIET_BEATS = 3
"""A follower that has had nothing for so many beats in a row is woken: between two and three intervals, never more."""


class CreateOptions(TypedDict, total=False):
    """What a run may be created with in addition to its plan."""

    sent: bytes | None
    """The client's own bytes, returned in snapshots."""
    thread: int | None
    metadata: str
    idempotency: IdempotencyKey | None
    secrets: bytes | None
    """The headers of the tools that the server dials, sealed by the store's vault."""
    blobs: Sequence[Blob]
    """The contents that the plan's messages name."""
    origin: Origin | None
    """Where a fork begins."""
    run_id: str | None
    """In place of a generated one. `InvalidRequest` for an impossible one; `Conflict` (`run_exists`) if it is taken."""
    history: Sequence[bytes]
    """The messages before that, which its thread begins with."""


class EntryBatch(Struct, eq=False, gc=False):
    """Consecutive entries of one run, from one commit or from one page of its log.

    `heads` has the decoded facts, in order, of a batch that comes from a commit; None for one read from the log.
    `missing` is the range of seqs that retention has removed before the first item. `newer` says that newer code has
    written to the run; otherwise what cannot be decoded is damaged.
    """

    run_id: str
    items: Sequence[Stored]
    size: int
    last_seq: int
    ended: bool
    after: int = 0
    """Observations of the first item up to this seq were already seen."""
    heads: Sequence[Fact] | None = None
    missing: tuple[int, int] | None = None
    newer: bool = False
    key: int = 0
    """Of the run, in a batch that comes from a commit."""
    _views: dict[Any, Any] = {}

    def view(self, project: Callable[[EntryBatch], T]) -> T:
        """What `project` makes of the batch, computed once however many follow the run."""
        if project not in self._views:
            self._views[project] = project(self)
        return self._views[project]


Observer: TypeAlias = Callable[[EntryBatch], object]
"""Gets what was committed, run by run in the order of the log. It is called on the loop and returns at once."""


class Resumed(Struct, frozen=True):
    """What became of an order to let the runs of a store continue."""

    held: bool
    """Whether they were held until then."""
    runs: int
    """How many have not ended."""


class Leased(Struct, frozen=True):
    """A call that a client has to itself. `attempt` counts how often it was offered."""

    token: str
    until: int
    lease_us: int
    attempt: int


class Follower(Protocol):
    """Follows one run from a cursor."""

    taken: int
    """The last seq that the reader has received."""
    left: bool
    """Whether the reader has gone away."""
    follows_below: bool
    """Whether an empty list also says that a run below this one has come further, or asks or was told something."""

    async def next(self) -> Sequence[EntryBatch] | None:
        """The batches that are due, at least one; an empty list after `QUIET_BEATS` without any; None at the end."""
        ...

    def go_back(self, seq: int) -> None:
        """Continues after `seq`, which is at most `taken`; drops what is queued, since the log has it."""
        ...

    def leave(self) -> None:
        """The reader has gone away: `next` returns None."""
        ...

    def close(self) -> None: ...


class StreamPlace(Protocol):
    """A place among a workspace's streams, which can be had before there is a run to follow."""

    def follow(self, key: int, run_id: str, *, after: int = 0) -> Follower:
        """Uses the place up: the follower gives it back when it is closed."""
        ...

    def release(self) -> None:
        """Gives a place back that was not used."""
        ...


class Engine(Protocol):
    @property
    def clock(self) -> Clock: ...

    @property
    def ready(self) -> bool: ...

    def require_accepting(self) -> None:
        """Raises `Unavailable` while the engine is starting or stopping, or its store refuses writes."""
        ...

    async def moving(self) -> None:
        """Returns when runs may proceed: at once, unless the store comes from a backup and is held."""
        ...

    async def resume_all(self) -> Resumed:
        """Lets the runs of a restored store continue."""
        ...

    def require_well(self) -> None:
        """Raises `Unavailable` while the store refuses writes."""
        ...

    async def check(self, plan: RunPlan, *, workspace: int, runs_now: bool = True) -> None:
        """Raises `WeftlineError` for models and tools that the workspace lacks, and for settings that a model refuses.

        A plan that names no model needs a default model only if it `runs_now`.
        """
        ...

    async def create(self, workspace: int, plan: RunPlan, **options: Unpack[CreateOptions]) -> str:
        """Accepts a run and returns its id, or that of the run that was created under the same key before.

        Raises `RateLimited` if too many runs of the workspace are queued.
        """
        ...

    async def add_ended(self, write: Write, *, last_key: int) -> Written:
        """Adds runs that were carried out elsewhere and have ended. No new run gets a key up to `last_key`."""
        ...

    async def budgets_changed(self, workspace: int, *, by: str = "") -> None:
        """Somebody has set limits: they hold from the next call of every run on, and whoever waits for them goes on."""
        ...

    async def created_before(self, workspace: int, idempotency: IdempotencyKey) -> str | None:
        """The run that an earlier request with this key created, if there was one; `create` returns it too.

        Raises `Conflict` (`idempotency_conflict`) if that request had another body.
        """
        ...

    async def accept(self, key: int, head: Fact, body: bytes = b"") -> bool:
        """Appends a request; False if the run does not accept it.

        That is an answer, a message, a cancel, a pause, a resume, or taking a summary back.

        Raises `InvalidRequest` for anything else, and for a body that cannot be read.
        """
        ...

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
        """A client's result for a call that waits for it. Returns False if the run was cancelled in the meantime.

        `message_id` is kept beside it, for a client whose messages have names. With an `idempotency_key` the same
        result is accepted again once it has closed the call; another one raises `Conflict` (`idempotency_conflict`).

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
        faults: Faults = NO_FAULTS,
        message_id: str = "",
        idempotency_key: str = "",
    ) -> bool:
        """The results of all calls of a turn that wait for somebody outside, together: they are taken as a whole, in
        the order of the calls. Returns False if the run was cancelled in the meantime.

        Raises `InvalidRequest` (`invalid_answer`) that names everything that is wrong with them, the `faults` that
        whoever read them has found included, `NotFound`
        (`unknown_await`) if no call of this turn waits for a result, and `Conflict` (`run_terminal`) once it has ended;
        the rest is as in `answer`.
        """
        ...

    async def claim(
        self, key: int, call_id: str, *, lease_us: int = LEASE_US, claim_id: str = "", by: str = ""
    ) -> Leased:
        """Gives a client an offered call to itself for `lease_us`. The same `claim_id` gets the same token again.

        Raises `Conflict` (`lease_held`) with `until`, the time at which the other client's lease ends, `NotFound`
        (`unknown_call`) if the call does not wait for a result, and `Conflict` (`run_terminal`).
        """
        ...

    async def heartbeat(self, key: int, call_id: str, token: str) -> Leased:
        """Extends a lease by its time, from now on. The call's own time limit stays.

        Raises `Conflict` (`lease_lost`, `run_terminal`).
        """
        ...

    async def release(self, key: int, call_id: str, token: str) -> None:
        """Gives a claimed call back: it is offered to all clients again. Raises as `heartbeat` does."""
        ...

    async def answer_await(
        self, key: int, await_id: str, answer: Answer, *, by: str, person_of: PersonOf = as_named
    ) -> AwaitOutcome:
        """What a person says to an await; `by` is their name. Repeating the same answer is accepted.

        `person_of` tells which names are one person, for the rule of four eyes.

        Raises `NotFound` (`unknown_await`), `InvalidRequest` (`invalid_answer`) for one that does not fit, `Forbidden`
        (`four_eyes`), and `Conflict` (`await_closed`, `await_expired`, `run_terminal`) if it comes too late, or
        (`idempotency_conflict`) if the same person has given another answer under its key. The run goes on waiting
        after each of these.
        """
        ...

    async def awaits(self, wanted: AwaitFilter) -> list[OpenAwait]:
        """What people are asked at the moment, by run and id."""
        ...

    async def waits_for_people(self, key: int) -> bool:
        """Whether neither the run nor any run below it moves before a person has answered: `awaits` then has it all."""
        ...

    async def cancel(self, key: int, *, reason: str = "user", requested_by: str = "") -> CancelReceipt:
        """Ends the run at once. Repeating it, or cancelling a run that has ended, changes nothing."""
        ...

    async def pause(
        self, key: int, *, reason: str = "", requested_by: str = "", labels: Mapping[str, str] | None = None
    ) -> None:
        """Finishes work in progress and starts nothing new until `resume`. Pausing a paused run changes nothing.

        Raises `Forbidden` (`interrupts_not_allowed`) if the run does not take that.
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
        """Lets a paused run go on. The model reads `messages` before its next turn, as if they had been steered.

        Raises `Conflict` (`not_paused`) if it is not paused.
        """
        ...

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
        """Hands a message to the run at its next turn; calls that have not begun by then are skipped.

        `message_id`, the sender's own id of it, is kept with it, and so are `labels` and `by`, the sender's name:
        whoever tells a run what to do counts for the rule of four eyes. Returns the id of the message; with an
        `idempotency_key` the same message is accepted once, and another one raises `Conflict`
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
        """Hands a message to the run when it would otherwise end; otherwise as `steer`."""
        ...

    async def locate(self, run_id: str, *, workspace: int) -> int:
        """The key of a run. Raises `NotFound` for an unknown id and for a run of another workspace alike."""
        ...

    async def find(self, run_id: str, *, workspace: int) -> RunRow:
        """The run's row. Raises `NotFound` as `locate` does."""
        ...

    async def row(self, key: int) -> RunRow | None: ...

    async def runs(self, wanted: RunFilter) -> list[RunRow]:
        """Newest first."""
        ...

    async def count_runs(self, wanted: RunFilter) -> int:
        """How many runs match, wherever the page begins."""
        ...

    async def entry(self, key: int, seq: int, *, max_bytes: int | None = None) -> Stored | None:
        """One entry of a run's log; None when there is none or retention has removed it.

        Raises `LargeEntry`, without having read it, if its body has more than `max_bytes`.
        """
        ...

    async def newest_facts(self, key: int, *, kinds: Sequence[str], limit: int, max_bytes: int) -> list[Stored]:
        """The last facts of these kinds in a run's log, in order: as many as fit, one at the least."""
        ...

    async def receipt(self, key: int) -> CancelReceipt:
        """How the calls of a run were closed; see `cancel`."""
        ...

    async def asked_doubts(self, row: RunRow) -> tuple[CallName, ...]:
        """The calls of a run that may or may not have happened, and that a person is asked about."""
        ...

    async def parent(self, row: RunRow) -> str | None:
        """The id of the run whose call a child run carries out."""
        ...

    async def calls(self, row: RunRow) -> list[LoggedCall]:
        """The calls of a run that were announced, in that order."""
        ...

    async def grants(self, row: RunRow) -> list[LoggedGrant]:
        """What people allowed a run to do, in that order."""
        ...

    async def calls_in_doubt(self, workspace: int, *, before: int | None, limit: int) -> DoubtPage:
        """The calls of a workspace that may or may not have happened, of runs with a key below `before`."""
        ...

    @property
    def logs(self) -> LogReader:
        """Whole logs, for those who need more of them than this."""
        ...

    async def session_id(self, thread: int | None) -> str | None:
        """The public session id of a thread."""
        ...

    async def ends_of_thread(self, thread: int) -> list[bytes]:
        """The heads of the terminal entries of a thread's runs, in order."""
        ...

    async def thread_messages(self, thread: int) -> list[bytes]:
        """The messages of a thread, oldest first."""
        ...

    async def thread_size(self, thread: int) -> int:
        """Their bytes."""
        ...

    async def unfinished(self) -> int:
        """How many runs have not ended."""
        ...

    def follow(self, key: int, run_id: str, *, after: int = 0, workspace: int = 0) -> Follower:
        """The stream counts towards `workspace`. Raises `RateLimited` if that has too many streams open."""
        ...

    def reserve_stream(self, workspace: int) -> StreamPlace:
        """Raises `RateLimited` as `follow` does. What is not used must be released."""
        ...

    def beat(self) -> None:
        """Called at regular intervals: wakes each follower that has had nothing for `QUIET_BEATS` of them, so that it
        can send a keep-alive."""
        ...

    def observe(self, observer: Observer) -> Callable[[], None]:
        """Calls `observer` with every entry of every run from now on, after its commit. Returns what ends that.

        What it raises is logged, and changes nothing for the run or for other observers; it is called again.
        """
        ...

    def watch_ends(self, ended: Callable[[], None] | None) -> None:
        """Calls `ended` after each commit that ended a run or asked people something; None switches this off."""
        ...

    async def trim(self, *, before: int, after: int, workspace: int | None) -> tuple[int, int]:
        """Removes the logs of runs that ended before that time; see `LogStore.trim`."""
        ...

    async def end_thread(self, thread: int, *, requested_by: str = "") -> None:
        """Cancels all runs of a thread that has ended, newest first."""
        ...


class OwnedEngine(Engine, Protocol):
    """An engine, for whoever opened it: it has a beginning and an end as well."""

    async def start(self) -> Self:
        """Opens the store if a path was given, and resumes what an earlier process left unfinished."""
        ...

    async def workspace(self, slug: str) -> int:
        """The key of a workspace, which is created if it is new."""
        ...

    async def drain(self, drain_s: float) -> None:
        """Starts no further run, turn or call, and waits for those under way, `drain_s` at most."""
        ...

    async def cut(self) -> bool:
        """Cuts off what is still under way, makes everything appended durable, and ends all streams.

        Returns False if the store refused some of it to the last.
        """
        ...

    async def stop(self, *, drain_s: float = DRAIN_S) -> None:
        """Starts nothing new, gives work under way `drain_s` to finish, cuts off the rest, and closes the store."""
        ...

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None: ...
