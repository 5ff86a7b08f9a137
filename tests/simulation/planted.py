"""Bugs that the simulation must catch, planted at the seams: the store, `step`, `carry_out`, followers, wake-ups.

Each is what a plausible mistake would do to the part that it is planted in.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Self

from msgspec.structs import replace

from store.planted import EpochsOnlyForWorkInFlight
from weftline.kernel.accept import open_question
from weftline.kernel.calls import earliest_deadline
from weftline.kernel.decide import decide
from weftline.kernel.entries import TimerFired, TurnCompleted
from weftline.kernel.state import ActiveTime, Call, Command, RunTool, State
from weftline.runtime import step as stepping
from weftline.runtime.alarm import Alarm
from weftline.runtime.answers import closed_by_client
from weftline.runtime.clock import Clock
from weftline.runtime.driver import CarryOut, TakeStep
from weftline.runtime.embedded import EmbeddedEngine
from weftline.runtime.engine import EntryBatch
from weftline.runtime.hub import Subscription
from weftline.runtime.live import Draft, LiveRun, WorkingSet
from weftline.runtime.services import Outcome, Services, Sink
from weftline.runtime.step import Step, take_in
from weftline.store.base import Item, Loaded, LogStore, Progress, Write, Written
from weftline.store.budgets import Booking
from weftline.store.records import schedules
from weftline.store.records.schedules import ScheduleRow
from weftline.testing.simulation import Build
from weftline.testing.simulation.model import catalog
from weftline.testing.simulation.server import WallClock
from weftline.testing.simulation.store import SimulatedLog, SimulatedStore, Wires
from weftline.testing.simulation.tools import tools_of
from weftline.testing.simulation.world import Life
from weftline.tools.base import ToolOutput
from weftline.workspace.context import Workspaces
from weftline.workspace.firing import ScheduleAlarm, Start, Started
from weftline.workspace.schedules import timing_of

NewLog = Callable[[LogStore, Wires], SimulatedLog]


class Bug(Build):
    """A mistake in one of the parts, and the rules by which it may be noticed."""

    def __init__(
        self,
        name: str,
        rules: str,
        *,
        log: NewLog = SimulatedLog,
        step: Callable[[], TakeStep] | None = None,
        carry_out: Callable[[CarryOut], CarryOut] | None = None,
        engine: type[EmbeddedEngine] = EmbeddedEngine,
        alarm: Callable[..., Any] = Alarm,
        schedules: type[ScheduleAlarm] = ScheduleAlarm,
        first_seed: int = 0,
    ) -> None:
        self.name = name
        self.rules = frozenset(rules.split())
        self.first_seed = first_seed
        self.rings = alarm
        self._schedules = schedules
        self._log = log
        self._step = step
        self._carry_out = carry_out
        self._engine = engine

    def log(self, inner: LogStore, wires: Wires) -> SimulatedLog:
        return self._log(inner, wires)

    def alarm(self, at: Workspaces, *, start: Start, started: Started) -> ScheduleAlarm:
        return self._schedules(at, start=start, started=started)

    def engine(self, store: SimulatedStore, life: Life, clock: WallClock) -> EmbeddedEngine:
        return self._engine(
            store,
            models=catalog(life),
            tools=tools_of(life),
            clock=clock,
            step=self._step() if self._step is not None else stepping.step,
            carry_out=self._carry_out(life.carry_out) if self._carry_out is not None else life.carry_out,
        )


# In `step`


class WritesADecisionAgain:
    """Takes a decision for lost when something came in from outside meanwhile, and appends it as it was."""

    def __init__(self) -> None:
        self._before: dict[int, tuple[WorkingSet, Step]] = {}

    def __call__(self, state: State, work: WorkingSet, facts: Sequence[Draft] = (), *, at: int) -> Step:
        _, before = self._before.get(id(work), (work, None))
        again: list[Draft] = []
        if before is not None and len(before.state.control.queue) < len(state.control.queue):
            for draft in before.entries:
                again.append(draft)
                state = take_in(state, work, draft, at=at)
        result = stepping.step(state, work, facts, at=at)
        self._before[id(work)] = (work, result)
        return replace(result, entries=[*again, *result.entries])


def goes_on_as_if_nothing_were_lost(state: State, work: WorkingSet, facts: Sequence[Draft] = (), *, at: int) -> Step:
    """After a restart, what was begun before it is begun once more under the same attempt."""
    calls = tuple([replace(call, lost=False) for call in state.batch.calls])
    state = replace(state, attempt=replace(state.attempt, lost=False), batch=replace(state.batch, calls=calls))
    return stepping.step(state, work, facts, at=at)


def drops_usage_on_cancel(state: State, work: WorkingSet, facts: Sequence[Draft] = (), *, at: int) -> Step:
    if state.control.cancel:
        work.answering = None
    return stepping.step(state, work, facts, at=at)


def forgets_deadlines_while_commands_run(
    state: State, work: WorkingSet, facts: Sequence[Draft] = (), *, at: int
) -> Step:
    result = stepping.step(state, work, facts, at=at)
    return replace(result, due_at=None) if result.commands else result


def leaves_out_what_it_was_told(state: State, work: WorkingSet, facts: Sequence[Draft] = (), *, at: int) -> Step:
    """A thread gets the input of a run and its last text, whatever was said in between."""
    result = stepping.step(state, work, facts, at=at)
    if result.thread_end is not None:
        del result.thread_end.messages[1:-1]
    return result


# In `carry_out`


class HastySink:
    """Lets everything begin at once."""

    def __init__(self, inner: Sink, *, tools: bool, models: bool) -> None:
        self._inner = inner
        self._tools = tools
        self._models = models

    async def permit(self) -> None:
        if not self._models:
            await self._inner.permit()

    async def durable(self) -> None:
        if not self._tools:
            await self._inner.durable()

    def emit(self, kind: str, encoded: list[bytes]) -> None:
        self._inner.emit(kind, encoded)

    def wanted(self) -> bool:
        return self._inner.wanted()

    def take(self, outcome: Outcome) -> bool:
        return self._inner.take(outcome)

    def full(self) -> bool:
        return self._inner.full()


def hasty(*, tools: bool = False, models: bool = False) -> Callable[[CarryOut], CarryOut]:
    def plant(carry_out: CarryOut) -> CarryOut:
        async def planted(
            command: Command, state: State, work: WorkingSet, services: Services, sink: Sink
        ) -> Outcome | None:
            return await carry_out(command, state, work, services, HastySink(sink, tools=tools, models=models))

        return planted

    return plant


def prepares_arguments_again(carry_out: CarryOut) -> CarryOut:
    async def planted(
        command: Command, state: State, work: WorkingSet, services: Services, sink: Sink
    ) -> Outcome | None:
        if isinstance(command, RunTool) and work.toolbox is not None:
            turn, tool = work.conversation.turn, work.toolbox.get(state.batch.calls[command.index].name)
            if tool is not None:
                turn.args[command.index] = await tool.prepare(turn.written(command.index))
        return await carry_out(command, state, work, services, sink)

    return planted


def forgets_what_code_asked_for(carry_out: CarryOut) -> CarryOut:
    """Code that begins again is not answered from the log."""

    async def planted(
        command: Command, state: State, work: WorkingSet, services: Services, sink: Sink
    ) -> Outcome | None:
        if isinstance(command, RunTool) and state.batch.calls[command.index].host:
            work.conversation.turn.nested.pop(command.index, None)
        return await carry_out(command, state, work, services, sink)

    return planted


# In the store


class Reads(SimulatedLog):
    """A claim that reads the conversation wrongly."""

    async def claim(self, key: int, *, kinds: Sequence[str]) -> Loaded | None:
        loaded = await super().claim(key, kinds=kinds)
        if loaded is not None:
            await self.spoil(loaded)
        return loaded

    async def spoil(self, loaded: Loaded) -> None: ...


class ReadsARowTwice(Reads):
    async def spoil(self, loaded: Loaded) -> None:
        loaded.conversation += loaded.conversation[-1:]


class MissesARow(Reads):
    async def spoil(self, loaded: Loaded) -> None:
        results = [row for row in loaded.conversation if row.kind == "call.closed"]
        loaded.conversation = [row for row in loaded.conversation if row not in results[-1:]]


class ReadsInTheWrongOrder(Reads):
    async def spoil(self, loaded: Loaded) -> None:
        loaded.conversation[-2:] = loaded.conversation[-2:][::-1]


class ReadsTheConversationOfAnother(Reads):
    async def spoil(self, loaded: Loaded) -> None:
        others = await self.inner.facts(loaded.row.key - 1, kinds=("turn.completed", "call.closed"))
        loaded.conversation = others or loaded.conversation


class ReadsTheThreadOfAnother(SimulatedLog):
    async def thread_messages(self, thread: int) -> list[bytes]:
        return await super().thread_messages(1 if thread == 2 else 2) or await super().thread_messages(thread)


class Flushes(SimulatedLog):
    """Writes something else than it was given."""

    def flush(self, writes: Sequence[Write]) -> asyncio.Future[list[Written]]:
        for write in writes:
            self.spoil(write)
        return super().flush(writes)

    def spoil(self, write: Write) -> None: ...


class EndsTwice(Flushes):
    """Somebody makes sure that a cancelled run ends, and does not look whether it has."""

    def spoil(self, write: Write) -> None:
        if write.status == "cancelled" and write.items[-1].kind == "run.ended":
            last = write.items[-1]
            write.items.append(Item(last.at, last.kind, last.head, last.body))


class OnlyTheRequesterWakes(Flushes):
    """What comes from outside does not make its run due: whoever asked wakes it afterwards, if still there."""

    def spoil(self, write: Write) -> None:
        if write.due_at == 0 and {item.kind for item in write.items} <= {"message.queued", "run.resumed"}:
            write.due_at = None if write.items else 0


class HearsOfNoProgress(Flushes):
    """Whatever a run brings to its end, it stays under suspicion."""

    def spoil(self, write: Write) -> None:
        write.progress = Progress.NONE


class EndsInTwoTransactions(SimulatedLog):
    """A run ends in one transaction and leaves its thread in the next."""

    def flush(self, writes: Sequence[Write]) -> asyncio.Future[list[Written]]:
        ends = [write for write in writes if write.thread_end is not None]
        if not ends:
            return super().flush(writes)
        report: asyncio.Future[list[Written]] = asyncio.get_running_loop().create_future()
        leaving = [_leaves(write) for write in ends]
        for write in ends:
            write.thread_end = None
        first = super().flush(writes)

        def second(done: asyncio.Future[list[Written]]) -> None:
            results = done.result()
            after = SimulatedLog.flush(self, leaving)
            after.add_done_callback(lambda left: third(results, left.result()))

        def third(results: list[Written], left: list[Written]) -> None:
            for write, result in zip(ends, left, strict=True):
                results[list(writes).index(write)].promoted = result.promoted
            report.set_result(results)

        first.add_done_callback(second)
        return report


def _leaves(write: Write) -> Write:
    seq = write.base_seq + sum(item.count for item in write.items)
    return replace(write, items=[], new=None, state=None, base_seq=seq, base_version=write.version)


class SaysYesToAWriteThatFailed(SimulatedLog):
    def flush(self, writes: Sequence[Write]) -> asyncio.Future[list[Written]]:
        report: asyncio.Future[list[Written]] = asyncio.get_running_loop().create_future()

        def tell(done: asyncio.Future[list[Written]]) -> None:
            report.set_result([replace(one, outcome="ok", error=None) for one in done.result()])

        super().flush(writes).add_done_callback(tell)
        return report


class NotesNoTrial(SimulatedLog):
    """Who is being recovered is noted when that is done, which a run that kills the process never lets happen."""

    async def begin_trial(self, keys: Sequence[int]) -> None:
        pass


class ForgetsTimersWithTheProcess(SimulatedLog):
    """Timers are armed when a run is parked, and by no start."""

    async def next_due(self, after: int) -> int | None:
        return None


# In what people are asked


def asks_nobody(state: State, work: WorkingSet, facts: Sequence[Draft] = (), *, at: int) -> Step:
    """A tool that wants approval is treated like any other."""
    return stepping.step(state, work, [_changed(draft, asks=None) for draft in facts], at=at)


def takes_one_yes_for_all(state: State, work: WorkingSet, facts: Sequence[Draft] = (), *, at: int) -> Step:
    """Whoever has approved a call of a tool has approved all that follow."""
    said = [head for head, _ in work.conversation.turn.answers.values() if head.outcome == "approved"]
    if said:
        facts = [_changed(draft, asks=None, allowed_by=said[-1].id) for draft in facts]
    return stepping.step(state, work, facts, at=at)


def _changed(draft: Draft, **fields: Any) -> Draft:
    head = draft.head
    if not isinstance(head, TurnCompleted):
        return draft
    calls = tuple([replace(call, **fields) if call.asks is not None else call for call in head.calls])
    return replace(draft, head=replace(head, calls=calls))


def never_looks_at_the_clock(state: State, work: WorkingSet, facts: Sequence[Draft] = (), *, at: int) -> Step:
    """An approval that lapsed while the server was down still counts, and none is asked for again in time."""
    calls = tuple([_for_ever(call) for call in state.batch.calls])
    result = stepping.step(replace(state, batch=replace(state.batch, calls=calls)), work, facts, at=at)
    calls = tuple([_for_ever(call) for call in result.state.batch.calls])
    return replace(result, state=replace(result.state, batch=replace(result.state.batch, calls=calls)))


def _for_ever(call: Call) -> Call:
    return call if call.grant is None else replace(call, grant=replace(call.grant, expires_at=2**62))


def forgets_when_an_answer_is_due(state: State, work: WorkingSet, facts: Sequence[Draft] = (), *, at: int) -> Step:
    """People have all the time in the world."""
    result = stepping.step(state, work, facts, at=at)
    asked = any(question.kind != "call" for question in result.state.questions.open.values())
    return replace(result, due_at=None) if asked else result


def runs_what_was_asked_for(real: CarryOut) -> CarryOut:
    """A call that a person has changed is carried out as the model wrote it."""

    async def carry_out(
        command: Command, state: State, work: WorkingSet, services: Services, sink: Sink
    ) -> Outcome | None:
        if isinstance(command, RunTool) and work.conversation.turn.body is not None:
            work.conversation.turn.args[command.index] = work.conversation.turn.prepared(command.index)
        return await real(command, state, work, services, sink)

    return carry_out


def _reporting_doubts(state: State) -> State:
    """Whoever wants to be asked about calls in doubt reads in a result that there were some."""
    return replace(state, limits=replace(state.limits, in_doubt="report"))


def _missing_nothing(state: State) -> State:
    """The model makes of a failed call what it can, whatever a person might know."""
    return replace(state, batch=replace(state.batch, lacking=None))


def _asking_the_tool_again(state: State) -> State:
    """A tool that has asked a person is carried out once more when there is an answer."""
    calls = tuple([_cut_off(call) for call in state.batch.calls])
    return replace(state, batch=replace(state.batch, calls=calls))


def _cut_off(call: Call) -> Call:
    answered = call.asked_back and not call.awaiting and call.attempt == 1
    return replace(call, asked_back=False, lost=True, verdict="ok") if answered else call


def forgets_what_it_was_told(state: State, work: WorkingSet, facts: Sequence[Draft] = (), *, at: int) -> Step:
    """What a person said about something missing is in the log, and in no request."""
    result = stepping.step(state, work, facts, at=at)
    work.conversation._clarifying = ""  # pyright: ignore[reportPrivateUsage]
    return result


class ListsWhatIsAnswered(Flushes):
    """The list of what people are asked is cleaned up by whoever answers, and by nothing else."""

    def spoil(self, write: Write) -> None:
        if write.ended_at is not None:
            write.answered.clear()


# In wake-ups and followers


class DropsEarlyTimers:
    """Rings when the loop's timer does, and forgets a time that the wall clock has not reached by then."""

    def __init__(self, ring: Callable[[], None], *, on_stall: Callable[[int], None], clock: Clock) -> None:
        self._ring = ring
        self._clock = clock

    def at(self, due_at: int) -> None:
        wait_s = max((due_at - self._clock.now_us()) / 1_000_000, 0.0)
        asyncio.get_running_loop().call_later(wait_s, self._look, due_at)

    def _look(self, due_at: int) -> None:
        if self._clock.now_us() >= due_at:
            self._ring()

    def stop(self) -> None: ...


