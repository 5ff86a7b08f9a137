"""What `weftline backup` and `weftline restore` report about a copy."""

from __future__ import annotations

from weftline.runtime import ids
from weftline.store.rows import Copied, Unreadable


def unreadable_in(copied: Copied) -> str:
    """Returns how much of a copy is unreadable, and which parts; empty if everything can be read."""
    if not copied.unreadable:
        return ""
    named = "; ".join([_place(one) for one in copied.examples])
    more = copied.unreadable - len(copied.examples)
    return f"{copied.unreadable} ({named}{f'; {more} more' if more else ''})"


def _place(one: Unreadable) -> str:
    return f"{one.what} of {ids.run_id(one.run, one.salt)}" if one.run else one.what
