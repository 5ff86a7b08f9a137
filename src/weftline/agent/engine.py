"""`Engine`: where agents' runs live. On a directory they are durable; without one they are in memory.

async with Engine("./data", agents=[agent]) as engine:  # carries on what an earlier process left
    run = await engine.start(agent, "Migrate.", key="migrate-1")  # durable when this returns
    print((await run.result()).output)
"""

from __future__ import annotations

import asyncio
import os
from base64 import b64decode
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from hashlib import sha256
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeAlias, TypeVar, cast
from weakref import WeakKeyDictionary

from msgspec.structs import replace

from weftline.agent.attached import part_of
from weftline.agent.definition import Definition, DepsT, OutputT
from weftline.agent.elsewhere import Elsewhere, call
from weftline.agent.options import RunOptions, check_options
from weftline.agent.plans import plan_of
from weftline.agent.run import Run
from weftline.agent.settings import Settings
from weftline.agent.sources import NO_DEPS, AgentTools, Setup, require_durable
from weftline.agent.subagents import Subagent
from weftline.agent.sync import blocking
from weftline.agent.threads import Thread
from weftline.errors import Conflict, InvalidRequest
from weftline.kernel import entries
from weftline.kernel.bodies import decode_created, decode_message
from weftline.messages import Blob, File, Image, Message, Text, User, UserPart
from weftline.plan import RunPlan, ServerRef, StoredRef, decode_plan, encode_plan
from weftline.providers.base import Provider
from weftline.providers.catalog import Catalog, build_catalog, usual_providers
from weftline.runtime import ids
from weftline.runtime.clock import SystemClock
from weftline.runtime.code import ChildLimits
from weftline.runtime.embedded import EmbeddedEngine
from weftline.runtime.limits import WorkspaceLimits
from weftline.store import open_store
from weftline.store.base import IdempotencyKey, RunFilter, Store
from weftline.store.memory import MemoryStore
from weftline.workspace.context import Workspaces

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from weftline.agent.stored import StoredThings
    from weftline.net.transport import AiohttpTransport
    from weftline.providers.workspace import WorkspaceCatalogs
    from weftline.tools.base import Tool

T = TypeVar("T")
Beside: TypeAlias = Callable[[], AbstractAsyncContextManager[object]]

_CANCEL_S = 5.0
_NO_SETTINGS = Settings()
_ROUTE = "library"
_PAGE = 200
_KEPT = 64
"""How many runs in memory can still be asked for after their owner has left."""
_STARTED = entries.KIND[entries.CallStarted]
_MANY = 2**31 - 1
_UNFINISHED = ("queued", "running", "paused")


