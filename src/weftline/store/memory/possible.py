"""Which writes no database could hold: they fail in memory too, whichever field it is."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache
from operator import attrgetter
from typing import cast

from msgspec import Struct
from msgspec.json import decode

from weftline.store.rows import Write

_MIN, _MAX = -(2**63), 2**63 - 1
_NOT_STORED = frozenset({"facts", "size"})
"""The fields of a write that are not for the store."""


def check_possible(write: Write) -> None:
    """Raises `ValueError` for invalid text and for integers over 64 bits, also in what it creates or adds."""
    _check_values((write,))
    for one in (write, *write.children):
        if any(item.count < 1 or (item.head and item.count != 1) for item in one.items):
            raise ValueError("an item is one fact, or one or more observations")
        _check_values((one.base_seq + sum([item.count for item in one.items]),))
        if one.new is not None:
            decode(one.new.metadata, type=dict[str, str])


def _check_values(values: Iterable[object]) -> None:
    for value in values:
        if value is None or isinstance(value, bytes):
            continue
        if isinstance(value, int):
            if not _MIN <= value <= _MAX:
                raise ValueError(f"{value} has more than 64 bits")
        elif isinstance(value, str):
            value.encode()
        elif isinstance(value, Struct):
            _check_values(_stored_fields(type(value))(value))
        else:
            _check_values(cast("Iterable[object]", value))


@cache
def _stored_fields(kind: type[Struct]) -> Callable[[Struct], Iterable[object]]:
    return attrgetter(*[name for name in kind.__struct_fields__ if name not in _NOT_STORED])
