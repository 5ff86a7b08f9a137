"""The parts of a message.

Text, JSON data and text files become text; images and PDF files are attached; anything else is refused.
"""

from __future__ import annotations

import binascii
from base64 import b64decode
from collections.abc import Sequence
from typing import Any, TypeAlias

from msgspec import Struct
from msgspec.json import encode

from weftline import prompts
from weftline.server.a2a.rpc import CONTENT_TYPE_NOT_SUPPORTED, RpcError, invalid
from weftline.wire.attachments import AttachmentRefused, TakenAttachment, take_content
from weftline.wire.limits import IMAGE_TYPES, MAX_ATTACHMENTS, MAX_METADATA_VALUE_CHARS

_ATTACHED = (*IMAGE_TYPES, "application/pdf")
INPUT_MODES = ("text/plain", "application/json", *_ATTACHED)
_TEXT_TYPES = frozenset({"application/json", "application/xml", "application/yaml", "application/x-yaml"})


class TextPart(Struct, frozen=True, tag="text"):
    text: str


class DataPart(Struct, frozen=True, tag="data"):
    value: Any


class FilePart(Struct, frozen=True, tag="file"):
    """A file. `data` is base64; None for a file given by URL."""

    media_type: str
    name: str
    data: str | None


Part: TypeAlias = TextPart | DataPart | FilePart


class Content(Struct, frozen=True):
    """The content of a message: `text` joins the parts that are text, one per line.

    `data` has the data parts as they came; `words` is the text without them.
    """

    text: str
    attachments: tuple[TakenAttachment, ...] = ()
    data: tuple[Any, ...] = ()
    words: str = ""


def content_of(parts: Sequence[Part]) -> Content:
    if not parts:
        raise invalid("message.parts", "give at least one part.")
    pieces = [_piece(number, part) for number, part in enumerate(parts)]
    text = _joined(pieces)
    attachments = tuple([piece for piece in pieces if not isinstance(piece, str)])
    if not text.strip() and not attachments:
        raise invalid("message.parts", "give at least one part that is not empty.")
    if len(attachments) > MAX_ATTACHMENTS:
        raise invalid("message.parts", f"a message can have at most {MAX_ATTACHMENTS} images and PDF files.")
    data = tuple([part.value for part in parts if isinstance(part, DataPart)])
    texts = [piece for piece, part in zip(pieces, parts, strict=True) if not isinstance(part, DataPart)]
    return Content(text, attachments, data, _joined(texts))


def _joined(pieces: Sequence[str | TakenAttachment]) -> str:
    return "\n".join([piece for piece in pieces if isinstance(piece, str) and piece])


def _piece(number: int, part: Part) -> str | TakenAttachment:
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


def _file(number: int, part: FilePart) -> str | TakenAttachment:
    if part.data is None:
        raise _refused(number, "files given by an address are not fetched; send the content.")
    kind = part.media_type.partition(";")[0].strip().lower()
    if not kind or kind in _ATTACHED or kind == "image/jpg":
        return _attached(number, part)
    if not (kind.startswith("text/") or kind in _TEXT_TYPES or kind.endswith("+json")):
        raise _refused(number, f"a file of type {kind[:100]} cannot be read here.")
    try:
        content = b64decode(part.data, validate=True).decode()
    except (binascii.Error, ValueError):
        raise invalid(f"message.parts[{number}]", "must be base64 of UTF-8 text.") from None
    return prompts.models.attached_text(part.name or "file", content)


def _attached(number: int, part: FilePart) -> TakenAttachment:
    assert part.data is not None
    try:
        return take_content(part.data, media_type=part.media_type or None, name=part.name or None)
    except AttachmentRefused as refused:
        if refused.field == "mediaType":
            raise _refused(number, f"its media type {refused.message}.") from None
        raise invalid(f"message.parts[{number}]", f"its {refused.field} {refused.message}.") from None


def _refused(number: int, why: str) -> RpcError:
    message = f"Incompatible content types: message.parts[{number}]: {why} {_TAKEN}"
    return RpcError(CONTENT_TYPE_NOT_SUPPORTED, message)


_TAKEN = "Text, JSON data, text files, images (PNG, JPEG, GIF, WebP) and PDF files are accepted."


def check_name(value: object, path: str) -> str:
    """Checks an id chosen by the caller."""
    if not isinstance(value, str) or not 0 < len(value) <= MAX_METADATA_VALUE_CHARS or "\x00" in value:
        raise invalid(path, f"must be a string of 1 to {MAX_METADATA_VALUE_CHARS} characters.")
    return value
