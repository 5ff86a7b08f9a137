"""The kernel's knowledge about a run: a fold of its facts, about a kilobyte, without any content.

Someone who has read `entries.py` and this page knows the product: entries are what happened, the state is what
follows from it, `decide` is what to do about it.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from msgspec import Struct, msgpack

from weftline.kernel.batch import Batch
from weftline.kernel.batch import Call as Call
from weftline.kernel.batch import Grant as Grant
from weftline.kernel.batch import Stage as Stage
from weftline.kernel.context import Cause
from weftline.kernel.control import Lease
from weftline.kernel.entries import AwaitKind, Fact, Limits, ModelRef, Parent
from weftline.kernel.policy import BudgetRefused, Held
from weftline.messages import Usage


class Room(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True, gc=False):
    """A part of the state. A stored one with unknown fields is rejected rather than read in part.

    `gc=False`: plain data has no reference cycles.
    """


class Question(Room, frozen=True):
    """A question that the run has put to someone outside, not answered yet.

    A client-side call is one kind; the others are awaits, which people answer.
    """

    index: int
    """The index of the call in the batch; `OF_RUN` for an await about the run."""
    deadline_at: int | None = None
    kind: Literal["call"] | AwaitKind = "call"
    passed: bool = False
    """For an await: the agent's own code has left it to people."""
    asked_at: int = 0
    """For an await: when it was opened."""
    lease: Lease | None = None
    """For a client-side call: the client that has claimed it."""


class Questions(Room, frozen=True):
    open: dict[str, Question] = {}
    """By id; for a client-side call, the call's id."""
    due_at: int | None = None
    """No deadline is earlier than this; it may belong to a question that has since been answered."""
    awaits: int = 0
    """How many of them are awaits."""
    passed: int = 0
    """How many of these the agent's own code has left to people."""
    ignored: tuple[str, ...] = ()
    """Questions that were open when the run was cancelled: their answers are accepted and change nothing."""


class Attempt(Room, frozen=True):
    """The model call of the current turn: the one in progress, or the outcome of the earlier ones."""

    number: int = 0
    """Counts from 1 within the turn; 0 before the first."""
    open: bool = False
    lost: bool = False
    """Begun by an earlier epoch."""
    estimate: int = 0
    failures: int = 0
    """Failed attempts of this turn on this model, not counting crashes."""
    spent_us: int = 0
    """How long they took together."""
    failure: str = ""
    """Class of the failure that ended the last attempt; empty if it succeeded or was cut off by a crash."""
    failure_final: bool = False
    retry_at: int | None = None
    choice: int = 0
    """Which of the run's models is called: 0 is the one it named, then its fallbacks."""
    model: ModelRef = ModelRef()


class TurnOutput(Room, frozen=True):
    """The latest completed turn, without its calls."""

    finish: str | None = None
    has_text: bool = False
    invalid: bool = False
    """It does not fit the output schema."""
    rejections: int = 0
    """How often the model was asked again for a valid answer."""
    accepted: bool = False
    """The agent's code has accepted it."""


class Streak(Room, frozen=True):
    """The memory of loop detection: the last signatures, and for each period how long turns have been repeating."""

    recent: tuple[str, ...] = ()
    matches: tuple[int, int, int, int] = (0, 0, 0, 0)
    reported: bool = False
    results: str = ""
    """Tools and results of the last batch, if every call was executed and only read."""
    same_results: int = 0


class BudgetUse(Room, frozen=True):
    used: int = 0
    blocked: int = 0


class Doubt(Room, frozen=True):
    """A call that may or may not have taken effect; the same call is not repeated."""

    tool: str
    digest: str
    id: str = ""
    """The call's id. Empty in a state that an older fold made."""


