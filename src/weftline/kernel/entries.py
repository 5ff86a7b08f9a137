"""The log's vocabulary: every entry that a run's log can hold.

An entry is a head, which is folded into the state, and a body, which is not: bodies are content (messages, arguments,
results), heads are facts about it (ids, names, counts, digests, sizes, times). Facts change the state; observations
(`delta.*`, `note.*`) are shown to readers and never folded. The names are data: every log ever written contains them,
so a changed meaning gets a new name (`call.closed@2`), and the old one stays here. Every change of what a log can hold
raises `FORMAT`; a run that was written with a higher number is left alone, since a partial understanding is worse than
none.

`at` and all times are integer microseconds since the epoch, UTC.
"""

from __future__ import annotations

from typing import Literal, TypeAlias, get_args

from msgspec import Struct
from msgspec.json import Decoder

from weftline.failure import FailureKind, HintReason, Recovery
from weftline.kernel.context import (
    CompactionFailed,
    CompactionStarted,
    ContextCompacted,
    ContextMeasured,
    ContextRestored,
    HistoryPinned,
    MessagesEdited,
)
from weftline.kernel.control import (
    AwaitKind,
    AwaitOutcome,
    CallClaimed,
    CallUnclaimed,
    CancelRequested,
    DeployAdopted,
    How,
    MessageQueued,
    MessagesTaken,
    RunPaused,
    RunResumed,
    Verdict,
)
from weftline.kernel.limits import KNOWN_RULES as KNOWN_RULES
from weftline.kernel.limits import RULES as RULES
from weftline.kernel.limits import Limits as Limits
from weftline.kernel.policy import (
    BudgetRefused,
    BudgetRule,
    CapReached,
    FinalReason,
    Held,
    Level,
    PolicyDecided,
    RunUnattended,
    Unit,
)
from weftline.kernel.seats import Ends, RunStopped, SeatAskedOn, SeatClosing, SeatForced, SeatTaken
from weftline.messages import Usage

FORMAT = 12
"""The version of the log's vocabulary: the heads here, their bodies, and the messages and the plan in them.

It is in the row of each run and is compared before anything of its log is decoded. If the version is known and an entry
still cannot be decoded, the log is damaged.
"""
Effect: TypeAlias = Literal["read", "idempotent", "reconcile", "once"]
"""Whether running a tool again is safe, from harmless to forbidden.

`read` changes nothing. `idempotent` may run again with the same idempotency key. `reconcile` can be asked whether the
call took effect. `once` must never run twice: if a crash interrupts it, the call is in doubt.
"""
STRICTNESS: dict[Effect, int] = {"read": 0, "idempotent": 1, "reconcile": 2, "once": 3}


class Head(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True, gc=False):
    """The folded part of an entry, and base of the structs in it. `gc=False`: plain data has no reference cycles."""


class ModelRef(Head, frozen=True):
    """The model that an attempt asked: catalog id, family, vendor id, and the reasoning level if one was set."""

    id: str = ""
    provider: str = ""
    vendor_id: str = ""
    reasoning: int | None = None


class Asks(Head, frozen=True):
    """Questions to a person about a call before it begins, or in its place, and the time to answer them."""

    kind: AwaitKind
    timeout_us: int | None = None


class AskedCall(Head, frozen=True):
    """One call of a completed turn, with what the tool pipeline found before anything was decided."""

    id: str
    name: str
    digest: str
    verdict: Verdict = "ok"
    effect: Effect = "once"
    client: str | None = None
    concurrent: bool = False
    gated: bool = False
    """The agent's code is asked about it first; `call.gated` has the outcome."""
    child: bool = False
    """It is executed by a run of its own."""
    asks: Asks | None = None
    allowed_by: str = ""
    """The await whose approval also covers this call, so that nobody is asked."""
    in_doubt: Literal["report", "ask"] | None = None
    """What its tool wants if a crash interrupts the call; overrides the run's setting."""
    bookkeeping: bool = False
    """No cap counts it, and it may finish within the grace period after the time budget."""
    terminal: bool = False
    """If it succeeds, the run ends with it."""
    host: bool = False
    """It may ask for further calls while it runs."""
    ends: Ends = ""
    """What ends with it if it succeeds, in a run with seats."""
    to_seat: int = 0
    """For a hand-off: the seat that takes over."""


