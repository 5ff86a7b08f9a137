"""Replays a run that has ended: models, tools, clients and people are answered from its log.

The log leads. Whatever came from outside (an answer of a model, a result, a cancel, the clock, a new process after a
crash) is folded as it was recorded, if the run still accepts it. Whatever the run itself decided must be decided again
by `decide`, exactly, and the current tools must prepare a model's calls as they were prepared then. The first
difference ends the replay.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import NoReturn

from msgspec import UNSET, Struct
from msgspec.structs import replace

from weftline.kernel import bodies
from weftline.kernel.accept import accepts
from weftline.kernel.bodies import TurnBody, turn_args
from weftline.kernel.context import CompactionFailed, CompactionStarted, ContextCompacted, ContextMeasured
from weftline.kernel.control import EXECUTED, OF_RUN, DeployAdopted
from weftline.kernel.decide import decide
from weftline.kernel.entries import (
    KIND,
    AskedCall,
    AttemptFailed,
    AttemptStarted,
    AwaitClosed,
    AwaitOpened,
    CallAsked,
    CallClosed,
    CallOpened,
    CallStarted,
    Fact,
    How,
    InstructionsRendered,
    RunCreated,
    RunEnded,
    StateChanged,
    TurnCompleted,
    decode_fact,
)
from weftline.kernel.policy import BudgetRefused, RunUnattended
from weftline.kernel.state import New, State
from weftline.messages import ToolCall
from weftline.plan import RunPlan, decode_plan
from weftline.replay.divergence import Difference, Divergence, body_value, differences
from weftline.replay.exporting import messages_of
from weftline.replay.format import Offered, offered_by
from weftline.replay.present_code import CodeSource, PresentCode
from weftline.replay.recorded import Recorded
from weftline.runtime.clock import SystemClock
from weftline.runtime.conversation import Conversation
from weftline.runtime.live import Draft, WorkingSet
from weftline.runtime.model_calls.cutting import input_bytes
from weftline.runtime.model_calls.model_call import MODEL_RETRIES_TIMEOUT_S, MODEL_TIMEOUT_S, describe_invalid_answer
from weftline.runtime.model_calls.models import offered_digest
from weftline.runtime.public_errors import in_private
from weftline.runtime.recovery import plain_body
from weftline.runtime.services import Services
from weftline.runtime.step import take_in
from weftline.runtime.tool_calls.preparing import prepare_call, prepare_calls
from weftline.runtime.tool_calls.toolbox import RunName
from weftline.runtime.writing import write_down
from weftline.store.rows import Item
from weftline.work.deadlines import Deadlines

_PIPELINE_FIELDS = ("invalid", "ask")
_BY_TOOLS = EXECUTED | frozenset[How]({"in_doubt", "not_run"})


class Replayed(Struct, frozen=True):
    """The compared entries, and the first difference, if there is one."""

    run: str
    status: str
    turns: int
    calls: int
    runs: int = 1
    """How many runs were replayed: this one and those below it."""
    divergence: Divergence | None = None
    code_missing: bool = False
    """The agent's code was not here: its prompt, its tools and its handling of arguments were not compared."""
    tools_missing: tuple[str, ...] = ()
    """The tools of the run's server that were not here: they are assumed to be unchanged."""

    def __str__(self) -> str:
        if self.divergence is not None:
            return str(self.divergence)
        below = f", with {self.runs - 1} below it" if self.runs > 1 else ""
        return f"{self.run} comes out the same: {self.status}, turns {self.turns}, calls {self.calls}{below}."


async def replay_runs(runs: Sequence[Recorded], today: CodeSource) -> Replayed:
    """Replays a run and those below it, one after the other, until one diverges."""
    done: list[Replayed] = []
    for recorded in runs:
        done.append(await replay_run(recorded, today))
        if done[-1].divergence is not None:
            break
    return replace(
        done[0],
        turns=sum([one.turns for one in done]),
        calls=sum([one.calls for one in done]),
        runs=len(done),
        divergence=done[-1].divergence,
        code_missing=any(one.code_missing for one in done),
        tools_missing=tuple(dict.fromkeys([name for one in done for name in one.tools_missing])),
    )


async def replay_run(recorded: Recorded, today: CodeSource) -> Replayed:
    return await _Replay(recorded, today).run()


async def offered_now(recorded: Recorded, today: CodeSource) -> Offered:
    """Returns the tools and instructions that the models of a run would get now."""
    created, plan = await _beginning(recorded)
    known = await _opened(today, plan, _name(recorded, created))
    return offered_by(_system(plan, known), known.toolbox)


