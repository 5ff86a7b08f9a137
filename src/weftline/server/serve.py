"""Runs the server: bind, recover, listen, and stop without losing anything."""

from __future__ import annotations

import asyncio
import gc
import logging
import resource
import socket
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import uvicorn
from msgspec import Struct
from msgspec.structs import replace

from weftline.config import Config, load_config
from weftline.errors import WeftlineError
from weftline.net.address import parse
from weftline.net.dial import Dialer
from weftline.net.egress import egress_from, is_loopback
from weftline.net.transport import AiohttpTransport, Transport
from weftline.providers.catalog import Catalog
from weftline.providers.scripted import ScriptedProvider
from weftline.providers.scripts import load_scripts
from weftline.providers.workspace import WorkspaceCatalogs
from weftline.runtime.clock import SystemClock
from weftline.runtime.engine import DRAIN_S, Engine, OwnedEngine
from weftline.runtime.new_engine import new_engine
from weftline.runtime.tool_calls.tool_source import DialledTools
from weftline.runtime.tool_calls.toolbox import ToolSource
from weftline.server import background
from weftline.server.app import App
from weftline.server.connections import Connections
from weftline.server.listener import Listener
from weftline.server.oauth.app import read_document
from weftline.server.options import ServerOptions, server_options
from weftline.server.own_socket import OwnSocket
from weftline.server.process import LOST_ANSWERS, LoopWatchdog, Stopping, finish_within, return_large_blocks
from weftline.server.protocol import HttpProtocol
from weftline.server.routes import FIRST, every_route, operator_routes
from weftline.server.starting import advise, report_start
from weftline.store import open_store
from weftline.tools.loader import loaded_tools, server_tools
from weftline.tools.workers import shared_workers
from weftline.workspace.code_agents import NO_CODE
from weftline.workspace.context import Change, Workspaces
from weftline.workspace.providers import own_providers

if TYPE_CHECKING:
    from weftline.agent.loader import ServedAgents
    from weftline.agent.tracing.run_traces import RunTraces
    from weftline.server.reloading import Reloader
    from weftline.threads.serving import Folder

logger = logging.getLogger(__name__)

_STEP_S = 5.0
"""How long one step of stopping may take before the next one begins."""
_TICK_S = 1.0
"""How old the date in responses may be."""
_FLUSH_S, _HURRIED_FLUSH_S = 3.0, 0.5
"""How long clients may take to read the last data sent to them."""


class Settings(Struct, frozen=True):
    db: Path
    host: str = "127.0.0.1"
    port: int = 8080
    scripts: Path | None = None
    tools: str | Path | None = None
    app: str | Path | None = None
    """A Python file, folder or module whose agents and tools are served."""
    reload: bool = False
    """Whether a folder of agents is read again after changes."""
    config: Path | None = None
    drain_s: float = DRAIN_S
    rate_limit_per_minute: int | None = None
    """None uses the configuration."""


class _Server(uvicorn.Server):
    """Uvicorn without its own signal handlers and listener, as stopping follows our own order."""

    def __init__(self, app: App, connections: Connections) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                loop="none",
                http=asyncio.Protocol,
                ws="none",
                lifespan="off",
                log_config=None,
                server_header=False,
                proxy_headers=False,
            )
        )
        self.servers = []
        self._app = app
        self.listening = asyncio.Event()
        self._closing = asyncio.Event()
        self._connections = connections
        self._listener: Listener | None = None

    @contextmanager
    def capture_signals(self) -> Generator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        for sock in sockets or ():
            self._listener = Listener(sock, self._connections, self._new_protocol)
        self.started = True
        self.listening.set()

    async def main_loop(self) -> None:
        """Ticks once a second, for the date in responses, and ends at once when it should; uvicorn polls at 10 Hz."""
        while not await self.on_tick(0):
            with suppress(TimeoutError):
                async with asyncio.timeout(_TICK_S):
                    await self._closing.wait()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """As uvicorn's, but it ends as soon as the last connection has; uvicorn polls at 10 Hz."""
        if self._listener is not None:
            self._listener.close()
        for sock in sockets or ():
            sock.close()
        state = self.server_state
        for connection in list(state.connections):
            connection.shutdown()
        # Clients that do not read are cut off before what is still sending is cancelled, which would be logged.
        abort = asyncio.get_running_loop().call_later(_FLUSH_S, self._connections.abort)
        with suppress(TimeoutError):
            async with asyncio.timeout(_STEP_S):
                while state.connections:
                    await self._connections.next_closed()
                while state.tasks:
                    await asyncio.wait(set(state.tasks))
        for task in state.tasks:
            task.cancel()
        abort.cancel()
        self._connections.abort()

    async def close(self, listening: asyncio.Task[None], hurried: asyncio.Task[Any]) -> None:
        """Lets responses in progress finish for a moment; for a shorter one if the server is in a hurry."""
        self.should_exit = True
        self._closing.set()
        await asyncio.wait({listening, hurried}, return_when=asyncio.FIRST_COMPLETED)
        await asyncio.wait({listening}, timeout=_HURRIED_FLUSH_S)
        if not listening.done():
            self.force_exit = True
            self._connections.abort()
            await asyncio.wait({listening}, timeout=_HURRIED_FLUSH_S)

    def _new_protocol(self, address: str) -> HttpProtocol:
        return HttpProtocol(self._app, self.server_state, self._connections, address=address)