class Parent(Head, frozen=True):
    """The call that a child run executes, and how many runs there are above it."""

    run: str
    turn: int
    index: int
    depth: int = 1
    root: str = ""
    """The top-level run. Empty in older logs."""
    above: tuple[str, ...] = ()
    """The accounts that its calls are charged to besides its own and its workspace's, the nearest first."""
    budgets: dict[str, BudgetRule] = {}
    """The budgets of the runs among these accounts, by account."""
    key: int = 0
    """The key of `run`, if its id was chosen by the client. Generated ids contain the key."""
    root_key: int = 0
    """The key of `root`, in the same way."""


class RunCreated(Head, frozen=True, tag="run.created"):
    """The run was created. Body: `CreatedBody`, everything given at the start.

    For a child run, it is appended in the transaction of the parent's `call.started`.
    """

    rules: int
    limits: Limits
    thread: int | None = None
    parent: Parent | None = None


class InstructionsRendered(Head, frozen=True, tag="instructions.rendered"):
    """The instructions, for all turns of a run whose agent builds them in code. Body: `RenderedBody`."""


class StateChanged(Head, frozen=True, tag="state.changed"):
    """Hooks changed the run's state when no other entry could carry the change. Body: `StateBody`."""


class RunAdopted(Head, frozen=True, tag="run.adopted"):
    """A new driver took over a run with work in flight: what earlier epochs had begun is lost.

    For each tool with an open call, `effects` has the effect that it declares now; a tool that no longer exists is
    absent.
    """

    epoch: int
    effects: dict[str, Effect] = {}


class AttemptStarted(Head, frozen=True, tag="attempt.started"):
    """Permission to ask the model. Body: `OfferedBody`, if its tools are not in the log yet.

    `attempt` counts from 1 within the turn; `estimate` is the input it may bill.
    """

    turn: int
    attempt: int
    model: ModelRef
    final: bool = False
    estimate: int = 0
    cause: str = ""
    """For a repeated attempt: the class of the failure before it, or `abandoned`."""
    choice: int = 0
    """Which of the run's models is called: 0 is the one it named, then its fallbacks in order."""
    offered: str = ""
    """For the run's first attempt: the digest of the instructions and tools that models are given."""
    held: Held | None = None
    """What is reserved for it, if there are limits."""


class AttemptFailed(Head, frozen=True, tag="attempt.failed"):
    """A model call ended without completing its turn. Body: `FailedBody`, the error and the text so far.

    `reason` is `error` (the provider failed), `abandoned` (interrupted by a crash) or `cancelled`.
    """

    turn: int
    attempt: int
    cls: str
    reason: Literal["error", "abandoned", "cancelled"] = "error"
    retryable: bool = False
    retry_at: int | None = None
    usage: Usage = Usage()
    estimated: bool = False
    active_us: int = 0
    cost_nusd: int | None = None


class TurnCompleted(Head, frozen=True, tag="turn.completed"):
    """The model has answered. Body: `TurnBody`, its message and the final arguments of every call."""

    turn: int
    attempt: int
    finish: str | None = None
    usage: Usage = Usage()
    calls: tuple[AskedCall, ...] = ()
    signature: str = ""
    has_text: bool = False
    output_invalid: bool = False
    active_us: int = 0
    cost_nusd: int | None = None
    """Billionths of a US dollar; None if the model's price is unknown."""
    metadata: dict[str, str] = {}
    """What the provider reported about its answer, such as an id to quote to its support."""
    estimated: bool = False
    """The provider did not report what the call used; `usage` and `cost_nusd` are estimates."""


class OutputRejected(Head, frozen=True, tag="output.rejected"):
    """The answer was rejected, and the model is asked again. Body: `TextBody`."""

    turn: int


class OutputAccepted(Head, frozen=True, tag="output.accepted"):
    """The agent's code has accepted the answer."""

    turn: int


