"""Runs in this process, without a server: the same engine, on its own store or in memory."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path

from msgspec import Struct

from weftline.config import Config, load_config
from weftline.errors import StoreError, WeftlineError
from weftline.net.dial import Dialer
from weftline.net.egress import egress_from
from weftline.net.transport import AiohttpTransport
from weftline.providers.calls import UNREAD_LOG
from weftline.providers.scripted import ScriptedProvider
from weftline.providers.scripts import load_scripts
from weftline.providers.workspace import WorkspaceCatalogs
from weftline.runtime.clock import SystemClock
from weftline.runtime.engine import Engine
from weftline.runtime.new_engine import new_engine
from weftline.runtime.tool_calls.tool_source import DialledTools
from weftline.server.local_serving import app_beside
from weftline.server.logs import configure_logs
from weftline.server.options import server_options
from weftline.server.own_socket import OwnSocket
from weftline.store import open_store
from weftline.store.base import Store
from weftline.store.memory import MemoryStore
from weftline.store.naming import db_option
from weftline.tools.loader import server_tools, short_name
from weftline.workspace.context import Workspaces
from weftline.workspace.providers import own_providers

_DRAIN_S = 1.0


class LocalHost(Struct, frozen=True):
    """Executes runs in this process; see `weftline.api.creating.CreatingHost`."""

    engine: Engine
    workspaces: Workspaces
    own_tools: tuple[str, ...]
    """The names of the tools in the file."""


@asynccontextmanager
async def local_engine(
    *, db: Path | None, config: Path | None, scripts: Path | None, tools: str | None
) -> AsyncGenerator[LocalHost]:
    """Yields an engine that only executes the runs it is given. Without `db`, nothing is kept."""
    if not logging.getLogger().handlers:
        configure_logs("error")
        logging.getLogger(UNREAD_LOG).setLevel("WARNING")  # an attachment that the model cannot read
    settings = load_config(config) if config is not None else Config()
    options = server_options(settings)
    async with AsyncExitStack() as stack:
        transport = AiohttpTransport()
        stack.push_async_callback(transport.aclose)
        scripted = ScriptedProvider(load_scripts(scripts)) if scripts is not None else None
        models = settings.catalog(transport=transport, scripted=scripted)
        stack.push_async_callback(models.aclose)
        egress = egress_from(settings.server, loopback=True, origin=settings.path)
        # Addresses from a model are treated as on a server: this machine is not allowed.
        pages, peers = Dialer(egress_from(settings.server, origin=settings.path)), Dialer(egress)
        stack.push_async_callback(pages.aclose)
        available = server_tools(tools, pages=pages)
        store = await _opened(db)
        # Closed explicitly on an error; once the engine has started, it closes the store.
        try:
            own = AiohttpTransport(check=egress.check)
            stack.push_async_callback(own.aclose)
            workspaces = Workspaces(store.records, store.vault, SystemClock())
            catalogs = WorkspaceCatalogs(models, own=partial(own_providers, workspaces), transport=own)
            stack.push_async_callback(catalogs.aclose)
            dialled = DialledTools(available, records=store.records, vault=store.vault, dialer=peers)
            stack.push_async_callback(dialled.aclose)
            engine = new_engine(
                store,
                models=catalogs,
                tools=dialled,
                model_timeout_s=options.model_timeout_s,
                model_retries_timeout_s=options.model_retries_timeout_s,
                slow_turn_s=options.slow_turn_s,
                max_recoveries=options.max_recoveries,
                public_errors=options.public_errors,
                limits=options.workspaces,
            )
            await engine.start()
        except BaseException:
            await store.close()
            raise
        stack.push_async_callback(engine.stop, drain_s=_DRAIN_S)
        if db is not None:
            forget_logins = dialled.pool.forget_logins
            own_socket = OwnSocket(store, lambda: app_beside(engine, store, catalogs, logins_changed=forget_logins))
            await own_socket.start()
            stack.push_async_callback(own_socket.stop)
        yield LocalHost(engine, workspaces, _of_file(available, tools))


def _of_file(available: Iterable[str], tools: str | None) -> tuple[str, ...]:
    if tools is None:
        return ()
    prefix = f"@{short_name(tools)}/"
    return tuple(name for name in available if name.startswith(prefix))


async def _opened(db: Path | None) -> Store:
    if db is None:
        return MemoryStore()
    try:
        store = open_store(db, create=False)
    except StoreError as error:
        if error.code != "store_in_use":
            raise
        raise WeftlineError(
            f"{error.message.removesuffix('.')}: if that is a server, send the run there with --url; otherwise wait for"
            " its end, or leave --db and WEFTLINE_DB out.",
            code="store_in_use",
        ) from None
    unfinished = await store.log.unfinished()
    if unfinished:
        # This process may lack the tools and models that they need.
        await store.close()
        are = "is 1 unfinished run" if unfinished == 1 else f"are {unfinished} unfinished runs"
        raise WeftlineError(
            f"There {are} in {db}, which `weftline serve{db_option(db)}` has to continue: start it and use --url, or"
            " name another --db.",
            code="conflict",
        )
    return store
