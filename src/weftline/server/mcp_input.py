"""The input of the hosted MCP server's tools: a message, and files that belong to it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from msgspec import Struct, ValidationError, convert

from weftline.errors import InvalidRequest
from weftline.wire.attachments import AttachmentRefused, TakenAttachment, take_content
from weftline.wire.limits import MAX_ATTACHMENTS
from weftline.wire.unknown_fields import Items, Shape, unknown_fields, with_typos
from weftline.wire.validation import json_words

_MAX_PROBLEMS = 5
_EXCERPT_CHARS = 100
INPUT: dict[str, Any] = {
    "type": "object",
    "properties": {
        "message": {"type": "string", "description": "The whole task, in one message."},
        "attachments": {
            "type": "array",
            "description": "Images (PNG, JPEG, GIF, WebP), PDF and text files that belong to the task.",
            "maxItems": MAX_ATTACHMENTS,
            "items": {
                "type": "object",
                "properties": {
                    "data": {"type": "string", "description": "The content in base64."},
                    "mediaType": {"type": "string"},
                    "name": {"type": "string"},
                },
                "required": ["data"],
            },
        },
    },
    "required": ["message"],
    "additionalProperties": False,
}


_SHAPE = Shape(
    frozenset(INPUT["properties"]),
    {"attachments": Items(Shape(frozenset(INPUT["properties"]["attachments"]["items"]["properties"])))},
)
"""To tell which arguments are misspelt."""


def explained(refusal: str, arguments: dict[str, Any] | None) -> str:
    """Returns the refusal, with the arguments that look misspelt."""
    return with_typos(InvalidRequest(refusal), unknown_fields(arguments or {}, _SHAPE)).message


class _Attachment(Struct, rename="camel"):
    data: str | None = None
    media_type: str | None = None
    name: str | None = None
    url: str | None = None


class McpInput(NamedTuple):
    message: str
    attachments: Sequence[TakenAttachment]


async def read_input(given: Mapping[str, Any]) -> McpInput:
    """Reads the input. Raises `InvalidRequest` with everything that the caller should correct."""
    problems = [f"{name[:_EXCERPT_CHARS]}: is not an argument." for name in given if name not in INPUT["properties"]]
    message = given.get("message")
    if not isinstance(message, str) or not message.strip():
        problems.insert(0, "message: must be a non-empty string.")
    if problems:
        raise InvalidRequest(" ".join(problems[:_MAX_PROBLEMS]))
    assert isinstance(message, str)
    return McpInput(message, await _read_attachments(given.get("attachments")))


async def _read_attachments(given: object) -> list[TakenAttachment]:
    """Reads the attachments. Raises `InvalidRequest` for invalid ones."""
    try:
        sent = convert(given or [], list[_Attachment])
    except ValidationError as error:
        raise InvalidRequest(f"attachments: {json_words(error)}") from None
    if len(sent) > MAX_ATTACHMENTS:
        raise InvalidRequest(f"attachments: at most {MAX_ATTACHMENTS} are accepted.")
    return [await asyncio.to_thread(_taken, f"attachments[{index}]", one) for index, one in enumerate(sent)]


def _taken(path: str, sent: _Attachment) -> TakenAttachment:
    if sent.data is None and sent.url is None:
        raise InvalidRequest(f"{path}.data: is missing.")
    if sent.data is None or sent.url is not None:
        raise InvalidRequest(f"{path}: files given by an address are not fetched; give the content as `data`.")
    try:
        return take_content(sent.data, media_type=sent.media_type, name=sent.name)
    except AttachmentRefused as refused:
        raise InvalidRequest(f"{path}.{refused.field}: {refused.message}.") from None
