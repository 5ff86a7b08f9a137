"""A transport with one write per iteration of the loop.

For uvicorn, all frames that a stream gets at once are separate writes, and each would be a system call. Here they are
joined and written at the end of the loop's iteration, or earlier if they are large, as only then does the transport
notice a slow client.
"""

from __future__ import annotations

import asyncio
from typing import Any

WRITE_BYTES = 8 * 1024
"""More than this is written immediately. Also the transport's buffer limit, beyond which the client counts as slow."""


class Corked:
    """A transport that collects writes until the end of the loop's iteration, or until they are large.

    It has no `__getattr__`, which would slow down every other look-up.
    """

    __slots__ = ("_loop", "_pending", "_size", "_transport", "held")

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._pending: list[bytes] = []
        self._size = 0
        self.held = False
        """Whether reading is not resumed, whoever asks for it."""

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

    def is_closing(self) -> bool:
        return self._transport.is_closing()

    def close(self) -> None:
        self._flush()
        self._transport.close()

    def write_eof(self) -> None:
        self._flush()
        self._transport.write_eof()

    def _flush(self) -> None:
        if self._pending:
            pending, self._pending, self._size = self._pending, [], 0
            if self._transport.is_closing():
                return  # the client left in this iteration of the loop
            self._transport.write(b"".join(pending))

    def abort(self) -> None:
        self._transport.abort()

    def pause_reading(self) -> None:
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        if not self.held:
            self._transport.resume_reading()

    def get_write_buffer_size(self) -> int:
        return self._transport.get_write_buffer_size()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._transport.get_extra_info(name, default)
