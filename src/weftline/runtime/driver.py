"""The driver: turns decisions into entries and commands into work.

One task per run that is doing something. It asks the kernel, appends what the kernel decided, carries the one command
out by itself or several side by side, and leaves when nothing is left that it could do: the run is then ended or
parked, and parked runs hold nothing.
"""

from __future__ import annotations

import asyncio

from weftline.errors import WeftlineError
from weftline.kernel import bodies
from weftline.kernel.decide import decide
from weftline.kernel.entries import (
    KIND,
    AttemptFailed,
    CallClosed,
    CallOpened,
    Effect,
    Fact,
    FinalForced,
    HistoryPinned,
    LoopDetected,
    MessageQueued,
    MessagesTaken,
    ModelRef,
    OutputRejected,
    RunAdopted,
    RunCreated,
    decode_fact,
)
from weftline.kernel.state import CallModel, Command, Decision, Reconcile, RunTool
from weftline.messages import Assistant, Message, Text, Usage
from weftline.providers.catalog import ResolvedModel
from weftline.providers.workspace import WorkspaceCatalogs
from weftline.runtime import ids
from weftline.runtime.clock import Clock
from weftline.runtime.content import fill
from weftline.runtime.live import LiveRun, Prepared
from weftline.runtime.log import Log
from weftline.runtime.model_call import MODEL_TIMEOUT_S, call_model, prepare_calls
from weftline.runtime.tool_call import reconcile, run_tool
from weftline.runtime.toolbox import EMPTY, Toolbox, ToolSource
from weftline.runtime.transcript import KINDS, Transcript
from weftline.store.base import ThreadEnd
from weftline.store.sqlite.reads import Reader
from weftline.wire.plan import plan_from_spec

_CONVERSATION = (CallClosed, LoopDetected, FinalForced, MessageQueued, MessagesTaken, OutputRejected)