class Forgetful(Subscription):
    """A slow reader loses its place with its queue."""

    __slots__ = ()

    def push(self, batch: EntryBatch) -> None:
        self.taken = self.last_seq
        super().push(batch)


class LosesThePlaceOfSlowReaders(EmbeddedEngine):
    def follow(self, key: int, run_id: str, *, after: int = 0, workspace: int = 0) -> Subscription:
        followed = super().follow(key, run_id, after=after, workspace=workspace)
        followed.__class__ = Forgetful
        return followed


class GivesWhatCodeAsksForAGrace(EmbeddedEngine):
    """Clients get the grace of a start also for what code asks them after it."""

    async def start(self) -> Self:
        await super().start()
        timers = self._residents.timers
        real = timers._grace_ends  # pyright: ignore[reportPrivateUsage]

        def planted(run: LiveRun, now: int) -> int | None:
            calls, asked = run.state.batch.calls, run.state.questions.open.values()
            nested = any(one.kind == "call" and calls[one.index].parent is not None for one in asked)
            until = timers._grace_until  # pyright: ignore[reportPrivateUsage]
            return until if nested and until > now else real(run, now)

        timers._grace_ends = planted  # pyright: ignore[reportPrivateUsage]
        return self


# In leases


class AnybodyAnswers(EmbeddedEngine):
    """Whoever answers a call first has answered it, whoever has claimed it."""

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
        run = await self._residents.load(key)
        question = None if run.state.ended else open_question(run.state, call_id)
        if question is None:
            return await super().answer(key, call_id, output)
        draft = closed_by_client(run, question, output, message_id="", idempotency_key="")
        await self._append_all(run, (draft,))
        return True


