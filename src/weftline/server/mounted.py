"""`asgi(engine)`: the HTTP API of a library's engine, to be mounted in the user's application.

app = Starlette(routes=[Mount("/agents", asgi(engine))], lifespan=engine.lifespan)

It is the API of `weftline serve` on the same store, with the engine's agents as code agents. The application handles
what belongs to a process: listening, stopping, limits on connections.
"""

# pyright: reportPrivateUsage=false
# What serves an engine and the engine know each other.

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import partial
from secrets import token_hex

from weftline.agent.engine.engine import Engine
from weftline.agent.planning.code_agents import code_agents
from weftline.api.planning import code_spec
from weftline.errors import Conflict, InvalidRequest, Unavailable
from weftline.net.address import InvalidAddress, parse
from weftline.net.dial import Dialer
from weftline.net.egress import egress_from
from weftline.runtime.engine import Engine as Runtime
from weftline.server import background
from weftline.server.app import App, refusal
from weftline.server.http import PEER, Receive, Request, Scope, Send, send_response
from weftline.server.oauth.app import read_document
from weftline.server.options import ServerOptions, metrics_token
from weftline.server.routes import operator_routes
from weftline.server.routes.every import ROUTES
from weftline.tools.loader import loaded_tools, server_tools
from weftline.trace_context import RequestInfo


def asgi(engine: Engine, *, public_url: str = "") -> Mounted:
    """An ASGI application that serves an engine's agents, and everything else that `weftline serve` does.

    Callers need keys of the engine's store: `weftline keys create --db DIRECTORY`. The agents are those that are
    registered when the engine is opened.

    Args:
        engine: A durable engine. The application that it is mounted in opens it (`lifespan=engine.lifespan`); a
            standalone application opens it itself.
        public_url: Where clients reach it, the path that it is mounted at included. By default the address that the
            server listens on.

    Raises:
        InvalidRequest: for an engine in memory, which has no keys, and for an invalid `public_url`.
    """
    return Mounted(engine, public_url=public_url)


class Mounted:
    def __init__(self, engine: Engine, *, public_url: str = "") -> None:
        if not engine.durable:
            raise InvalidRequest("An engine in memory has no API keys: serve one on a directory, Engine('./data').")
        try:
            self._public_url = parse(public_url).url.rstrip("/") if public_url else ""
        except InvalidAddress:
            raise InvalidRequest(f"public_url: {public_url!r} is not an http or https address.") from None
        self._engine = engine
        self._app: App | None = None
        self._left: Runtime | None = None
        """The runtime that this served until it was closed. An engine that is opened again has another one."""
        self._opening = asyncio.Lock()
        if not engine.is_open:
            engine._add_companion(self._served)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._live(receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1000})
        else:
            app = await self._opened()
            inside = _below_root(scope)
            if app is None:
                request = Request(inside, receive, send, RequestInfo(f"req_{token_hex(4)}"))
                await send_response(request, refusal(request, Unavailable("The server is stopping.", retry_after_s=1)))
                return
            if not self._public_url:
                app.names.learn(_address(scope))
            await app(inside, receive, send)

    async def _opened(self) -> App | None:
        """Returns the app; None if the engine is closed or closing."""
        if not self._engine.is_open:
            if self._left is not None:
                return None
            raise Conflict("The engine is not open: give the application lifespan=engine.lifespan.")
        if not self._engine._lives_here:
            raise Conflict("The engine was opened on another loop: give the application lifespan=engine.lifespan.")
        if self._app is None:
            async with self._opening:
                if self._app is None and await self._engine.runtime() is not self._left:
                    await self._engine._enter_companion(self._served)
        return self._app

    async def _live(self, receive: Receive, send: Send) -> None:
        """Keeps the engine open while this runs as a standalone application."""
        await receive()
        try:
            await self._engine.__aenter__()
        except Exception as error:
            await send({"type": "lifespan.startup.failed", "message": str(error)})
            raise
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await self._engine.close()
        await send({"type": "lifespan.shutdown.complete"})

    @asynccontextmanager
    async def _served(self) -> AsyncGenerator[None]:
        """Runs everything beside the engine: webhooks, schedules, keep-alives, MCP sessions."""
        engine = self._engine
        host, stored = await engine.runtime(), engine._stored
        assert stored is not None
        store = stored.store
        models = {name: await engine._model_id(agent.model) for name, agent in engine.agents.items()}
        pages = Dialer(egress_from({}))
        engine._own_tools.update(server_tools(None, pages=pages))
        options = ServerOptions(public_url=self._public_url, metrics_token=metrics_token(os.environ))
        app = App(
            host,
            store,
            stored.catalogs,
            ROUTES,
            options=options,
            dialer=pages,
            read_document=partial(read_document, pages),
            operator_routes=operator_routes,
            code=code_agents(engine.agents, models, now_us=host.clock.now_us(), to_spec=code_spec),
            own_tools=partial(loaded_tools, engine._own_tools),
            logins_changed=stored.tools.pool.forget_logins,
        )
        works = background.attach(app, dialer=stored.dialer, webhook_retry_s=options.webhook_retry_s)
        if stored.own_socket is not None:
            stored.own_socket.offer(app)

        tasks = [asyncio.create_task(work()) for work in works]
        self._app = app
        try:
            yield
        finally:
            self._app, self._left = None, host
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await app.mcp.close()
            await pages.aclose()


def _below_root(scope: Scope) -> Scope:
    """Returns the scope with the path relative to where this application is mounted."""
    root: str = scope.get("root_path", "").rstrip("/")
    path: str = scope["path"]
    if root and (path == root or path.startswith(f"{root}/")):
        path = path[len(root) :] or "/"
    # A copy of the headers, as a stream releases them and the application's scope must keep its own.
    # Nobody but our own listener says that a request is the operator's.
    others = {name: value for name, value in scope.items() if name != PEER}
    return {**others, "path": path, "root_path": root, "headers": list(scope["headers"])}


def _address(scope: Scope) -> str:
    """Returns the address that a request came in at, with its path. Not its Host header, which the client chooses."""
    host, port = scope.get("server") or ("localhost", None)
    if port is None:  # a Unix socket
        host = "localhost"
    place = f"[{host}]" if ":" in host else host
    where = f"{scope.get('scheme', 'http')}://{place}{f':{port}' if port else ''}"
    return f"{where}{scope.get('root_path', '').rstrip('/')}"
