"""What a copy of a store is found to hold."""

from __future__ import annotations

from msgspec import Struct


class Unreadable(Struct, frozen=True):
    """Something in a store that cannot be read; of a run if it has a key."""

    what: str
    run: int = 0
    salt: str = ""


class Copied(Struct, frozen=True):
    """A copy of a store: its size, and what was found in it that cannot be read."""

    bytes: int
    unreadable: int = 0
    examples: tuple[Unreadable, ...] = ()
    """The first few of these."""
