"""Reads request bodies: any bytes become a JSON object or an `InvalidRequest`, never another exception."""

from __future__ import annotations

from typing import Any, TypeVar, cast

import msgspec
from msgspec import Raw

from weftline.errors import InvalidRequest, Issue, invalid
from weftline.text.characters import lone_halves, may_have_nul
from weftline.text.json_size import excess
from weftline.wire.limits import MAX_BODY_VALUES, MAX_JSON_DEPTH
from weftline.wire.validation import path_of

_Shape = TypeVar("_Shape")

_decode_any = msgspec.json.Decoder[Any]().decode
decode_fields = msgspec.json.Decoder(dict[str, Raw]).decode
"""Decodes the fields of an object that was already checked, each as the bytes that were sent."""
decode_value = _decode_any
"""Decodes a value that is part of an object that was already checked."""
decode_items = msgspec.json.Decoder(list[Raw]).decode
encode = msgspec.json.Encoder().encode

NULL = Raw(b"null")
_ABOVE = 8
"""Levels of a body that may be above a value in it."""

TOO_DEEP = "The body is nested too deeply."
NOT_AN_OBJECT = "The body must be a JSON object."


def decode_object(body: bytes) -> dict[str, Any]:
    """Returns the whole body as Python values.

    Raises `InvalidRequest` unless it is a JSON object, and for one with too many values.
    """
    refuse_many(body)
    value = _guarded(_decode_any, body)
    if not isinstance(value, dict):
        raise InvalidRequest(NOT_AN_OBJECT)
    # Every level needs a bracket, so few brackets mean a shallow body; counting is a hundred times cheaper.
    if body.count(b"{") + body.count(b"[") > MAX_JSON_DEPTH:
        _refuse_deep(body)
    return cast("dict[str, Any]", value)


def refuse_nul(body: bytes) -> None:
    """Raises `InvalidRequest` for JSON with U+0000 in a string, and names where. Leaves what is not JSON to others."""
    if not may_have_nul(body):
        return
    refuse_many(body)
    try:
        left: list[tuple[tuple[int | str, ...], Any]] = [((), _decode_any(body))]
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return
    while left:
        path, value = left.pop()
        if isinstance(value, str):
            if "\0" in value:
                raise invalid([Issue(path_of(path), "contains U+0000, which cannot be stored")])
        elif isinstance(value, dict):
            items = cast("dict[str, Any]", value)
            if any("\0" in name for name in items):
                raise invalid([Issue(path_of(path), "has a name with U+0000, which cannot be stored")])
            left += [((*path, name), item) for name, item in reversed(items.items())]
        elif isinstance(value, list):
            left += [((*path, index), item) for index, item in reversed([*enumerate(cast("list[Any]", value))])]


def refuse_many(body: bytes) -> None:
    """Raises `InvalidRequest` for a body that costs too much to read."""
    if too_much := excess(body, MAX_BODY_VALUES):
        raise InvalidRequest(f"The body has {too_much}.")


def decode_shape(decoder: msgspec.json.Decoder[_Shape], body: bytes) -> _Shape:
    """Like `decode_object`, for a struct whose fields take any value."""
    return _guarded(decoder.decode, body)


def _guarded(decode: Any, body: bytes) -> Any:
    if not body:
        raise InvalidRequest("The body is empty.")
    try:
        return decode(body)
    except RecursionError:
        raise InvalidRequest(TOO_DEEP) from None
    except UnicodeDecodeError:
        raise InvalidRequest("The body is not valid UTF-8.") from None
    except msgspec.ValidationError as error:
        # The only typed things here are numbers, which have a range, and the body itself, which is an object.
        text = str(error)
        raise InvalidRequest(NOT_AN_OBJECT if "`object`" in text else f"The body is not usable: {text}") from None
    except msgspec.DecodeError as error:
        if halves := lone_halves(body):
            half = halves[0][0].decode()
            raise InvalidRequest(f"The body contains {half}, an unpaired surrogate, which is not valid text.") from None
        raise InvalidRequest(f"The body is not valid JSON: {error}") from None


def is_deep(encoded: bytes, value: object) -> bool:
    """Returns True if a JSON value, `encoded` without spaces, has too many levels for a body."""
    # Every level needs a bracket, so few brackets mean a shallow value.
    if encoded.count(b"{") + encoded.count(b"[") <= MAX_JSON_DEPTH:
        return False
    level: list[Any] = [value]
    for _ in range(MAX_JSON_DEPTH - _ABOVE):
        level = [
            one
            for outer in level
            for one in (cast("dict[str, Any]", outer).values() if isinstance(outer, dict) else outer)
            if isinstance(one, dict | list)
        ]
        if not level:
            return False
    return True


def _refuse_deep(body: bytes) -> None:
    from pydantic_core import from_json

    try:
        from_json(body, cache_strings=False)
    except ValueError as error:
        text = str(error)
        raise InvalidRequest(TOO_DEEP if "recursion" in text else f"The body is not valid JSON: {text}") from None
