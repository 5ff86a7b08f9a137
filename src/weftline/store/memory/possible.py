"""Which writes no database could hold: they fail in memory too, whichever field it is."""

from __future__ import annotations

from collections.abc import Iterable
from typing import cast

from msgspec import Struct
from msgspec.json import decode

from weftline.store.rows import Write

_MIN, _MAX = -(2**63), 2**63 - 1
_NOT_STORED = frozenset({"facts", "size"})
"""The fields of a write that are not for the store."""


def check_possible(write: Write) -> None:
    """Raises `ValueError` for invalid text and for integers over 64 bits, also in what it creates or adds."""
    _check_values(write)
    for one in (write, *write.children):
        if any(item.count < 1 or (item.head and item.count != 1) for item in one.items):
            raise ValueError("an item is one fact, or one or more observations")
        _check_values(one.base_seq + sum([item.count for item in one.items]))
        if one.new is not None:
            decode(one.new.metadata, type=dict[str, str])


def _check_values(value: object) -> None:
    if isinstance(value, int):
        if not _MIN <= value <= _MAX:
            raise ValueError(f"{value} has more than 64 bits")
    elif isinstance(value, str):
        value.encode()
    elif isinstance(value, Struct):
        for name in value.__struct_fields__:
            if name not in _NOT_STORED:
                _check_values(getattr(value, name))
    elif isinstance(value, tuple | list):
        for one in cast("Iterable[object]", value):
            _check_values(one)