class Engine:
    """See the module. It lives on the loop that opened it; calls from other loops and threads are forwarded there.

    `models` are what agents' model ids mean; by default the providers whose keys are in the environment. `max_runs` is
    how many runs may be carried out at once: the rest queue.
    """

    def __init__(
        self,
        directory: str | Path | None = None,
        *,
        agents: Sequence[Definition[Any, Any]] = (),
        models: Catalog | None = None,
        max_runs: int | None = None,
        workspace: str = "default",
    ) -> None:
        self._directory = directory
        self._models = models
        self._max_runs = max_runs
        self._slug = workspace
        self._tools = AgentTools()
        self._tools.planner = self._plan_child
        self.own_tools: dict[str, Tool] = {}
        """What runs of clients may name as tools of the server; see `weftline.server.mounted`."""
        self._stored: StoredThings | None = None
        self._beside: list[Beside] = []
        self._guests = AsyncExitStack()
        """What was opened along with the engine, and is closed before it."""
        self._transport: AiohttpTransport | None = None
        self._usual: Catalog | None = None
        """The providers whose keys are in the environment, if a model was named and none were given."""
        self._catalog = Catalog() if models is None else models.copy()
        self._host: EmbeddedEngine | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._pid = 0
        self._workspace = 0
        self._next = 0
        self._codes: dict[str, str] = {}
        """By run in memory: what its code is registered under."""
        self._memory: MemoryStore | None = None
        self._ended: deque[int] = deque()
        """Runs in memory that nobody owns any more, oldest first."""
        self.closing: AsyncGenerator[None] | None = None
        """Closes an engine that nobody opened by hand."""
        self._providers: dict[int, tuple[Provider, str]] = {}
        for agent in agents:
            self.register(agent)

    @property
    def is_open(self) -> bool:
        return self._host is not None

    @property
    def lives_here(self) -> bool:
        """Whether it was opened on the running loop."""
        return self._loop is asyncio.get_running_loop()

    @property
    def durable(self) -> bool:
        return self._directory is not None

    def register(self, agent: Definition[Any, Any], *, name: str | None = None) -> None:
        """Lets the engine carry on runs of this agent. Raises `Conflict` if another agent has its name."""
        name = name or agent.name
        if name is None:
            raise InvalidRequest("An agent that an engine carries on needs a name: Agent(…, name='billing').")
        if self.durable:
            require_durable(agent, name)
        self._tools.register(name, Setup(agent))
        self._offer_own(agent, name)

    # Life

    async def __aenter__(self) -> Self:
        if self._host is not None:
            raise Conflict("This engine is open already.")
        models: Catalog | WorkspaceCatalogs = self._catalog
        if self._directory is None:
            store: Store = MemoryStore()
            self._memory = store
            self.workspaces = Workspaces(store.records, store.vault, SystemClock())
        else:
            self._look_around()  # the runs that it carries on may need them
            store = await asyncio.to_thread(open_store, self._directory, check=True)
            self.workspaces = Workspaces(store.records, store.vault, SystemClock())
            from weftline.agent.stored import StoredThings  # what it imports, runs in memory do not need

            self._stored = StoredThings(store, self.workspaces, models=self._catalog, own=self.own_tools)
            self._tools.others, models = self._stored.tools, self._stored.catalogs
        self.store = store
        limits = WorkspaceLimits() if self._max_runs is None else WorkspaceLimits(max_runs_per_workspace=self._max_runs)
        host = EmbeddedEngine(store, models=models, tools=self._tools, limits=limits)
        await host.start()
        self._host, self._loop, self._pid = host, asyncio.get_running_loop(), os.getpid()
        self._workspace = await host.workspace(self._slug)
        try:
            for beside in self._beside:
                await self._guests.enter_async_context(beside())
        except BaseException:
            await self._shut_down()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Stops what is under way; what is durable goes on in the next process. May be called twice."""
        if self._host is None:
            return
        if self._pid != os.getpid():
            self._host = None  # it is the parent's to close
            return
        await self.at_home(self._shut_down)

    async def _shut_down(self) -> None:
        await self._guests.aclose()
        host, self._host = self._host, None
        if host is not None:
            await host.stop(drain_s=_CANCEL_S)
            await self._tools.close()
        if self._stored is not None:
            await self._stored.aclose()
        if self._usual is not None:
            await self._usual.aclose()
            self._usual, self._catalog = None, Catalog()
            self._providers.clear()
            for name, agent in self._tools.agents.items():
                self._offer_own(agent, name)  # the engine may be opened again
        if self._transport is not None:
            await self._transport.aclose()

    def __enter__(self) -> Self:
        """For code without an event loop: the engine lives on the loop of the blocking calls."""
        return blocking(self.__aenter__)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        blocking(self.close)

    @asynccontextmanager
    async def lifespan(self, app: object) -> AsyncGenerator[None]:
        """The engine is open for as long as an ASGI application is: `Starlette(…, lifespan=engine.lifespan)`."""
        async with self:
            yield

    def alongside(self, beside: Beside) -> None:
        """Enters a context each time that the engine is opened, and leaves it before the engine is closed."""
        self._beside.append(beside)

    async def attend(self, beside: Beside) -> None:
        """The same once, in an engine that is open."""
        await self._guests.enter_async_context(beside())

    def _look_around(self) -> None:
        """Adds the providers whose keys are in the environment, unless models were given."""
        if self._models is not None or self._usual is not None:
            return
        from weftline.net.transport import AiohttpTransport  # a script with a model of its own needs no HTTP

        self._transport = AiohttpTransport()
        self._usual = build_catalog(usual_providers(), transport=self._transport)
        self._catalog.include(self._usual)

    async def runtime(self) -> EmbeddedEngine:
        """The runtime below. On another loop than its own it is one that forwards calls.

        Raises `Conflict` unless the engine is open, in this process.
        """
        host, loop = self._opened()
        if loop is asyncio.get_running_loop():
            return host
        return cast("EmbeddedEngine", Elsewhere(host, loop))

    async def at_home(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Carries out `work` on the loop that the engine lives on, with the caller's context variables."""
        _, loop = self._opened()
        return await (work() if loop is asyncio.get_running_loop() else call(loop, work))

    def _opened(self) -> tuple[EmbeddedEngine, asyncio.AbstractEventLoop]:
        if self._host is None or self._loop is None:
            raise Conflict("This engine is not open: use it in `async with Engine(…) as engine`.")
        if self._pid != os.getpid():
            raise Conflict("This engine was opened before the process was forked; open one here.")
        return self._host, self._loop

    @property
    def agents(self) -> dict[str, Definition[Any, Any]]:
        """Those that are registered, by name."""
        return self._tools.agents

    @property
    def stored(self) -> StoredThings:
        """Of a durable engine that is open."""
        assert self._stored is not None
        return self._stored

    # Runs

    async def start(
        self, agent: Definition[OutputT, DepsT], prompt: str | None = None, **options: Unpack[RunOptions[DepsT]]
    ) -> Run[OutputT]:
        """Starts a run and returns when it is accepted, durably if the engine is. `RunOptions` has what can be set."""
        return await self.at_home(lambda: self._begin(agent, prompt, options))

    async def _begin(
        self, agent: Definition[OutputT, DepsT], prompt: str | None, options: RunOptions[DepsT]
    ) -> Run[OutputT]:
        check_options(options)
        host = await self.runtime()
        name = self._carried_by(agent, options)
        thread = await self._place(prompt, options)
        plan, blobs = await self._plan(agent, prompt, options, code=name)
        key = options.get("key")
        idempotency = None
        if key is not None:
            same = encode_plan(replace(plan, name="", code=agent.name))
            digest = sha256(same + str(options.get("thread")).encode()).digest()
            idempotency = IdempotencyKey(_ROUTE, key, digest)
        run_id = await host.create(self._workspace, plan, thread=thread, idempotency=idempotency, blobs=blobs)
        if not self.durable:
            self._codes[run_id] = name
        return Run(self, run_id, output=agent.output_type)

    def attach(self, run_id: str, agent: Definition[OutputT, Any] | None = None) -> Run[OutputT]:
        """A run by its id, whoever started it. With its agent the result is typed."""
        return Run(self, run_id, output=None if agent is None else agent.output_type)

    async def unclaimed(self) -> list[str]:
        """The unfinished runs whose agents are not registered here, newest first. They wait."""
        host = await self.runtime()
        found: list[str] = []
        before: int | None = None
        while rows := await host.runs(
            RunFilter(workspace=self._workspace, statuses=_UNFINISHED, before=before, limit=_PAGE)
        ):
            before = rows[-1].key
            found += [ids.run_id(row.key, row.salt) for row in rows if not await self._is_known(host, row.key)]
        return found

    async def _is_known(self, host: EmbeddedEngine, key: int) -> bool:
        created = await host.entry(key, 1)
        return created is None or self._tools.knows(decode_plan(decode_created(created.body).plan))

    def thread(self, name: str) -> Thread:
        """A conversation by its name."""
        return Thread(self, name)

    @asynccontextmanager
    async def owned(self, run: Run[Any]) -> AsyncGenerator[None]:
        """A run in memory belongs to its caller: whoever leaves early ends it."""
        try:
            yield
        finally:
            if not self.durable and self._host is not None:
                await asyncio.shield(self.at_home(lambda: self._end_of(run)))

    async def _end_of(self, run: Run[Any]) -> None:
        host = await self.runtime()
        key = await self.locate(run.id)
        code = self._tools.running.get(run.id)
        await host.cancel(key, reason="left")
        if code is not None:
            await code.leaving.settled()
            with suppress(TimeoutError):  # its tools do not stop; nobody waits for them any longer
                async with asyncio.timeout(_CANCEL_S):
                    await code.quiet.wait()
        self._tools.forget(self._codes.pop(run.id, ""))
        self._ended.append(key)
        if len(self._ended) > _KEPT and self._memory is not None:
            for old in await _with_children(host, self._ended.popleft()):
                self._memory.remove_run(old)

    async def locate(self, run_id: str) -> int:
        return await (await self.runtime()).locate(run_id, workspace=self._workspace)

    async def settled(self, run_id: str) -> None:
        """Returns when the last hook of a run that has ended here has returned."""
        code = self._tools.running.get(run_id)
        if code is not None:
            await self.at_home(code.leaving.settled)

    async def history_of(self, run_id: str, upto: int) -> tuple[Message, ...]:
        host = await self.runtime()
        row = await host.find(run_id, workspace=self._workspace)
        stored = await host.thread_messages(row.thread) if row.thread is not None else []
        return tuple([decode_message(message) for message in stored[:upto]])

    # What a run is started with

    def _carried_by(self, agent: Definition[Any, Any], options: RunOptions[Any]) -> str:
        """The name that the code of the run is registered under."""
        own = "deps" in options or "hooks" in options
        if self.durable:
            if own:
                given = " and ".join([f"{name}=" for name in ("deps", "hooks") if name in options])
                raise InvalidRequest(f"A durable run cannot be given {given}: the next process would not have it.")
            if agent.name is None:
                raise InvalidRequest("A durable agent needs a name: Agent(…, name='billing').")
            if self._tools.find(agent.name) is None:
                self.register(agent)
            elif self._tools.find(agent.name) is not agent:
                raise Conflict(f"Another agent is registered under the name {agent.name!r}.")
            return agent.name
        self._next += 1
        name = f"{agent.name or 'agent'} {self._next}"
        deps = options.get("deps", NO_DEPS)
        if deps is NO_DEPS and isinstance(agent.deps, type):
            raise InvalidRequest(f"The agent's deps are of the type {agent.deps.__name__}: give the run deps=….")
        setup = Setup(agent, deps=deps, hooks=options.get("hooks", ()), behavior=options.get("behavior"))
        self._tools.register(name, setup)
        return name

    async def _place(self, prompt: str | None, options: RunOptions[Any]) -> int | None:
        name = options.get("thread")
        if name is None:
            return None
        if self.closing is not None:
            raise InvalidRequest("A thread needs an engine to live on: run(…, thread=…, engine=engine).")
        if options.get("messages"):
            raise InvalidRequest("thread= and messages= exclude each other: a thread has its own messages.")
        thread = self.thread(name)
        if prompt is None and not options.get("files") and not await thread.messages():
            raise InvalidRequest(f"The thread {name!r} has no messages to go on from: give the run a prompt.")
        return await thread.key()

    async def _plan(
        self, agent: Definition[Any, Any], prompt: str | None, options: RunOptions[Any], *, code: str
    ) -> tuple[RunPlan, tuple[Blob, ...]]:
        given = tuple(options.get("messages", ()))
        files = options.get("files", ())
        if prompt is None and not given and "thread" not in options:
            raise InvalidRequest("A run needs a prompt, or messages to go on from.")
        messages, blobs = given, tuple[Blob, ...]()
        if prompt is not None or files:
            parts, blobs = (
                await asyncio.to_thread(_parts, prompt, tuple(files)) if files else ((Text(prompt or ""),), ())
            )
            messages = (*given, User(parts))
        plan = plan_of(
            agent,
            code=code,
            model=await self.model_id(options.get("model", agent.present_model)),
            messages=messages,
            given=len(given),
            settings=options.get("settings", _NO_SETTINGS),
            limits=options.get("limits"),
            hooks=options.get("hooks", ()),
            behavior=options.get("behavior"),
            metadata=options.get("metadata"),
            durable=self.durable,
        )
        return plan, blobs

    async def _plan_child(
        self, parent: RunPlan, subagent: Subagent, task: str, /, *, system: str | None, limits: ChildLimits
    ) -> RunPlan:
        """What a subagent's run is to do: its agent's own plan, or a copy of its parent's, within what that leaves."""
        assert parent.code is not None
        if subagent.agent is None:
            plan = replace(
                parent,
                messages=(User.of(task),),
                system=system or parent.system,
                # What a client carries out is offered to whoever follows the parent, and nobody follows the child.
                tools=tuple([ref for ref in parent.tools if isinstance(ref, ServerRef | StoredRef)]),
                output_schema=None,
                limits=replace(parent.limits, check_output=False),
                given=0,
            )
        else:
            plan, _ = await self._plan(subagent.agent, task, {}, code=parent.code)
        capped = _within(plan.limits, limits)
        path = (*parent.path, subagent.name)
        plan = replace(plan, name=subagent.name, limits=capped, path=path, metadata=parent.metadata)
        await (await self.runtime()).check(plan, workspace=self._workspace)
        return plan

    async def model_id(self, model: str | Provider | None) -> str | None:
        """A provider that was given as an object is one of the catalog's from then on."""
        if model is None or isinstance(model, str):
            self._look_around()
            return model
        known = self._providers.get(id(model))
        if known is None:
            if self.durable:
                raise InvalidRequest(
                    "A durable run cannot be given a model as an object: the next process would not have it."
                    " Give it to the agent, or name one of the engine's models."
                )
            self._offer(model, f"given-{len(self._providers) + 1}")
            known = self._providers[id(model)]
        if self._stored is not None:
            await self._stored.catalogs.refresh()
        return f"provider:{known[1]}"

    def _offer_own(self, agent: Definition[Any, Any], name: str) -> None:
        """Offers the model object of a durable agent under the agent's name, by which the next process finds it too."""
        if self.durable and agent.model is not None and not isinstance(agent.model, str):
            self._offer(agent.model, f"agent-{name}")

    def _offer(self, model: Provider, name: str) -> None:
        if id(model) not in self._providers:
            self._catalog.add(model, name=name)
            self._providers[id(model)] = (model, name)

    @property
    def workspace_key(self) -> int:
        return self._workspace