class Guards(Room, frozen=True):
    """The memory of the guards across turns."""

    tool_turns: int = 0
    budgets: dict[str, BudgetUse] = {}
    streak: Streak = Streak()
    doubts: tuple[Doubt, ...] = ()
    doubtful_tools: tuple[str, ...] = ()
    """Tools with more calls in doubt than are remembered individually."""
    final: str = ""
    """The reason for the forced final turn, once there is one."""
    withheld: tuple[str, ...] = ()
    """The tools that are not offered in the current turn, because they failed in the previous one."""
    given_up: bool = False
    """A tool has failed in a way that brings the run to its end."""


class ActiveTime(Room, frozen=True):
    """The clock of a run with a policy. It stops while the run waits for somebody, and while no process drives it.

    It is computed from the times of facts, so it is only as current as the latest fact.
    """

    us: int = 0
    since: int | None = None
    """When it was last read; None while it is stopped."""
    final_us: int | None = None
    """What it read when the final turn was forced."""


class PolicyUse(Room, frozen=True):
    """The used part of a run's policy, and the decisions of its policy engine."""

    calls: int = 0
    failures: int = 0
    """Consecutive failures."""
    reached: str = ""
    """The cap that brings the run to its end, once there is one."""
    max_calls: int | None = None
    """The cap on calls as tightened by the policy engine, if it has been."""
    max_failures: int | None = None
    decided: int = -1
    """The latest turn that the engine was asked about; the fields below are about that turn."""
    allowed: tuple[str, ...] | None = None
    disabled: bool = False
    failed: bool = False
    time: ActiveTime = ActiveTime()


class Queued(Room, frozen=True):
    id: str
    mode: Literal["steer", "follow_up"]


class Control(Room, frozen=True):
    """Requests of people outside."""

    paused: bool = False
    cancel: str = ""
    """Why the run is being cancelled; empty if it is not."""
    cancelled_by: str = ""
    queue: tuple[Queued, ...] = ()
    held_by: str = ""
    """The open await about the run itself: nothing begins before it is answered."""


class Compaction(Room, frozen=True):
    """Compaction: the summary in progress, and the outcome of the earlier ones."""

    number: int = 0
    """Summaries begun."""
    open: bool = False
    lost: bool = False
    """Begun by an earlier epoch."""
    cause: Cause = "size"
    """The cause of the latest one."""
    estimate: int = 0
    measured: int = -1
    """The latest turn whose request was measured."""
    tokens: int = 0
    spare: int = 0
    """How many of these tokens a summary would replace."""
    turns: int = 0
    """The turns of the request that was measured."""
    not_below: int = 0
    """No further summary is written because of the size until it exceeds this."""
    turns_not_below: int = 0
    """No further summary is written because of the number of turns until it reaches this."""
    overflow: int = -1
    """The latest turn whose request the model rejected as too long."""
    again: bool = False
    """Whether a summary may be tried because of that."""
    failures: int = 0
    retry_at: int | None = None
    in_force: bool = False
    """Requests have a summary in place of the older messages."""
    undone: bool = False
    """Someone has restored the full conversation."""


class Budget(Room, frozen=True):
    """The run's reservations in the budget tree, and its refused call."""

    holds: dict[str, Held] = {}
    """By what they are for: `a<turn>.<attempt>`, `s<number>` for a summary, `c<turn>.<index>` for a call."""
    refused: BudgetRefused | None = None
    """The refusal that brings the run to its end, or makes it ask a person."""
    asked: int = 0
    """How often a person was asked about that."""


class Seats(Room, frozen=True):
    """Who speaks in a run with seats, and for how long they have."""

    index: int = 0
    """The seat that speaks: its place in `Limits.seats`."""
    taken: int = 0
    """Side turns begun; 0 before anybody speaks."""
    steps: int = 0
    """Model turns of this side turn."""
    texts: int = 0
    """How many of the latest had no call."""
    of_a: int = 0
    """Model turns of all seats of the side a."""
    of_b: int = 0
    closing: str = ""
    """Why the next answer is the last of the side turn; empty if it is not."""
    handoffs: int = 0
    """How often one agent has handed over to another."""
    forced: int | None = None
    """The seat that takes the next side turn, if code has said which."""
    stopped: bool = False
    """Code wants the run to end."""
    stopped_by: str = ""


