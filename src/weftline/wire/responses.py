"""What the responses of the protocol have in common. Times are microseconds here and UTC ISO-8601 in JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal, TypeAlias

from msgspec import UNSET, Meta, Raw, Struct, UnsetType
from msgspec.json import Encoder

from weftline.events.parts import iso
from weftline.wire.unknown_fields import UnknownField

encode = Encoder(enc_hook=str).encode
Time: TypeAlias = Annotated[str, Meta(extra_json_schema={"format": "date-time"})]
JsonObject: TypeAlias = Annotated[Raw, Meta(extra_json_schema={"type": "object"})]
"""An object, as stored bytes."""
Words: TypeAlias = Annotated[
    Raw, Meta(extra_json_schema={"type": "object", "additionalProperties": {"type": "string"}})
]
"""Metadata, as stored bytes."""


def iso_or_none(us: int | None) -> str | None:
    return None if us is None else iso(us)


class Ok(Struct, frozen=True):
    ok: Literal[True] = True


class RequestWarning(Struct, frozen=True, omit_defaults=True):
    """Something that the server accepted but that was probably meant differently."""

    code: str
    """`unknown_field`, or `unused_schema`."""
    path: str
    message: str
    nearest: str = ""
    """The most similar known field."""


Warnings: TypeAlias = list[RequestWarning] | UnsetType
"""Left out if there are none."""


def request_warnings(unknown: Sequence[UnknownField]) -> Warnings:
    if not unknown:
        return UNSET
    return [RequestWarning(field.code, field.path, field.message, field.nearest) for field in unknown]
