"""A transport with one write per iteration of the loop.

A stream gets many frames at once, and each of them written on its own would be a system call. Here they are joined and
written at the end of the loop's iteration, or earlier if they are large, as only then does the transport notice a slow
client.
"""

from __future__ import annotations

import asyncio
from typing import Any

WRITE_BYTES = 8 * 1024
"""More than this is written immediately. Also the transport's buffer limit, beyond which the client counts as slow."""


class Corked:
    """A transport that collects writes until the end of the loop's iteration, or until they are large.

    A client that takes `stall_timeout_s` without reading what waits for it is disconnected. There may be thousands of
    them, so what only slow clients need is created for them.
    """

    __slots__ = (
        "_held",
        "_loop",
        "_pending",
        "_reads",
        "_size",
        "_stall",
        "_stall_timeout_s",
        "_transport",
        "_unsent",
        "_writable",
        "read_paused",
        "write_paused",
    )

    def __init__(
        self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop, *, stall_timeout_s: float
    ) -> None:
        self._transport = transport
        self._loop = loop
        self._stall_timeout_s = stall_timeout_s
        self._pending: list[bytes] = []
        self._size = 0
        self._reads = True
        self._held = False
        self.read_paused = False
        self.write_paused = False
        """Whether much is waiting to be sent."""
        self._writable: asyncio.Event | None = None
        self._stall: asyncio.TimerHandle | None = None
        self._unsent = 0
        transport.set_write_buffer_limits(high=WRITE_BYTES)

    # Writing

    def write(self, data: bytes) -> None:
        if not self._pending:
            self._loop.call_soon(self._flush)
        self._pending.append(data)
        self._size += len(data)
        if self._size >= WRITE_BYTES:
            self._flush()

    def write_now(self, data: bytes) -> None:
        """Writes the last of a response, which has nothing to wait for."""
        if self._pending:
            self.write(data)
        elif data and not self._transport.is_closing():
            self._transport.write(data)

    def write_eof(self) -> None:
        self._flush()
        self._transport.write_eof()

    def _flush(self) -> None:
        if self._pending:
            pending, self._pending, self._size = self._pending, [], 0
            if self._transport.is_closing():
                return  # the client left in this iteration of the loop
            self._transport.write(b"".join(pending))

    @property
    def unsent(self) -> int:
        """The number of bytes that wait to be sent."""
        return self._size + self._transport.get_write_buffer_size()

    async def drain(self) -> None:
        """Waits until little is waiting to be sent, or the client is gone."""
        if self.write_paused:
            self._writable = self._writable or asyncio.Event()
            await self._writable.wait()

    def pause_writing(self) -> None:
        self.write_paused = True
        if self._stall is None:
            self._watch_stall()

    def resume_writing(self) -> None:
        self.write_paused = False
        if self._writable is not None:
            self._writable.set()
            self._writable = None
        if self._stall is not None:
            self._stall.cancel()
            self._stall = None

    def _watch_stall(self) -> None:
        self._unsent = self._transport.get_write_buffer_size()
        self._stall = self._loop.call_later(self._stall_timeout_s, self._check_stall)

    def _check_stall(self) -> None:
        if self._transport.get_write_buffer_size() < self._unsent:
            self._watch_stall()
        else:
            self._stall = None
            self._transport.abort()

    # Reading

    def hold(self, held: bool) -> None:
        """Reads nothing until it is called again, whoever asks for it."""
        self._held = held
        self._read_or_pause()

    def pause_reading(self) -> None:
        self.read_paused = True
        self._read_or_pause()

    def resume_reading(self) -> None:
        if self.read_paused:
            self.read_paused = False
            self._read_or_pause()

    def _read_or_pause(self) -> None:
        reads = not (self._held or self.read_paused)
        if reads != self._reads and not self._transport.is_closing():
            self._reads = reads
            if reads:
                self._transport.resume_reading()
            else:
                self._transport.pause_reading()

    # The connection

    def is_closing(self) -> bool:
        return self._transport.is_closing()

    def close(self) -> None:
        self._flush()
        self._transport.close()

    def abort(self) -> None:
        self._transport.abort()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._transport.get_extra_info(name, default)