MAX_COST_NUSD = 10**18
"""A billion dollars. A larger amount is a provider's counting error, and could not be stored."""


class Totals(Room, frozen=True):
    attempts: int = 0
    """Model calls begun."""
    calls_made: int = 0
    """Model calls that the provider itself ended."""
    usage: Usage = Usage()
    cost_nusd: int = 0
    unpriced: bool = False
    """Some model call has no known price."""
    estimated: bool = False
    """Whether the usage of some model call is an estimate."""
    active_us: int = 0


Phase: TypeAlias = Literal["model", "batch", "answered", "ended"]


class State(Room, frozen=True):
    rules: int = 0
    limits: Limits = Limits()
    version: int = 0
    """How many facts were folded: the version that a decision is based on."""
    epoch: int = 0
    """The epoch of the claim that last adopted the run."""
    now: int = 0
    """The latest wall-clock time that the log has seen; deadlines are judged by it alone."""
    created: bool = False
    broken: str = ""
    thread: int | None = None
    parent: Parent | None = None
    history: int | None = None

    step: Phase = "model"
    turn: int = 0
    """The next model turn; the current calls were asked for by the one before it."""
    attempt: Attempt = Attempt()
    answer: TurnOutput = TurnOutput()
    batch: Batch = Batch()
    questions: Questions = Questions()
    guards: Guards = Guards()
    control: Control = Control()
    totals: Totals = Totals()
    compaction: Compaction = Compaction()
    policy: PolicyUse = PolicyUse()
    budget: Budget = Budget()
    seats: Seats | None = None
    """None in a run without seats."""
    status: Literal["running", "paused", "succeeded", "failed", "cancelled"] = "running"

    @property
    def ended(self) -> bool:
        return self.step == "ended"

    @property
    def closing(self) -> bool:
        """True if the next answer is the last of the run, or of its side turn, so that it is made without tools."""
        return bool(self.guards.final) or (self.seats is not None and bool(self.seats.closing))

    @property
    def fallbacks(self) -> int:
        """The last of the models that may be tried: those of the seat that speaks, or the run's."""
        if self.seats is None:
            return self.limits.fallbacks
        rule = self.limits.seats[self.seats.index]
        return rule.first_model + rule.fallbacks

    @property
    def in_flight(self) -> bool:
        """True if something was begun that a new driver would have to adopt. A child run has a driver of its own."""
        if self.attempt.open or self.compaction.open:
            return True
        for index in self.batch.running:
            call = self.batch.calls[index]
            adopted = call.child is None and not call.awaiting and not call.asked_back
            if adopted and not self.may_be_cut_off(index):
                return True
        return False

    def is_waiting(self, index: int) -> bool:
        """Returns True if the call waits for nested calls that can only advance through somebody outside."""
        batch, limits = self.batch, self.limits
        if not batch.nested:
            return False
        room = self.room_for_children
        return batch.is_waiting(index, limit=limits.max_concurrent_calls, room=room, paused=self.control.paused)

    def may_be_cut_off(self, index: int) -> bool:
        """Returns True if a waiting call can be stopped without loss: it is executed again from the start, and the
        calls it repeats get the same results.
        """
        return self.batch.calls[index].effect in ("read", "idempotent") and self.is_waiting(index)

    @property
    def clock_running(self) -> bool:
        """True if its clock is running, so that a new process has to record that no process was running meanwhile."""
        return self.policy.time.since is not None

    @property
    def waits_for_people(self) -> bool:
        """True if nothing can happen before a person has answered."""
        return self._waits(all(call.awaiting for call in self._running), children=False)

    @property
    def waits_for_children(self) -> bool:
        """True if nothing can happen before a child run has ended, or a person has answered."""
        running = self._running
        still = all(call.awaiting or call.waits_for_child for call in running)
        return still and any(call.waits_for_child for call in running) and self._waits(still, children=True)

    @property
    def _running(self) -> list[Call]:
        """The calls that have begun, except those that wait for their nested calls."""
        return [self.batch.calls[index] for index in self.batch.running if not self.is_waiting(index)]

    def _waits(self, still: bool, *, children: bool) -> bool:
        """Returns True if no call can begin, if those that have begun are `still`."""
        batch, limits = self.batch, self.limits
        if self.control.held_by:
            return True
        if not still or not (self.questions.awaits or children):
            return False
        if limits.await_gate and self.questions.passed < self.questions.awaits:
            return False  # the agent's own code is asked first
        if batch.busy and (not batch.concurrent or batch.busy >= limits.max_concurrent_calls):
            return True  # nothing begins beside a call in doubt, or one that waits for its nested calls
        if not batch.busy and any(message.mode == "steer" for message in self.control.queue):
            return False  # a steering message does not wait for a person's answer
        return not batch.ready or (self.room_for_children <= 0 and batch.only_in_line)

    @property
    def depth(self) -> int:
        """The number of runs above this one."""
        return 0 if self.parent is None else self.parent.depth

    @property
    def open_children(self) -> list[str]:
        """The ids of its child runs that have not ended, as far as it knows. It does not end before they have."""
        calls = [self.batch.calls[index] for index in self.batch.running]
        return [call.child for call in calls if call.child and call.waits_for_child]

    @property
    def room_for_children(self) -> int:
        """The number of further child runs that may be open at once."""
        if self.rules < 2:
            return len(self.batch.calls)  # those beyond the limit were refused
        return self.limits.max_children - len(self.open_children)


