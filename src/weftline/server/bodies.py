"""The bodies of routes, made from the types that describe them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from msgspec import DecodeError
from msgspec.json import Decoder
from pydantic import BaseModel

from weftline.api.validation import parsed_as
from weftline.errors import InvalidRequest
from weftline.server.declared import Body
from weftline.wire.json_text import decode_object
from weftline.wire.limits import MAX_BODY_BYTES
from weftline.wire.unknown_fields import UnknownField
from weftline.wire.validation import json_words

T = TypeVar("T")
_Model = TypeVar("_Model", bound=BaseModel)


def struct_body(struct: type[T], *, limit_bytes: int) -> Body[T]:
    """A body that is decoded as this struct. Its errors say where it does not match."""
    decoder = Decoder(struct)

    def parse(raw: bytes) -> T:
        try:
            return decoder.decode(raw)
        except (DecodeError, RecursionError) as error:
            raise InvalidRequest(f"The body does not fit: {json_words(error)}.") from None

    return Body(struct, parse, limit_bytes)


def model_body(
    model: type[_Model], *, limit_bytes: int, optional: bool = False, or_bytes: bool = False
) -> Body[tuple[_Model, tuple[UnknownField, ...]]]:
    """A body that is validated as this model; its unknown fields come with it. If it is `optional`, no body is {}.

    With `or_bytes`, it may have any other media type than JSON.
    """

    def parse(raw: bytes) -> tuple[_Model, tuple[UnknownField, ...]]:
        return parsed_as(model, decode_object(raw) if raw or not optional else {})

    return Body(model, parse, limit_bytes, or_bytes=or_bytes)


def object_body(
    model: type[BaseModel], parse: Callable[[dict[str, Any]], T], *, limit_bytes: int = MAX_BODY_BYTES
) -> Body[T]:
    """A body that is a JSON object, which `parse` validates as this model."""

    def parse_bytes(raw: bytes) -> T:
        return parse(decode_object(raw))

    return Body(model, parse_bytes, limit_bytes)
