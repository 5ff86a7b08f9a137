"""The result of copying a store."""

from __future__ import annotations

from msgspec import Struct


class Unreadable(Struct, frozen=True):
    """Something in a store that cannot be read. `key` is that of its run, if it belongs to one."""

    what: str
    run: int = 0
    salt: str = ""


class Copied(Struct, frozen=True):
    """A copy of a store: its size, and what was found in it that cannot be read."""

    bytes: int
    unreadable: int = 0
    examples: tuple[Unreadable, ...] = ()
    """The first few of these."""
