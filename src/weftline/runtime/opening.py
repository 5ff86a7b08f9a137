"""Prepares a run to be driven: its models, its tools, its thread's history, and what an earlier driver left."""

from __future__ import annotations

import asyncio
from base64 import b64encode
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from msgspec import Struct

from weftline.errors import Conflict, Unavailable
from weftline.kernel.bodies import RenderedBody, decode_message, encode
from weftline.kernel.control import DeployAdopted
from weftline.kernel.entries import CancelRequested, HistoryPinned, InstructionsRendered
from weftline.kernel.seats import SeatTaken
from weftline.messages import Message
from weftline.providers.workspace import WorkspaceCatalogs
from weftline.runtime import ids
from weftline.runtime.agent_code.inside import RunInside, RunMemory
from weftline.runtime.deploys import NO_DEPLOY, deploy_for
from weftline.runtime.fleet.holding import RunDispatcher, RunLoader
from weftline.runtime.live import Draft, LiveRun
from weftline.runtime.model_calls.compacting import Inherited, as_fact, inherited_by
from weftline.runtime.model_view import blobs_of
from weftline.runtime.reads.finding import StoredNames
from weftline.runtime.recovery import adoption
from weftline.runtime.thread_messages import ThreadEdits
from weftline.runtime.tool_calls.toolbox import RunName, ToolSource
from weftline.store.base import LogStore
from weftline.work.heavy import in_turn
from weftline.work.turns import current_caller

OPEN_S = 90.0
"""How long a request waits for the tools of its run: longer than the slowest MCP server may take to start."""


class _Opening(Struct, eq=False):
    opening: asyncio.Task[None]
    ended: asyncio.Task[None]
    """Done when the run has ended."""
    waiters: dict[asyncio.Future[None], None]


class AskedOpenings:
    """`open_tools` opens the tools of a run; `until_ended` returns when the run has ended."""

    def __init__(
        self,
        open_tools: Callable[[LiveRun], Coroutine[Any, Any, None]],
        *,
        until_ended: Callable[[LiveRun], Coroutine[Any, Any, None]],
    ) -> None:
        self._open_tools = open_tools
        self._until_ended = until_ended
        self._loop = asyncio.get_running_loop()
        self._openings: dict[LiveRun, _Opening] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        """With those that were cancelled, until they have ended."""
        self._stopped = False

    async def wait(self, run: LiveRun) -> None:
        """Returns when the tools of the run are open, or when it has ended without them.

        Raises `Unavailable` after `OPEN_S` and when the engine stops, and `ConnectionResetError` when the caller goes
        away. Others keep waiting then.
        """
        if self._stopped:
            raise _stopping()
        opening = self._openings.get(run) or self._begin(run)
        waiter = self._loop.create_future()
        opening.waiters[waiter] = None
        caller = current_caller.get()
        if caller is not None:
            caller.then(lambda: waiter.done() or waiter.set_exception(ConnectionResetError()))
        limit = asyncio.timeout(OPEN_S)
        try:
            async with limit:
                await waiter
        except TimeoutError:
            if not limit.expired():
                raise  # the opening's own
            raise Unavailable("The tools of this run take too long to open.", retry_after_s=5) from None
        finally:
            del opening.waiters[waiter]
            if not opening.waiters:
                self._end(run, opening)

    def stop(self) -> None:
        """Refuses everybody who waits, or comes later."""
        self._stopped = True
        for run, opening in list(self._openings.items()):
            self._notify(opening, _stopping())
            self._end(run, opening)

    def _begin(self, run: LiveRun) -> _Opening:
        opening = _Opening(
            self._loop.create_task(self._open_tools(run)), self._loop.create_task(self._until_ended(run)), {}
        )
        self._openings[run] = opening

        def done(task: asyncio.Task[None]) -> None:
            self._tasks.discard(task)
            error = None if task.cancelled() else task.exception()
            if task is opening.ended and error is not None:
                return  # the end goes unnoticed, but the tools may still open
            if task.cancelled() or isinstance(error, ConnectionResetError):
                # Neither the request was cancelled nor its client gone: the code that opens the tools has failed.
                failure = RuntimeError("the tools could not be opened")
                failure.__cause__ = asyncio.CancelledError() if error is None else error
                error = failure
            self._notify(opening, error)
            self._end(run, opening)

        for task in (opening.opening, opening.ended):
            self._tasks.add(task)
            task.add_done_callback(done)
        return opening

    def _notify(self, opening: _Opening, error: BaseException | None) -> None:
        for waiter in opening.waiters:
            if waiter.done():
                continue
            if error is None:
                waiter.set_result(None)
            else:
                waiter.set_exception(error)

    def _end(self, run: LiveRun, opening: _Opening) -> None:
        """Cancels what is still under way, unless that has happened."""
        if self._openings.get(run) is opening:
            del self._openings[run]
            opening.opening.cancel()
            opening.ended.cancel()