def _in_a_hurry(state: State) -> State:
    """A lease is over after half of its time."""
    asked = {
        id: replace(one, lease=replace(one.lease, until=one.lease.until - one.lease.lease_us // 2))
        if one.lease
        else one
        for id, one in state.questions.open.items()
    }
    questions = replace(state.questions, open=asked)
    return replace(state, questions=replace(questions, due_at=earliest_deadline(questions)))


# In policies


class DecidesOnAnotherState:
    """The kernel sees a state that `change` has made of the right one."""

    def __init__(self, change: Callable[[State], State]) -> None:
        self._change = change

    def __call__(self, state: State, work: WorkingSet, facts: Sequence[Draft] = (), *, at: int) -> Step:
        if stepping.time_has_come(self._change(state), at):
            facts = (Draft(TimerFired(at)), *facts)
        entries = list(facts)
        for draft in facts:
            state = take_in(state, work, draft, at=at)
        for _ in range(stepping.MAX_ROUNDS):
            decision = decide(self._change(state))
            if not decision.append:
                break
            for draft in [stepping.write_down(state, work, new) for new in decision.append]:
                entries.append(draft)
                state = take_in(state, work, draft, at=at)
        else:
            raise RuntimeError("the kernel does not come to rest")
        end = stepping.thread_end(state, work) if entries else None
        return Step(state, entries, decision.start, decision.due_at, end)


def sees(**use: Any) -> Callable[[], TakeStep]:
    return lambda: DecidesOnAnotherState(lambda state: replace(state, policy=replace(state.policy, **use)))


def _with_a_fast_clock(state: State) -> State:
    time = state.policy.time
    return replace(state, policy=replace(state.policy, time=replace(time, us=2 * time.us)))


class TakesDowntimeForWork(SimulatedLog):
    """A run that another process drove looks like one of this one's."""

    async def claim(self, key: int, *, kinds: Sequence[str]) -> Loaded | None:
        loaded = await super().claim(key, kinds=kinds)
        return None if loaded is None else replace(loaded, row=replace(loaded.row, epoch=loaded.epoch))


def forgets_reservations(state: State, work: WorkingSet, facts: Sequence[Draft] = (), *, at: int) -> Step:
    """The ledger knows what was spent, and nothing of what is under way."""
    account = work.account
    if account is not None and "add" not in vars(account.ledger):
        add = account.ledger.add
        zero = {"held_nusd": 0, "held_tokens": 0, "held_calls": 0}
        account.ledger.add = lambda bookings: add([replace(one, **zero) for one in bookings])
    return stepping.step(state, work, facts, at=at)


class ChangesBookings(SimulatedLog):
    """What is booked is not what the facts say."""

    def change(self, bookings: list[Booking]) -> list[Booking]:
        raise NotImplementedError

    def flush(self, writes: Sequence[Write]) -> asyncio.Future[list[Written]]:
        return super().flush([replace(write, bookings=self.change(write.bookings)) for write in writes])


class SettlesTwice(ChangesBookings):
    def change(self, bookings: list[Booking]) -> list[Booking]:
        return [*bookings, *[one for one in bookings if one.held_tokens < 0]]


class RefundsEarly(ChangesBookings):
    """What is reserved is free again at once."""

    def change(self, bookings: list[Booking]) -> list[Booking]:
        return [replace(one, held_nusd=0, held_tokens=0, held_calls=0) for one in bookings]


# In schedules


class KeepsNoKeys(SimulatedLog):
    """Whether a time of a schedule has its run is not asked before another one is created."""

    async def idempotent(self, workspace: int, route: str, key: str) -> tuple[bytes, int] | None:
        return None if route == "schedules" else await super().idempotent(workspace, route, key)

    def flush(self, writes: Sequence[Write]) -> asyncio.Future[list[Written]]:
        return super().flush([self._without_key(write) for write in writes])

    def _without_key(self, write: Write) -> Write:
        once = None if write.new is None else write.new.idempotency
        if write.new is None or once is None or once.route != "schedules":
            return write
        return replace(write, new=replace(write.new, idempotency=None))


class NotesItFirst(ScheduleAlarm):
    """A time is over once somebody has seen to it that its run begins."""

    async def _fire_once(self, row: ScheduleRow, time: int, *, now: int) -> None:
        await self._settle(row, time, now=now)
        await super()._fire_once(row, time, now=now)


class GoesOnFromNow(ScheduleAlarm):
    """After a start, what was due before it is of no interest."""

    async def run(self) -> None:
        now = self._at.clock.now_us()
        for workspace in await self._at.records.read(schedules.due_workspaces(now)):
            for row in await self._at.records.read(schedules.of_workspace(workspace)):
                if row.next_at is not None and row.next_at <= now:
                    await self._at.records.write(schedules.move(row.key, next_at=timing_of(row).next(now)))
        await super().run()


class MakesUpForEverything(ScheduleAlarm):
    """A time that was missed is as good as any other."""

    async def _fire(self, key: int, now: int) -> bool:
        row = await self._at.records.read(schedules.by_key(key))
        return await super()._fire(key, row.next_at if row is not None and row.next_at else now)


BUGS = (
    Bug("keeps_no_keys_of_schedules", "T1 C1 C4 C12", log=KeepsNoKeys, first_seed=2),
    Bug("notes_it_first", "T2 T3", schedules=NotesItFirst, first_seed=2),
    Bug("goes_on_from_now", "T2", schedules=GoesOnFromNow, first_seed=2),
    Bug("makes_up_for_everything", "T3", schedules=MakesUpForEverything, first_seed=65),
    Bug("forgets_reservations", "B2", step=lambda: forgets_reservations, first_seed=84),
    Bug("settles_twice", "B1 B2", log=SettlesTwice),
    Bug("refunds_early", "B1", log=RefundsEarly),
    Bug("writes_a_decision_again", "K2 K6 K7 K8 K9 K10 K13 C1 C5 B1 B2", step=WritesADecisionAgain),
    Bug(
        "goes_on_as_if_nothing_were_lost",
        "K2 K13 C3 C4 C6 C12",
        step=lambda: goes_on_as_if_nothing_were_lost,
        first_seed=1,
    ),
    Bug("drops_usage_on_cancel", "C4", step=lambda: drops_usage_on_cancel, first_seed=51),
    Bug(
        "forgets_deadlines_while_commands_run",
        "D1 D2",
        step=lambda: forgets_deadlines_while_commands_run,
        first_seed=92,
    ),
    Bug("leaves_out_what_it_was_told", "C8", step=lambda: leaves_out_what_it_was_told, first_seed=1),
    Bug("runs_tools_before_their_start_is_durable", "C3", carry_out=hasty(tools=True)),
    Bug("asks_models_ahead_of_the_log", "C4", carry_out=hasty(models=True), first_seed=1),
    Bug("prepares_arguments_again", "C3", carry_out=prepares_arguments_again, first_seed=4),
    Bug("forgets_what_code_asked_for", "N1 N2", carry_out=forgets_what_code_asked_for, first_seed=13),
    Bug("reads_a_row_twice", "M1", log=ReadsARowTwice, first_seed=2),
    Bug("misses_a_row", "M1", log=MissesARow, first_seed=2),
    Bug("reads_in_the_wrong_order", "M1 C3", log=ReadsInTheWrongOrder, first_seed=1),
    Bug("reads_the_conversation_of_another_run", "M1", log=ReadsTheConversationOfAnother, first_seed=2),
    Bug("reads_the_history_of_another_thread", "M1 C8", log=ReadsTheThreadOfAnother, first_seed=1),
    Bug("epochs_only_for_work_in_flight", "S7", log=lambda inner, wires: SimulatedLog(_epochs(inner), wires)),
    Bug("ends_twice", "C2 C5 K2 K6", log=EndsTwice),
    Bug("only_the_requester_wakes", "C6", log=OnlyTheRequesterWakes, first_seed=7),
    Bug("ends_in_two_transactions", "C6 C8", log=EndsInTwoTransactions, first_seed=80),
    Bug("says_yes_to_a_write_that_failed", "C1 C2 C3 C4 C6 S9 K2", log=SaysYesToAWriteThatFailed, first_seed=12),
    Bug("notes_no_trial", "C13", log=NotesNoTrial, first_seed=4),
    Bug("hears_of_no_progress", "C13", log=HearsOfNoProgress, first_seed=407),
    Bug("forgets_timers_with_the_process", "C6 D1", log=ForgetsTimersWithTheProcess, first_seed=24),
    Bug("drops_early_timers", "C6 D1", alarm=DropsEarlyTimers, first_seed=322),
    Bug("asks_nobody", "A2", step=lambda: asks_nobody, first_seed=1),
    Bug("takes_one_yes_for_all", "A2", step=lambda: takes_one_yes_for_all, first_seed=10),
    Bug("never_looks_at_the_clock", "A2", step=lambda: never_looks_at_the_clock, first_seed=155),
    Bug("forgets_when_an_answer_is_due", "D1", step=lambda: forgets_when_an_answer_is_due, first_seed=106),
    Bug("runs_what_was_asked_for", "C3", carry_out=runs_what_was_asked_for, first_seed=4),
    Bug("lists_what_is_answered", "A1", log=ListsWhatIsAnswered, first_seed=33),
    Bug("reports_doubts", "A4", step=lambda: DecidesOnAnotherState(_reporting_doubts), first_seed=37),
    Bug("asks_for_nothing_that_is_missing", "A3", step=lambda: DecidesOnAnotherState(_missing_nothing), first_seed=3),
    Bug("asks_the_tool_again", "A3 K2", step=lambda: DecidesOnAnotherState(_asking_the_tool_again), first_seed=8),
    Bug("forgets_what_it_was_told", "M1 C8", step=lambda: forgets_what_it_was_told, first_seed=28),
    Bug("forgets_the_calls_of_earlier_turns", "P1", step=sees(calls=0), first_seed=305),
    Bug("forgets_failures", "P5", step=sees(failures=0), first_seed=224),
    Bug("lets_an_engine_loosen", "P1 P4", step=sees(allowed=None, max_calls=None, failed=False), first_seed=35),
    Bug("goes_on_after_the_time_is_up", "P2", step=sees(time=ActiveTime()), first_seed=107),
    Bug("has_a_fast_clock", "P3", step=lambda: DecidesOnAnotherState(_with_a_fast_clock), first_seed=2),
    Bug("takes_downtime_for_work", "P7", log=TakesDowntimeForWork, first_seed=2),
    Bug("gives_what_code_asks_for_a_grace", "D1", engine=GivesWhatCodeAsksForAGrace, first_seed=204),
    Bug("anybody_answers", "L1", engine=AnybodyAnswers, first_seed=3),
    Bug("takes_calls_away_early", "L2", step=lambda: DecidesOnAnotherState(_in_a_hurry), first_seed=33),
    Bug("loses_the_place_of_slow_readers", "S9 C6", engine=LosesThePlaceOfSlowReaders),
)


def _epochs(inner: LogStore) -> Any:
    return EpochsOnlyForWorkInFlight(inner)