FOLD = 14
"""The version of the fold: raised whenever `evolve` or `State` changes, so that stored states are rebuilt.

A run row records which fold produced its state; a state with another version is discarded and rebuilt from the log.
"""

encode_state = msgpack.Encoder().encode
decode_state = msgpack.Decoder(State).decode


class CallModel(Struct, frozen=True):
    """Ask the model for `turn`."""

    turn: int
    attempt: int
    final: bool = False
    choice: int = 0


class RunTool(Struct, frozen=True):
    """Execute a server-side call that has been started."""

    turn: int
    index: int
    attempt: int


class Reconcile(Struct, frozen=True):
    """Ask the tool whether a call begun before a crash took effect."""

    turn: int
    index: int
    attempt: int


class Consult(Struct, frozen=True):
    """Ask the agent's gates about a call."""

    turn: int
    index: int


class ConsultPolicy(Struct, frozen=True):
    """Ask the agent's policy engine about the calls of `turn`."""

    turn: int


class StartChild(Struct, frozen=True):
    """Create the child run that executes a call."""

    turn: int
    index: int


class FinishChild(Struct, frozen=True):
    """Build the result of a call from the outcome of its child run."""

    turn: int
    index: int


class ConsultAwait(Struct, frozen=True):
    """Ask the agent's own code about an await, before people answer it."""

    turn: int
    index: int
    id: str


class CheckOutput(Struct, frozen=True):
    """Ask the agent's code about the answer of `turn`."""

    turn: int


class Compact(Struct, frozen=True):
    """Ask a model for a summary of the older messages."""

    number: int


Command: TypeAlias = (
    CallModel
    | RunTool
    | Reconcile
    | Consult
    | ConsultPolicy
    | StartChild
    | FinishChild
    | ConsultAwait
    | CheckOutput
    | Compact
)


class New(Struct, frozen=True):
    """An entry to append. The driver encodes its body and adds the content that the kernel does not know.

    `text` is the kernel's own contribution: a synthetic result, a nudge, an instruction, an error.
    """

    head: Fact
    text: str = ""


class Decision(Struct, frozen=True):
    """The next step: entries first. They are committed and folded, and `decide` is called again; commands start only
    when there are none.

    `due_at` is when `decide` wants to be called again; None if only something outside can advance the run.
    """

    append: tuple[New, ...] = ()
    start: tuple[Command, ...] = ()
    due_at: int | None = None
