"""What a message may be made of: text, JSON data and text files, which become words. Anything else is refused."""

from __future__ import annotations

import binascii
from base64 import b64decode
from collections.abc import Sequence
from typing import Any, TypeAlias

from msgspec import Struct
from msgspec.json import encode

from weftline import prompts
from weftline.server.a2a.rpc import CONTENT_TYPE_NOT_SUPPORTED, RpcError, invalid
from weftline.wire.limits import MAX_METADATA_VALUE_CHARS

INPUT_MODES = ("text/plain", "application/json")
_TEXT_TYPES = frozenset({"application/json", "application/xml", "application/yaml", "application/x-yaml"})


class TextPart(Struct, frozen=True, tag="text"):
    text: str


class DataPart(Struct, frozen=True, tag="data"):
    value: Any


class FilePart(Struct, frozen=True, tag="file"):
    """`data` is base64; None for a file that is given by its address."""

    media_type: str
    name: str
    data: str | None


Part: TypeAlias = TextPart | DataPart | FilePart


def in_words(parts: Sequence[Part]) -> str:
    """All parts as one text, a line break between them."""
    if not parts:
        raise invalid("message.parts", "give at least one part.")
    pieces = [piece for number, part in enumerate(parts) if (piece := _piece(number, part))]
    text = "\n".join(pieces)
    if not text.strip():
        raise invalid("message.parts", "give at least one part that is not empty.")
    return text


def _piece(number: int, part: Part) -> str:
    match part:
        case TextPart(text):
            return text
        case DataPart(value):
            return _data(number, value)
        case FilePart():
            return _file(number, part)


def _data(number: int, value: Any) -> str:
    if value is None or value == {} or value == []:
        return ""
    try:
        return encode(value).decode()
    except RecursionError:
        raise invalid(f"message.parts[{number}]", "is nested too deeply.") from None


def _file(number: int, part: FilePart) -> str:
    if part.data is None:
        raise _refused(number, "files given by an address are not fetched.")
    kind = part.media_type.partition(";")[0].strip().lower()
    if not (kind.startswith("text/") or kind in _TEXT_TYPES or kind.endswith("+json")):
        raise _refused(number, f"a file of type {kind[:100] or 'unknown'} cannot be read here.")
    try:
        content = b64decode(part.data, validate=True).decode()
    except (binascii.Error, ValueError):
        raise invalid(f"message.parts[{number}]", "must be base64 of UTF-8 text.") from None
    return prompts.attached_text(part.name or "file", content)


def _refused(number: int, why: str) -> RpcError:
    told = f"Incompatible content types: message.parts[{number}]: {why} Send text, JSON data or text files."
    return RpcError(CONTENT_TYPE_NOT_SUPPORTED, told)


def check_name(value: object, path: str) -> str:
    """An id that a caller made up."""
    if not isinstance(value, str) or not 0 < len(value) <= MAX_METADATA_VALUE_CHARS or "\x00" in value:
        raise invalid(path, f"must be a string of 1 to {MAX_METADATA_VALUE_CHARS} characters.")
    return value