async def _opened(today: CodeSource, plan: RunPlan, run: RunName) -> PresentCode:
    """The current code, with the tools that the run's policy allows."""
    known = await today.open(plan, run)
    return replace(known, toolbox=known.toolbox.under(plan.limits.policy))


class _Diverged(Exception):
    def __init__(self, divergence: Divergence) -> None:
        super().__init__(str(divergence))
        self.divergence = divergence


class _Replay:
    def __init__(self, recorded: Recorded, today: CodeSource) -> None:
        self._recorded = recorded
        self._today = today
        self._state = State()
        self._turns = self._calls = 0
        self._seq = 0
        self._known = PresentCode()
        self._services = Services("", SystemClock(), Deadlines(), MODEL_TIMEOUT_S, MODEL_RETRIES_TIMEOUT_S)

    async def run(self) -> Replayed:
        created, plan = await _beginning(self._recorded)
        known = self._known = await _opened(self._today, plan, _name(self._recorded, created))
        history = await self._recorded.history()
        limit = plan.model_result_limit_bytes
        conversation = Conversation([*plan.messages], size=input_bytes(plan), result_limit_bytes=limit)
        self._work = WorkingSet(self._recorded.run_id, plan, conversation, unique_id=self._recorded.run_id)
        self._work.toolbox = known.toolbox
        # Without its thread, the size of its requests is unknown.
        self._sized = known.complete and (created.thread is None or bool(history))
        missing = plan.code is not None and known.toolbox.code is None
        divergence: Divergence | None = None
        facts = self._recorded.facts()
        try:
            async for item in facts:
                await self._follow(item, facts, history)
            if not self._state.ended:
                [now, *_] = [KIND[type(new.head)] for new in decide(self._state).append] or [""]
                self._diverge("", now)
        except _Diverged as error:
            divergence = error.divergence
        run_id, status = self._recorded.run_id, self._state.status
        return Replayed(
            run_id,
            status,
            self._turns,
            self._calls,
            divergence=divergence,
            code_missing=missing,
            tools_missing=known.missing,
        )

    async def _follow(self, item: Item, facts: AsyncIterator[Item], history: Sequence[bytes]) -> None:
        """Processes the next fact of the log, and those that belong to the same decision."""
        self._seq = item.seq
        head = decode_fact.decode(item.head)
        if isinstance(head, AttemptStarted) and not self._state.totals.attempts:
            self._check_offer()
        decided = decide(self._state).append
        if await self._is_decided(decided, item, head, facts):
            return
        if not _comes_from_outside(self._state, head):
            # A run that was given up after repeated failures ends with an entry that does not follow from its log.
            given_up = decide(replace(self._state, broken="given up")).append
            if await self._is_decided(given_up, item, head, facts, by_force=True):
                return
            self._contradict(decided, item, head)
        if isinstance(head, TurnCompleted):
            await self._check_turn(head, item)
        if isinstance(head, CallAsked):
            await self._check_asked(head, item)
        if item.kind == "history.pinned" and history:
            messages = messages_of(history)
            self._work.conversation.begin(messages, size=sum([len(message) for message in history]))
        self._take(item, head)

    async def _is_decided(
        self, decided: Sequence[New], item: Item, head: Fact, facts: AsyncIterator[Item], *, by_force: bool = False
    ) -> bool:
        """Returns True if the log continues with what is decided now. A decision is made on one state, and appended as
        a whole.
        """

        def drafted(new: New, log: Fact) -> Draft:
            return Draft(new.head, plain_body(new)) if by_force else self._drafted(new, log)

        if not decided or self._compared(item, head, drafted(decided[0], head)):
            return False
        drafts = [(item, head)]
        for new in decided[1:]:
            following = await anext(facts, None)
            if following is None:
                self._diverge("", KIND[type(new.head)])
            self._seq = following.seq
            expected = decode_fact.decode(following.head)
            if found := self._compared(following, expected, drafted(new, expected)):
                self._diverge(following.kind, KIND[type(new.head)], found)
            drafts.append((following, expected))
        for one, expected in drafts:
            self._take(one, expected)
        return True

    def _drafted(self, new: New, log: Fact) -> Draft:
        """Returns the entries that would be appended. What no replay can know, such as a price, is taken from the
        log.
        """
        match new.head, log:
            case AttemptStarted() as now, AttemptStarted():
                size = self._work.conversation.estimate(self._known.toolbox) if self._sized else log.estimate
                offered = self._offered(log.offered)
                # Under a limit in money, models without a price were skipped.
                choice = now.choice if log.held is None else max(now.choice, log.choice)
                return Draft(
                    replace(now, model=log.model, estimate=size, offered=offered, held=log.held, choice=choice)
                )
            case AttemptFailed() as now, AttemptFailed():
                now = replace(now, usage=log.usage, estimated=log.estimated, cost_nusd=log.cost_nusd)
                return Draft(now, bodies.encode(bodies.FailedBody(now.reason)))
            case CompactionStarted() as now, CompactionStarted():
                return Draft(replace(now, model=log.model, estimate=log.estimate, held=log.held))
            case CallOpened() as now, CallOpened():
                return write_down(self._state, self._work, New(replace(now, held=log.held), new.text))
            case CompactionFailed() as now, CompactionFailed():
                return Draft(replace(now, cost_nusd=log.cost_nusd), bodies.encode(bodies.FailedBody(now.reason)))
            case ((AttemptStarted() | CompactionStarted() | CompactionFailed() | AttemptFailed()), _):
                return Draft(new.head)
            case _:
                return write_down(self._state, self._work, new)

    def _offered(self, log: str) -> str:
        """The digest of what models are given now, if the log has one and everything is available here."""
        if not log or not self._known.complete:
            return log
        system = self._work.conversation.system or _system(self._work.plan, self._known)
        return offered_digest(system, self._known.toolbox)

    def _compared(self, item: Item, log: Fact, now: Draft) -> list[Difference]:
        """Returns the differences between an entry and the one that would be written in its place."""
        if type(log) is not type(now.head):
            return [Difference("type", item.kind, KIND[type(now.head)])]
        body = in_private(item.body) if isinstance(log, RunEnded) else item.body  # clients may read another text
        if isinstance(log, AttemptStarted):
            body = now.body  # the tools, of which the head has a digest
        if log == now.head and body == now.body:
            return []
        found = differences(log, now.head)
        if body != now.body:
            found += differences(body_value(body), body_value(now.body), path="body")
        unknown = self._unknown(log)
        return [one for one in found if {one.field, one.field.partition(".peer")[0]}.isdisjoint(unknown)]

    def _unknown(self, log: Fact) -> tuple[str, ...]:
        """Fields that depend on tools, messages or a store that are not available here."""
        match log:
            case CallOpened() if not self._known.complete:
                return ("body",)
            case CallStarted() if not self._known.complete:
                return ("effect",)
            case ContextMeasured() if not self._sized:
                return ("tokens", "spare", "turns")
            case AwaitOpened(kind="doubt"):
                return ("body.key",)  # derived from the id of the store, which a log does not contain
            case _:
                return ()

    def _contradict(self, decided: Sequence[New], item: Item, head: Fact) -> NoReturn:
        if not decided:
            self._diverge(item.kind, "")
        now = self._drafted(decided[0], head)
        kind = KIND[type(now.head)]
        self._diverge(item.kind, kind, self._compared(item, head, now) if kind == item.kind else ())

    def _check_offer(self) -> None:
        """Compares the prompt and the tools of the first request, and so of every request."""
        plan, known, recorded = self._work.plan, self._known, self._recorded.offered
        found: list[Difference] = []
        rendered = self._work.conversation.system is not None
        if recorded is not None:
            now = offered_by(_system(plan, known), known.toolbox)
            found = differences(recorded, now)
        elif known.system is not UNSET and not rendered:
            found = differences({"system": plan.system}, {"system": known.system})
        if found:
            self._diverge("attempt.started", "attempt.started", found)

    async def _check_turn(self, head: TurnCompleted, item: Item) -> None:
        """Compares how the current tools prepare the model's calls, and how the current checks judge its answer."""
        body = bodies.decode_turn(item.body)
        asked, turn = await prepare_calls(body.message, self._work, self._services, turn=head.turn, state=self._state)
        found: list[Difference] = []
        before, after = turn_args(body), turn_args(turn)
        if len(asked) != len(head.calls):
            found = differences(head.calls, asked, path="calls")
        else:
            for index, (log, now) in enumerate(zip(head.calls, asked, strict=True)):
                if not self._known.complete and self._known.toolbox.get(log.name) is None:
                    continue
                path, now = f"calls.{index}", _as_then(now, log)
                found += differences(log, now, path=path)
                if before[index] != after[index]:
                    found += differences(body_value(before[index]), body_value(after[index]), path=f"{path}.args")
                found += differences(_pipeline_fields(body, index), _pipeline_fields(turn, index), path=path)
        if not head.calls:
            problem = await describe_invalid_answer(self._work, body.message.text)
            found += differences({"problem": body.problem}, {"problem": problem})
        if found:
            self._diverge(item.kind, item.kind, found)

    async def _check_asked(self, head: CallAsked, item: Item) -> None:
        """Compares how the current tools prepare a nested call. The call that asked for it is not executed."""
        log = head.call
        if not self._known.complete and self._known.toolbox.get(log.name) is None:
            return
        body = bodies.decode_asked(item.body)
        call = ToolCall(log.id, log.name, body.written)
        asking = self._work.conversation.turn.body
        parent = "" if asking is None else asking.message.calls[head.parent].id
        now = await prepare_call(
            call,
            self._work,
            self._services,
            turn=head.turn,
            parent=parent,
            withheld=self._state.guards.withheld,
        )
        found = differences(log, _as_then(now.asked, log), path="call")
        if body.args != now.args:
            found += differences(body_value(body.args), body_value(now.args), path="call.args")
        before, after = (body.call.invalid, body.call.ask), (now.invalid, now.ask)
        found += differences(
            dict(zip(_PIPELINE_FIELDS, before, strict=True)),
            dict(zip(_PIPELINE_FIELDS, after, strict=True)),
            path="call",
        )
        if found:
            self._diverge(item.kind, item.kind, found)

    def _take(self, item: Item, head: Fact) -> None:
        self._seq = item.seq
        self._turns += isinstance(head, TurnCompleted)
        self._calls += isinstance(head, CallClosed)
        self._state = take_in(self._state, self._work, Draft(head, item.body), at=item.at)

    def _diverge(self, kind: str, now: str, found: Sequence[Difference] = ()) -> NoReturn:
        turn = self._state.turn if self._state.step == "model" else max(self._state.turn - 1, 0)
        raise _Diverged(Divergence(self._recorded.run_id, turn, self._seq, kind, now, tuple(found)))


