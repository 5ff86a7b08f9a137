"""Values that cross the boundary: plain data, copied, as JSON text with tags for what JSON cannot represent.

bytes               {"$b": "aGk="}
integers ≥ 2**53    {"$i": "9007199254740993"}
a host function     {"$f": 3}                     inward only
a mapping that has a key beginning with "$"       {"$o": {…}}
"""

from __future__ import annotations

import math
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import msgspec

from weftline.sandbox.base import HostFunction
from weftline.text.characters import whole, whole_json

MAX_DEPTH = 200
_EXACT = 1 << 53
"""Smaller integers are the same number in every language."""
_MAX_INT = 10**4000
"""Python itself refuses to write longer ones, with a message about its own settings."""
_DIGITS_A_PART = 100
"""Reading an integer costs the square of its digits: one of 4,000 digits counts as 1,600 parts."""

# Its own reader takes a hundred times as long for numbers at the limits of a double.
_decode = msgspec.json.Decoder(float_hook=float).decode


class Refused(ValueError):
    """A value that cannot cross; the message begins with its path."""


class TooManyParts(ValueError):
    """A value with more parts than may cross at once."""


class Parts:
    """The number of numbers, texts, lists and mappings that may still cross."""

    def __init__(self, left: int) -> None:
        self.left = left

    def take(self, count: int) -> None:
        self.left -= count
        if self.left < 0:
            raise TooManyParts("too many parts")


class _Unfit(Exception):
    """Collects its path on the way up, so that valid values never need one."""

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.keys: list[str | int] = []


class Functions:
    """The host functions of one piece of code, in the order in which they were found."""

    def __init__(self) -> None:
        self.all: list[HostFunction] = []

    def add(self, call: Callable[..., object]) -> HostFunction:
        function = HostFunction(len(self.all), call)
        self.all.append(function)
        return function


def copied(value: object, path: str, *, functions: Functions | None = None, max_parts: int | None = None) -> object:
    """A deep copy of plain data. Callables become `HostFunction`s if `functions` collects them.

    Raises `Refused` with the path of what is not plain data.
    """
    try:
        return _deep_copy(value, functions, set(), Parts(max_parts) if max_parts is not None else None)
    except TooManyParts:
        raise Refused(
            f"{path}: a value of more than {max_parts:,} parts cannot be passed into or out of the sandbox"
        ) from None
    except _Unfit as unfit:
        for key in reversed(unfit.keys):
            path = f"{path}[{key}]" if isinstance(key, int) else path_to(path, key)
        raise Refused(f"{path}: {unfit}") from None


def _deep_copy(value: object, functions: Functions | None, above: set[int], parts: Parts | None) -> object:
    if value is None or isinstance(value, bool):
        return value
    if type(value) is bytes:
        return value
    if isinstance(value, int):
        if not -_MAX_INT < value < _MAX_INT:
            raise _Unfit("an integer of more than 4,000 digits cannot be passed into or out of the sandbox")
        return int(value)
    if type(value) is str:
        return whole(value)
    if isinstance(value, float):
        if not math.isfinite(value):
            raise _Unfit(f"the number {value} cannot be passed into or out of the sandbox")
        return float(value)
    if isinstance(value, str):
        return whole(str(value))
    if isinstance(value, bytes | bytearray):
        return bytes(value)
    if isinstance(value, list | tuple | Mapping):
        return _container(cast("Sequence[object] | Mapping[object, object]", value), functions, above, parts)
    if callable(value) and functions is not None and not isinstance(value, type):
        return functions.add(value)
    what = "a function" if callable(value) else f"an instance of {type(value).__name__}"
    raise _Unfit(f"{what} cannot be passed into or out of the sandbox")


def _container(
    value: Sequence[object] | Mapping[object, object],
    functions: Functions | None,
    above: set[int],
    parts: Parts | None,
) -> object:
    if id(value) in above:
        raise _Unfit("a value that contains itself cannot be passed into or out of the sandbox")
    if len(above) >= MAX_DEPTH:
        raise _Unfit(f"a value nested more than {MAX_DEPTH} deep cannot be passed into or out of the sandbox")
    if parts is not None:
        parts.take(len(value))
    above.add(id(value))
    try:
        if isinstance(value, Mapping):
            return _mapping(value, functions, above, parts)
        items: list[object] = []
        for index, item in enumerate(value):
            try:
                items.append(_deep_copy(item, functions, above, parts))
            except _Unfit as unfit:
                unfit.keys.append(index)
                raise
        return items
    finally:
        above.discard(id(value))


def _mapping(
    value: Mapping[object, object], functions: Functions | None, above: set[int], parts: Parts | None
) -> dict[str, object]:
    made: dict[str, object] = {}
    for key, item in value.items():
        if not isinstance(key, str):
            raise _Unfit(f"keys must be strings, not {type(key).__name__}")
        name = whole(key)
        if name in made:
            raise _Unfit("keys that differ only in an unpaired surrogate cannot be passed into or out of the sandbox")
        try:
            made[name] = _deep_copy(item, functions, above, parts)
        except _Unfit as unfit:
            unfit.keys.append(name)
            raise
    return made


def path_to(path: str, key: str) -> str:
    return f"{path}.{key}" if key.isidentifier() else f"{path}[{msgspec.json.encode(whole(key)).decode()}]"


def encode(value: object) -> bytes:
    """Copied data as tagged JSON."""
    return msgspec.json.encode(_tagged(value))


def _tagged(value: object) -> object:
    match value:
        case bool():
            return value
        case int():
            return value if -_EXACT < value < _EXACT else {"$i": str(value)}
        case bytes():
            return {"$b": b64encode(value).decode()}
        case HostFunction():
            return {"$f": value.id}
        case list():
            return [_tagged(item) for item in cast("list[object]", value)]
        case dict():
            tagged = {key: _tagged(item) for key, item in cast("dict[str, object]", value).items()}
            return {"$o": tagged} if any(key.startswith("$") for key in tagged) else tagged
        case _:
            return value


def decode(text: bytes, parts: Parts | None = None) -> object:
    """Decodes what the code sent. Raises `TooManyParts`, and `ValueError` if it is not tagged JSON."""
    try:
        return _untagged(_decode(whole_json(text)), parts)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise ValueError(str(error)) from None


def _untagged(value: Any, parts: Parts | None) -> object:
    if isinstance(value, list):
        items = cast("list[Any]", value)
        if parts is not None:
            parts.take(len(items))
        return [_untagged(item, parts) for item in items]
    if not isinstance(value, dict):
        return cast("object", value)
    fields = cast("dict[str, Any]", value)
    if len(fields) == 1:
        match fields:
            case {"$b": str(data)}:
                return b64decode(data, validate=True)
            case {"$i": str(digits)}:
                return _integer(digits, parts)
            case {"$o": dict()}:
                fields = cast("dict[str, Any]", fields["$o"])
            case _:
                pass
    if parts is not None:
        parts.take(len(fields))
    return {key: _untagged(item, parts) for key, item in fields.items()}


def _integer(digits: str, parts: Parts | None) -> int:
    if len(digits) > 4000:
        raise ValueError("an integer of more than 4,000 digits")
    if parts is not None:
        parts.take((len(digits) // _DIGITS_A_PART) ** 2)
    return int(digits)
