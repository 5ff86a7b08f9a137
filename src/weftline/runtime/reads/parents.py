"""The run whose call a child run executes, for lists of runs."""

from __future__ import annotations

from msgspec import DecodeError

from weftline.kernel.damage import UNREADABLE
from weftline.kernel.entries import KIND, RunCreated, decode_fact
from weftline.kernel.state import FOLD, decode_state
from weftline.store.base import LogReader, RunRow


async def parent_of(logs: LogReader, row: RunRow) -> str | None:
    """The parent's id; None for a top-level run, and if it can no longer be read.

    It comes from the row's state, or from the first entry's head if the row has no state of the current fold.
    """
    if row.state and row.fold == FOLD:
        if b"parent" not in row.state:
            return None  # nearly always, and cheaper than decoding: a default value is not stored
        try:
            parent = decode_state(row.state).parent
        except DecodeError:
            pass
        else:
            return None if parent is None else parent.run
    try:
        for head in await logs.heads(row.key, kinds=(KIND[RunCreated],)):
            created = decode_fact.decode(head)
            if isinstance(created, RunCreated) and created.parent is not None:
                return created.parent.run
    except UNREADABLE:
        pass
    return None
