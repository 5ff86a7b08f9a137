"""Values that cross the border: plain data, copied, as JSON text with tags for what JSON cannot say.

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
from weftline.surrogates import whole, whole_json

MAX_DEPTH = 200
_EXACT = 1 << 53
"""Integers below it are the same number in every language."""


class Refused(ValueError):
    """A value that cannot cross; the message begins with its path."""


class Functions:
    """The host functions of one piece of code, in the order in which they were found."""

    def __init__(self) -> None:
        self.all: list[HostFunction] = []

    def add(self, call: Callable[..., object]) -> HostFunction:
        function = HostFunction(len(self.all), call)
        self.all.append(function)
        return function


def copied(value: object, path: str, *, functions: Functions | None = None) -> object:
    """A deep copy of plain data. Callables become `HostFunction`s if `functions` takes them.

    Raises `Refused`, naming the path of what is not plain data.
    """
    return _copied(value, path, functions, set())


def _copied(value: object, path: str, functions: Functions | None, above: set[int]) -> object:
    if value is None or isinstance(value, bool):
        return value
    if type(value) is int or type(value) is bytes:
        return value
    if type(value) is str:
        return whole(value)
    if isinstance(value, float):
        if not math.isfinite(value):
            raise Refused(f"{path}: the number {value} cannot cross the border of the sandbox")
        return float(value)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, str):
        return whole(str(value))
    if isinstance(value, bytes | bytearray):
        return bytes(value)
    if isinstance(value, list | tuple | Mapping):
        return _container(cast("Sequence[object] | Mapping[object, object]", value), path, functions, above)
    if callable(value) and functions is not None and not isinstance(value, type):
        return functions.add(value)
    what = "a function" if callable(value) else f"an instance of {type(value).__name__}"
    raise Refused(f"{path}: {what} cannot cross the border of the sandbox")


def _container(
    value: Sequence[object] | Mapping[object, object], path: str, functions: Functions | None, above: set[int]
) -> object:
    if id(value) in above:
        raise Refused(f"{path}: a value that contains itself cannot cross the border of the sandbox")
    if len(above) >= MAX_DEPTH:
        raise Refused(f"{path}: a value nested more than {MAX_DEPTH} deep cannot cross the border of the sandbox")
    above.add(id(value))
    try:
        if not isinstance(value, Mapping):
            return [_copied(item, f"{path}[{index}]", functions, above) for index, item in enumerate(value)]
        made: dict[str, object] = {}
        for key, item in value.items():
            if not isinstance(key, str):
                raise Refused(f"{path}: keys must be strings, not {type(key).__name__}")
            made[whole(key)] = _copied(item, path_to(path, key), functions, above)
        return made
    finally:
        above.discard(id(value))


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


def decode(text: bytes) -> object:
    """What the code sent. Raises `ValueError` if it is not tagged JSON."""
    try:
        return _untagged(msgspec.json.decode(whole_json(text)))
    except (msgspec.MsgspecError, RecursionError) as error:
        raise ValueError(str(error)) from None


def _untagged(value: Any) -> object:
    if isinstance(value, list):
        items = cast("list[Any]", value)
        return [_untagged(item) for item in items]
    if not isinstance(value, dict):
        return cast("object", value)
    fields = cast("dict[str, Any]", value)
    if len(fields) == 1:
        match fields:
            case {"$b": str(data)}:
                return b64decode(data, validate=True)
            case {"$i": str(digits)}:
                return _integer(digits)
            case {"$o": dict()}:
                fields = cast("dict[str, Any]", fields["$o"])
            case _:
                pass
    return {key: _untagged(item) for key, item in fields.items()}


def _integer(digits: str) -> int:
    # Python refuses longer ones itself, with a message about its own settings.
    if len(digits) > 4000:
        raise ValueError("an integer of more than 4,000 digits")
    return int(digits)