def _comes_from_outside(state: State, head: Fact) -> bool:
    """Returns True if a fact that is not decided here is one that the run still accepts."""
    match head:
        case RunCreated():
            return not state.created
        case (
            InstructionsRendered()
            | StateChanged()
            | ContextCompacted()
            | RunUnattended()
            | DeployAdopted()
            | BudgetRefused()
        ):
            return not state.ended
        case CallClosed():
            return head.how in _BY_TOOLS and any(
                accepts(state, head, attempt=attempt) for attempt in _attempts(state, head)
            )
        case CallAsked():
            calls = state.batch.calls
            return 0 <= head.parent < len(calls) and accepts(state, head, attempt=calls[head.parent].attempt)
        case AwaitOpened() | AwaitClosed() if head.index == OF_RUN:
            return not state.ended
        case CallStarted() | AwaitOpened():
            return any(accepts(state, head, attempt=attempt) for attempt in _attempts(state, head))
        case _:
            return accepts(state, head)


def _attempts(state: State, head: CallClosed | CallStarted | AwaitOpened) -> tuple[int, ...]:
    """The attempts of a call that an outcome may belong to; 0 for a client's answer."""
    calls = state.batch.calls
    if not 0 <= head.index < len(calls):
        return ()
    call = calls[head.index]
    return (0,) if call.client is not None else (call.attempt or 1,)


def _as_then(now: AskedCall, log: AskedCall) -> AskedCall:
    """The call as this code prepares it, except that older runs had calls of `read` tools one after the other."""
    older = now.effect == log.effect == "read" and now.concurrent and not log.concurrent
    return replace(now, concurrent=False) if older else now


def _pipeline_fields(body: TurnBody, index: int) -> dict[str, object]:
    """Returns the pipeline's record of a call."""
    if index >= len(body.calls):
        return {"invalid": "", "ask": None}
    return {"invalid": body.calls[index].invalid, "ask": body.calls[index].ask}


def _system(plan: RunPlan, known: PresentCode) -> str | None:
    return plan.system if known.system is UNSET else known.system


def _name(recorded: Recorded, created: RunCreated) -> RunName:
    return RunName(0, recorded.run_id, 0, parent=created.parent)


async def _beginning(recorded: Recorded) -> tuple[RunCreated, RunPlan]:
    first = await anext(aiter(recorded.facts()))
    head = decode_fact.decode(first.head)
    assert isinstance(head, RunCreated)
    return head, decode_plan(bodies.decode_created(first.body).plan, head.limits)
