"""HTTP/1.1 for uvicorn's server, with limits for untrusted clients.

`server.corked` puts the writes of an iteration of the loop together, and `server.exchange` the head of a response and
its body.

How long a client may take:

    connected ──▶ IDLE ──first byte──▶ HEAD ──▶ BODY ──▶ IDLE …
                  head_timeout_s       head_timeout_s    body_timeout_s
                  (keep_alive_s after an answer)

In the middle of a body it may pause for `body_pause_s`. At any time, it may take `stall_timeout_s` to read what is
sent. When a request is refused, or answered long before its end, the connection is CLOSING, and nothing more is parsed.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from enum import Enum
from functools import partial
from typing import Any, cast

import httptools
from uvicorn.protocols.utils import get_local_addr, get_remote_addr, is_ssl
from uvicorn.server import ServerState

from weftline.errors import InvalidRequest, WeftlineError
from weftline.server.connections import Connections
from weftline.server.corked import Corked
from weftline.server.exchange import Exchange
from weftline.server.heads import WATCHED, check_head, path_and_query, readable
from weftline.server.http import DISCONNECT, FLOW, PEER, Application, Disconnect, Scope
from weftline.server.listener import refusal
from weftline.server.upgrades import parser_of_rest

logger = logging.getLogger(__name__)

_MAX_PIPELINED = 8
"""How many requests may wait for earlier responses on their connection. What follows them is not parsed until then."""
_VERSION = b"/1."
"""In the first line of every head, so a read has at most as many requests."""
_PIECE_BYTES = 1024
"""What is parsed at once of a read with many requests, since the parser cannot stop between two."""
_LINGER_S, _MAX_LINGER_S = 2.0, 30.0
"""How long a connection that is closing waits for a client that neither reads nor sends, or that only sends."""
_IGNORED_BYTES = 1024 * 1024
"""How much is read, for nothing, while the last response of a connection is in progress."""
_MAX_HEADERS = 256
"""Each takes a hundred bytes, however short it is."""
_FRAMING_BYTES = 1024 * 1024
"""How much the framing of a chunked body may take if that is more than the body."""
_BODY_BYTES_HELD = 64 * 1024
"""How much of a body is read before its handler asks for it."""
_ASGI = {"version": "3.0", "spec_version": "2.3"}
_UNREAD: Any = deque[object](maxlen=0)
"""Where the headers after a chunked body go: nobody reads them."""


class _Phase(Enum):
    """The part of a request that the client is sending."""

    IDLE = "idle"
    HEAD = "head"
    BODY = "body"
    CLOSING = "closing"
    """It may send what it likes."""


_IDLE, _HEAD, _BODY, _CLOSING = _Phase
"""Module names, since looking up an enum member is ten times as slow as an attribute."""


class HttpProtocol(asyncio.Protocol):
    """One connection. There may be thousands of them, mostly open streams, so it is small.

    Adds two things to the scope: `weftline.disconnect` (`Disconnect`) and `weftline.flow` (`Flow`).
    """

    __slots__ = (
        "__weakref__",
        "_address",
        "_all",
        "_app",
        "_body_end",
        "_body_until_s",
        "_chunk",
        "_client",
        "_deadline",
        "_headers",
        "_held",
        "_idle",
        "_idle_since_s",
        "_latest",
        "_limits",
        "_loop",
        "_open",
        "_parser",
        "_peer",
        "_phase",
        "_queued",
        "_reads_on",
        "_received",
        "_refusal",
        "_scheme",
        "_seen",
        "_server",
        "_state",
        "_timed",
        "_unsent",
        "_upgrades",
        "_url",
        "_usual",
        "_watched",
        "transport",
    )

    def __init__(
        self,
        app: Application,
        state: ServerState,
        connections: Connections,
        *,
        address: str = "",
        peer: str = "",
        loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        self._app = app
        self._state = state
        self._all = connections
        self._limits = connections.limits
        self._address = address
        self._peer = peer
        """The user of this machine at the other end of the store's own socket; empty for TCP."""
        self._loop = loop or asyncio.get_running_loop()
        self.transport: Corked
        self._parser: httptools.HttpRequestParser | None = None
        """None when there is no connection."""
        self._url = b""
        self._headers: list[tuple[bytes, bytes]] = []
        self._reads_on = False
        self._latest: Exchange | None = None
        self._queued: list[Exchange] = []
        """Requests that wait for the responses before theirs."""
        self._held = b""
        """What was received after these and is not parsed yet."""
        self._open: list[Exchange] = []
        """Those without a complete response, and perhaps the last one that has one."""
        self._phase = _IDLE
        self._watched: list[tuple[bytes, bytes]] = []
        """The headers of the request that determine how to read it."""
        self._usual: list[tuple[bytes, bytes]] | None = None
        """Those of the previous request, if they were ordinary."""
        self._upgrades = False
        """Whether the parser expects another protocol after the head."""
        self._received = 0
        """Bytes of the head, or of the body with its framing, in earlier chunks or at the beginning of this one."""
        self._chunk = 0
        self._body_end = 0
        """How many bytes had been received with the latest piece of the body."""
        self._timed = False
        """Whether this part of the request has a deadline already."""
        self._body_until_s = 0.0
        self._seen = 0
        """How many bytes of the body had arrived at the last check."""
        self._unsent = 0
        """How many bytes the client had to read yet at the last check of a connection that is closing."""
        self._refusal: WeftlineError | None = None
        """Why the parser was stopped."""
        self._deadline: asyncio.TimerHandle | None = None
        self._idle: asyncio.TimerHandle | None = None
        self._idle_since_s: float | None = None
        """When the last response was complete; None if the client has sent something since."""

    # The connection

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = Corked(
            cast("asyncio.Transport", transport), self._loop, stall_timeout_s=self._limits.stall_timeout_s
        )
        self._parser = httptools.HttpRequestParser(self)
        self._parser.set_dangerous_leniencies(lenient_data_after_close=True)
        wire = cast(Any, transport)
        self._server, self._client = get_local_addr(wire), get_remote_addr(wire)
        self._scheme = "https" if is_ssl(wire) else "http"
        self._state.connections.add(cast(Any, self))
        self._all.opened(self)
        self._due_in(self._limits.head_timeout_s)

    def connection_lost(self, exc: Exception | None) -> None:
        self._state.connections.discard(cast(Any, self))
        self._all.closed(self)
        self._all.leave(self._address)
        for timer in (self._deadline, self._idle):
            if timer is not None:
                timer.cancel()
        # Each of these would keep the connection in memory, and the other way round.
        self._parser = self._latest = self._refusal = None
        self._queued.clear()
        self._held = b""
        lost, self._open = self._open, []
        for exchange in lost:
            exchange.lose()
        self.transport.resume_writing()

    def shutdown(self) -> None:
        """Closes the connection when the response in progress is complete."""
        if self._latest is None or self._latest.response_complete:
            self.transport.close()
        else:
            self._latest.keep_alive = False

    def pause_writing(self) -> None:
        self.transport.pause_writing()

    def resume_writing(self) -> None:
        self.transport.resume_writing()

    def abort(self) -> None:
        self.transport.abort()

    # Receiving

    def data_received(self, data: bytes) -> None:
        if self._parser is None:
            return
        if self._phase is _CLOSING:
            self._received += len(data)
            if self._deadline is None and self._received > _IGNORED_BYTES:
                self.transport.pause_reading()  # until that response is complete
            return
        self._idle_since_s = None
        if self._queued or data.count(_VERSION) > _MAX_PIPELINED:
            self._parse_some(self._held + data)
        else:
            self._parse(data)

    def _parse_some(self, data: bytes) -> None:
        """Parses until too many requests wait, and holds the rest."""
        for at in range(0, len(data), _PIECE_BYTES):
            if len(self._queued) >= _MAX_PIPELINED:
                self._held = data[at:]
                self.transport.hold(True)
                return
            self._parse(data[at : at + _PIECE_BYTES])
            if self._phase is _CLOSING:
                break
        self._held = b""
        self.transport.hold(False)

    def _parse(self, data: bytes) -> None:
        parser: Any = self._parser
        self._chunk = size = len(data)
        self._received += size
        while data:
            try:
                parser.feed_data(data)
                break
            except httptools.HttpParserUpgrade as upgrade:
                data = data[upgrade.args[0] :]
                self._upgrades = False
                self._parser = parser = parser_of_rest(self, self._exchange.scope["headers"])
            except httptools.HttpParserError:
                self._refuse(self._refusal or InvalidRequest("This is not an HTTP request."))
                return
        if self._phase is not _IDLE or self._received:
            self._check()
        elif self._deadline is not None:
            self._due_in(None)
            if self._answered:  # before the request was complete
                self._begin_idle()

    def on_message_begin(self) -> None:
        if self._reads_on:
            self._read_on(after_close=False)
        self._phase, self._timed = _HEAD, False
        self._url, self._headers, self._watched = b"", [], []

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        name = name.lower()
        if name in WATCHED:
            self._watched.append((name, value))
        elif name == b"connection" and self._phase is _BODY and self._exchange.keep_alive:
            # It is meaningless after a body, but the parser takes it for a header and would stop reading.
            self._read_on(after_close=True)
        self._headers.append((name, value))
        if len(self._headers) > _MAX_HEADERS:
            raise self._remember_refusal(_too_many_headers())

    def _read_on(self, *, after_close: bool) -> None:
        """Tells the parser whether another request may follow one that closes the connection."""
        self._reads_on = after_close
        parser = self._parser
        assert parser is not None
        parser.set_dangerous_leniencies(lenient_keep_alive=after_close, lenient_data_after_close=after_close)

    def on_headers_complete(self) -> None:
        limit = self._limits.max_head_bytes
        if (self._received > limit or self._chunk > limit) and self._head_bytes() > limit:
            raise self._remember_refusal(self._head_too_large())
        exchange, answered = self._new_exchange(), self._answered
        self._latest = exchange
        self._phase, self._timed, self._received, self._body_end = _BODY, False, 0, 0
        self._headers = self._watched = _UNREAD
        if answered:
            self._open = [exchange]
            self._start(exchange)
        else:
            self.transport.pause_reading()
            self._open.append(exchange)
            self._queued.append(exchange)

    @property
    def _exchange(self) -> Exchange:
        """The latest one, when there was one."""
        assert self._latest is not None
        return self._latest

    def _new_exchange(self) -> Exchange:
        """Creates the exchange for a request whose head is complete."""
        parser = self._parser
        assert parser is not None
        version, method = parser.get_http_version(), parser.get_method()
        self._upgrades = parser.should_upgrade()
        waits = False
        if self._watched != self._usual or self._upgrades or version != "1.1":
            waits = self._judge(version, method)
        path, query = path_and_query(self._url)
        scope: Scope = {
            "type": "http",
            "asgi": _ASGI,
            "http_version": version,
            "method": method.decode("ascii"),
            "path": readable(path),
            "raw_path": path,
            "query_string": query,
            "server": self._server,
            "client": self._client,
            "scheme": self._scheme,
            "root_path": "",
            "headers": self._headers,
            DISCONNECT: Disconnect(),
            FLOW: self.transport,
        }
        if self._peer:
            scope[PEER] = self._peer
        return Exchange(
            scope,
            self.transport,
            self._state.default_headers,
            self._complete,
            version != "1.0" and parser.should_keep_alive(),
            waits,
        )

    def _judge(self, version: str, method: bytes) -> bool:
        """Checks an unusual head. Returns whether the client waits for `100 Continue`."""
        try:
            waits = check_head(version, method, self._watched)
        except WeftlineError as error:
            raise self._remember_refusal(error) from None
        self._usual = [*self._watched] if version == "1.1" and not waits else None
        return waits

    def _start(self, exchange: Exchange) -> None:
        """Lets the application handle a request, in a task of its own."""
        task = self._loop.create_task(self._app(exchange.scope, exchange.receive, exchange.send))
        self._state.tasks.add(task)
        task.add_done_callback(partial(self._handled, exchange))

    def _handled(self, exchange: Exchange, task: asyncio.Task[None]) -> None:
        self._state.tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            logger.error("a request failed", exc_info=error)
        if not exchange.response_complete:
            exchange.end()

    def on_body(self, body: bytes) -> None:
        exchange = self._exchange
        exchange.arrived += len(body)
        self._body_end = self._received
        if exchange.response_complete:
            return
        exchange.body += body
        if len(exchange.body) > _BODY_BYTES_HELD:
            self.transport.pause_reading()
        exchange.news = True
        if exchange.waits:
            exchange.wake()

    def on_message_complete(self) -> None:
        if self._upgrades:
            return  # only the parser thinks so
        self._phase, self._received = _IDLE, 0
        exchange = self._exchange
        if not exchange.response_complete:
            exchange.more_body, exchange.news = False, True
            if exchange.waits:
                exchange.wake()

    def _complete(self) -> None:
        """Called when a response is complete."""
        if self.transport.is_closing():
            return
        answered = self._open[0]
        if not answered.keep_alive:
            if answered.more_body or self._phase is _CLOSING:
                self._linger()
            else:
                self.transport.close()
            return
        self.transport.resume_reading()
        if answered.more_body:
            return  # it is idle when the rest has come
        if self._queued:
            del self._open[0]  # responses are in order, and a connection may never be idle
            self._start(self._queued.pop(0))
            if self._held and not self._queued:
                self._parse_some(self._held)
            elif self._deadline is not None:
                self._start_deadline()
        else:
            self._begin_idle()

    def _begin_idle(self) -> None:
        """Checks one timer periodically, rather than starting a new one after each response."""
        if self._phase is _IDLE:
            # A client that sends nothing more must not keep a large request in memory.
            self._latest, self._open = None, []
        self._idle_since_s = self._loop.time()
        if self._idle is None:
            self._idle = self._loop.call_later(self._limits.keep_alive_s, self._check_idle)

    def _check_idle(self) -> None:
        self._idle = None
        if self._idle_since_s is None:
            return  # the next response sets it again
        left_s = self._idle_since_s + self._limits.keep_alive_s - self._loop.time()
        if left_s > 0:
            self._idle = self._loop.call_later(left_s, self._check_idle)
        else:
            self.transport.close()

    def _check(self) -> None:
        """Limits the size and time of what is incomplete, after some bytes were received."""
        limits, in_body = self._limits, self._phase is _BODY
        if self._received - (self._body_end if in_body else 0) > limits.max_head_bytes:
            self._refuse(self._head_too_large())
        elif in_body and self._received - self._exchange.arrived > max(_FRAMING_BYTES, self._exchange.arrived):
            self._refuse(InvalidRequest("The chunks of the body are too small."))
        elif self._phase is _IDLE:
            if self._deadline is None and self._answered:
                self._due_in(limits.head_timeout_s)  # line breaks alone do not keep a connection open
        elif not self._timed:
            self._start_deadline()

    @property
    def _answered(self) -> bool:
        """True if no response is in progress."""
        return self._latest is None or self._latest.response_complete

    def _head_bytes(self) -> int:
        return len(self._url) + sum([len(name) + len(value) + 4 for name, value in self._headers])

    def _head_too_large(self) -> WeftlineError:
        limit = self._limits.max_head_bytes
        return WeftlineError(
            f"The head of the request is larger than {limit} bytes.", code="head_too_large", limit_bytes=limit
        )

    def _due_in(self, seconds: float | None) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        if seconds is not None:
            self._deadline = self._loop.call_later(seconds, self._late)

    def _start_deadline(self) -> None:
        """For the head or the body."""
        self._timed = True
        if self._phase is _HEAD:
            self._due_in(self._limits.head_timeout_s)
        else:
            self._body_until_s = self._loop.time() + self._limits.body_timeout_s
            self._check_progress()

    def _check_progress(self) -> None:
        """Checks the progress of a body periodically, with one timer rather than one that every piece resets."""
        self._seen = self._received
        self._due_in(min(self._limits.body_pause_s, self._body_until_s - self._loop.time()))

    def _late(self) -> None:
        if self._phase is _CLOSING:
            self._linger_on()
            return
        if self._queued:
            return  # it was perhaps not read, and has its time when the next response is complete
        if self._phase is _BODY and self._loop.time() < self._body_until_s:
            paused_by_us = self.transport.read_paused
            if self._received != self._seen or paused_by_us:
                self._check_progress()
                return
        if self._phase is _IDLE:
            self.abort()
        else:
            part = self._phase.value
            self._refuse(WeftlineError(f"The {part} of the request took too long to arrive.", code="request_timeout"))

    def _remember_refusal(self, error: WeftlineError) -> WeftlineError:
        """Stores the reason, since the parser wraps exceptions of its callbacks."""
        self._refusal = error
        return error

    def _refuse(self, error: WeftlineError) -> None:
        """Ends the connection, with an error response unless another response is in progress or complete.

        Earlier requests are answered first.
        """
        self._due_in(None)
        if self.transport.is_closing():
            return
        self._all.on_refused(error)
        if self._queued and self._phase is _BODY:  # it waits, and will not be handled
            self._queued.pop()
            self._open.pop()
            self._latest = self._open[-1]
            self._phase = _IDLE
        latest = self._latest
        if latest is not None and not latest.response_complete:
            if self._phase is not _BODY:
                latest.keep_alive, self._phase = False, _CLOSING
                return
            if latest.response_started:
                self.transport.close()
                return
            # Handlers that wait for the body see a disconnect, and their responses are not sent.
            latest.disconnected = True
            latest.wake()
        if self._phase is not _BODY or latest is None or not latest.response_complete:
            self.transport.write(refusal(error, headers=self._all.headers_of_refusal(self._origin())))
        self._linger()

    def _linger(self) -> None:
        """Ends the connection when the client has had time to read the last response. Closing at once while it still
        writes would discard that.
        """
        self._phase, self._received, self._seen = _CLOSING, 0, 0
        self._unsent = self.transport.unsent
        self._body_until_s = self._loop.time() + _MAX_LINGER_S
        self.transport.write_eof()
        self.transport.resume_reading()
        self._due_in(_LINGER_S)

    def _linger_on(self) -> None:
        """Closes the connection unless the client reads or sends."""
        unsent, received = self.transport.unsent, self._received
        reads = unsent < self._unsent
        sends = received != self._seen and self._loop.time() < self._body_until_s
        self._unsent, self._seen = unsent, received
        if reads or sends:
            self._due_in(_LINGER_S)
        else:
            self.abort()

    def _origin(self) -> str | None:
        """Returns the origin of the page that sends the request, if that part of the head has arrived."""
        latest = self._latest
        headers = self._headers if self._phase is _HEAD else () if latest is None else latest.scope["headers"]
        return next((value.decode("latin-1") for name, value in headers if name == b"origin"), None)


def _too_many_headers() -> WeftlineError:
    return WeftlineError(f"The request has more than {_MAX_HEADERS} headers.", code="head_too_large")
