"""What the kernel knows of a run: a fold of its facts, about a kilobyte, without any content.

Someone who has read `entries.py` and this page knows the product: entries are what happened, the state is what
follows from it, `decide` is what to do about it.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from msgspec import Struct, msgpack

from weftline.kernel.entries import Effect, Fact, How, Limits, ModelRef
from weftline.messages import Usage

Stage: TypeAlias = Literal["asked", "opened", "started", "closed"]
"""Of a call: the model wants it, it was announced, it has begun, it has its one result.

What must come between wanting and announcing (gates, approvals) is a stage of its own between the first two.
"""


class Room(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """A part of the state. A stored one with fields that this code does not know is refused, never half understood."""


class Call(Room, frozen=True):
    """A call of the present turn, from the model's request to its one result."""

    id: str
    name: str
    digest: str
    verdict: Literal["ok", "unknown", "invalid"] = "ok"
    effect: Effect = "once"
    client: str | None = None
    stage: Stage = "asked"
    attempt: int = 0
    lost: bool = False
    """Begun by an earlier epoch; whether it happened is not known here."""
    how: How | None = None
    result: str = ""
    """Digest of the result."""


class Batch(Room, frozen=True):
    """The calls of the newest turn. The counts and cursors spare `decide` a walk over all of them for each result."""

    calls: tuple[Call, ...] = ()
    concurrent: bool = False
    """Whether its calls may run side by side: every tool involved allows it."""
    asked: int = 0
    """How many are still `asked`."""
    unclosed: int = 0
    """How many have no result yet."""
    running: tuple[int, ...] = ()
    """The indexes of those that have begun and have no result, in order."""
    next: int = 0
    """No server-side call below this index waits to begin."""


class Question(Room, frozen=True):
    """Something that the run asked of somebody outside and that is not answered yet.

    A client-side call is one kind; an await for a person is another.
    """

    index: int
    """Of the call in the batch."""
    deadline_at: int | None = None
    kind: Literal["call"] = "call"


class Questions(Room, frozen=True):
    open: dict[str, Question] = {}
    """By id: of a call, the call's."""
    due_at: int | None = None
    """No deadline comes before this; it may be that of a question that was answered since."""
    ignored: tuple[str, ...] = ()
    """Those that were open when the run was cancelled: their answers are accepted and change nothing."""


class Attempt(Room, frozen=True):
    """The model call of the present turn: the one under way, or what came of those before."""

    number: int = 0
    """Counts from 1 within the turn; 0 before the first."""
    open: bool = False
    lost: bool = False
    """Begun by an earlier epoch."""
    estimate: int = 0
    failures: int = 0
    """Failed attempts of this turn on this model, crashes aside."""
    failure: str = ""
    """Class of the failure that the last attempt ended with; empty when it succeeded or was cut by a crash."""
    failure_final: bool = False
    retry_at: int | None = None
    choice: int = 0
    """Which of the run's models is asked: 0 the one it named, then its fallbacks."""
    model: ModelRef = ModelRef()


class Answer(Room, frozen=True):
    """What the newest completed turn brought besides calls."""

    finish: str | None = None
    has_text: bool = False
    invalid: bool = False
    """It does not fit the output schema."""
    asked_again: bool = False
    """The model was asked once more for an answer that fits."""


class Streak(Room, frozen=True):
    """What loop detection remembers: the last signatures, and for each period how long the turns have repeated."""

    recent: tuple[str, ...] = ()
    matches: tuple[int, int, int, int] = (0, 0, 0, 0)
    reported: bool = False
    results: str = ""
    """Tools and results of the last batch, when all of it was executed and only read."""
    same_results: int = 0


class BudgetUse(Room, frozen=True):
    used: int = 0
    blocked: int = 0


class Doubt(Room, frozen=True):
    """A call that may or may not have happened; the same call is not made again."""

    tool: str
    digest: str


class Guards(Room, frozen=True):
    """What the guards remember over turns."""

    tool_turns: int = 0
    budgets: dict[str, BudgetUse] = {}
    streak: Streak = Streak()
    doubts: tuple[Doubt, ...] = ()
    final: str = ""
    """The reason for the forced final turn, once there is one."""


class Queued(Room, frozen=True):
    id: str
    mode: Literal["steer", "follow_up"]


class Control(Room, frozen=True):
    """What people outside asked for."""

    paused: bool = False
    cancel: str = ""
    queue: tuple[Queued, ...] = ()


class Totals(Room, frozen=True):
    attempts: int = 0
    """Model calls begun."""
    calls_made: int = 0
    """Model calls that the provider itself brought to an end."""
    usage: Usage = Usage()
    cost_nusd: int = 0
    unpriced: bool = False
    """Some model call has no known price."""
    active_us: int = 0


Step: TypeAlias = Literal["model", "batch", "answered", "ended"]


class State(Room, frozen=True):
    rules: int = 0
    limits: Limits = Limits()
    version: int = 0
    """How many facts were folded: what a decision rests on."""
    epoch: int = 0
    """Of the claim that last adopted the run."""
    now: int = 0
    """The latest wall-clock time that the log has seen; deadlines are judged by it alone."""
    created: bool = False
    broken: str = ""
    thread: int | None = None
    history: int | None = None

    step: Step = "model"
    turn: int = 0
    """The next model turn; the calls at hand were asked for by the one before it."""
    attempt: Attempt = Attempt()
    answer: Answer = Answer()
    batch: Batch = Batch()
    questions: Questions = Questions()
    guards: Guards = Guards()
    control: Control = Control()
    totals: Totals = Totals()
    status: Literal["running", "paused", "succeeded", "failed", "cancelled"] = "running"

    @property
    def ended(self) -> bool:
        return self.step == "ended"

    @property
    def in_flight(self) -> bool:
        """Whether something was begun that a new driver would have to adopt."""
        return self.attempt.open or bool(self.batch.running)


FOLD = 2
"""The number of the fold: raised whenever `evolve` or `State` changes, so that stored states are folded anew.

A run row says which fold made its state; one with another number is thrown away and made again from the log.
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
    """Carry out a server-side call that has been started."""

    turn: int
    index: int
    attempt: int


class Reconcile(Struct, frozen=True):
    """Ask the tool whether a call that was begun before a crash took place."""

    turn: int
    index: int
    attempt: int


Command: TypeAlias = CallModel | RunTool | Reconcile


class New(Struct, frozen=True):
    """An entry to append. The driver encodes its body and adds the content that the kernel does not know.

    `text` is what the kernel itself has to say in it: a synthetic result, a nudge, an instruction, an error.
    """

    head: Fact
    text: str = ""


class Decision(Struct, frozen=True):
    """Entries first: they are committed and folded and decide is asked again; commands start only when there are none.

    `due_at` is the time at which decide wants to be asked again; None when only something outside can move the run.
    """

    append: tuple[New, ...] = ()
    start: tuple[Command, ...] = ()
    due_at: int | None = None
