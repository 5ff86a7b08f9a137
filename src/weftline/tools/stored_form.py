"""The form in which the log has arguments that were validated, and whether a validated model still has that form."""

from __future__ import annotations

from collections.abc import Sequence, Set
from typing import TYPE_CHECKING, cast

from msgspec.json import Encoder, decode

from weftline.canonical import canonical_value

if TYPE_CHECKING:
    from pydantic import BaseModel

_encode = Encoder(order="sorted").encode
"""As `canonical_value` does, without its checks: bytes that are equal to canonical ones need none."""


def stored_form(model: BaseModel, *, written: bytes = b"", by_alias: bool = True) -> bytes:
    """Returns the canonical bytes of a model: those that it was made of, if only the order of its sets differs.

    Raises `NotCanonical`, or what pydantic raises, if there are none.
    """
    dumped = _dumped(model, by_alias=by_alias)
    final = canonical_value(dumped)
    same = len(final) == len(written) and final != written and _same(decode(written), dumped, model)
    return written if same else final


def gives_back(model: BaseModel, stored: bytes, *, by_alias: bool = True) -> bool:
    """Returns whether this is the stored form of the model, apart from the order of its sets."""
    try:
        dumped = _dumped(model, by_alias=by_alias)
        return _encode(dumped) == stored or _same(decode(stored), dumped, model)
    except (TypeError, ValueError, RecursionError):  # it has no such form
        return False


def _dumped(model: BaseModel, *, by_alias: bool) -> object:
    return model.__pydantic_serializer__.to_python(model, mode="json", by_alias=by_alias, warnings=False)


def _same(stored: object, dumped: object, value: object) -> bool:
    """Whether two JSON values are the same, where the second is that of `value`. Each process has its own order of the
    items of a set.
    """
    if isinstance(value, Set):
        return _without_order(stored) == _without_order(dumped)
    if isinstance(stored, dict) and isinstance(dumped, dict):
        one, other = cast("dict[str, object]", stored), cast("dict[str, object]", dumped)
        parts = dict(zip(other, _parts(value, len(other)), strict=True))
        return one.keys() == other.keys() and all(_same(one[name], other[name], parts[name]) for name in one)
    if isinstance(stored, list) and isinstance(dumped, list):
        items, others = cast("list[object]", stored), cast("list[object]", dumped)
        return len(items) == len(others) and all(map(_same, items, others, _parts(value, len(others))))
    return _encode(stored) == _encode(dumped)


def _parts(value: object, count: int) -> Sequence[object]:
    """The objects that are dumped as the `count` items of `value`, in that order; None for each if that is unknown."""
    found: Sequence[object] = ()
    if isinstance(value, list | tuple):
        found = cast("Sequence[object]", value)
    elif isinstance(value, dict):
        found = list(cast("dict[object, object]", value).values())
    elif hasattr(value, "__dict__"):
        found = list(vars(value).values())
    return found if len(found) == count else (None,) * count


def _without_order(value: object) -> object:
    """The value with every list sorted. Sets have no lists in them but other sets and tuples."""
    if isinstance(value, list):
        return sorted([_encode(_without_order(one)) for one in cast("list[object]", value)])
    if isinstance(value, dict):
        return {name: _without_order(one) for name, one in cast("dict[str, object]", value).items()}
    return value
