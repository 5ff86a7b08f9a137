"""The results of copying a store."""

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


class Salvaged(Struct):
    """A copy of what could be read of a damaged store. Runs are given as key and salt."""

    damaged: list[str]
    """The tables that have lost rows."""
    bytes: int = 0
    whole: int = 0
    """How many runs are there with their whole log."""
    shortened: list[tuple[int, str]] = []
    """Those that had ended and have lost part of their log: what is left is how they ended."""
    failing: list[tuple[int, str]] = []
    """Those that had not ended and have lost part of their log: they will end as `worker_error`."""
    lost: int = 0
    """How many runs are lost of which something can still be seen. Others may have left no trace."""
    unreadable: int = 0
    """How many other values cannot be read: specs, messages of sessions, attachments."""
