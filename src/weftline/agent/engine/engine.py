"""`Engine`: where agents' runs live."""

from __future__ import annotations

import asyncio
import os
import warnings
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeAlias, TypeVar, cast

from msgspec.structs import replace

from weftline.agent.definition import Definition, DepsT, OutputT
from weftline.agent.engine.budget_methods import BudgetMethods
from weftline.agent.engine.log_methods import LogMethods, WatchMethods
from weftline.agent.engine.logs import RecentLogs, facts_around
from weftline.agent.engine.loop_proxy import LoopProxy, call
from weftline.agent.engine.prompt_methods import PromptMethods
from weftline.agent.engine.starting import Models, Starter
from weftline.agent.engine.thread_methods import AgentFolder, ThreadMethods
from weftline.agent.options import RunOptions, check_options
from weftline.agent.planning.plans import ChildPlans, added_toolsets, digest_of_call
from weftline.agent.planning.sources import AgentTools, Setup, require_durable
from weftline.agent.run import Run
from weftline.agent.running.code import AgentCode
from weftline.agent.sync import blocking
from weftline.errors import Conflict, InvalidRequest, NotFound, short_traceback
from weftline.kernel.bodies import decode_message
from weftline.messages import Message
from weftline.plan import RunPlan
from weftline.providers.base import Provider
from weftline.providers.catalog import Catalog
from weftline.runtime.clock import SystemClock
from weftline.runtime.engine import Engine as Runtime
from weftline.runtime.engine import OwnedEngine
from weftline.runtime.fleet.holding import WorkspaceLimits
from weftline.runtime.model_calls.model_call import MODEL_TIMEOUT_S
from weftline.runtime.new_engine import NewEngineOptions, new_engine
from weftline.store import open_store_off_loop
from weftline.store.base import Store
from weftline.store.memory import MemoryStore
from weftline.store.rows import IdempotencyKey
from weftline.workspace.context import Change, Workspaces

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from weftline.agent.engine.log_methods import ForkChanges
    from weftline.agent.engine.starting import StoredResources
    from weftline.providers.workspace import WorkspaceCatalogs
    from weftline.replay.forking import ForkPoint
    from weftline.tools.base import Tool, Toolset

T = TypeVar("T")
Companion: TypeAlias = Callable[[], AbstractAsyncContextManager[object]]

_ROUTE = "library"


