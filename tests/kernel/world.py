"""A world for the kernel: a log in memory, a driver without I/O, and a model, tools and clients that do as told.

The world keeps the driver's side of the contract: it appends a decision before it begins commands, begins a command
once, asks `accepts` before it appends anything from outside, and after a crash adopts what was in flight.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Literal, TypeAlias, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from weftline.kernel import policies
from weftline.kernel.accept import accepts
from weftline.kernel.batch import await_id
from weftline.kernel.calls import signature
from weftline.kernel.context import (
    CompactionFailed,
    CompactionStarted,
    ContextCompacted,
    ContextMeasured,
    ContextRestored,
)
from weftline.kernel.control import CallClaimed
from weftline.kernel.decide import decide, is_outstanding
from weftline.kernel.entries import (
    RULES,
    AskedCall,
    Asks,
    AttemptFailed,
    AttemptStarted,
    AwaitClosed,
    AwaitKind,
    AwaitOpened,
    AwaitOutcome,
    AwaitPassed,
    CallAsked,
    CallClosed,
    CallGated,
    CallStarted,
    CancelRequested,
    ChildEnded,
    ChildWaits,
    Effect,
    Fact,
    How,
    Limits,
    MessageQueued,
    ModelRef,
    OutputAccepted,
    OutputRejected,
    Over,
    RunAdopted,
    RunCreated,
    RunEnded,
    RunPaused,
    RunResumed,
    TimerFired,
    TurnCompleted,
    Verdict,
)
from weftline.kernel.evolve import evolve
from weftline.kernel.policy import PolicyDecided, RunUnattended
from weftline.kernel.questions import unclaim
from weftline.kernel.seats import Ends, RunStopped, SeatForced
from weftline.kernel.state import (
    CallModel,
    CheckOutput,
    Command,
    Compact,
    Consult,
    ConsultAwait,
    ConsultPolicy,
    FinishChild,
    New,
    Reconcile,
    RunTool,
    StartChild,
    State,
)
from weftline.messages import Usage
from weftline.text.canonical import canonical_value, digest

from .content import Content

AT0 = 1_700_000_000_000_000
SECOND = 1_000_000
MAX_ROUNDS = 8
MODEL = ModelRef("demo", "scripted", "demo-1")
ESTIMATE = 100

F = TypeVar("F", bound=Fact)
Answer: TypeAlias = Literal["happened", "will_not_happen", "unknown"]
"""What a tool says when it is asked about a call that was begun before a crash."""


class Entry(Struct, frozen=True):
    """One fact as it stands in a log; `text` is what the kernel itself said in it."""

    at: int
    head: Fact
    body: bytes = b""
    text: str = ""


class Tool(Struct, frozen=True):
    name: str
    effect: Effect = "once"
    client: str | None = None
    concurrent: bool = False
    child: bool = False
    asks: AwaitKind | None = None
    bookkeeping: bool = False
    terminal: bool = False
    host: bool = False
    ends: Ends = ""


TOOLS = {
    tool.name: tool
    for tool in (
        Tool("look", "read"),
        Tool("scan", "read", concurrent=True),
        Tool("save", "idempotent"),
        Tool("move", "reconcile"),
        Tool("pay", "once"),
        Tool("send", "once", concurrent=True),
        Tool("local", "once", client="sdk"),
        Tool("local_read", "read", client="sdk", concurrent=True),
        Tool("ask", "idempotent", child=True),
        Tool("delegate", "idempotent", concurrent=True, child=True),
        Tool("wire", "once", asks="confirm"),
        Tool("wipe", "idempotent", concurrent=True, asks="confirm"),
        Tool("local_wire", "once", client="sdk", asks="confirm"),
        Tool("hire", "idempotent", concurrent=True, child=True, asks="confirm"),
        Tool("ask_user", "read", concurrent=True, asks="question"),
        Tool("present_plan", "read", asks="plan"),
        Tool("note", "idempotent", concurrent=True, bookkeeping=True),
        Tool("submit", "idempotent", terminal=True),
        Tool("code", "read", host=True),
    )
}
SEAT_TOOLS = {
    tool.name: tool
    for tool in (
        Tool("yield", "idempotent", ends="side"),
        Tool("yield_too", "idempotent", concurrent=True, ends="side"),
        Tool("hand_over", "read", ends="handoff"),
        Tool("hand_over_too", "read", concurrent=True, ends="handoff"),
        Tool("finish", "idempotent", concurrent=True, ends="session"),
        Tool("give_up", "idempotent", concurrent=True, ends="failure"),
    )
}
"""Tools of runs with seats. The argument `to` is the seat of a hand-off."""
DECLARED: dict[str, Effect] = {name: tool.effect for name, tool in (TOOLS | SEAT_TOOLS).items()}


class Ask(Struct, frozen=True):
    """A call that the model asks for. A name outside `TOOLS` is unknown; the argument `bad` makes it invalid."""

    name: str
    args: dict[str, object] = {}

    @property
    def final(self) -> bytes:
        return canonical_value(self.args)

    @property
    def digest(self) -> str:
        return digest(self.final)

    def asked(self, id: str, *, gated: bool = False) -> AskedCall:
        tool = TOOLS.get(self.name) or SEAT_TOOLS.get(self.name)
        if tool is None:
            return AskedCall(id, self.name, self.digest, "unknown", gated=gated)
        verdict = "invalid" if "bad" in self.args else "ok"
        asks = Asks(tool.asks) if tool.asks and verdict == "ok" and not gated else None
        return AskedCall(
            id,
            self.name,
            self.digest,
            verdict,
            tool.effect,
            tool.client,
            tool.concurrent,
            gated,
            tool.child,
            asks,
            bookkeeping=tool.bookkeeping,
            terminal=tool.terminal,
            host=tool.host,
            ends=tool.ends,
            to_seat=to if isinstance(to := self.args.get("to", 0), int) else 0,
        )


class Reply(Struct, frozen=True):
    """What the model answers."""

    text: str = ""
    calls: tuple[Ask, ...] = ()
    finish: str | None = None
    output_invalid: bool = False
    usage: Usage = Usage(input=10, output=5)


class Fault(Struct, frozen=True):
    """What the provider fails with."""

    cls: str = "server"
    retryable: bool = False
    retry_after_us: int | None = None
    usage: Usage = Usage(input=10)


def text(words: str = "Done.") -> Reply:
    return Reply(words)


def call(*asks: Ask | str) -> Reply:
    return Reply(calls=tuple(Ask(ask) if isinstance(ask, str) else ask for ask in asks))


def facts_of(log: Iterable[Entry]) -> list[tuple[int, Fact]]:
    """What the kernel folds of a log."""
    return [(entry.at, entry.head) for entry in log]


class World:
    def __init__(self, limits: Limits | None = None, *, gated: bool = False, rules: int = RULES) -> None:
        self.gated = gated
        """Whether the run's agent has gates."""
        self.tokens, self.spare, self.turns = 100, 50, 0
        """How large the next request is, how much of that a summary would replace, and how many turns it has."""
        self.entries: list[Entry] = []
        self.state = State()
        self.content = Content()
        self.clock = AT0
        self.running: list[Command] = []
        """What the driver has begun and heard nothing of yet."""
        self.begun: list[Command] = []
        """Everything that was ever begun, in any epoch."""
        self.auto = True
        """Whether the driver decides after every event; else the test says when."""
        self.append(New(RunCreated(rules, limits or Limits())))
        self.settle()

    # The driver.

    def append(self, *news: New) -> None:
        for new in news:
            head = new.head
            if isinstance(head, AttemptStarted):
                head = replace(head, model=MODEL, estimate=ESTIMATE)
            elif isinstance(head, ContextMeasured):
                head = replace(head, tokens=self.tokens, spare=self.spare, turns=self.turns)
            elif isinstance(head, CompactionStarted):
                head = replace(head, model=MODEL.id, estimate=ESTIMATE)
            self.entries.append(Entry(self.clock, head, self.content.body(head, new.text), new.text))
            self.state = evolve(self.state, head, self.clock)

    @property
    def facts(self) -> list[tuple[int, Fact]]:
        return facts_of(self.entries)

    def step(self) -> bool:
        """One round of the driver: append what is decided, or else begin what is outstanding. False when it rests."""
        if policies.is_due(self.state, self.clock):
            self.append(New(TimerFired(self.clock)))
        decision = decide(self.state)
        if decision.append:
            self.append(*decision.append)
            return True
        if self.state.policy.reached:
            self.running = [command for command in self.running if is_outstanding(self.state, command)]
        for command in decision.start:
            if command not in self.running:
                self.running.append(command)
                self.begun.append(command)
        return False

    def settle(self) -> int:
        """Runs the driver to its fixed point and says how many appends that took."""
        rounds = 0
        while self.step():
            rounds += 1
            assert rounds <= MAX_ROUNDS, "decide does not settle"
        return rounds

    def offer(self, head: Fact, *, attempt: int = 0) -> bool:
        """Something from outside the kernel; False when it rests on nothing any more and was refused."""
        if isinstance(head, CallStarted) and policies.is_due(self.state, self.clock):
            self.append(New(TimerFired(self.clock)))
        if not accepts(self.state, head, attempt=attempt):
            return False
        self.append(New(head))
        if self.auto:
            self.settle()
        return True

    def crash(self, effects: dict[str, Effect] | None = None) -> None:
        """The process dies and another one takes over, with tools that now declare `effects` (default: as before)."""
        self.running.clear()
        if self.state.clock_running:
            self.append(New(RunUnattended()))
        if self.state.in_flight:
            present = DECLARED if effects is None else effects
            started = {self.state.batch.calls[index].name for index in self.state.batch.running}
            known: dict[str, Effect] = {name: present[name] for name in sorted(started) if name in present}
            self.append(New(RunAdopted(self.state.epoch + 1, known)))
        if self.auto:
            self.settle()

    # The model and the tools.

    @property
    def model_call(self) -> CallModel:
        found = [command for command in self.running if isinstance(command, CallModel)]
        assert len(found) == 1, f"{len(found)} model calls are running"
        return found[0]

    @property
    def tool_calls(self) -> list[RunTool]:
        return [command for command in self.running if isinstance(command, RunTool)]

    @property
    def reconciles(self) -> list[Reconcile]:
        return [command for command in self.running if isinstance(command, Reconcile)]

    def reply(self, reply: Reply | Fault) -> bool:
        command = self.model_call
        self.running.remove(command)
        return self.model_ends(command, reply)

    def model_ends(self, command: CallModel, reply: Reply | Fault) -> bool:
        head = self.model_outcome(command, reply)
        if isinstance(head, TurnCompleted) and isinstance(reply, Reply) and accepts(self.state, head):
            final = [ask.final for ask in reply.calls]
            self.content.remember(head, reply.text, [ask.args for ask in reply.calls], final)
        return self.offer(head)

    def model_outcome(self, command: CallModel, reply: Reply | Fault) -> Fact:
        turn, attempt = command.turn, command.attempt
        if isinstance(reply, Fault):
            after = reply.retry_after_us
            return AttemptFailed(
                turn,
                attempt,
                reply.cls,
                retryable=reply.retryable,
                retry_at=None if after is None else self.clock + after,
                usage=reply.usage,
                active_us=7,
            )
        calls = tuple(ask.asked(f"c{turn}-{index}", gated=self.gated) for index, ask in enumerate(reply.calls))
        return TurnCompleted(
            turn,
            attempt,
            reply.finish or ("tool_use" if calls else "end_turn"),
            reply.usage,
            calls,
            signature((ask.name, ask.digest) for ask in reply.calls) if calls else "",
            bool(reply.text),
            reply.output_invalid,
            active_us=11,
        )

    def closing(self, index: int, *, how: How = "returned", result: str = "ok", size: int = 0) -> CallClosed:
        one = self.state.batch.calls[index]
        return CallClosed(
            self.state.turn - 1,
            index,
            one.id,
            one.name,
            how,
            is_error=how != "returned",
            client=one.client,
            digest=result,
            active_us=0 if one.client else 3,
            size=size,
            parent="" if one.parent is None else self.state.batch.calls[one.parent].id,
        )

    @property
    def hosts(self) -> list[RunTool]:
        """What is running and may ask for further calls."""
        calls = self.state.batch.calls
        found = [one for one in self.tool_calls if one.turn == self.state.turn - 1 and one.index < len(calls)]
        return [one for one in found if calls[one.index].host]

    def ask_further(self, command: RunTool, ask: Ask | str) -> bool:
        """A call that is running asks for another one."""
        ask = Ask(ask) if isinstance(ask, str) else ask
        index = len(self.state.batch.calls)
        asked = ask.asked(f"c{command.turn}-{index}", gated=self.gated)
        head = CallAsked(command.turn, index, command.index, asked)
        if accepts(self.state, head, attempt=command.attempt):
            self.content.remember_further(ask.final)
        return self.offer(head, attempt=command.attempt)

    def finish(self, command: RunTool, *, how: How = "returned", result: str = "ok", size: int = 0) -> bool:
        self.running.remove(command)
        return self.offer(self.closing(command.index, how=how, result=result, size=size), attempt=command.attempt)

    def asks_back(self, command: RunTool) -> bool:
        """A tool ends with a question to a person in place of a result."""
        self.running.remove(command)
        one = self.state.batch.calls[command.index]
        head = AwaitOpened(
            command.turn, command.index, await_id(command.turn, command.index, one), "question", one.digest
        )
        return self.offer(head, attempt=command.attempt)

    def reconciled(self, command: Reconcile, answer: Answer, *, result: str = "ok") -> bool:
        self.running.remove(command)
        if answer == "unknown" and self.state.limits.in_doubt == "ask":
            one = self.state.batch.calls[command.index]
            id = await_id(command.turn, command.index, one)
            head = AwaitOpened(command.turn, command.index, id, "doubt", one.digest)
            return self.offer(head, attempt=command.attempt)
        if answer == "will_not_happen":
            again = CallStarted(command.turn, command.index, command.attempt + 1)
            return self.offer(again, attempt=command.attempt)
        how: How = "returned" if answer == "happened" else "in_doubt"
        return self.offer(self.closing(command.index, how=how, result=result), attempt=command.attempt)

    def consulted(
        self,
        command: Consult,
        verdict: Verdict | None = None,
        *,
        digest: str | None = None,
        yields: bool = False,
        over: Over | None = None,
        asks: Asks | None = None,
    ) -> bool:
        """The gates have decided; by default they have nothing to say."""
        self.running.remove(command)
        return self.offer(self.gate_outcome(command, verdict, digest=digest, yields=yields, over=over, asks=asks))

    def gate_outcome(
        self,
        command: Consult,
        verdict: Verdict | None = None,
        *,
        digest: str | None = None,
        yields: bool = False,
        over: Over | None = None,
        asks: Asks | None = None,
    ) -> CallGated:
        one = self.state.batch.calls[command.index]
        verdict = verdict or one.verdict
        tool = TOOLS.get(one.name) or SEAT_TOOLS.get(one.name)
        if verdict == "ok" and asks is None and tool is not None and tool.asks is not None:
            asks = Asks(tool.asks)
        asks = asks if verdict == "ok" else None
        return CallGated(command.turn, command.index, verdict, digest or one.digest, yields, over, asks)

    def child_made(self, command: StartChild, *, fails: bool = False) -> bool:
        self.running.remove(command)
        if fails:
            return self.offer(self.closing(command.index, how="failed"), attempt=1)
        turn, index = command.turn, command.index
        return self.offer(CallStarted(turn, index, 1, child=f"run-{turn}-{index}", id=f"c{turn}.{index}", name="ask"))

    def child_ends(self, index: int, status: Literal["succeeded", "failed", "cancelled"] = "succeeded") -> bool:
        usage = Usage(input=3, output=2)
        turn = self.state.turn - 1
        end = ChildEnded(turn, index, status, usage=usage, cost_nusd=7)
        return self.offer(replace(end, child=f"run-{turn}-{index}", id=f"c{turn}.{index}", name="ask"))

    def child_waits(self, index: int, *, waits: bool = True) -> bool:
        return self.offer(ChildWaits(self.state.turn - 1, index, waits))

    def child_finished(self, command: FinishChild) -> bool:
        self.running.remove(command)
        return self.offer(self.closing(command.index), attempt=self.state.batch.calls[command.index].attempt)

    @property
    def children(self) -> list[int]:
        """The calls whose child runs are open."""
        return [index for index, one in enumerate(self.state.batch.calls) if one.waits_for_child]

    def judged(self, command: ConsultPolicy, head: PolicyDecided | None = None) -> bool:
        """The policy engine has decided; by default it has nothing to say."""
        self.running.remove(command)
        return self.offer(head or PolicyDecided(command.turn))

    def checked(self, command: CheckOutput, *, accepted: bool = True) -> bool:
        self.running.remove(command)
        return self.offer(OutputAccepted(command.turn) if accepted else OutputRejected(command.turn))

    def summarized(self, command: Compact, *, after: int = 40) -> bool:
        """The model has written a summary, with which a request has `after` tokens."""
        self.running.remove(command)
        made = self.summary_outcome(command, after=after)
        self.tokens, self.turns = after, 0
        return self.offer(made)

    def summary_outcome(self, command: Compact, *, after: int = 40) -> ContextCompacted:
        usage = Usage(input=9, output=4)
        return ContextCompacted(command.number, 3, self.tokens, after, usage=usage, cost_nusd=5, active_us=13)

    def not_summarized(
        self,
        command: Compact,
        reason: Literal["error", "useless"] = "error",
        *,
        retryable: bool = False,
        retry_after_us: int | None = None,
    ) -> bool:
        self.running.remove(command)
        retry_at = None if retry_after_us is None else self.clock + retry_after_us
        usage = Usage(input=9)
        return self.offer(
            CompactionFailed(command.number, reason, "server", retryable, retry_at, usage, cost_nusd=5, active_us=13)
        )

    @property
    def summaries(self) -> list[Compact]:
        return [command for command in self.running if isinstance(command, Compact)]

    def restore(self) -> bool:
        return self.offer(ContextRestored("ops"))

    @property
    def consults(self) -> list[Consult]:
        return [command for command in self.running if isinstance(command, Consult)]

    def play(self, *replies: Reply | Fault, tool: Callable[[str, str], str] | None = None) -> World:
        """Carries out what is outstanding, the model with these replies, until they are used up or nothing is left.

        `tool` gives a tool's result for its name and argument digest.
        """
        left = list(replies)
        while self.running:
            command = self.running[0]
            match command:
                case CallModel():
                    if not left:
                        return self
                    self.reply(left.pop(0))
                case RunTool():
                    one = self.state.batch.calls[command.index]
                    self.finish(command, result=tool(one.name, one.digest) if tool else "ok")
                case Reconcile():
                    self.reconciled(command, "unknown")
                case Consult():
                    self.consulted(command)
                case StartChild():
                    self.child_made(command)
                case FinishChild():
                    self.child_finished(command)
                case ConsultAwait():
                    self.code_answers(command)
                case ConsultPolicy():
                    self.judged(command)
                case CheckOutput():
                    self.checked(command)
                case Compact():
                    self.summarized(command)
        return self

    # People and clients.

    def answer(self, index: int, result: str = "ok", *, token: str | None = None) -> bool:
        """A client answers, by default the one that has the call to itself, if one has."""
        question = self.state.questions.open.get(self.state.batch.calls[index].id)
        lease = None if question is None else question.lease
        if token is None:
            token = lease.token if lease is not None and not lease.lost else ""
        return self.offer(replace(self.closing(index, result=result), lease=token))

    def claim(self, index: int, token: str, *, lease_us: int = 30_000_000, renewed: bool = False) -> bool:
        one = self.state.batch.calls[index]
        return self.offer(CallClaimed(self.state.turn - 1, index, one.id, one.name, token, lease_us, "", renewed))

    def release(self, index: int) -> bool:
        question = self.state.questions.open.get(self.state.batch.calls[index].id)
        return question is not None and self.offer(unclaim(self.state, question, "released"))

    @property
    def awaits(self) -> list[str]:
        """The ids of what people are asked."""
        return [id for id, question in self.state.questions.open.items() if question.kind != "call"]

    def say(self, outcome: AwaitOutcome, id: str = "", *, by: str = "key:ops", digest: str = "") -> bool:
        """A person answers an await, by default the oldest one; `digest` is that of arguments they changed."""
        id = id or self.awaits[0]
        question = self.state.questions.open.get(id)
        if question is None:
            return False
        one = self.state.batch.calls[question.index]
        head = AwaitClosed(self.state.turn - 1, question.index, id, outcome, by, digest or one.digest)
        return self.offer(head)

    def code_answers(self, command: ConsultAwait, outcome: AwaitOutcome | None = None) -> bool:
        """The agent's own code was asked about an await; by default it leaves it to people."""
        self.running.remove(command)
        if outcome is None:
            return self.offer(AwaitPassed(command.id))
        return self.say(outcome, command.id, by="hook:desk")

    def cancel(self, reason: str = "user") -> bool:
        return self.offer(CancelRequested(reason))

    def pause(self) -> bool:
        return self.offer(RunPaused("look at it", "ops"))

    def resume(self) -> bool:
        return self.offer(RunResumed())

    def stop(self, by: str = "tool:look") -> bool:
        return self.offer(RunStopped(by))

    def force(self, seat: int, by: str = "tool:look") -> bool:
        return self.offer(SeatForced(seat, by))

    def steer(self, id: str) -> bool:
        return self.offer(MessageQueued(id, "steer"))

    def follow_up(self, id: str) -> bool:
        return self.offer(MessageQueued(id, "follow_up"))

    def wait_until(self, time: int) -> bool:
        """The clock shows `time` and the driver's timer goes off."""
        self.clock = time
        return self.offer(TimerFired(time))

    # What the log says.

    def heads(self, kind: type[F]) -> list[F]:
        return [entry.head for entry in self.entries if isinstance(entry.head, kind)]

    def texts(self, kind: type[F]) -> list[str]:
        """What the kernel itself said in the entries of a kind."""
        return [entry.text for entry in self.entries if isinstance(entry.head, kind)]

    def hows(self, turn: int | None = None) -> list[How]:
        """How the calls of a turn (default: of all turns) were closed, in the order of the log."""
        return [head.how for head in self.heads(CallClosed) if turn is None or head.turn == turn]

    @property
    def executions(self) -> list[RunTool]:
        return [command for command in self.begun if isinstance(command, RunTool)]

    @property
    def model_calls(self) -> int:
        return sum(isinstance(command, CallModel) for command in self.begun)

    @property
    def end(self) -> RunEnded:
        last = self.entries[-1].head
        assert isinstance(last, RunEnded), f"the run has not ended: {last}"
        return last
