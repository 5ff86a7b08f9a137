"""Canonical JSON: exactly one byte string per value, so that digests, signatures and keys agree everywhere.

The rule:

* UTF-8, no whitespace outside strings; `"`, `\\` and control characters are escaped (`\\b \\t \\n \\f \\r`, otherwise
  `\\u00xx`), everything else is written literally.
* Object keys are sorted by code point. When a key is repeated, the last value wins.
* Integers stay integers at any size up to 4,300 digits. `-0` is `0`.
* Other numbers are IEEE doubles in the shortest form that reads back equal, and always look like one: `1.0`, `1e16`,
  `1e-6`. `1` and `1.0` are two values, and so are `0.0` and `-0.0`.
* Refused, as `NotCanonical`: NaN, infinities and numbers too large for a double, lone surrogates, keys that are not
  strings, nesting over 100 levels, values that JSON does not have, and text that is not JSON.
"""

from __future__ import annotations

import hashlib
from math import isfinite
from typing import cast

import msgspec

MAX_DEPTH = 100

_decode = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder(order="sorted").encode


class NotCanonical(ValueError):
    """The text or value has no canonical JSON form; the message says why."""


def parse(text: str | bytes) -> object:
    """Returns the value of a JSON text that obeys this module's rule.

    Raises:
        NotCanonical: if the text is not JSON, or is JSON that the rule refuses.
    """
    try:
        value: object = _decode(text)
    except RecursionError:
        raise NotCanonical(f"nested deeper than {MAX_DEPTH} levels") from None
    except UnicodeError:
        raise NotCanonical("not valid Unicode text") from None
    except msgspec.DecodeError as error:
        raise NotCanonical(_reason(str(error))) from None
    # The depth cannot exceed the number of opening brackets, and counting those is far cheaper than walking the value.
    brackets = text.count("{") + text.count("[") if isinstance(text, str) else text.count(b"{") + text.count(b"[")
    if brackets > MAX_DEPTH:
        _check(value, MAX_DEPTH)
    return value


def canonical(text: str | bytes) -> bytes:
    """Returns the canonical form of a JSON text: `canonical('{"b": 1, "a": 2.50}') == b'{"a":2.5,"b":1}'`.

    Raises:
        NotCanonical: if the text is not JSON, or is JSON that the rule refuses.
    """
    return parse_canonical(text)[1]


def parse_canonical(text: str | bytes) -> tuple[object, bytes]:
    """Returns the value of a JSON text, and its canonical form. Raises `NotCanonical` like `parse`."""
    value = parse(text)
    return value, _encode(value)  # what was parsed needs no checks


def canonical_value(obj: object) -> bytes:
    """Returns the canonical form of a value made of dict, list, tuple, str, int, float, bool and None.

    Subclasses and other types are refused, never converted.

    Raises:
        NotCanonical: if the rule refuses any part of the value.
    """
    _check(obj, MAX_DEPTH)
    try:
        return _encode(obj)
    except UnicodeEncodeError:
        raise NotCanonical("a string has a lone surrogate") from None
    except ValueError:
        raise NotCanonical("an integer is too long") from None


def digest(data: bytes) -> str:
    """Returns `c1:` and 32 hex digits: the BLAKE2b-128 of canonical bytes.

    The prefix identifies the rule and the hash.
    """
    return "c1:" + hashlib.blake2b(data, digest_size=16).hexdigest()


_PLAIN = frozenset({str, int, bool, type(None)})


def _check(value: object, levels: int) -> None:
    kind = type(value)
    if kind in _PLAIN:
        return
    if kind is float:
        if not isfinite(cast(float, value)):
            raise NotCanonical("NaN and infinities have no JSON form")
    elif kind is dict:
        if not levels:
            raise NotCanonical(f"nested deeper than {MAX_DEPTH} levels")
        for key, item in cast("dict[object, object]", value).items():
            if type(key) is not str:
                raise NotCanonical(f"an object key is {type(key).__name__}, not a string")
            if type(item) not in _PLAIN:
                _check(item, levels - 1)
    elif kind is list or kind is tuple:
        if not levels:
            raise NotCanonical(f"nested deeper than {MAX_DEPTH} levels")
        for item in cast("list[object]", value):
            if type(item) not in _PLAIN:
                _check(item, levels - 1)
    else:
        raise NotCanonical(f"{kind.__name__} has no JSON form")


def _reason(message: str) -> str:
    if message == "Input data was truncated":
        return "the JSON text ends too early"
    return message[:1].lower() + message[1:] if message[:4] != "JSON" else message
