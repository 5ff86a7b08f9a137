"""The embedded engine: everything in one process on one store. The default.

    async with EmbeddedEngine("./data", models=catalog) as engine:
        run_id = await engine.create(await engine.workspace("acme"), plan)

Creates, answers, cancels and other requests are facts: checked against the folded state and appended on the loop, and
acknowledged once they are durable.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self, cast

from weftline.errors import LOG_DAMAGED, StoreError, Unavailable, WeftlineError, no_such_run, run_has_ended
from weftline.kernel.accept import accepts
from weftline.kernel.control import LEASE_US
from weftline.kernel.entries import AwaitOutcome, CancelRequested, Fact
from weftline.plan import RunPlan
from weftline.providers.catalog import Catalog
from weftline.providers.workspace import WorkspaceCatalogs
from weftline.runtime import carry_out as carrying
from weftline.runtime import ids
from weftline.runtime import step as stepping
from weftline.runtime.budgets.ledger import Ledger
from weftline.runtime.clock import Clock, SteadyClock, SystemClock, report_if_behind
from weftline.runtime.creating import RunCreator
from weftline.runtime.deploys import can_run_here
from weftline.runtime.driver import CarryOut, Driver, TakeStep
from weftline.runtime.engine import DRAIN_S, Create, Leased, Observer, Resumed
from weftline.runtime.fleet.fleet import Fleet
from weftline.runtime.fleet.holding import WorkspaceLimits
from weftline.runtime.fleet.lineage import OnCalls
from weftline.runtime.hub import Hub, ReservedStream, Subscription
from weftline.runtime.live import PARKED, Draft, LiveRun
from weftline.runtime.log import Log
from weftline.runtime.metrics import Measured
from weftline.runtime.model_calls.model_call import MODEL_RETRIES_TIMEOUT_S, MODEL_TIMEOUT_S
from weftline.runtime.opening import RunOpener
from weftline.runtime.people.answering import AwaitAnswer
from weftline.runtime.people.await_answers import AwaitAnswers, PersonOf
from weftline.runtime.people.interrupting import Interrupts, check_request, waits_for_people, wake_waiting
from weftline.runtime.reads.calls import CancelReceipt, stored_receipt
from weftline.runtime.reads.finding import StoredNames, given_key
from weftline.runtime.reads.reading import StoredRuns
from weftline.runtime.recovery import MAX_RECOVERIES, remove_lost_branches, remove_unnamed_contents
from weftline.runtime.services import SLOW_TURN_S, Services
from weftline.runtime.thread_messages import ThreadEdits, ThreadMessages
from weftline.runtime.tool_calls.client_calls import ClientCalls
from weftline.runtime.tool_calls.provided import NO_PROBLEMS, Problems, Provided
from weftline.runtime.tool_calls.toolbox import RunName, ServerTools, ToolSource
from weftline.store import open_store_off_loop
from weftline.store.base import Store
from weftline.store.naming import db_option
from weftline.store.records import workspaces
from weftline.store.rows import IdempotencyKey, Write, Written
from weftline.tools.base import Tool, ToolOutput
from weftline.work.deadlines import Deadlines

logger = logging.getLogger(__name__)


class EmbeddedEngine:
    """Implements `weftline.runtime.engine.Engine`, which says what each method does, in this process."""

    def __init__(
        self,
        store: Store | Path | str,
        *,
        models: Catalog | WorkspaceCatalogs,
        tools: ToolSource | Mapping[str, Tool] | None = None,
        clock: Clock | None = None,
        model_timeout_s: float = MODEL_TIMEOUT_S,
        model_retries_timeout_s: float = MODEL_RETRIES_TIMEOUT_S,
        slow_turn_s: float = SLOW_TURN_S,
        limits: WorkspaceLimits | None = None,
        max_recoveries: int = MAX_RECOVERIES,
        traces: bool = False,
        public_errors: Mapping[str, str] | None = None,
        step: TakeStep = stepping.step,
        carry_out: CarryOut = carrying.carry_out,
    ) -> None:
        """With `traces`, spans are emitted for runs without agent code. `step` and `carry_out` are seams for tests,
        which observe what passes there or plant a bug.
        """
        self._traces = traces
        self._given = store
        self._step = step
        self._carry_out = carry_out
        self._models = models if isinstance(models, WorkspaceCatalogs) else WorkspaceCatalogs(models)
        self._tools: ToolSource = ServerTools(tools or {}) if tools is None or isinstance(tools, Mapping) else tools
        self._model_timeout_s = model_timeout_s
        self._model_retries_timeout_s = max(model_retries_timeout_s, model_timeout_s)
        self._slow_turn_s = slow_turn_s
        self._limits = limits or WorkspaceLimits()
        self._max_recoveries = max_recoveries
        self._public_errors = dict(public_errors or {})
        self.clock: Clock = clock or SystemClock()
        self._run_clock: Clock = clock or SteadyClock()
        self.ready = False
        self._released = asyncio.Event()

    async def start(self) -> Self:
        """Opens the store if a path was given, and resumes what an earlier process left unfinished."""
        given = self._given
        if not isinstance(given, Path | str):
            self._store = given
            return await self._open()
        self._store = await open_store_off_loop(given)
        try:
            return await self._open()
        except BaseException:
            await self._store.close()  # nobody else will close it
            raise

    async def _open(self) -> Self:
        store = self._log_store = self._store.log
        self._hub = Hub(store, max_per_workspace=self._limits.max_streams_per_workspace)
        names = StoredNames(self._store.records)
        self.stored = StoredRuns(store, names)
        ledger = self._ledger = Ledger()
        await ledger.open(self._store.records)
        await remove_lost_branches(self._store.records)
        await remove_unnamed_contents(self._store.records)
        edits = ThreadEdits()
        opener = self._opener = RunOpener(store, models=self._models, tools=self._tools, names=names, edits=edits)
        self._creator = creator = RunCreator(
            self._store,
            clock=self._run_clock,
            models=self._models,
            tools=self._tools,
            ledger=ledger,
            require_accepting=self.require_accepting,
            traces=self._traces,
        )
        services = Services(
            store.id,
            self._run_clock,
            Deadlines(),
            self._model_timeout_s,
            self._model_retries_timeout_s,
            self._slow_turn_s * 1_000_000 or float("inf"),
            public_errors=self._public_errors,
        )

        def new_driver(log: Log, on_deadline: Callable[[LiveRun, int], None], on_calls: OnCalls) -> Driver:
            return Driver(
                log,
                services,
                opener,
                on_deadline=on_deadline,
                on_calls=on_calls,
                new_child=creator.new_child,
                step=self._step,
                carry_out=self._carry_out,
            )

        fleet = self._fleet = Fleet(
            store,
            clock=self._run_clock,
            hub=self._hub,
            limits=self._limits,
            new_driver=new_driver,
            knows=self._can_run_here,
            ledger=ledger,
            max_recoveries=self._max_recoveries,
            on_unopened_end=partial(_notify_end, self._tools),
        )
        creator.connect(fleet)
        self.create = cast(Create, creator.create)
        """Not a method that forwards: its options would become a dictionary for every run."""
        opener.connect(loader=fleet.loader, dispatcher=fleet.dispatcher, until_ended=self._until_end_is_stored)
        self._log = fleet.log
        self._recovery = fleet.recovery
        self._lineage = fleet.lineage
        append, tools, log = self._append_all, opener.open_tools, self._log
        self._client_calls = ClientCalls(
            store, log, self._load_readable, fleet.timers, append, self._settled, open_tools=tools
        )
        self._load = fleet.loader.load
        self._await_answers = AwaitAnswers(store, self._load_readable, append, self._settled, open_tools=tools)
        self._interrupts = Interrupts(
            store, self._load_unfinished, append, self._settled, require_known_below=fleet.lineage.require_known_below
        )
        self.messages = ThreadMessages(
            self._store,
            self._log,
            edits,
            clock=self.clock,
            resident=fleet.residents.runs,
            load=self._load_readable,
            append=fleet.dispatcher.append,
        )
        try:
            await creator.open()
            await report_if_behind(self._run_clock, store)
            await fleet.count_queued()
            if store.held:
                command = f"weftline resume --all{db_option(self._store.folder)}"
                logger.warning("the store comes from a backup: its runs are held until `%s`", command)
            else:
                await self._continue_runs()
        except BaseException:
            fleet.abandon()
            raise
        self.ready = True
        return self

    def _can_run_here(self, plan: RunPlan) -> bool:
        return can_run_here(plan, self._tools)

    async def _continue_runs(self) -> None:
        store = self._log_store
        restored = self._recovery.held
        await self._recovery.begin()
        self._released.set()
        for workspace in self._ledger.workspaces:
            await self._wake_waiting(workspace)  # a limit may have been raised by a process that died right after
        if store.unclean or restored:
            # Ending a thread cancels its runs; a crash may have come before all of them were cancelled.
            for thread in await store.ended_threads_with_runs():
                try:
                    await self.end_thread(thread)
                except WeftlineError as error:
                    session = await self.stored.session_id(thread)
                    logger.warning("session %s has ended, but one of its runs is skipped: %s", session, error.message)

    async def wait_released(self) -> None:
        await self._released.wait()

    async def resume_all(self) -> Resumed:
        """Lets the runs of a restored store continue."""
        resumed = Resumed(self._recovery.held, await self._log_store.unfinished())
        if resumed.held:
            await self._log_store.lift_hold()
            if self._recovery.held:  # no other caller was quicker
                self._fleet.timers.grant_grace()
                await self._continue_runs()
        return resumed

    async def stop(self, *, drain_s: float = DRAIN_S) -> None:
        """Starts nothing new, gives running work `drain_s` to finish, cancels the rest, and closes the store."""
        await self.drain(drain_s)
        await self.abort()
        await self._store.close()

    async def drain(self, drain_s: float) -> None:
        """Starts no further run, turn or call, and waits for running ones, `drain_s` at most."""
        self.ready = False
        await self._fleet.drain(drain_s)

    async def abort(self, *, hurry: asyncio.Event | None = None) -> bool:
        """Cancels what is still running, makes everything appended durable, and ends all streams.

        Returns False if the store refused some of it until the end, which comes at once when `hurry` is set.
        """
        self._opener.stop()
        whole = await self._fleet.abort(hurry=hurry)
        self._hub.end_all()
        return whole

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self.stop()

    def observe(self, observer: Observer) -> Callable[[], None]:
        """Calls `observer` with every entry of every run from now on, after its commit. Returns a function that
        unsubscribes.
        """
        return self._hub.observe(observer)

    def watch_ends(self, ended: Callable[[], None] | None) -> None:
        """Calls `ended` after each commit that ended a run or opened an await; None switches this off."""
        self._fleet.commits.watch_ends(ended)

    def measure(self) -> Measured:
        """What the engine has counted since its start, and how much is going on now."""
        return self._fleet.measure()

    def require_accepting(self) -> None:
        """Raises `Unavailable` while the engine is starting or stopping, or its store refuses writes."""
        if not self.ready:
            raise Unavailable("The server is starting or stopping.", retry_after_s=1)
        if self._recovery.trials.held:
            raise Unavailable(
                "The store was restored from a backup and is held until somebody releases its runs: the server's log"
                " has the command.",
                retry_after_s=60,
            )
        if self._log.refusal is not None:
            self._log.require_writable()

    def require_writable(self) -> None:
        """Raises `Unavailable` while the store refuses writes."""
        self._log.require_writable()

    # Creating

    async def workspace(self, slug: str) -> int:
        """The key of a workspace, which is created if it does not exist."""
        return await self._store.records.write(workspaces.ensure(slug, now=self.clock.now_us()))

    async def check(self, plan: RunPlan, *, workspace: int, runs_now: bool = True) -> None:
        await self._creator.check(plan, workspace=workspace, runs_now=runs_now)

    async def budgets_changed(self, workspace: int, *, by: str = "") -> None:
        await self._ledger.read_limits(self._store.records)
        await self._wake_waiting(workspace, by=by)

    async def code_changed(self) -> None:
        for run in list(self._fleet.residents.runs.values()):
            if run.residency is PARKED and run.log.due_at == 0:
                self._fleet.dispatcher.consider(run)
        await self._recovery.pick_up()

    async def _wake_waiting(self, workspace: int, *, by: str = "") -> None:
        fleet, append = self._fleet, self._append
        await wake_waiting(
            self._log_store, self._ledger, fleet.residents, fleet.loader, workspace=workspace, append=append, by=by
        )

    async def created_before(self, workspace: int, idempotency: IdempotencyKey) -> str | None:
        return await self._creator.created_before(workspace, idempotency)

    async def add_ended(self, write: Write, *, last_key: int) -> Written:
        return await self._creator.add_ended(write, last_key=last_key)

    # Requests

    async def accept(self, key: int, head: Fact, body: bytes = b"") -> bool:
        check_request(head, body)
        self._log.require_writable()
        run = await self._load_readable(key)
        if not accepts(run.state, head):
            return False
        await self._append(run, head, body)
        return True

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
        return await self._client_calls.answer(
            key, call_id, output, message_id=message_id, idempotency_key=idempotency_key, token=token
        )

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
        return await self._client_calls.provide(
            key, await_id, results, problems=problems, message_id=message_id, idempotency_key=idempotency_key
        )

    async def claim(
        self, key: int, call_id: str, *, lease_us: int = LEASE_US, claim_id: str = "", by: str = ""
    ) -> Leased:
        return await self._client_calls.claim(key, call_id, lease_us=lease_us, claim_id=claim_id, by=by)

    async def heartbeat(self, key: int, call_id: str, token: str) -> Leased:
        return await self._client_calls.heartbeat(key, call_id, token)

    async def release(self, key: int, call_id: str, token: str) -> None:
        await self._client_calls.release(key, call_id, token)

    async def answer_await(
        self, key: int, await_id: str, answer: AwaitAnswer, *, by: str, person_of: PersonOf
    ) -> AwaitOutcome:
        self._log.require_writable()
        return await self._await_answers.answer(key, await_id, answer, by=by, person_of=person_of)

    async def waits_for_people(self, key: int) -> bool:
        return await waits_for_people(key, load=self._load, settled=self._settled)

    async def cancel(self, key: int, *, reason: str = "user", requested_by: str = "") -> CancelReceipt:
        run = await self._load(key)
        head = CancelRequested(reason, requested_by)
        if accepts(run.state, head):
            self._log.require_writable()
            if run.state.open_children:
                await self._lineage.require_known_below(run)
                run = await self._load(key)
        if accepts(run.state, head):
            await self._append(run, head)
        if not run.state.ended:  # running work is stopped first, and children end first
            await self._until_ended(run)
            run = await self._load(key)
        await self._settled(run)
        if not run.state.ended:
            message = "The cancellation is recorded, but the server stopped first; the next one ends the run."
            raise Unavailable(message, retry_after_s=1)
        return await stored_receipt(self._log_store, key, run.state.status)

    async def pause(
        self, key: int, *, reason: str = "", requested_by: str = "", labels: Mapping[str, str] | None = None
    ) -> None:
        await self._interrupts.pause(key, reason=reason, requested_by=requested_by, labels=labels)

    async def resume(
        self,
        key: int,
        *,
        notes: str = "",
        requested_by: str = "",
        labels: Mapping[str, str] | None = None,
        messages: Sequence[str] = (),
    ) -> None:
        interrupts = self._interrupts
        await interrupts.resume(key, notes=notes, requested_by=requested_by, labels=labels, messages=messages)

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
        queue_message = self._interrupts.queue_message
        return await queue_message(
            key, text, "steer", message_id=message_id, by=by, labels=labels, idempotency_key=idempotency_key
        )

    async def follow_up(
        self,
        key: int,
        text: str,
        *,
        by: str = "",
        labels: Mapping[str, str] | None = None,
        idempotency_key: str = "",
    ) -> str:
        queue_message = self._interrupts.queue_message
        return await queue_message(
            key, text, "follow_up", message_id="", by=by, labels=labels, idempotency_key=idempotency_key
        )

    async def end_thread(self, thread: int, *, requested_by: str = "") -> None:
        """Cancels all runs of a thread that has ended, newest first. If one cannot be read, or is of a newer version,
        the others are cancelled nevertheless, and the error is raised at the end.
        """
        refused: WeftlineError | None = None
        for key in reversed(await self._log_store.unfinished_of_thread(thread)):
            try:
                await self.cancel(key, reason="thread_ended", requested_by=requested_by)
            except WeftlineError as error:
                refused = refused or error
        if refused is not None:
            raise refused

    async def _load_readable(self, key: int) -> LiveRun:
        """Loads a run for a request from outside. If its log is damaged, the run ends, and `StoreError` (`log_damaged`)
        is raised.
        """
        run = await self._load(key)
        if run.state.broken and not run.state.ended:
            self._fleet.dispatcher.consider(run)
            raise StoreError(f"The log of run {run.id} is damaged: {run.state.broken}.", code=LOG_DAMAGED)
        return run

    async def _load_unfinished(self, key: int) -> LiveRun:
        self.require_accepting()
        run = await self._load_readable(key)
        if run.state.ended or run.state.control.cancel:
            await self._settled(run)
            raise run_has_ended()
        return run

    async def _append(self, run: LiveRun, head: Fact, body: bytes = b"") -> None:
        """Appends a request from outside, continues the run, and returns when it is durable."""
        await self._append_all(run, (Draft(head, body),))

    async def _append_all(self, run: LiveRun, drafts: tuple[Draft, ...]) -> None:
        self._fleet.dispatcher.append(run, drafts)
        await self._log.durable(run, outside=True)

    async def _settled(self, run: LiveRun) -> None:
        """Returns when everything that a rejection is based on is durable: for a cancelled run, its end."""
        await self._log.durable(run, outside=True)
        if run.state.control.cancel and not run.state.ended:
            await self._until_ended(run)
        await self._log.durable(run, outside=True)  # the end may have been appended while this waited for the rest

    async def _until_ended(self, run: LiveRun) -> None:
        """Returns when a run that was cancelled has ended, which it does after those below it."""
        await self._lineage.require_known_below(run)
        await self._until_end_is_stored(run)

    async def _until_end_is_stored(self, run: LiveRun) -> None:
        await self._hub.until_ended(run.key, run.id, after=run.log.durable)

    # Reading

    async def locate(self, run_id: str, *, workspace: int) -> int:
        """The key of a run. Raises `NotFound` for an unknown id and for a run of another workspace alike."""
        parsed = ids.parse(run_id, prefix="run_")
        if parsed is not None:
            key = parsed[0]
            run = self._fleet.loader.resident(key)
            owner = (run.id, run.workspace) if run is not None else self._hub.owner(key)
            if owner is None and (row := await self._log_store.run(key)) is not None:
                owner = (ids.run_id(key, row.salt), row.workspace)
            if owner == (run_id, workspace):
                return key
        given = await given_key(self._log_store, run_id, workspace=workspace)
        if given is None:
            raise no_such_run()
        return given

    def follow(self, key: int, run_id: str, *, after: int = 0, workspace: int = 0) -> Subscription:
        return self._hub.follow(key, run_id, after=after, workspace=workspace)

    def reserve_stream(self, workspace: int) -> ReservedStream:
        return self._hub.reserve(workspace)

    def beat(self) -> None:
        self._hub.beat()

    async def trim(self, *, before: int, after: int, workspace: int | None) -> tuple[int, int]:
        found = await self._log_store.trim(before=before, after=after, workspace=workspace)
        self._hub.forget()
        return found


def _notify_end(tools: ToolSource, run: LiveRun) -> None:
    work = run.work
    name = RunName(run.key, work.run_id, run.workspace, work.workspace_slug, work.session_id, run.state.parent)
    tools.ended_unopened(work.plan, run=name)