def bind(host: str, port: int) -> socket.socket:
    """Returns a listening socket, so that a taken port is known before anything else is touched."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind((host, port))
        sock.listen(2048)
    except (OSError, OverflowError) as error:
        sock.close()
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise WeftlineError(f"Cannot listen on {host}:{port}: {reason}.", code="bad_config") from None
    sock.setblocking(False)
    return sock


def _url(sock: socket.socket) -> str:
    """Returns the address of a server on this socket, from its own machine."""
    host, port = sock.getsockname()[:2]
    if host in ("0.0.0.0", "::"):
        host = "localhost"
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _is_local(settings: Settings, options: ServerOptions) -> bool:
    """Returns True if the server serves only this machine. Behind a proxy, it listens on loopback for everybody."""
    if options.trusted_proxies or not is_loopback(settings.host):
        return False
    return not options.public_url or is_loopback(parse(options.public_url).host)


def catalog(settings: Settings, config: Config, transport: Transport) -> Catalog:
    scripted = ScriptedProvider(load_scripts(settings.scripts)) if settings.scripts is not None else None
    return config.catalog(transport=transport, scripted=scripted)


def read_agents(
    given: str | Path | None, models: Catalog, *, pages: Dialer
) -> tuple[ServedAgents | None, Folder | None]:
    if given is None:
        return None, None
    from weftline.agent.loader import LoadedAgents, ServedAgents, load_agents  # with all of `weftline.agent`
    from weftline.threads.project import is_project

    if not (Path(given).is_dir() and is_project(given)):
        return ServedAgents(load_agents(given), models), None
    from weftline.threads.checking import load_project, usual_names
    from weftline.threads.serving import Folder

    project = load_project(given, providers={*usual_names(), *models.names})
    try:
        agents = ServedAgents(LoadedAgents(project.agents(models, pages=pages), {}), models)
    except BaseException:
        project.generation.forget()
        raise
    return agents, Folder(project.registry, host=project.host, generation=project.generation)


async def serve(settings: Settings, *, ready: Callable[[str], None]) -> int:
    """Runs until SIGTERM or SIGINT; a second signal stops work in progress. `ready` is called with the address.

    Returns the process's exit code.
    """
    transport = AiohttpTransport()
    config = load_config(settings.config) if settings.config is not None else Config()
    options = server_options(config, rate_limit_per_minute=settings.rate_limit_per_minute)
    watchdog = LoopWatchdog(options.stall_s)
    models = catalog(settings, config, transport)
    # A user of a local server may name addresses on this machine. A model may not, as it may follow what a page says.
    egress = egress_from(config.server, loopback=_is_local(settings, options), origin=config.path)
    pages = Dialer(egress_from(config.server, origin=config.path))
    peers = Dialer(egress)
    reloader = _reloader(settings, models, pages=pages, traces=options.traces) if settings.reload else None
    if reloader is not None:
        agents, folder, models = reloader.present.agents, reloader.present.folder, reloader.present.models
    else:
        agents, folder = read_agents(settings.app, models, pages=pages)
    if options.traces:
        _trace(agents)
    own_tools = server_tools(settings.tools, app=settings.app, app_tools=agents.tools if agents else {}, pages=pages)
    sock = bind(settings.host, settings.port)
    options = replace(options, url=_url(sock), local=_is_local(settings, options))
    if not options.public_url and not is_loopback(settings.host):
        logger.warning("public_url is not set: OAuth metadata and A2A cards name this server %s", options.url)
    store = await asyncio.to_thread(open_store, settings.db, check=True)
    watchdog.start()
    own = AiohttpTransport(check=egress.check)
    stored = Workspaces(store.records, store.vault, SystemClock(), dialer=pages)
    catalogs = WorkspaceCatalogs(models, own=partial(own_providers, stored), transport=own)
    dialled = DialledTools(own_tools, records=store.records, vault=store.vault, dialer=peers)
    agent_tools = agents.source(dialled) if agents else None
    tools: ToolSource = agent_tools or dialled
    tools.use_version(options.code_version)
    max_files = _max_files()
    limits = options.workspaces.within_files(max_files)
    if limits != options.workspaces:
        runs = limits.max_runs_per_workspace
        logger.warning("only %s files may be open: a workspace executes at most %d runs at once", max_files, runs)
    shared_workers().max_per_workspace = limits.max_tool_threads_per_workspace
    engine = new_engine(
        store,
        models=catalogs,
        tools=tools,
        model_timeout_s=options.model_timeout_s,
        model_retries_timeout_s=options.model_retries_timeout_s,
        slow_turn_s=options.slow_turn_s,
        max_recoveries=options.max_recoveries,
        public_errors=options.public_errors,
        limits=limits,
        traces=options.traces,
    )
    app = App(
        engine,
        store,
        catalogs,
        FIRST,
        options=options,
        dialer=pages,
        read_document=partial(read_document, pages),
        code=agents.code if agents else NO_CODE,
        folder=folder,
        every_route=every_route,
        operator_routes=operator_routes,
        own_tools=partial(loaded_tools, own_tools),
        logins_changed=dialled.pool.forget_logins,
    )
    if agents and agent_tools:
        agent_tools.workspaces = app.workspaces
        agents.connect(agent_tools, engine)
    await engine.start()
    traces = _traces(engine) if options.traces else None
    works = [*background.attach(app, dialer=peers, webhook_retry_s=options.webhook_retry_s)]
    if folder is not None:
        await _keep_schedules(app, engine, folder)
    if reloader is not None and agent_tools is not None:
        works.append(partial(reloader.run, app, agent_tools, catalogs, taken=partial(_taken, app, engine)))
    own_socket = OwnSocket(store, lambda: app)
    await own_socket.start()
    connections = Connections(
        options.connections,
        max_files=max_files,
        proxies=options.trusted_proxies,
    )
    connections.on_refused = app.refused_early
    if options.cors is not None:
        connections.headers_of_refusal = options.cors.early_headers
    server = _Server(app, connections)
    with Stopping(drain_s=settings.drain_s) as stopping:
        listening = asyncio.create_task(server.serve(sockets=[sock]))
        await server.listening.wait()
        host, port = sock.getsockname()[:2]
        address = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
        report_start(
            address,
            db=settings.db,
            models=models,
            tools=own_tools,
            agents=agents.by_name if agents else (),
            public=folder.public if folder else (),
        )
        ready(address)
        await advise(app.workspaces, db=settings.db, models=models)
        if agents:
            agents.advise()
        beside = [asyncio.create_task(work()) for work in works]
        warm = asyncio.create_task(_warm_up(app, transport, models))
        asked = asyncio.create_task(stopping.asked.wait())
        await asyncio.wait({listening, asked}, return_when=asyncio.FIRST_COMPLETED)
        app.refused.report()
        logger.info("stopping: waiting up to %g s for work in progress", settings.drain_s)
        hurried = asyncio.create_task(stopping.hurry.wait())
        for task in (asked, warm, *beside):
            task.cancel()
        ending = asyncio.gather(*beside, return_exceptions=True)
        await asyncio.wait({ending, hurried}, timeout=_STEP_S, return_when=asyncio.FIRST_COMPLETED)
        drain = asyncio.create_task(engine.drain(settings.drain_s))
        await asyncio.wait({drain, hurried}, return_when=asyncio.FIRST_COMPLETED)
        drain.cancel()
        if not await engine.abort(hurry=stopping.hurry):
            stopping.code = LOST_ANSWERS
        await finish_within(_STEP_S, app.mcp.close(), what="the MCP server")
        await own_socket.stop()  # until then a command may cancel what the stop waits for
        await server.close(listening, hurried)
        if agent_tools is not None:
            await finish_within(_STEP_S, agent_tools.notified(), what="the observers of runs")
        if traces is not None:
            await finish_within(_STEP_S, traces.aclose(), what="the spans of runs")
        await store.close()
        if agent_tools is not None:
            await finish_within(_STEP_S, agent_tools.close(), what="the agents' tools")
        for what in (dialled, pages, catalogs, catalogs.base, own, transport):
            await finish_within(_STEP_S, what.aclose(), what=type(what).__name__)
        hurried.cancel()
        watchdog.stop()
    return stopping.code


def _reloader(settings: Settings, models: Catalog, *, pages: Dialer, traces: bool) -> Reloader:
    from weftline.server.reloading import Reloader, Served, stamps  # few servers reload
    from weftline.threads.project import is_project

    given = settings.app
    if given is None or not is_project(given):
        raise WeftlineError("--reload needs a folder of agents.", code="bad_config")

    def load(models: Catalog) -> Served:
        agents, folder = read_agents(given, models, pages=pages)
        assert agents is not None and folder is not None
        if traces:
            _trace(agents)
        return Served(agents, folder, models)

    seen = stamps(Path(given))  # before they are read: what changes in the meantime is read again
    return Reloader(Path(given), load(models.copy()), load=load, base=models, seen=seen)


async def _taken(app: App, engine: OwnedEngine, folder: Folder) -> None:
    """What follows from a new generation of the folder."""
    await _keep_schedules(app, engine, folder)
    await engine.code_changed()


async def _keep_schedules(app: App, engine: OwnedEngine, folder: Folder) -> None:
    from weftline.cases.schedules import keep_defined  # with pydantic

    workspace = await engine.workspace("default")
    await keep_defined(app.workspaces, workspace, folder.registry.schedules.values())
    await app.workspaces.changed(Change("schedules", workspace))


def _trace(agents: ServedAgents | None) -> None:
    from weftline.agent.tracing.run_traces import trace_agents

    trace_agents(agents.by_name.values() if agents else ())


def _traces(engine: Engine) -> RunTraces:
    from weftline.agent.tracing.run_traces import RunTraces  # with all of `weftline.agent`

    return RunTraces(engine)


async def _warm_up(app: App, transport: AiohttpTransport, models: Catalog) -> None:
    """Loads what the first model call needs; that would otherwise block the loop for a quarter of a second."""
    await app.load_routes()
    await transport.preload()
    await models.preload()
    gc.freeze()  # as what was loaded before


def run(settings: Settings) -> int:
    """Runs the server in this process; prints `ready <address>` when it accepts requests. Returns the exit code."""
    _allow_many_files()
    return_large_blocks()
    # The loop and the writer need the interpreter back after each system call. By default a busy thread, such as one
    # that parses a megabyte, may keep it from them for 5 ms each time, some forty times in a run.
    sys.setswitchinterval(0.0005)
    # What is loaded by now stays, and most objects of a run are short-lived, so rare collections suffice.
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)

    def ready(address: str) -> None:
        print(f"ready {address}", flush=True)

    try:
        import uvloop
    except ImportError:
        return asyncio.run(serve(settings, ready=ready))
    else:
        return uvloop.run(serve(settings, ready=ready))


def _max_files() -> int | None:
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return None if soft == resource.RLIM_INFINITY else soft


def _allow_many_files() -> None:
    """Raises the limit on open files: every stream is one, and the usual soft limit of 1,024 is far too low."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = hard if hard != resource.RLIM_INFINITY else 1_048_576
    if soft < wanted:
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