class CallAsked(Head, frozen=True, tag="call.asked"):
    """A running call of the turn, the `parent`, asks for another one. Body: `AskedBody`, its final arguments.

    Its index is the next one of the turn. From here on it is a call like any other, except that its result goes to the
    parent and not to the model.
    """

    turn: int
    index: int
    parent: int
    call: AskedCall


class Over(Head, frozen=True):
    """A call that exceeds a budget kept by the agent's code, counted from 1."""

    max_calls: int
    call_index: int


class CallGated(Head, frozen=True, tag="call.gated"):
    """The decision of the agent's gates about a call, before it is announced. Body: `GatedBody`, unless nothing has
    changed.

    Its arguments are final from here on. With `yields`, a spent budget takes precedence over the verdict.
    """

    turn: int
    index: int
    verdict: Verdict
    digest: str
    yields: bool = False
    over: Over | None = None
    asks: Asks | None = None
    allowed_by: str = ""
    """As in `AskedCall`, which it overrides."""


class AwaitOpened(Head, frozen=True, tag="await.opened"):
    """A person is asked about a call, or about the run. Body: `AwaitBody`.

    `digest` is that of the arguments as they are displayed or, for a deploy, of what the run would depend on.
    """

    turn: int
    index: int
    id: str
    kind: AwaitKind
    digest: str
    timeout_us: int | None = None
    """How long after `at` the answer may arrive."""


class AwaitPassed(Head, frozen=True, tag="await.passed"):
    """The agent's own code was asked and left the answer to people."""

    id: str


class AwaitClosed(Head, frozen=True, tag="await.closed"):
    """The one answer to an await, or its end without one. Body: `AnswerBody`, unless there is nothing to add.

    An approval covers the arguments with this digest, which may differ from those that were displayed.
    """

    turn: int
    index: int
    id: str
    outcome: AwaitOutcome
    by: str
    """Who answered: the authenticated name of a person, `hook:…` for code, `runtime` for the kernel."""
    digest: str = ""


class CallOpened(Head, frozen=True, tag="call.opened"):
    """A call was announced. Body: `OpenedBody`, its arguments and the other fields of an offer to a client.

    `blocked` calls are closed in the same append and never begin.
    """

    turn: int
    index: int
    id: str
    name: str
    digest: str
    effect: Effect = "once"
    client: str | None = None
    timeout_us: int | None = None
    """For a client call: how long after `at` its answer may arrive."""
    blocked: bool = False
    held: Held | None = None
    """As in `attempt.started`."""
    parent: str = ""
    """The id of the call that asked for it; empty if the model did."""


class CallStarted(Head, frozen=True, tag="call.started"):
    """Permission to begin a server-side call.

    `effect` is set if its tool now declares a stricter effect than the call was announced with.
    """

    turn: int
    index: int
    attempt: int
    effect: Effect | None = None
    child: str = ""
    """The id of the run that executes it, created in the same transaction."""
    id: str = ""
    name: str = ""
    """For a call with a child: its id and its tool, so that the entry can be displayed without earlier ones."""


class ChildEnded(Head, frozen=True, tag="child.ended"):
    """The run that executes a call has ended: its outcome, and what it and the runs below it used.

    Body: the child's `EndedBody`.
    """

    turn: int
    index: int
    status: Literal["succeeded", "failed", "cancelled"]
    code: str = ""
    usage: Usage = Usage()
    cost_nusd: int | None = None
    estimated: bool = False
    turns: int = 0
    elapsed_us: int = 0
    """From its creation to its end."""
    child: str = ""
    id: str = ""
    name: str = ""
    """As in `call.started`."""


class ChildWaits(Head, frozen=True, tag="child.waits"):
    """The run that executes a call now waits for a person, or no longer does. Only in runs that measure active time."""

    turn: int
    index: int
    waits: bool