def _stopping() -> Unavailable:
    return Unavailable("The server is stopping.", retry_after_s=1)


_CODE_ON_LOOP_BYTES = 64 * 1024
"""Starting a thread costs more than encoding or decoding this little."""


class _Given(Struct):
    """What a run begins with: the messages of its thread, and a summary of the older ones."""

    history: list[Message] = []
    size: int = 0
    summary: Inherited | None = None
    through: int = 0
    revision: int = 0


class RunOpener:
    """`connect` passes it the parts that refer to it, before the first run is opened."""

    def __init__(
        self, store: LogStore, *, models: WorkspaceCatalogs, tools: ToolSource, names: StoredNames, edits: ThreadEdits
    ) -> None:
        self._store = store
        self._edits = edits
        self._models = models
        self._tools = tools
        self._names = names

    def connect(
        self,
        *,
        loader: RunLoader,
        dispatcher: RunDispatcher,
        until_ended: Callable[[LiveRun], Coroutine[Any, Any, None]],
    ) -> None:
        self._loader = loader
        self._dispatcher = dispatcher
        self._asked = AskedOpenings(self._open_toolbox, until_ended=until_ended)

    def stop(self) -> None:
        """Refuses requests that wait for tools."""
        self._asked.stop()

    async def open_tools(self, run: LiveRun) -> None:
        """Creates the tools of a run that is not driven, to check an outside request about one of its calls. Returns
        without them if the run ends first.

        Raises `Unavailable` if that takes too long, or the engine stops, and `ConnectionResetError` if the caller goes
        away.
        """
        if run.work.toolbox is None:
            if not self._tools.knows(run.work.plan):
                raise Conflict("The agent of this run is not registered here, so changed arguments cannot be checked.")
            await self._asked.wait(run)

    async def open(self, run: LiveRun) -> Sequence[Draft]:
        """Reads everything before it changes the conversation, so that a failure on the way can be retried."""
        work = run.work
        work.store_id = self._store.id
        work.catalog = self._models.loaded(run.workspace) or await self._models.load(run.workspace)
        if not run.driving.opened:
            await self._open_toolbox(run)
        first = await self._first_seat(run)
        begins = run.thread is not None and run.state.history is None
        seen = self._edits.count(run.thread)
        given = await self._given(run) if begins else _Given()
        contents = {} if run.driving.opened else await self._contents(run, given.history)
        code = work.toolbox.code if work.toolbox is not None else None
        shared = work.conversation.shared
        rendered, memory = None, RunMemory(shared.values)
        deploy = NO_DEPLOY if work.conversation.digests is None else deploy_for(run.state, work, self._tools)
        changed = deploy.adopted
        rebuild = "prompt" in changed
        if code is not None and (rebuild or work.conversation.system is None):
            messages = [*given.history, *work.conversation.messages]
            rendered = await code.render(work.plan.system, memory=memory, messages=messages, rebuild=rebuild)
        async with self._edits.of(run.thread):  # until the run knows what it reads
            if begins and self._edits.count(run.thread) != seen:
                given = await self._given(run)
                contents = await self._contents(run, given.history)
            # No await from here until the facts are recorded, so that the conversation and the log agree.
            facts: list[Draft] = []
            if begins:
                work.conversation.begin(given.history, size=given.size)
                facts.append(Draft(HistoryPinned(len(given.history), given.through, given.revision)))
                if given.summary is not None:
                    facts.append(as_fact(given.summary, work))
            if first is not None:
                facts.append(Draft(first))
            if deploy.asks is not None:
                facts.append(deploy.asks)
            if changed:
                body = encode(RenderedBody(rendered or "", shared.changes(memory.changed))) if rebuild else b""
                facts.append(Draft(DeployAdopted(changed), body))
            elif rendered is not None and work.conversation.system is None:
                body = encode(RenderedBody(rendered, shared.changes(memory.changed)))
                facts.append(Draft(InstructionsRendered(), body))
            work.conversation.view.contents.update(contents)
            work.blobs.clear()
            run.driving.opened = True
            if run.state.in_flight:
                epoch = run.log.epoch if run.log.epoch > run.state.epoch else self._store.next_epoch()
                run.log.epoch = epoch
                facts[:0] = adoption(run, epoch)
            return facts

    async def _given(self, run: LiveRun) -> _Given:
        """What the run begins with."""
        assert run.thread is not None
        stored = await self._store.thread_history(run.thread)
        messages = stored.messages
        size = sum([len(message) for message in messages])
        history = _decoded(messages) if size <= _CODE_ON_LOOP_BYTES else await in_turn(_decoded, messages)
        summary = await inherited_by(run, self._store) if messages else None
        unchanged = len(messages) if stored.edited_upto is None else stored.edited_upto
        if summary is not None and summary.upto > min(unchanged, len(messages)):
            summary = None  # of what is not there any more
        return _Given(history, size, summary, stored.through, stored.revision)

    async def _first_seat(self, run: LiveRun) -> SeatTaken | None:
        """The seat that begins the run, if its thread was handed over to another agent than its own."""
        state = run.state
        if state.seats is None or state.seats.taken or run.thread is None:
            return None
        agent = await self._names.speaker(run.thread)
        for index, rule in enumerate(state.limits.seats if agent is not None else ()):
            if rule.name == f"{agent}/a":
                return SeatTaken(index, "start", rule.name)
        return None

    async def _open_toolbox(self, run: LiveRun) -> None:
        work = run.work
        above = run.log.state.parent
        if above is not None:
            parent = await self._loader.load_with_retry(ids.parent_key(above))
            if parent.state.ended:
                # Only a damaged one ends before its children.
                self._dispatcher.take(run, Draft(CancelRequested("parent")))
            else:
                await self._open_toolbox(parent)
        # Its own driver and those of its children may need the tools at the same time.
        if run.driving.opening is None:
            run.driving.opening = asyncio.Lock()
        async with run.driving.opening:
            work.workspace_slug = await self._names.workspace(run.workspace)
            if run.listed_under is not None:
                work.session_id = await self._names.session(run.listed_under)
            if work.toolbox is None:
                who = RunName(
                    run.key, work.run_id, run.workspace, work.workspace_slug, work.session_id, run.state.parent
                )
                toolbox = await self._tools.open(work.plan, run=who, secrets=work.secrets)
                work.toolbox = toolbox.under(work.plan.limits.policy)
                if toolbox.code is not None:
                    toolbox.code.enter(RunInside(run, self._dispatcher.take))
                    if run.gone:
                        toolbox.code.leave()  # it has left memory in the meantime, and will not be notified again

    async def _contents(self, run: LiveRun, history: Sequence[Message]) -> dict[str, str]:
        """The contents that the conversation refers to. Those that came with the run may not be stored yet."""
        work = run.work
        contents: dict[str, str] = {}
        for id in blobs_of([*history, *work.conversation.messages]) - work.conversation.view.contents.keys():
            brought = work.blobs.get(id)
            data = brought if brought is not None else await self._store.blob(run.workspace, id)
            contents[id] = await _base64(data or b"")
        return contents


def _decoded(messages: Sequence[bytes]) -> list[Message]:
    return [decode_message(message) for message in messages]


async def _base64(data: bytes) -> str:
    if len(data) <= _CODE_ON_LOOP_BYTES:
        return b64encode(data).decode()
    return (await in_turn(b64encode, data)).decode()
