"""Accepts connections, and continues when it has run out of file descriptors.

Event loops differ here: one of them closes the listening socket for good when `accept` fails.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from collections.abc import Callable
from contextlib import suppress

from weftline.errors import RateLimited, Unavailable, WeftlineError
from weftline.server.connections import Connections
from weftline.server.heads import STATUS_LINES
from weftline.server.http import NO_SNIFFING, Headers
from weftline.wire.errors import error_body

logger = logging.getLogger(__name__)

_AT_ONCE = 64
"""How many connections are accepted in one iteration of the loop."""
_PAUSE_S = 0.25
_QUIET_S = 60.0
_NO_ROOM = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
_OPTIONS = (
    # A peer that vanished silently is noticed after two minutes.
    ("TCP_KEEPIDLE", 60),
    ("TCP_KEEPINTVL", 15),
    ("TCP_KEEPCNT", 4),
    # Keeps the kernel from buffering megabytes for a client that does not read; data in flight does not count.
    ("TCP_NOTSENT_LOWAT", 64 * 1024),
)


class Listener:
    """Accepts from `sock` until it is closed.

    `new_protocol` creates the protocol of a connection from an address; it must call `leave` when the connection is
    lost.
    """

    def __init__(
        self, sock: socket.socket, connections: Connections, new_protocol: Callable[[str], asyncio.Protocol]
    ) -> None:
        self._sock = sock
        self._connections = connections
        self._new_protocol = new_protocol
        self._loop = asyncio.get_running_loop()
        self._pause: asyncio.TimerHandle | None = None
        self._opening: set[asyncio.Task[object]] = set()
        self._complained_at = -_QUIET_S
        self._loop.add_reader(sock, self._accept)

    def close(self) -> None:
        self._loop.remove_reader(self._sock)
        if self._pause is not None:
            self._pause.cancel()

    def _accept(self) -> None:
        for _ in range(_AT_ONCE):
            try:
                connection, peer = self._sock.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in _NO_ROOM:
                    logger.warning("a connection could not be accepted: %s", error.strerror)
                    return
                self._wait(error)
                return
            self._take(connection, self._connections.address_of(peer[0]) if peer else "")

    def _wait(self, error: OSError) -> None:
        """Stops accepting for a moment. Clients wait in the kernel's queue."""
        if self._loop.time() - self._complained_at >= _QUIET_S:
            self._complained_at = self._loop.time()
            logger.error(
                "no new connections for the moment (%s): %d are open; raise the limit of open files or lower "
                "server.max_connections",
                error.strerror,
                len(self._connections),
            )
        self._loop.remove_reader(self._sock)
        self._pause = self._loop.call_later(_PAUSE_S, self._loop.add_reader, self._sock, self._accept)

    def _take(self, connection: socket.socket, address: str) -> None:
        connection.setblocking(False)
        if self._connections.full:
            self._refuse(connection, Unavailable("The server has reached its connection limit.", retry_after_s=1))
            return
        if self._connections.full_for(address):
            message = "This address has reached its connection limit."
            self._refuse(connection, RateLimited(message, retry_after_s=1))
            return
        if connection.family in (socket.AF_INET, socket.AF_INET6):
            _set_options(connection)
        self._connections.enter(address)
        task = self._loop.create_task(self._open(connection, address))
        self._opening.add(task)
        task.add_done_callback(self._opening.discard)

    def _refuse(self, connection: socket.socket, error: WeftlineError) -> None:
        """Sends the reason, if the client is listening, and closes the connection at once."""
        self._connections.on_refused(error)
        with connection, suppress(OSError):
            connection.send(refusal(error, headers=self._connections.headers_of_refusal(None)))

    async def _open(self, connection: socket.socket, address: str) -> None:
        try:
            protocol = self._new_protocol(address)
            await self._loop.connect_accepted_socket(lambda: protocol, connection)
        except OSError as error:
            connection.close()
            self._connections.leave(address)
            logger.debug("a connection was lost before it was open: %s", error)


def _set_options(connection: socket.socket) -> None:
    with suppress(OSError):  # the peer may have gone already
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in _OPTIONS:
            if hasattr(socket, option):
                connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)


def refusal(error: WeftlineError, *, headers: Headers = ()) -> bytes:
    """Returns a complete response, after which the connection is closed."""
    body = error_body(error, "")
    retry = f"retry-after: {error.details['retry_after_s']}\r\n" if "retry_after_s" in error.details else ""
    head = f"content-type: application/json\r\ncontent-length: {len(body)}\r\n{retry}connection: close\r\n"
    lines = [b"%b: %b\r\n" % header for header in (NO_SNIFFING, *headers)]
    return b"".join([STATUS_LINES[error.status], head.encode(), *lines, b"\r\n", body])
