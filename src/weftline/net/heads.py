"""Limits what a server may send around its response: before the head, and between the bytes of the body."""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from aiohttp import ClientPayloadError
from aiohttp.client_proto import ResponseHandler
from aiohttp.http_exceptions import HttpProcessingError

if TYPE_CHECKING:
    from aiohttp.http import RawResponseMessage
    from aiohttp.streams import StreamReader

MAX_INTERIM = 16
"""How many interim responses (1xx) may precede the real one."""
MAX_FRAMING_BYTES = 1024 * 1024
"""How much framing a chunked body may have, unless its content is as large. Chunks of one byte take five."""
_PIECE = 8 * 1024
"""How much of the received data is parsed at once until the head is complete."""


class BoundedHandler(ResponseHandler):
    """A connection that fails if a server keeps sending interim responses (1xx), or a body that is mostly framing.

    aiohttp reads any number of both, and parses everything in the socket at once: ten thousand interim responses, or
    forty thousand chunks.
    """

    _interim = 0
    _answered = False
    _given_up = False
    _received = 0

    def set_response_params(self, **params: Any) -> None:
        self._interim = 0
        self._received = 0
        self._answered = False
        super().set_response_params(**params)

    def data_received(self, data: bytes) -> None:
        self._received += len(data)
        while len(data) > _PIECE and not self._answered and not self._given_up:
            super().data_received(data[:_PIECE])
            data = data[_PIECE:]
        if not self._given_up:
            super().data_received(data)
        if self._answered and not self._given_up and self._received > MAX_FRAMING_BYTES:
            self._check_framing()

    def feed_data(self, data: tuple[RawResponseMessage, StreamReader], size: int = 0) -> None:
        if not self._given_up and _is_interim(data[0].code):
            self._interim += 1
            if self._interim > MAX_INTERIM:
                self._give_up(f"more than {MAX_INTERIM} interim answers")
        else:
            self._answered = True
        if not self._given_up:
            super().feed_data(data, size)

    def _check_framing(self) -> None:
        payload = self._payload
        if payload is not None and self._received > MAX_FRAMING_BYTES + 2 * payload.total_raw_bytes:
            payload.set_exception(ClientPayloadError("the body is mostly framing"))
            self._give_up("the body is mostly framing")

    def _give_up(self, why: str) -> None:
        self._given_up = True
        if self.transport is not None:
            self.transport.close()
        self.set_exception(HttpProcessingError(message=why))


def _is_interim(status: int) -> bool:
    return HTTPStatus.CONTINUE <= status < HTTPStatus.OK and status != HTTPStatus.SWITCHING_PROTOCOLS
