"""Amazon's additions to HTTP: signed requests (Signature Version 4) and event-stream framing."""

from __future__ import annotations

import hashlib
import hmac
import struct
import zlib
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Final, NamedTuple
from urllib.parse import parse_qsl, quote, urlsplit

from msgspec import Struct

from weftline.providers.base import ProviderError

ALGORITHM: Final = "AWS4-HMAC-SHA256"
MAX_FRAME_BYTES: Final = 25 * 1024 * 1024
_DEFAULT_PORTS = {"http": 80, "https": 443}
_PRELUDE = struct.Struct(">III")
_OVERHEAD_BYTES = _PRELUDE.size + 4
_FIXED_SIZES = {0: 0, 1: 0, 2: 1, 3: 2, 4: 4, 5: 8, 8: 8, 9: 16}
_BYTES, _STRING = 6, 7


class Credentials(Struct, frozen=True):
    access_key: str
    secret: str
    session: str | None = None

    def __repr__(self) -> str:
        return "Credentials(…)"


def signed(
    method: str,
    url: str,
    headers: Mapping[str, str],
    body: bytes,
    *,
    credentials: Credentials,
    region: str,
    service: str,
    now: datetime,
) -> dict[str, str]:
    """Returns the headers with those added that sign the request. The host is that of `url`."""
    parts = urlsplit(url)
    moment = now.astimezone(UTC).strftime("%Y%m%dT%H%M%SZ")
    sent = {**headers, "x-amz-date": moment}
    if credentials.session:
        sent["x-amz-security-token"] = credentials.session
    host = parts.hostname or ""
    if parts.port is not None and parts.port != _DEFAULT_PORTS.get(parts.scheme):
        host = f"{host}:{parts.port}"
    canonical = {name.lower(): " ".join(value.split()) for name, value in {**sent, "host": host}.items()}
    names = ";".join(sorted(canonical))
    request = "\n".join(
        [
            method,
            # The path is encoded a second time, as every service except S3 requires.
            quote(parts.path or "/", safe="/~"),
            _query(parts.query),
            *(f"{name}:{canonical[name]}" for name in sorted(canonical)),
            "",
            names,
            hashlib.sha256(body).hexdigest(),
        ]
    )
    scope = f"{moment[:8]}/{region}/{service}/aws4_request"
    text = "\n".join([ALGORITHM, moment, scope, hashlib.sha256(request.encode()).hexdigest()])
    key = f"AWS4{credentials.secret}".encode()
    for piece in scope.split("/"):
        key = hmac.digest(key, piece.encode(), "sha256")
    signature = hmac.digest(key, text.encode(), "sha256").hex()
    sent["authorization"] = (
        f"{ALGORITHM} Credential={credentials.access_key}/{scope}, SignedHeaders={names}, Signature={signature}"
    )
    return sent


def _query(query: str) -> str:
    pairs = sorted(
        (quote(name, safe="~"), quote(value, safe="~")) for name, value in parse_qsl(query, keep_blank_values=True)
    )
    return "&".join(f"{name}={value}" for name, value in pairs)


class Frame(NamedTuple):
    """One message of an event stream. `headers` has those with text values."""

    headers: dict[str, str]
    payload: bytes


class FrameDecoder:
    """Decodes an `application/vnd.amazon.eventstream`, in pieces of any size, into complete frames.

    Raises `ProviderError` (`server`) if a checksum or a length is wrong.
    """

    def __init__(self) -> None:
        self._held = bytearray()

    def feed(self, data: bytes) -> Sequence[Frame]:
        held = self._held
        held += data
        frames: list[Frame] = []
        start = 0
        while len(held) - start >= _PRELUDE.size:
            total, header_bytes, checksum = _PRELUDE.unpack_from(held, start)
            if zlib.crc32(held[start : start + 8]) != checksum:
                raise _damaged()
            if not _OVERHEAD_BYTES + header_bytes <= total <= MAX_FRAME_BYTES:
                raise _damaged()
            if len(held) - start < total:
                break
            frame = bytes(held[start : start + total])
            if zlib.crc32(frame[:-4]) != int.from_bytes(frame[-4:], "big"):
                raise _damaged()
            begin = _PRELUDE.size + header_bytes
            frames.append(Frame(_headers(frame[_PRELUDE.size : begin]), frame[begin:-4]))
            start += total
        del held[:start]
        return frames


def _headers(data: bytes) -> dict[str, str]:
    headers: dict[str, str] = {}
    at = 0
    try:
        while at < len(data):
            name_end = at + 1 + data[at]
            kind = data[name_end]
            name = data[at + 1 : name_end].decode()
            at = name_end + 1
            if kind in (_BYTES, _STRING):
                size = int.from_bytes(data[at : at + 2], "big")
                at += 2
                if kind == _STRING:
                    headers[name] = data[at : at + size].decode()
            else:
                size = _FIXED_SIZES[kind]
            at += size
    except (IndexError, KeyError, UnicodeDecodeError):
        raise _damaged() from None
    if at != len(data):
        raise _damaged()
    return headers


def _damaged() -> ProviderError:
    return ProviderError("server", "A frame of the model API's response is corrupt.")
