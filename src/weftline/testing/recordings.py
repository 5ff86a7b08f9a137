"""Replays recorded traffic of model APIs, so that a provider can be tested against real responses.

A recording is a YAML file `interactions: [{request: {method, uri, parsed_body}, response: {status, headers, body}}]`.
"""

from __future__ import annotations

import base64
import gzip
import os
import zlib
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any, cast

import msgspec
from msgspec import Struct

from weftline.net.errors import RequestFailed, TimeLimits
from weftline.net.transport import Response


class Exchange(Struct, frozen=True):
    """One request and its answer. Bodies are plain bytes, whatever their form and encoding in the file."""

    method: str
    uri: str
    request_body: bytes
    status: int
    headers: dict[str, str]
    """The answer's headers, names in lowercase."""
    body: bytes


class SentRequest(Struct, frozen=True):
    """A request as the transport got it."""

    url: str
    headers: dict[str, str]
    body: bytes
    limits: TimeLimits


def recordings_dir() -> Path:
    """Where the recordings are: `WEFTLINE_RECORDINGS`, or `shared/recordings` next to the project's root."""
    configured = os.environ.get("WEFTLINE_RECORDINGS")
    if configured:
        return Path(configured)
    root = next(
        (folder for folder in Path(__file__).resolve().parents if (folder / "pyproject.toml").is_file()), Path.cwd()
    )
    return root.parent / "shared" / "recordings"


def load_recording(path: Path | str) -> list[Exchange]:
    """The exchanges of one file, in order. `path` is absolute or relative to `recordings_dir()`."""
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    text = (recordings_dir() / path).read_text(encoding="utf-8")
    content = cast("dict[str, Any]", yaml.load(text, Loader=loader))
    return [_exchange(interaction) for interaction in content["interactions"]]


def replay(*exchanges: tuple[int, str, bytes]) -> list[Exchange]:
    """Exchanges made by hand, each `(status, content type, body)`."""
    return [Exchange("POST", "", b"", status, {"content-type": kind}, body) for status, kind, body in exchanges]


class RecordedTransport:
    """A transport that answers from recorded exchanges, in order, and keeps the requests it received in `sent`.

    `piece_bytes` splits every streamed body into pieces of that size; `cuts` splits it at these offsets instead. With
    `broken`, the connection breaks after the last piece. A post after the last exchange fails with `LookupError`.
    """

    def __init__(
        self,
        exchanges: Sequence[Exchange],
        *,
        piece_bytes: int | None = None,
        cuts: Sequence[int] | None = None,
        broken: bool = False,
    ) -> None:
        self._left = list(exchanges)
        self._piece_bytes = piece_bytes
        self._cuts = cuts
        self._broken = broken
        self.sent: list[SentRequest] = []
        self.closed = False

    @asynccontextmanager
    async def post(
        self, url: str, *, headers: Mapping[str, str], body: bytes, limits: TimeLimits
    ) -> AsyncGenerator[Response]:
        self.sent.append(SentRequest(url, dict(headers), body, limits))
        if not self._left:
            raise LookupError(f"The recording has no answer for request {len(self.sent)}.")
        left = self._left.pop(0)
        yield _RecordedResponse(left, piece_bytes=self._piece_bytes, cuts=self._cuts, broken=self._broken)

    def get(self, url: str, *, headers: Mapping[str, str], limits: TimeLimits) -> AbstractAsyncContextManager[Response]:
        return self.post(url, headers=headers, body=b"", limits=limits)

    async def aclose(self) -> None:
        self.closed = True


class _Headers(dict[str, str]):
    """Names are stored in lowercase; look-ups ignore case."""

    def __getitem__(self, name: str) -> str:
        return super().__getitem__(name.lower())

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and super().__contains__(name.lower())

    def get(self, name: str, default: Any = None) -> Any:
        return super().get(name.lower(), default)


class _RecordedResponse:
    def __init__(
        self, exchange: Exchange, *, piece_bytes: int | None, cuts: Sequence[int] | None, broken: bool
    ) -> None:
        self.status = exchange.status
        self.headers: Mapping[str, str] = _Headers(exchange.headers)
        self._body = exchange.body
        self._piece_bytes = piece_bytes
        self._cuts = cuts
        self._broken = broken

    async def read(self) -> bytes:
        return self._body

    async def chunks(self) -> AsyncIterator[bytes]:
        size = len(self._body)
        ends = self._cuts if self._cuts is not None else range(self._piece_bytes or size, size, self._piece_bytes or 1)
        start = 0
        for end in [*sorted(ends), size]:
            if end > start:
                yield self._body[start:end]
                start = end
        if self._broken:
            raise RequestFailed("broken", "The connection broke.", sent=True)


def _exchange(interaction: dict[str, Any]) -> Exchange:
    request, response = interaction["request"], interaction["response"]
    headers = {
        name.lower(): ", ".join(cast("list[str]", value)) if isinstance(value, list) else str(value)
        for name, value in cast("dict[str, Any]", response.get("headers") or {}).items()
    }
    body = _decoded(_body(response), headers.pop("content-encoding", ""))
    # These describe the bytes on the wire, which were not kept.
    for name in ("transfer-encoding", "content-length"):
        headers.pop(name, None)
    status: Any = response["status"]
    return Exchange(
        method=request["method"],
        uri=request["uri"],
        request_body=_body(request),
        status=int(cast("dict[str, Any]", status)["code"] if isinstance(status, dict) else status),
        headers=headers,
        body=body,
    )


def _body(side: dict[str, Any]) -> bytes:
    if "parsed_body" in side:
        return msgspec.json.encode(side["parsed_body"])
    body = side.get("body")
    if isinstance(body, dict):
        fields = cast("dict[str, Any]", body)
        if "base64_string" in fields:
            return base64.b64decode(fields["base64_string"])
        body = fields.get("string")
    match body:
        case None:
            return b""
        case bytes():
            return body
        case _:
            return str(cast("object", body)).encode()


def _decoded(body: bytes, encoding: str) -> bytes:
    if encoding == "gzip" and body[:2] == b"\x1f\x8b":
        return gzip.decompress(body)
    if encoding == "deflate" and body[:1] == b"\x78":
        return zlib.decompress(body)
    return body