class CallClosed(Head, frozen=True, tag="call.closed"):
    """The one result of a call. Body: `ClosedBody`."""

    turn: int
    index: int
    id: str
    name: str
    how: How
    is_error: bool = False
    client: str | None = None
    digest: str = ""
    active_us: int = 0
    size: int = 0
    """How many bytes of a request the result takes, in a run with a budget for that."""
    parent: str = ""
    """As in `call.opened`."""
    kind: FailureKind | None = None
    """The kind of failure, unless it follows from `how`."""
    recovery: Recovery | None = None
    """What its tool, or whoever gave the result, asks for after the failure."""
    hint: HintReason | None = None
    """The reason of the hint in the body."""
    lease: str = ""
    """For a client's result: the digest of the lease token that it came with."""


class ResultsOverBudget(Head, frozen=True, tag="results.over_budget"):
    """The results of a turn are larger than the run's budget. Body: `TextBody`, what the model reads about it."""

    turn: int
    bytes: int
    budget: int


class LoopDetected(Head, frozen=True, tag="loop.detected"):
    """The model repeats itself. Body: `TextBody`, what the model reads before its next turn (soft only)."""

    count: int
    hard: bool
    tools: tuple[str, ...]
    by: Literal["calls", "cycle", "results"] = "calls"


class BudgetExceeded(Head, frozen=True, tag="budget.exceeded"):
    tool: str
    max_calls: int
    call_index: int


class FinalForced(Head, frozen=True, tag="final.forced"):
    """The next turn is the last one and has no tools. Body: `TextBody`, the instruction that the model reads."""

    reason: FinalReason
    level: Level | None = None
    """For a budget: where the limit was set, and what it counts."""
    unit: Unit | None = None


class TimerFired(Head, frozen=True, tag="timer.fired"):
    """The wall clock reads `now`. This is the only way time enters the state."""

    now: int


class RunEnded(Head, frozen=True, tag="run.ended"):
    """The terminal entry. Body: `EndedBody`."""

    status: Literal["succeeded", "failed", "cancelled"]
    code: str = ""
    """For a failure: its class (`rate_limit`, `truncation`, …) or a short token (`max_tool_turns`, `worker_error`)."""
    reason: str = ""
    """Why it was cancelled, or which limit ended it."""
    requested_by: str = ""
    """Who cancelled it."""
    finish: str | None = None
    usage: Usage = Usage()
    turns: int = 0
    """Model turns, each counted once however many attempts it took."""
    attempts: int = 0
    """Model calls begun, including failed and repeated ones."""
    model: ModelRef = ModelRef()
    active_us: int = 0
    undelivered: tuple[str, ...] = ()
    cost_nusd: int | None = None
    """The cost of all model calls; None if the price of any of them is unknown."""
    estimated: bool = False
    """Some model call did not report what it used, so `usage` and `cost_nusd` contain estimates."""
    call: str = ""
    """The call of a terminal tool that ended the run, by its id."""


Fact: TypeAlias = (
    RunCreated
    | HistoryPinned
    | MessagesEdited
    | InstructionsRendered
    | StateChanged
    | RunAdopted
    | AttemptStarted
    | AttemptFailed
    | TurnCompleted
    | OutputRejected
    | OutputAccepted
    | CallAsked
    | CallGated
    | AwaitOpened
    | AwaitPassed
    | AwaitClosed
    | CallOpened
    | CallClaimed
    | CallUnclaimed
    | CallStarted
    | ChildEnded
    | ChildWaits
    | CallClosed
    | ResultsOverBudget
    | LoopDetected
    | BudgetExceeded
    | FinalForced
    | SeatTaken
    | SeatClosing
    | SeatAskedOn
    | SeatForced
    | RunStopped
    | MessageQueued
    | MessagesTaken
    | RunPaused
    | RunResumed
    | CancelRequested
    | TimerFired
    | ContextMeasured
    | CompactionStarted
    | CompactionFailed
    | ContextCompacted
    | ContextRestored
    | BudgetRefused
    | CapReached
    | PolicyDecided
    | RunUnattended
    | DeployAdopted
    | RunEnded
)

FACTS: dict[str, type[Fact]] = {str(cls.__struct_config__.tag): cls for cls in get_args(Fact)}
KIND: dict[type[Fact], str] = {cls: kind for kind, cls in FACTS.items()}

decode_fact: Decoder[Fact] = Decoder(Fact)
"""`decode` raises `msgspec.ValidationError` on an entry that this code does not know."""
