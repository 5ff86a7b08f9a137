"""Checks the requests that most clients send in a single pass.

A body that decodes as a `_PlainRun` is valid, has no unknown field and nothing that is stored apart from it. Any other
is checked field by field in `wire.requests`, which also has the error messages; a test keeps the two consistent.
"""

from __future__ import annotations

from typing import Annotated, TypeAlias

from msgspec import DecodeError, Meta, Struct
from msgspec.json import Decoder

from weftline.wire.bodies import RunBody
from weftline.wire.json_text import decode_fields, encode
from weftline.wire.limits import (
    DEFAULT_RUN_NAME,
    ID_PATTERN,
    KB,
    MAX_MODEL_ID_CHARS,
    MAX_RUN_NAME_CHARS,
    MAX_TOOLS,
    PLUGIN_NAME_PATTERN,
)

PLAIN_BYTES = 16 * KB
"""A larger body is not plain. One of this size is cheap to read, whatever it contains."""


def _whole(pattern: str) -> str:
    return rf"\A(?:{pattern})\Z"


_Id: TypeAlias = Annotated[str, Meta(pattern=_whole(ID_PATTERN))]
_Name: TypeAlias = Annotated[str, Meta(max_length=MAX_RUN_NAME_CHARS, pattern=r"\A[^\x00]*\Z")]
_ModelId: TypeAlias = Annotated[str, Meta(min_length=1, max_length=MAX_MODEL_ID_CHARS)]


class _ServerTool(Struct, frozen=True, tag_field="kind", tag="server", forbid_unknown_fields=True):
    name: Annotated[str, Meta(pattern=_whole(PLUGIN_NAME_PATTERN))]


class _ForeignServerTool(_ServerTool, frozen=True, tag="mantyx_plugin"):
    """The protocol's own name for it."""


class _PlainRun(Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    prompt: str
    name: _Name | None = None
    agent_id: _Id | None = None
    model_id: _ModelId | None = None
    system_prompt: str | None = None
    tools: Annotated[tuple[_ServerTool | _ForeignServerTool, ...], Meta(max_length=MAX_TOOLS)] | None = None
    loop_detection: bool | None = None


_decode = Decoder(_PlainRun).decode


def plain_run(body: bytes) -> RunBody | None:
    """Returns a valid plain body; None for one that needs a full check, and may be valid or not."""
    if len(body) > PLAIN_BYTES:
        return None
    try:
        sent = _decode(body)
    except (DecodeError, UnicodeDecodeError, RecursionError):
        return None
    if sent.loop_detection or (sent.tools and len({tool.name for tool in sent.tools}) != len(sent.tools)):
        return None
    return RunBody(encode(decode_fields(body)), sent.name or DEFAULT_RUN_NAME, sent.agent_id, sent.model_id)
