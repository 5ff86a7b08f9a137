"""Answers on the store's own socket, and the app of a script that has the store open.

Who may connect is decided by the kernel's word for who they are: the user who runs this process, and root.
"""

from __future__ import annotations

import asyncio
import os
import pwd
import socket
import struct
from collections.abc import Callable
from contextlib import suppress

from uvicorn.server import ServerState

from weftline.errors import Forbidden
from weftline.providers.workspace import WorkspaceCatalogs
from weftline.runtime.engine import Engine
from weftline.server.app import App
from weftline.server.connections import ConnectionLimits, Connections
from weftline.server.http import Receive, Scope, Send
from weftline.server.listener import Listener
from weftline.server.protocol import HttpProtocol
from weftline.server.routes import FIRST, every_route, operator_routes
from weftline.store.base import Store

_MAX_CONNECTIONS = 64
_LIMITS = ConnectionLimits(max_connections=_MAX_CONNECTIONS, max_connections_per_address=0)
"""Its own, so that a server whose connections are all in use can still be administered."""
_ROOT = 0
_SOL_LOCAL, _LOCAL_PEERCRED, _XUCRED_BYTES = 0, 1, 76
"""As macOS defines them; Python has no names for these."""


class LocalServing:
    """Serves `app`, which can be replaced, to whoever connects to `sock` and is let in."""

    def __init__(self, sock: socket.socket, app: App) -> None:
        self.app = app
        self._state = ServerState()
        self._connections = Connections(_LIMITS)
        self._connections.on_refused = app.refused_early
        self._listener = _PeerListener(sock, self._connections, self._new_protocol)

    async def stop(self, *, within_s: float) -> None:
        """Lets responses in progress finish, for so long at most."""
        self._listener.close()
        for connection in list(self._state.connections):
            connection.shutdown()
        if self._state.tasks:
            await asyncio.wait(set(self._state.tasks), timeout=within_s)
        for task in self._state.tasks:
            task.cancel()
        self._connections.abort()

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.app(scope, receive, send)

    def _new_protocol(self, user: str) -> HttpProtocol:
        return HttpProtocol(self._answer, self._state, self._connections, address=user, peer=user)


class _PeerListener(Listener):
    def _take(self, connection: socket.socket, address: str) -> None:
        """Counts a connection for its user, and refuses those of other users."""
        with suppress(OSError):  # it may have been closed already
            uid = _uid_of(connection)
            if uid in (os.geteuid(), _ROOT):
                super()._take(connection, _name_of(uid))
                return
        connection.setblocking(False)
        self._refuse(connection, Forbidden("This socket is for the user who runs the process that has the store open."))


def _uid_of(connection: socket.socket) -> int:
    if hasattr(socket, "SO_PEERCRED"):
        return struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")))[
            1
        ]
    found = connection.getsockopt(_SOL_LOCAL, _LOCAL_PEERCRED, _XUCRED_BYTES)
    return struct.unpack_from("2I", found)[1]


def _name_of(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def app_beside(
    engine: Engine, store: Store, models: WorkspaceCatalogs, *, logins_changed: Callable[[int | None], None]
) -> App:
    """Returns the app for the commands of a process that runs agents and is no server."""
    return App(
        engine,
        store,
        models,
        FIRST,
        every_route=every_route,
        operator_routes=operator_routes,
        logins_changed=logins_changed,
    )
