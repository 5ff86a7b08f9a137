"""How the client SDKs read a stream and the answers: what they take, and from where."""

from __future__ import annotations

import json
import re
from typing import Any, cast

from msgspec import Struct
from msgspec.json import decode

from ..kit import Json

GO_LINE_BYTES = 8 * 1024 * 1024
"""The longest line that the Go client's scanner takes; a longer one makes it reconnect for ever."""


def typescript(raw: bytes) -> tuple[int, str, Json]:
    """The type is the `event:` line's; the fields are those of the JSON object, spread flat."""
    fields: dict[str, list[str]] = {}
    for line in re.split(r"\r?\n", raw.decode()):
        name, _, value = line.partition(":")
        fields.setdefault(name, []).append(value.removeprefix(" "))
    body = json.loads("\n".join(fields["data"]))
    return body["seq"], fields["event"][0], body


def python(raw: bytes) -> tuple[int, str, Json]:
    """The same, but a nested `data` object is the payload when there is one."""
    seq, kind, body = typescript(raw)
    nested: Any = body.get("data")
    return seq, kind, cast("Json", nested) if isinstance(nested, dict) else body


def go(raw: bytes) -> tuple[int, str, Json]:
    """Flat too; a line that its scanner cannot hold is never seen."""
    assert max(map(len, raw.split(b"\n"))) < GO_LINE_BYTES
    return typescript(raw)


READERS = {"typescript": typescript, "python": python, "go": go}


class GoError(Struct):
    """The error body as the Go client decodes it: anything but a string leaves it empty."""

    error: str
    code: str
    hint: str = ""


class GoPricing(Struct, rename={"input_usd": "inputPer1MUsd", "output_usd": "outputPer1MUsd"}):
    input_usd: float | None = None
    output_usd: float | None = None


class GoModel(Struct, rename="camel"):
    id: str
    label: str
    provider: str
    vendor_model_id: str
    source: str
    context_window_tokens: int | None
    pricing: GoPricing | None


class GoCatalog(Struct, rename="camel"):
    models: list[GoModel]
    default_model_id: str | None


class GoMessage(Struct):
    role: str
    content: str


class GoSession(Struct, rename="camel"):
    id: str
    name: str
    status: str
    created_at: str
    last_used_at: str
    ended_at: str | None
    agent_spec: dict[str, Any]
    messages: list[GoMessage]
    metadata: dict[str, str]


class GoTokens(Struct, rename="camel", forbid_unknown_fields=True):
    input_tokens: int
    cached_tokens: int
    reasoning_tokens: int
    output_tokens: int


def go_tokens(value: object) -> GoTokens:
    return decode(json.dumps(value), type=GoTokens)