class Driver:
    def __init__(
        self,
        log: Log,
        reader: Reader,
        *,
        store_id: str,
        clock: Clock,
        models: WorkspaceCatalogs,
        tools: ToolSource,
        model_timeout_s: float = MODEL_TIMEOUT_S,
    ) -> None:
        self.log = log
        self.model_timeout_s = model_timeout_s
        self.clock = clock
        self.store_id = store_id
        self.stopping = False
        self._reader = reader
        self._models = models
        self._tools = tools
        self._slugs: dict[int, str] = {}

    async def drive(self, run: LiveRun) -> None:
        """Carries the run on until it has ended or waits for something outside."""
        try:
            await self._open(run)
            while True:
                decision = self.settle(run)
                if not decision.start:
                    return
                if self.stopping:
                    return
                await self._carry_out(run, decision.start)
        finally:
            for task in run.tasks.values():
                task.cancel()
            run.tasks.clear()

    def settle(self, run: LiveRun) -> Decision:
        """Appends what the kernel decides until it has nothing more to append. While stopping, nothing new begins."""
        while True:
            decision = decide(run.state)
            if not decision.append:
                break
            if self.stopping and not run.state.cancel and not run.state.ended and not run.state.broken:
                run.due_at = 0
                return Decision()
            transcript = self.transcript(run)
            if run.state.calls and not run.prepared:
                self._prepare_again(run)
            facts = [fill(self, run, new, transcript) for new in decision.append]
            self.log.append(run, facts)
            for head, body in facts:
                if isinstance(head, _CONVERSATION):
                    transcript.apply(head, body)
            if run.state.ended:
                self._end(run, transcript)
        run.due_at = 0 if decision.start else decision.due_at
        return decision

    def append(self, run: LiveRun, head: Fact, body: bytes) -> None:
        """Appends an outcome or an answer, and adds it to the conversation when that is in memory."""
        self.log.append(run, [(head, body)])
        if run.transcript is not None and isinstance(head, _CONVERSATION):
            run.transcript.apply(head, body)

    async def _carry_out(self, run: LiveRun, commands: tuple[Command, ...]) -> None:
        if len(commands) == 1 and not run.tasks:
            await self._do(run, commands[0])
            return
        run.wake = asyncio.get_running_loop().create_future()
        for command in commands:
            key = _key(command)
            if key not in run.tasks:
                task = asyncio.create_task(self._do(run, command), name=f"{run.id} {key}")
                run.tasks[key] = task
                task.add_done_callback(lambda _, key=key: self._done(run, key))
        await run.wake
        run.wake = None
        for task in run.tasks.values():
            if task.done() and (task.cancelled() or task.exception() is not None):
                raise RuntimeError("a command failed") from (None if task.cancelled() else task.exception())

    def _done(self, run: LiveRun, key: tuple[int, int, int]) -> None:
        """A command that failed stays, so that it is not begun again before the driver has seen it."""
        task = run.tasks.get(key)
        if task is not None and not task.cancelled() and task.exception() is None:
            del run.tasks[key]
        run.poke()

    async def _do(self, run: LiveRun, command: Command) -> None:
        match command:
            case CallModel():
                await call_model(self, run, command)
            case RunTool():
                self.prepare(run)
                await run_tool(self, run, command)
            case Reconcile():
                self.prepare(run)
                await reconcile(self, run, command)

    def prepare(self, run: LiveRun) -> None:
        """Makes sure that the final arguments of the present calls are in memory."""
        if not run.prepared:
            self._prepare_again(run)

    async def _open(self, run: LiveRun) -> None:
        """Makes a run ready to be driven: its tools, what an earlier driver left in flight, its thread's history."""
        await self._models.load(run.workspace)
        if run.toolbox is None:
            self._load_plan(run)
            assert run.plan is not None
            run.toolbox = await self._tools.open(run.plan, workspace=run.workspace, run=run.key)
        if run.adopting:
            run.adopting = False
            if run.state.in_flight and not run.state.ended:
                self.log.append(run, [(RunAdopted(run.state.epoch + 1, self._effects(run)), b"")])
        if run.thread is not None and run.state.history is None and not run.state.ended:
            self.log.append(run, [(HistoryPinned(self._reader.last_message(run.thread)), b"")])

    def _effects(self, run: LiveRun) -> dict[str, Effect]:
        """The effects that the tools of begun calls declare today."""
        begun = {call.name for call in run.state.calls if call.status == "started"}
        found = {name: self.toolbox(run).get(name) for name in begun}
        return {name: tool.effect for name, tool in found.items() if tool is not None}

    def _prepare_again(self, run: LiveRun) -> None:
        """After a restart or a park: the final arguments of announced calls are in the log; the others are made again
        from the same message and tools."""
        if any(call.status == "asked" for call in run.state.calls):
            answer = self.transcript(run).last_answer
            prepare_calls(run, answer if answer is not None else Assistant(()), self.toolbox(run))
            return
        rows = self._reader.last_of_kind(run.key, KIND[CallOpened], limit=len(run.state.calls))
        for write in (run.flight, run.write):
            if write is not None:
                rows += [row for row in write.entries if row[2] == KIND[CallOpened]]
        for row in rows:
            head = decode_fact.decode(row[3])
            if isinstance(head, CallOpened) and head.turn == run.state.turn - 1:
                run.prepared[head.index] = Prepared(bytes(bodies.decode_opened(row[4]).args))

    def _end(self, run: LiveRun, transcript: Transcript) -> None:
        """What the terminal append does to the thread belongs to the same transaction."""
        run.due_at = None
        if run.thread is None or run.write is None:
            return
        messages: list[bytes] = []
        if run.state.status == "succeeded":
            plan = run.plan
            assert plan is not None
            messages = [bodies.encode(message) for message in plan.messages]
            messages.append(bodies.encode(Assistant(tuple(_text_only(transcript)))))
        run.write.thread_end = ThreadEnd(run.thread, messages)

    def model(self, run: LiveRun, choice: int) -> ResolvedModel:
        """The run's own model (0) or one of its fallbacks. Raises `WeftlineError` when it is not there any more."""
        return self._models.of(run.workspace).resolve(self._model_id(run, choice))

    def cost_nusd(self, run: LiveRun, choice: int, usage: Usage) -> int | None:
        try:
            cost = self._models.of(run.workspace).cost_usd(usage, self.model(run, choice))
        except WeftlineError:
            return None
        return None if cost is None else round(cost * 1_000_000_000)

    def model_ref(self, run: LiveRun, choice: int) -> ModelRef:
        try:
            resolved = self.model(run, choice)
        except WeftlineError:
            # Asking it fails, and says why.
            return ModelRef(self._model_id(run, choice) or "")
        assert run.plan is not None
        reasoning = run.plan.reasoning if takes_reasoning(resolved) else None
        return ModelRef(resolved.catalog_id, resolved.provider.name, resolved.vendor_id, reasoning)

    def _model_id(self, run: LiveRun, choice: int) -> str | None:
        self._load_plan(run)
        assert run.plan is not None
        return run.plan.fallbacks[choice - 1] if choice else run.plan.model

    def toolbox(self, run: LiveRun) -> Toolbox:
        """The tools of a run that is being driven; none for one that is only being answered or ended."""
        return run.toolbox or EMPTY

    def transcript(self, run: LiveRun) -> Transcript:
        """The run's conversation; read from the log when it is not in memory."""
        if run.transcript is None:
            self._load_plan(run)
            assert run.plan is not None
            transcript = Transcript((*self._history(run), *run.plan.messages))
            if run.durable > 1:
                transcript.replay(self._reader.of_kinds(run.key, KINDS))
                self._load_failure(run)
            for write in (run.flight, run.write):
                if write is not None:
                    transcript.replay([row for row in write.entries if row[0] > run.durable])
            run.transcript = transcript
        return run.transcript

    def _history(self, run: LiveRun) -> list[Message]:
        if run.thread is None:
            return []
        upto = run.state.history
        if upto is None:
            upto = self._reader.last_message(run.thread)
        return [bodies.decode_message(body) for body in self._reader.thread_messages(run.thread, upto=upto)]

    def _load_plan(self, run: LiveRun) -> None:
        if run.plan is None:
            row = self._reader.entry(run.key, 1)
            assert row is not None and row[2] == KIND[RunCreated]
            run.plan = plan_from_spec(row[4])

    def _load_failure(self, run: LiveRun) -> None:
        if run.state.failure and not run.failure:
            rows = self._reader.last_of_kind(run.key, KIND[AttemptFailed], limit=1)
            if rows:
                failed = bodies.decode_failed(rows[0][4])
                run.failure, run.partial = failed.message, failed.text

    def slug(self, workspace: int) -> str:
        slug = self._slugs.get(workspace)
        if slug is None:
            slug = self._slugs[workspace] = self._reader.slug(workspace) or ""
        return slug

    def thread_id(self, run: LiveRun) -> str | None:
        if run.thread is None:
            return None
        row = self._reader.thread(run.thread)
        return ids.session_id(row.key, row.salt) if row is not None else None


def takes_reasoning(model: ResolvedModel) -> bool:
    """Whether the model has a reasoning knob at all; a family that does not say is taken to have one."""
    asked = getattr(model.provider, "takes_reasoning", None)
    return True if asked is None else bool(asked(model.vendor_id))


def _key(command: Command) -> tuple[int, int, int]:
    index = -1 if isinstance(command, CallModel) else command.index
    return command.turn, index, command.attempt


def _text_only(transcript: Transcript) -> list[Text]:
    return [Text(transcript.last_text)]
