"""The run whose call a child run executes, for lists of runs."""

from __future__ import annotations

from msgspec import DecodeError

from weftline.kernel.damage import UNREADABLE
from weftline.kernel.entries import KIND, Parent, RunCreated, decode_fact
from weftline.kernel.state import FOLD, decode_state
from weftline.store.base import LogReader
from weftline.store.rows import RunRow


async def parent_of(logs: LogReader, row: RunRow) -> str | None:
    """The parent's id; None for a top-level run, and if it can no longer be read."""
    link = await parent_link(logs, row)
    return None if link is None else link.run


async def parent_link(logs: LogReader, row: RunRow) -> Parent | None:
    """The parent, and the call of it that a run executes; None as in `parent_of`.

    It comes from the row's state, or from the first entry's head if the row has no state of the current fold.
    """
    if row.state and row.fold == FOLD:
        if b"parent" not in row.state:
            return None  # nearly always, and cheaper than decoding: a default value is not stored
        try:
            return decode_state(row.state).parent
        except DecodeError:
            pass
    links = [parent_in(head) for head in await logs.heads(row.key, kinds=(KIND[RunCreated],))]
    return links[0] if links else None


def parent_in(created: bytes) -> Parent | None:
    """The parent that the head of a run's first entry names; None as in `parent_of`."""
    try:
        fact = decode_fact.decode(created)
    except UNREADABLE:
        return None
    return fact.parent if isinstance(fact, RunCreated) else None
