"""The driver: appends the kernel's decisions and executes its commands, one run at a time.

There is one task per active run. It ends when there is nothing left to do: the run has then ended or is parked.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Protocol, TypeAlias

from msgspec import UNSET
from msgspec.structs import replace

from weftline.kernel import policies
from weftline.kernel.accept import accepts
from weftline.kernel.bodies import StateBody, encode
from weftline.kernel.decide import is_outstanding
from weftline.kernel.entries import CallAsked, CallStarted, Fact, Parent, StateChanged, TimerFired, TurnCompleted
from weftline.kernel.policy import RunUnattended
from weftline.kernel.state import (
    CallModel,
    CheckOutput,
    Command,
    Compact,
    Consult,
    ConsultAwait,
    ConsultPolicy,
    FinishChild,
    Reconcile,
    RunTool,
    StartChild,
    State,
)
from weftline.plan import RunPlan
from weftline.runtime import carry_out as carrying
from weftline.runtime import ids
from weftline.runtime import step as stepping
from weftline.runtime.agent_code.code import RunCode
from weftline.runtime.carry_out import RunSink
from weftline.runtime.fleet.lineage import OnCalls
from weftline.runtime.live import CUT_BEGUN, GONE, WATCHING, Draft, LiveRun, WorkingSet
from weftline.runtime.log import Log
from weftline.runtime.model_calls.model_call import abandoned
from weftline.runtime.opening import RunOpener
from weftline.runtime.public_errors import in_public
from weftline.runtime.services import NotStarted, Outcome, Services, Sink
from weftline.runtime.step import Step, take_in, time_has_come
from weftline.runtime.tasks import wait_through, wait_while_running
from weftline.runtime.tool_calls.children import NewChild
from weftline.runtime.tool_calls.toolbox import EMPTY
from weftline.runtime.writing import thread_end
from weftline.store.rows import ThreadEnd
from weftline.trace_context import current_request, current_run, incoming_traceparent
from weftline.work.outcomes import as_errors, is_being_cancelled
from weftline.work.turns import current_caller, on_behalf_of

logger = logging.getLogger(__name__)

_NO_NAME_YET = "run"
MAX_WITHOUT_PAUSE = 32
"""How many commands may follow one another before others have a turn, if none of them waits for anything."""
CUT_S = 5.0
"""How long cancelled work is waited for."""


CarryOut: TypeAlias = Callable[[Command, State, WorkingSet, Services, Sink], Coroutine[Any, Any, Outcome | None]]
"""`weftline.runtime.carry_out.carry_out`, or a replacement in a test."""


class TakeStep(Protocol):
    """`weftline.runtime.step.step`, or a replacement in a test."""

    def __call__(self, state: State, work: WorkingSet, facts: Sequence[Draft] = (), *, at: int) -> Step: ...


class Driver:
    """`on_deadline` is called when a run needs attention at a certain time while its commands are running.

    `on_calls` is called with `note` when a child run has asked for calls, before they are durable.
    """

    def __init__(
        self,
        log: Log,
        services: Services,
        opener: RunOpener,
        *,
        on_deadline: Callable[[LiveRun, int], None],
        on_calls: OnCalls,
        new_child: NewChild,
        step: TakeStep = stepping.step,
        carry_out: CarryOut = carrying.carry_out,
    ) -> None:
        self._log = log
        self._step = step
        self._command = carry_out
        self._services = services
        self._opener = opener
        self._on_deadline = on_deadline
        self._on_calls = on_calls
        self._new_child = new_child
        self.stopping = False
        """Set when the engine stops: no turn and no call is begun any more."""

    async def drive(self, run: LiveRun) -> None:
        """Drives the run until it has ended or waits for something outside."""
        work, driving = run.work, run.driving
        if run.residency is GONE or run.log.state.ended or self.stopping:
            return  # it may have been queued for a long time, and have got its slot because the server stops
        on_behalf_of.set(run.workspace)
        current_run.set(work)
        current_request.set(None)  # the request that woke the run has been answered by now
        if current_caller.get() is not None:
            current_caller.set(None)
        if incoming_traceparent.get() is not None:
            incoming_traceparent.set(None)
        try:
            driving.waits_to_open = True
            try:
                with as_errors():
                    facts = await self._opener.open(run)
            finally:
                driving.waits_to_open = False
            if run.log.state.step == "ended" or run.residency is GONE:
                return
            code = (work.toolbox or EMPTY).code
            if code is not None and run.log.state.step in ("batch", "answered"):
                batch = run.log.state.batch
                own = batch.own
                unclosed = sum([call.stage != "closed" for call in own]) if batch.nested else batch.unclosed
                code.about_to_drive(run.log.state.turn - 1, calls=len(own), unclosed=unclosed)
            if facts:
                self.record(run, facts)
            if code is not None:
                for kind, encoded in code.pop_notes():  # left by rendering its instructions
                    self._log.observe(run, kind, b"\n".join(encoded), len(encoded))
            commands = self.advance(run)
            executed = 0
            while not self.stopping and run.residency is not GONE:
                held = False
                if code is not None:
                    decided_on = run.log.state
                    held = await self._notify_code(run, code)
                    if run.log.state is not decided_on:  # the code has changed what the run remembers
                        commands = self.advance(run)
                        continue
                if not commands and not _is_unfinished(run):
                    break
                # A single command with no deadline and no open question: no wake-up could change anything.
                state = run.log.state
                alone = not driving.tasks and driving.due_at is None and not state.questions.open
                if len(commands) == 1 and alone and not _asks_for_others(state, commands[0]):
                    executed += 1
                    facts = await self._outcome(run, commands[0], state)
                    if executed % MAX_WITHOUT_PAUSE == 0 and run.residency is not GONE:
                        # Others have a turn before the next decision, never between a decision and its command.
                        self.record(run, facts)
                        facts = ()
                        await asyncio.sleep(0)
                    commands = () if run.residency is GONE else self.advance(run, facts)
                else:
                    await self._run_concurrently(run, () if held else commands)
                    commands = () if run.gone else self.advance(run)
            if self.stopping and driving.tasks and not run.gone:
                await self._finish(run)
            if code is not None:
                await self._finish_watching(run, code)
        except asyncio.CancelledError:
            if is_being_cancelled():
                raise
            # A cancelled driver counts as done and would be driven again at once, forever.
            raise RuntimeError(
                "code that the run called raised CancelledError although nothing was cancelled"
            ) from None
        except GeneratorExit:
            driving.tasks.clear()  # the loop is gone: nothing can be waited for
            raise
        except BaseException:
            # Running commands may still finish: their results are facts, whatever went wrong here.
            if not run.gone:
                await wait_while_running(driving.tasks.values(), timeout_s=CUT_S)
            raise
        finally:
            if driving.tasks or driving.dropped:
                await self._cut_off(run)

    async def _notify_code(self, run: LiveRun, code: RunCode) -> bool:
        """Notifies the agent's code of what happened; returns whether no command may start before its watchers have
        returned.

        They get a task of their own, in which they see everything in order, because facts never wait for them: the run
        decides whatever it has to meanwhile. Once its time is up, commands do not wait for them either.
        """
        driving = run.driving
        if not code.watches:
            await self._publish(run, code)
            return False
        if WATCHING not in driving.tasks and (driving.facts or not driving.introduced):
            driving.introduced = True
            self._start(run, WATCHING, self._publish(run, code))
            if not run.log.state.ended:
                run.log.due_at = 0  # what arrives meanwhile is not lost if the process dies
            if driving.due_at is not None:
                self._on_deadline(run, driving.due_at)
        return WATCHING in driving.tasks and not (code.may_be_overtaken and policies.is_late(run.log.state))

    async def _publish(self, run: LiveRun, code: RunCode) -> None:
        """Notifies the agent's code of what happened until nothing is left, and records the changes that it made to the
        run's state.
        """
        conversation = run.work.conversation
        while True:
            with as_errors():
                await code.on_facts(run.driving.pop_facts(), messages=conversation.messages)
            if conversation.shared.unsaved and not run.gone and not run.log.state.ended:
                changes = conversation.shared.changes()
                if changes is not UNSET:
                    self.record(run, (Draft(StateChanged(), encode(StateBody(changes))),))
            if not run.driving.facts:
                return

    async def _finish_watching(self, run: LiveRun, code: RunCode) -> None:
        """Lets the watchers see everything, after the work of an ended run has been cancelled."""
        driving = run.driving
        while True:
            await self._notify_code(run, code)
            watching = driving.tasks.get(WATCHING)
            if watching is None:
                return
            if run.log.state.ended:
                self._drop(run, [key for key in driving.tasks if key != WATCHING])
            await asyncio.wait([watching])
            watching.result()

    async def _finish(self, run: LiveRun) -> None:
        """Lets running commands finish until the drain is over, except calls that would wait for further calls in
        vain.
        """
        tasks, callers = run.driving.tasks, run.work.nested_callers
        while left := [
            task
            for key, task in tasks.items()
            if not task.done() and not (key[1] in callers and callers[key[1]].skip_on_drain)
        ]:
            await asyncio.wait(left)

    async def _cut_off(self, run: LiveRun) -> None:
        """Cancels the running commands, and returns when they have cleaned up.

        When the server stops, its caller limits how long that takes. At other times nobody waits for the driver, and it
        leaves behind commands that refuse to end.
        """
        tasks = run.driving.tasks
        for task in tasks.values():
            task.cancel()
        under_way = [*tasks.values(), *run.driving.dropped]
        late = await wait_through(under_way, timeout_s=float("inf") if self.stopping else CUT_S)
        if late:
            logger.warning("run %s: %d calls did not stop; anything they still do is ignored", run.id, len(late))
        tasks.clear()

    def record(self, run: LiveRun, facts: Sequence[Draft]) -> None:
        """Appends facts as they are."""
        if not facts:
            return
        if run.log.taken_over:
            self.take_over(run)
        at = self._services.clock.now_us()
        state = run.log.state
        try:
            for draft in facts:
                state = take_in(state, run.work, draft, at=at)
        except BaseException:
            _take_back(run.work)
            raise
        self._append(run, facts, state, at=at, end=thread_end(state, run.work) if state.ended else None)

    def note(self, run: LiveRun, kind: str, encoded: list[bytes]) -> None:
        """Appends observations to a run that may not be driven. With the first of them, this process takes over its
        row.
        """
        if run.log.taken_over:
            self.take_over(run)
        self._log.observe(run, kind, b"\n".join(encoded), len(encoded))

    def take_over(self, run: LiveRun) -> None:
        """Before the first entry of this process: records that no process was running since the latest entry of
        another.
        """
        run.log.taken_over = False
        if run.log.state.clock_running:
            self.record(run, (Draft(RunUnattended()),))

    def _append(self, run: LiveRun, facts: Sequence[Draft], state: State, *, at: int, end: ThreadEnd | None) -> None:
        work = run.work
        if (work.toolbox or EMPTY).code is not None and run.driving.opened:
            run.driving.facts += tuple([draft.head for draft in facts])
        if self._services.public_errors and state.ended:
            facts = in_public(facts, self._services.public_errors)
        kept = work.conversation.kept
        rows = () if kept is None else kept.pop(work.unique_id, at=at)
        self._log.append(run, facts, state=state, at=at, thread_end=end, kept=rows)
        if state.parent is not None and any(_asks(draft.head) for draft in facts):
            self._on_calls(run, self.note)
        if work.nested_callers:
            for caller in work.nested_callers.values():
                caller.deliver_results()

    def settle(self, run: LiveRun) -> None:
        """Appends what follows without tools and models from the facts of a run that is not open: nothing that is due
        waits for an opening or a free slot.
        """
        if self.stopping or run.driving.cut is CUT_BEGUN:
            return
        if run.log.taken_over:
            self.take_over(run)
        at = self._services.clock.now_us()
        try:
            result = stepping.settle(run.log.state, run.work, at=at, opening=run.driving.waits_to_open)
        except BaseException:
            _take_back(run.work)
            raise
        if result.entries:
            self._append(run, result.entries, result.state, at=at, end=result.thread_end)

    def advance(self, run: LiveRun, facts: Sequence[Draft] = ()) -> tuple[Command, ...]:
        """Appends `facts` and everything that follows from them; returns the outstanding commands.

        While stopping, only decisions that end a run are made.
        """
        log, driving = run.log, run.driving
        if self.stopping and not (log.state.control.cancel or log.state.broken):
            self.record(run, facts)
            log.due_at = None if log.state.ended else 0
            return ()
        if driving.cut is CUT_BEGUN:
            self.record(run, facts)
            return ()
        if log.taken_over:
            self.take_over(run)
        at = self._services.clock.now_us()
        try:
            result = self._step(log.state, run.work, facts, at=at)
        except BaseException:
            _take_back(run.work)
            raise
        state, commands, due_at = result.state, result.commands, result.due_at
        if result.entries:
            self._append(run, result.entries, state, at=at, end=result.thread_end)
        if state.step != "ended":
            log.due_at = 0 if commands or WATCHING in driving.tasks else due_at
        driving.due_at = due_at
        driving.rested_at = -1 if commands else state.version
        if due_at is not None and (commands or driving.tasks):
            self._on_deadline(run, due_at)
        return commands

    async def _run_concurrently(self, run: LiveRun, commands: tuple[Command, ...]) -> None:
        """Executes several commands concurrently, until one of them or the watchers are done, or the run is poked."""
        driving = run.driving
        if run.log.state.policy.reached:
            self._cancel_unwanted(run)
        driving.wake = asyncio.get_running_loop().create_future()
        for command in commands:
            key = _key(command)
            if key not in driving.tasks:
                driving.commands[key] = command
                self._start(run, key, self._do(run, command, run.log.state))
        try:
            # A command that failed while the agent's code was being notified wakes nobody.
            if driving.tasks and not any(map(_has_failed, driving.tasks.values())):
                await driving.wake
        finally:
            driving.wake = None
        for task in driving.tasks.values():
            if task.done():
                if task.cancelled():
                    raise RuntimeError("a command was cancelled")  # the driver itself was not cancelled
                task.result()

    def _start(self, run: LiveRun, key: tuple[int, int, int], work: Coroutine[Any, Any, None]) -> None:
        task = run.driving.tasks[key] = asyncio.create_task(work, name=f"{run.id} {key}")
        task.add_done_callback(lambda _: self._done(run, key))

    def _cancel_unwanted(self, run: LiveRun) -> None:
        """Cancels commands whose outcome the run no longer needs."""
        state, commands = run.log.state, run.driving.commands
        self._drop(
            run, [key for key in run.driving.tasks if key in commands and not is_outstanding(state, commands[key])]
        )

    def _drop(self, run: LiveRun, keys: Sequence[tuple[int, int, int]]) -> None:
        """Cancels commands. They may take a moment to end; nobody waits for them before the driver leaves."""
        driving = run.driving
        for key in keys:
            task = driving.tasks.pop(key)
            driving.commands.pop(key, None)
            driving.dropped[task] = None
            task.add_done_callback(driving.dropped.pop)
            task.cancel()

    def _done(self, run: LiveRun, key: tuple[int, int, int]) -> None:
        """Removes a finished command. A failed one stays, so that it is not started again before the driver has seen
        it.
        """
        task = run.driving.tasks.get(key)
        if task is not None and task.done() and not task.cancelled() and task.exception() is None:
            del run.driving.tasks[key]
            run.driving.commands.pop(key, None)
        run.wake()

    async def _do(self, run: LiveRun, command: Command, state: State) -> None:
        self.record(run, await self._outcome(run, command, state))

    async def _outcome(self, run: LiveRun, command: Command, state: State) -> Sequence[Draft]:
        """Executes a command that was decided on in `state`; returns the resulting fact if the run is still waiting for
        it.
        """
        work = run.work
        sink = RunSink(self._log, run, self._ask, state.totals.attempts)
        try:
            with as_errors():
                outcome = await self._command(command, state, work, self._services, sink)
        except asyncio.CancelledError as error:
            if self.stopping and is_being_cancelled():
                if isinstance(command, CallModel) and work.answering:
                    self._record_abandoned(run, command)
                elif isinstance(error, NotStarted):
                    self.record(run, self._accepted(run, error.outcome))
            raise
        if outcome is None:
            return ()
        code = (work.toolbox or EMPTY).code
        if code is not None and (notes := code.pop_notes()):
            outcome = replace(outcome, notes=(*outcome.notes, *notes))
        return self._accepted(run, outcome)

    def _ask(self, run: LiveRun, outcome: Outcome) -> bool:
        """Appends the request of a running command; the driver then acts on it."""
        facts = self._accepted(run, outcome)
        self.record(run, facts)
        run.wake()
        return bool(facts)

    def abandon(self, run: LiveRun) -> None:
        """Records the cost of a model call that refuses to be cancelled."""
        attempt = run.log.state.attempt
        if attempt.open and run.work.answering:
            asking = CallModel(run.log.state.turn, attempt.number, choice=attempt.choice)
            self._record_abandoned(run, asking, goes_on=True)

    def _record_abandoned(self, run: LiveRun, command: CallModel, *, goes_on: bool = False) -> None:
        draft = abandoned(command, run.work, estimate=run.log.state.attempt.estimate, goes_on=goes_on)
        self.record(run, self._accepted(run, Outcome(draft)))

    def _accepted(self, run: LiveRun, outcome: Outcome) -> Sequence[Draft]:
        draft = outcome.draft
        head = draft.head
        if type(head) is CallStarted:
            if not run.gone:
                self._fire_if_due(run)
            if outcome.child is not None:
                head = replace(head, child=_NO_NAME_YET)  # it has one only if there is a call for it
        if run.residency is GONE or not accepts(run.log.state, head, attempt=outcome.attempt):
            return ()
        if outcome.child is not None:
            draft = self._with_child(run, draft, outcome.child)
        for kind, encoded in outcome.notes:
            self._log.observe(run, kind, b"\n".join(encoded), len(encoded))
        run.work.answering = None
        return (draft,)

    def _fire_if_due(self, run: LiveRun) -> None:
        """Fires the timer of a run or an approval that has expired, however late it is, so that nothing begins after
        that.
        """
        at = self._services.clock.now_us()
        if time_has_come(run.log.state, at):
            self.record(run, (Draft(TimerFired(at)),))

    def _with_child(self, run: LiveRun, draft: Draft, plan: RunPlan) -> Draft:
        head = draft.head
        assert isinstance(head, CallStarted)
        above = run.log.state.parent
        root = run.work.run_id if above is None else above.root or above.run
        accounts, rules = ((), {}) if run.work.account is None else run.work.account.above_child()
        parent = Parent(
            run.work.run_id,
            head.turn,
            head.index,
            run.log.state.depth + 1,
            root,
            accounts,
            rules,
            key=ids.key_if_not_in_id(run.work.run_id, run.key),
            root_key=ids.key_if_not_in_id(root, run.key if above is None else ids.root_key(above)),
        )
        child_id, child = self._new_child(run, plan, parent)
        return Draft(replace(head, child=child_id), child=child)


def _take_back(work: WorkingSet) -> None:
    """Undoes bookings of facts that will not be appended."""
    if work.account is not None:
        work.account.take_back()


def _is_unfinished(run: LiveRun) -> bool:
    """Returns True if watchers are being called, or a paused run still has a command running. The log may not show it:
    nothing records that a gate is being asked, and if it were interrupted it would be asked again.
    """
    if not run.driving.tasks or run.log.state.ended:
        return False
    if WATCHING in run.driving.tasks:
        return True
    if not run.log.state.control.paused:
        return False
    # A call that asks for others waits for a resume if those do.
    return any(
        not (key[1] in run.work.nested_callers and run.log.state.may_be_cut_off(key[1])) for key in run.driving.tasks
    )


def _has_failed(task: asyncio.Task[None]) -> bool:
    return task.done() and (task.cancelled() or task.exception() is not None)


def _asks(head: Fact) -> bool:
    return isinstance(head, CallAsked) or (isinstance(head, TurnCompleted) and bool(head.calls))


def _asks_for_others(state: State, command: Command) -> bool:
    return type(command) is RunTool and state.batch.calls[command.index].host


def _key(command: Command) -> tuple[int, int, int]:
    match command:
        case CallModel():
            return command.turn, -1, command.attempt
        case CheckOutput():
            return command.turn, -2, 0
        case ConsultPolicy():
            return command.turn, -4, 0
        case Compact():
            return command.number, -3, 0
        case Consult():
            return command.turn, command.index, 0
        case ConsultAwait():
            return command.turn, command.index, -3
        case StartChild():
            return command.turn, command.index, -1
        case FinishChild():
            return command.turn, command.index, -2
        case RunTool() | Reconcile():
            return command.turn, command.index, command.attempt