class Engine(WatchMethods, LogMethods, PromptMethods, BudgetMethods, ThreadMethods):
    """Where agents' runs live: durable in a directory, or in memory without one.

        async with Engine("./data", agents=[agent]) as engine:  # continues the runs of an earlier process
            run = await engine.start(agent, "Migrate.", key="migrate-1")  # durable when this returns
            print((await run.result()).output)

    It belongs to the event loop that opened it; calls from other loops and threads are forwarded there.

    Args:
        directory: Where the runs are stored; without one they are in memory.
        agents: The agents whose runs it continues.
        models: The catalog for agents' model ids; by default the providers whose keys are in the environment.
        max_runs: How many runs may execute at once; the rest are queued.
        workspace: The workspace of the store that the runs belong to.
        drain_s: How long work in progress may continue when the engine is closed, before it is cancelled.
        code_version: The version of the agents' code, instead of a digest of its source; see `Limits.on_deploy`.
        model_retries_timeout_s: How long all attempts of a turn at one model may take together, without the waits
            between them; 900 by default. A fallback has the whole time again.
        project: A folder of agents, such as `load_project("./desk")`: its agents are `engine.agents`, by name.
    """

    def __init__(
        self,
        directory: str | Path | None = None,
        *,
        agents: Sequence[Definition[Any, Any]] = (),
        models: Catalog | None = None,
        max_runs: int | None = None,
        workspace: str = "default",
        drain_s: float = 5.0,
        code_version: str | None = None,
        model_retries_timeout_s: float | None = None,
        project: AgentFolder | None = None,
    ) -> None:
        if model_retries_timeout_s is not None and not 0 < model_retries_timeout_s < float("inf"):
            raise ValueError(f"model_retries_timeout_s must be a positive number, not {model_retries_timeout_s!r}")
        self._model_retries_timeout_s = model_retries_timeout_s
        self._directory = directory
        self._models = Models(models)
        self._max_runs = max_runs
        self._slug = workspace
        self._drain_s = drain_s
        self._tools = AgentTools()
        if code_version is not None and not isinstance(code_version, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"code_version must be a str, not {type(code_version).__name__}")
        self._code_version = code_version
        self._starter = Starter(self._tools, self._models, durable=self.durable, register=self._admit)
        self._tools.on_left = self._left
        self._own_tools: dict[str, Tool] = {}
        """The server's tools that clients' runs may name; see `weftline.server.mounted`."""
        self._stored: StoredResources | None = None
        self._companions: list[Companion] = []
        self._guests = AsyncExitStack()
        """Contexts that were entered with the engine, and are exited before it closes."""
        self._host: OwnedEngine | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._pid = 0
        self._workspace = 0
        self._codes: dict[str, str] = {}
        """By run in memory: the name that its code is registered under."""
        self._brought: dict[str, tuple[Toolset, ...]] = {}
        """By run in memory: the toolsets that were given with it."""
        self._kept: RecentLogs | None = None
        """Runs in memory that no longer have an owner."""
        self._closing: AsyncGenerator[None] | None = None
        """Closes an engine that was opened implicitly."""
        for agent in agents:
            self._admit(agent)
        for agent in () if project is None else project.agents(self._models.folder).values():
            self._admit(agent)
        self._models.include_folder()

    @property
    def is_open(self) -> bool:
        return self._host is not None

    @property
    def _lives_here(self) -> bool:
        """True if the engine was opened on the running loop."""
        return self._loop is asyncio.get_running_loop()

    @property
    def durable(self) -> bool:
        return self._directory is not None

    def register(self, agent: Definition[Any, Any], *, name: str | None = None) -> None:
        """Lets the engine continue runs of this agent.

        Raises `Conflict` if another agent has its name, and (`registration_closed`) if the engine is open: by then it
        has begun to continue the runs of an earlier process, with the agents that it knows. `start` needs no
        registration.
        """
        if self._host is not None:
            raise Conflict(
                f"The engine is already open; register agents before that: Engine(…, agents=[{agent.name or '…'}]).",
                code="registration_closed",
            )
        self._admit(agent, name=name)

    def _admit(self, agent: Definition[Any, Any], *, name: str | None = None) -> None:
        name = name or agent.name
        if name is None:
            raise InvalidRequest("An agent registered with an engine needs a name: Agent(…, name='billing').")
        if self.durable:
            require_durable(agent, name)
        self._tools.register(name, Setup(agent))
        self._starter.offer_own(agent, name)
        if agent.eager and self._host is not None and self._loop is not None:
            self._loop.call_soon_threadsafe(self._tools.begin, agent)

    # Life

    async def __aenter__(self) -> Self:
        with short_traceback:
            return await self._open()

    async def _open(self) -> Self:
        if self._host is not None:
            raise Conflict("This engine is already open.")
        if self._directory is None:
            store: Store = MemoryStore()
            self._kept = RecentLogs(store)
        else:
            self._models.add_usual()  # the runs that it continues may need them
            store = await open_store_off_loop(self._directory)
        self.store = store
        try:
            await self._open_on(store)
            for companion in self._companions:
                await self._guests.enter_async_context(companion())
        except BaseException:
            if self._host is None:
                await store.close()  # the host would have closed it
            await self._shut_down()
            raise
        return self

    async def _open_on(self, store: Store) -> None:
        models: Catalog | WorkspaceCatalogs = self._models.catalog
        self.workspaces = self._tools.workspaces = Workspaces(
            store.records, store.vault, SystemClock(), self._on_change
        )
        if self.durable:
            from weftline.agent.engine.starting import StoredResources  # runs in memory do not need its imports

            self._stored = StoredResources(store, self.workspaces, models=self._models.catalog, own=self._own_tools)
            self.workspaces = self._tools.workspaces = replace(self.workspaces, dialer=self._stored.dialer)
            self._tools.others, models = self._stored.tools, self._stored.catalogs
            self._starter.catalogs = self._stored.catalogs
            self._tools.use_version(self._code_version)
        limits = WorkspaceLimits() if self._max_runs is None else WorkspaceLimits(max_runs_per_workspace=self._max_runs)
        options: NewEngineOptions = {"limits": limits}
        if (whole_s := self._model_retries_timeout_s) is not None:
            options["model_retries_timeout_s"] = whole_s
            options["model_timeout_s"] = min(MODEL_TIMEOUT_S, whole_s)
        host = new_engine(store, models=models, tools=self._tools, **options)
        # Not through `self.runtime`: runs also go on while the engine opens and closes.
        self._tools.facts_around = partial(facts_around, host)
        self._tools.engine = host
        self._tools.planner = ChildPlans(model_id=self._starter.child_model, engine=host)
        await host.start()
        self._host, self._loop, self._pid = host, asyncio.get_running_loop(), os.getpid()
        self._workspace = await host.workspace(self._slug)
        if self._stored is not None:
            await self._stored.listen(host)
        for agent in self._tools.agents.values():
            if agent.eager:
                self._tools.begin(agent)

    async def _on_change(self, change: Change) -> None:
        match change.kind:
            case "budgets" if change.workspace is not None:
                await (await self.runtime()).budgets_changed(change.workspace, by=change.by)
            case "providers" if self._stored is not None:
                await self._stored.catalogs.refresh(change.workspace)
            case "logins" if self._stored is not None:
                self._stored.tools.pool.forget_logins(change.workspace)
            case _:
                pass

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self.close()

    def __del__(self) -> None:
        # An engine that was opened implicitly ends with its loop, whoever ends that.
        if getattr(self, "_host", None) is not None and self._closing is None and self._pid == os.getpid():
            warnings.warn("an Engine was opened and never closed: use `async with`", ResourceWarning, 2, source=self)

    async def close(self) -> None:
        """Stops work in progress; durable runs continue in the next process. May be called twice."""
        if self._host is None:
            return
        if self._pid != os.getpid():
            self._host = None  # it belongs to the parent process
            return
        await self._on_engine_loop(self._shut_down)

    async def _shut_down(self) -> None:
        # In reverse order; if something fails, the rest is still closed.
        async with AsyncExitStack() as closing:
            closing.callback(self._closed)
            closing.push_async_callback(self._models.aclose)
            if self._stored is not None:
                closing.push_async_callback(self._stored.aclose)
            closing.push_async_callback(self._stop_host)
            closing.push_async_callback(self._guests.aclose)
            if self._stored is not None and self._stored.own_socket is not None:
                closing.push_async_callback(self._stored.own_socket.stop)

    async def _stop_host(self) -> None:
        host, self._host = self._host, None
        if host is not None:
            await self._tools.notified()
            try:
                await host.stop(drain_s=self._drain_s)
            finally:
                await self._tools.close()

    def _closed(self) -> None:
        for name, agent in self._tools.agents.items():
            self._starter.offer_own(agent, name)  # the engine may be opened again
        self._loop = None

    def __enter__(self) -> Self:
        """Opens the engine for code without an event loop. It runs on the loop of the blocking calls."""
        with short_traceback:
            return blocking(self.__aenter__)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        blocking(self.close)

    @asynccontextmanager
    async def lifespan(self, app: object) -> AsyncGenerator[None]:
        """Keeps the engine open while an ASGI application runs: `Starlette(…, lifespan=engine.lifespan)`."""
        async with self:
            yield

    def _add_companion(self, companion: Companion) -> None:
        """Enters a context each time the engine is opened, and exits it before the engine is closed."""
        self._companions.append(companion)

    async def _enter_companion(self, companion: Companion) -> None:
        """Like `_add_companion`, but only once, for an engine that is open."""
        await self._guests.enter_async_context(companion())

    async def runtime(self) -> Runtime:
        """Returns the underlying runtime; on another loop, a proxy that forwards calls to it.

        Raises `Conflict` unless the engine is open in this process.
        """
        host, loop = self._opened()
        if loop is asyncio.get_running_loop():
            return host
        return cast("Runtime", LoopProxy(host, loop))

    async def _on_engine_loop(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Runs `work` on the engine's own loop, with the caller's context variables."""
        _, loop = self._opened()
        return await (work() if loop is asyncio.get_running_loop() else call(loop, work))

    def _opened(self) -> tuple[OwnedEngine, asyncio.AbstractEventLoop]:
        if self._host is None or self._loop is None:
            raise Conflict("This engine is not open: use it in `async with Engine(…) as engine`.")
        if self._pid != os.getpid():
            raise Conflict("This engine was opened before the process was forked; open one here.")
        return self._host, self._loop

    @property
    def agents(self) -> dict[str, Definition[Any, Any]]:
        """The registered agents, by name."""
        return self._tools.agents

    async def warmup(self, agent: Definition[Any, Any]) -> None:
        """Opens the agent's toolsets, so that its first run finds its servers connected and its skills read.

        Toolsets that are open stay open. A run that starts in the meantime waits for the others.
        """
        await self._on_engine_loop(lambda: self._tools.warm(agent))

    # Runs

    async def start(
        self, agent: Definition[OutputT, DepsT], prompt: str | None = None, **options: Unpack[RunOptions[DepsT]]
    ) -> Run[OutputT]:
        """Starts a run and returns when it is accepted, durably if the engine is durable. See `RunOptions`."""
        with short_traceback:
            return await self._launch(agent, prompt, options)

    async def _start_alone(
        self, agent: Definition[OutputT, DepsT], prompt: str | None, options: RunOptions[DepsT]
    ) -> Run[OutputT]:
        """Like `start`, for an unattended run in memory: it ends on an await that no hook answers."""
        return await self._launch(agent, prompt, options, nobody_to_ask=not self.durable)

    async def _launch(
        self,
        agent: Definition[OutputT, DepsT],
        prompt: str | None,
        options: RunOptions[DepsT],
        *,
        nobody_to_ask: bool = False,
    ) -> Run[OutputT]:
        created: list[asyncio.Task[str]] = []
        try:
            return await self._on_engine_loop(
                lambda: self._begin(agent, prompt, options, created, nobody_to_ask=nobody_to_ask)
            )
        except asyncio.CancelledError:
            if not self.durable and "key" not in options:  # with a key, another caller may own the run too
                await asyncio.shield(self._on_engine_loop(lambda: self._abandon(created)))
            raise

    async def _begin(
        self,
        agent: Definition[OutputT, DepsT],
        prompt: str | None,
        options: RunOptions[DepsT],
        created: list[asyncio.Task[str]],
        *,
        nobody_to_ask: bool = False,
    ) -> Run[OutputT]:
        check_options(prompt, options)
        host = await self.runtime()
        name = self._starter.carried_by(agent, options)
        try:
            thread = await self._place(prompt, options)
            plan, blobs = await self._starter.plan(agent, prompt, options, code=name)
            if nobody_to_ask:
                plan = replace(plan, limits=replace(plan.limits, nobody_to_ask=True))
            key = options.get("key")
            idempotency = None
            if key is not None:
                idempotency = IdempotencyKey(_ROUTE, key, digest_of_call(agent, plan, options, durable=self.durable))
            run_id = options.get("run_id")
            create = partial(host.create, thread=thread, idempotency=idempotency, blobs=blobs, run_id=run_id)
            if self.durable:
                return Run(self, await create(self._workspace, plan), output=agent.output_type)
            sets = added_toolsets(agent, self._tools.find(name) or agent)
            # If the caller is cancelled now, it has no run to cancel: `_abandon` finds out whether there is one.
            task = asyncio.create_task(self._created(create(self._workspace, plan), name, sets))
            created.append(task)
            return Run(self, await asyncio.shield(task), output=agent.output_type)
        except BaseException:
            if not self.durable and not created:
                self._forget_code(name)
            raise

    async def _created(self, creating: Coroutine[Any, Any, str], name: str, sets: Sequence[Toolset] = ()) -> str:
        try:
            run_id = await creating
        except BaseException:
            self._forget_code(name)
            raise
        if run_id in self._codes:  # started earlier with the same key
            self._forget_code(name)
            return run_id
        if self._tools.find(name) is not None:  # otherwise it has already ended
            self._codes[run_id] = name
        if sets:
            self._brought[run_id] = tuple(sets)
        return run_id

    async def _abandon(self, created: Sequence[asyncio.Task[str]]) -> None:
        """Ends a run whose start was cancelled."""
        for one in created:
            with suppress(Exception):
                await self._end_of(await one)

    def _forget_code(self, name: str) -> None:
        self._tools.forget(name)
        self._models.release(name)

    def attach(self, run_id: str, agent: Definition[OutputT, Any] | None = None) -> Run[OutputT]:
        """Returns a run by its id, whoever started it. With its agent, the result is typed."""
        return Run(self, run_id, output=None if agent is None else agent.output_type)

    @asynccontextmanager
    async def _owned(self, run: Run[Any]) -> AsyncGenerator[None]:
        """Ends a run in memory when its caller leaves the block early."""
        try:
            yield
        finally:
            if not self.durable and self._host is not None:
                await asyncio.shield(self._on_engine_loop(lambda: self._end_of(run.id)))

    async def _end_of(self, run_id: str) -> None:
        host = await self.runtime()
        key = await self._locate(run_id)
        code = self._tools.running.get((self._workspace, run_id))
        receipt = await host.cancel(key, reason="left")
        if code is not None:
            await code.teardown.settled()
            with suppress(TimeoutError):  # its tools do not stop: no longer wait for them
                async with asyncio.timeout(self._drain_s):
                    await code.quiet.wait()
                    if receipt.status == "cancelled":  # a run that came to its own end has already given them up
                        await asyncio.gather(*code.threads)
        self._forget_code(self._codes.pop(run_id, ""))
        if sets := self._brought.pop(run_id, ()):
            others = {id(one) for given in self._brought.values() for one in given}
            await self._tools.drop([one for one in sets if id(one) not in others])
        if self._kept is not None:
            await self._kept.add(host, key)

    def _left(self, code: AgentCode) -> None:
        """Called when a run has left memory."""
        if code.over and code.info.parent is None and not self.durable:
            self._codes.pop(code.info.id, None)
            self._forget_code(code.registered)  # its log stays until its owner leaves

    def _error_of(self, run_id: str) -> BaseException | None:
        return self._tools.error_of((self._workspace, run_id))

    async def _locate(self, run_id: str) -> int:
        try:
            return await (await self.runtime()).locate(run_id, workspace=self._workspace)
        except NotFound:
            raise NotFound(f"There is no run {run_id!r} in this engine.") from None

    async def _settled(self, run_id: str) -> None:
        """Waits until the last hook of a run that ended here has returned."""
        code = self._tools.running.get((self._workspace, run_id))
        if code is not None:
            await self._on_engine_loop(code.teardown.settled)

    async def _history_of(self, run_id: str, upto: int) -> tuple[Message, ...]:
        host = await self.runtime()
        row = await host.stored.find(run_id, workspace=self._workspace)
        stored = await host.stored.logs.thread_messages(row.thread) if row.thread is not None else []
        return tuple([decode_message(message) for message in stored[:upto]])

    async def _begin_fork(
        self, point: ForkPoint, agent: Definition[Any, Any] | None, changes: ForkChanges
    ) -> tuple[str, Definition[Any, Any] | None]:
        """Starts a fork. Returns its id, and its agent if the engine has it."""
        host = await self.runtime()
        plan = point.plan
        if plan.code is None:
            if changes.model is not None:
                plan = replace(plan, model=await self._starter.model_id(changes.model))
            plan = point.continued(changes.applied(plan, None), message=changes.message)
            return await self._fork(host, point, plan), None
        agent = agent or self._tools.find(plan.code)
        if agent is None:
            # In memory, the code has a name of our own.
            named = f"agent {plan.code!r}" if self.durable else "agent"
            raise InvalidRequest(f"The {named} of the run is not registered here: give it to the fork.")
        name = self._starter.carried_by(agent, {})
        model = changes.model if changes.model is not None else agent.present_model
        if changes.model is not None or not isinstance(model, str):
            plan = replace(plan, model=await self._starter.model_id(model, by=name))
        plan = point.continued(changes.applied(replace(plan, code=name), agent), message=changes.message)
        creating = self._fork(host, point, plan)
        return await (creating if self.durable else self._created(creating, name)), agent

    async def _fork(self, host: Runtime, point: ForkPoint, plan: RunPlan) -> str:
        from weftline.replay.forking import create_fork
        from weftline.workspace.thread_branches import Branches

        branches = Branches(self.workspaces)
        return await create_fork(host, branches, point, plan, workspace=self._workspace, sent=point.sent)

    async def _place(self, prompt: str | None, options: RunOptions[Any]) -> int | None:
        name = options.get("thread")
        if name is None:
            return None
        if not name.strip():
            raise InvalidRequest("The name of the thread is blank.", code="blank_thread")
        if self._closing is not None:
            raise InvalidRequest(
                "A thread needs an engine: run(…, thread=…, engine=engine).", code="thread_not_allowed"
            )
        if options.get("messages"):
            raise InvalidRequest("thread= and messages= cannot be combined: a thread has its own messages.")
        thread = self.thread(name)
        if prompt is None and not options.get("files") and not await thread.messages():
            raise InvalidRequest(f"The thread {name!r} has no messages to continue from: give the run a prompt.")
        return await thread.key()

    async def _model_id(self, model: str | Provider | None) -> str | None:
        """Returns the id of the model that an agent was given."""
        return await self._starter.model_id(model)