def _within(own: entries.Limits, left: ChildLimits) -> entries.Limits:
    costs = [cost for cost in (own.max_cost_nusd, left.max_cost_nusd) if cost is not None]
    return replace(own, max_depth=min(own.max_depth, left.max_depth), max_cost_nusd=min(costs) if costs else None)


async def _with_children(host: EmbeddedEngine, key: int) -> list[int]:
    """A run and all runs below it."""
    found = [key]
    for fact in await host.newest_facts(key, kinds=(_STARTED,), limit=_MANY, max_bytes=_MANY):
        head = entries.decode_fact.decode(fact.head)
        if isinstance(head, entries.CallStarted) and head.child:
            found += await _with_children(host, ids.key_of(head.child))
    return found


def _parts(prompt: str | None, files: Sequence[Any]) -> tuple[tuple[UserPart, ...], tuple[Blob, ...]]:
    """The parts of the first message. Contents are kept beside the log, once."""
    parts: list[UserPart] = []
    blobs: dict[str, Blob] = {}
    for given in files:
        part = part_of(given)
        if isinstance(part, Image | File) and part.data is not None:
            data = b64decode(part.data)
            blob = Blob(sha256(data).hexdigest(), data)
            blobs[blob.id] = blob
            part = replace(part, data=None, blob=blob.id, size=len(data))
        parts.append(part)
    if prompt is not None:
        parts.append(Text(prompt))
    return tuple(parts), tuple(blobs.values())


_engines: WeakKeyDictionary[asyncio.AbstractEventLoop, Engine] = WeakKeyDictionary()


async def in_memory() -> Engine:
    """The engine of runs without one, made at first use on each loop and closed with it."""
    loop = asyncio.get_running_loop()
    engine = _engines.get(loop)
    if engine is None or not engine.is_open:
        engine = _engines[loop] = Engine()
        await engine.__aenter__()
        # Loops close their async generators before they end: the only way to be told in time.
        closing = _closing(engine)
        await anext(closing)
        engine.closing = closing
    return engine


async def _closing(engine: Engine) -> AsyncGenerator[None]:
    try:
        yield
    finally:
        await engine.close()
